"""Count forks: what was opened before the last fork belongs to the parent process."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """Return how many forks led to this process; cheaper than asking the system for the process id."""
    return _generation


def _forked() -> None:
    global _generation  # noqa: PLW0603 - the counter is the point
    _generation += 1


os.register_at_fork(after_in_child=_forked)
