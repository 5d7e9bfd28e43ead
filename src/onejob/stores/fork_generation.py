"""How many forks lie behind this process: what was opened before the last one is the parent's."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """Count the forks that led here; cheaper than asking the system who we are."""
    return _generation


def _forked() -> None:
    global _generation  # noqa: PLW0603 - the counter is the point
    _generation += 1


os.register_at_fork(after_in_child=_forked)
