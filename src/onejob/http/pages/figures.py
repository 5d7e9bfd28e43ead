"""The text of `/metrics`: read for each request while that is quick, and otherwise beside the requests."""

from __future__ import annotations

import asyncio
from time import monotonic

from onejob import App, render_metrics
from onejob.http.pages.samples import PATIENCE, QUICK

OLDEST = 60.0  # seconds; figures that are older are read again before they are shown


class Figures:
    """The text of `/metrics`, which says when it was read.

    It is read for every request while that is quick. Otherwise a request gets the last text, and it is read
    again beside the requests, which takes at most one part in `PATIENCE` of the time.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._text = ""
        self._read_at, self._took = float("-inf"), 0.0
        self._reading: asyncio.Task[None] | None = None

    async def text(self) -> str:
        """Return the figures."""
        age, pause = monotonic() - self._read_at, PATIENCE * self._took
        if self._took <= QUICK or age > OLDEST + pause:
            await asyncio.shield(self._read_again())
        elif age > pause:
            self._read_again().add_done_callback(
                asyncio.Task.exception
            )  # the next request meets an error itself
        return self._text

    def _read_again(self) -> asyncio.Task[None]:
        """Return the reading that is under way, or begin one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        began = monotonic()
        self._text = await render_metrics(self._app)
        self._read_at, self._took = monotonic(), monotonic() - began
