"""Whether the store answers and the app is well, for `/ready`: asked at most once a second."""

from __future__ import annotations

import asyncio
from time import monotonic

from onejob import App, Finding

FRESH = 1.0  # seconds for which findings are repeated, so that callers without a token cost the store little
WITHIN = "2s"  # in which the store must answer


class Readiness:
    """What `app.maintenance.health()` finds, asked by one request at a time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._findings: list[Finding] = []
        self._good_until = 0.0

    async def findings(self) -> list[Finding]:
        """Return the findings, at most a second old."""
        async with self._lock:
            if monotonic() > self._good_until:
                self._findings = await self._app.maintenance.health(timeout=WITHIN)
                self._good_until = monotonic() + FRESH
            return self._findings
