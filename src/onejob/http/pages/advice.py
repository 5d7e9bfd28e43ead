"""Advice of the Dedup page: computed when it is asked for, and shown for a minute."""

from __future__ import annotations

import asyncio
from time import monotonic

from onejob import Advice, App

FRESH = 60.0  # seconds for which advice is shown


class Advisor:
    """Computes advice at most once a minute: a replay of all tasks may take seconds."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._found: list[Advice] = []
        self._good_until = 0.0

    async def advice(self) -> list[Advice]:
        """Return the advice of the last hour."""
        async with self._lock:
            if monotonic() >= self._good_until:
                self._found = await self._app.activity.advice()
                self._good_until = monotonic() + FRESH
            return self._found
