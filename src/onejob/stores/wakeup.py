"""Wake tasks that wait in this process, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Wakeup:
    """A counter of changes that tasks can wait for; raising it costs almost nothing while none waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []
        self.count = 0

    def notify(self) -> None:
        """Wake every task that waits, now or later, since an earlier count."""
        with self._lock:
            self.count += 1
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
        here = asyncio._get_running_loop()  # noqa: SLF001 - None where there is none, and the other one raises
        for loop, future in waiting:
            if loop is here:
                _wake(future)
                continue
            with contextlib.suppress(RuntimeError):  # its loop has closed
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, timeout: float, since: int) -> bool:
        """Return True once the count is no longer `since`, False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout, _give_up, future)
        entry = (loop, future)
        with self._lock:
            if self.count != since:
                future.set_result(True)
            self._waiting.append(entry)
        try:
            return await future
        finally:
            timer.cancel()
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(entry)


def _wake(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
