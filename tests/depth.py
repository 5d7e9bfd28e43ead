"""How much the tests with random or very many cases try: ONEJOB_HYPOTHESIS is `quick`, `deep` or not set."""

from __future__ import annotations

import os

DEPTH = os.environ.get("ONEJOB_HYPOTHESIS", "")
QUICK = DEPTH == "quick"
DEEP = DEPTH == "deep"


def examples(usual: int, *, deep: int | None = None) -> int:
    """Return a number of examples: the usual one, a fifth of it if quick, or `deep` if that is asked for."""
    if QUICK:
        return max(usual // 5, 1)
    return deep if DEEP and deep is not None else usual
