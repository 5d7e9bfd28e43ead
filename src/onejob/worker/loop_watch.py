"""Notice handlers that block the event loop: a thread looks whether it still runs, and names the handler."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping

from onejob.engine.log_lines import about
from onejob.worker.run import Run

log = logging.getLogger("onejob")

BLOCKED_AFTER = 1.0  # seconds
LOOK_EVERY = 0.25  # seconds between two looks of the thread, and two signs of life of the loop


class LoopWatch:
    """Logs a warning, once each time, when the loop of a worker does not run for more than a second."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._alive_at = time.monotonic()
        self._is_reported = False
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="onejob loop watch", daemon=True).start()

    async def beat(self) -> None:
        """Show that the loop runs, until cancelled; then end the thread."""
        try:
            while True:
                self._alive_at, self._is_reported = time.monotonic(), False
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self._ended.set()

    # ── in the thread ──

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY):
            silent = time.monotonic() - self._alive_at
            if silent > BLOCKED_AFTER and not self._is_reported:
                self._report(silent)

    def _report(self, seconds: float) -> None:
        """Name the handler that the loop is running; a loop that waits runs no task and is not blocked."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return
        self._is_reported = True
        run = next((run for run in list(self._runs.values()) if run.task is task), None)
        if run is None:
            log.warning("the event loop is blocked for %.1f s, by no job: all jobs wait", seconds)
            return
        log.warning(
            "job %s (%s) blocks the event loop for %.1f s, so all other jobs wait: await what it waits for, "
            "or write def instead of async def",
            *(run.job.id, run.job.task, seconds),
            extra=about(run.job),
        )
