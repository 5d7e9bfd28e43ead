"""Notice commits, of this process and of others, for the tasks that wait for one.

SQLite tells no process of another one's commits, so something must poll. Waiting tasks do not: one timer per
event loop reads the number that changes with every commit, and wakes all tasks when it has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable

from onejob.errors import StoreError
from onejob.stores.wakeup import Wakeup

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.005  # seconds between two polls
GROWTH = 1.02


class Watch:
    """Turns a number that changes with every commit into wake-ups."""

    def __init__(self, version: Callable[[], object]) -> None:
        self._version = version
        self._seen: object = None
        self._wakeup = Wakeup()
        self._lock = threading.Lock()
        self._pollers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Poller] = (
            weakref.WeakKeyDictionary()
        )

    def position(self) -> int:
        """Return a number that has risen if anything was committed since the last call."""
        version = self._version()
        if version != self._seen:
            self._seen = version
            self._wakeup.notify()
        return self._wakeup.count

    def notify(self) -> None:
        """Wake waiting tasks after a commit of this process; without any, the next `position` notices it."""
        if self._pollers:
            self.position()

    async def wait(self, timeout: float, since: int) -> None:
        """Return when a position is higher than `since`, or after `timeout` seconds."""
        if self.position() != since:
            return
        loop = asyncio.get_running_loop()
        with self._lock:
            poller = self._pollers.setdefault(loop, Poller(self.position))
            poller.enter(loop)
        try:
            await self._wakeup.wait(timeout, since)
        finally:
            with self._lock:
                if poller.leave():
                    del self._pollers[loop]


class Poller:
    """Calls a function again and again while tasks of an event loop wait."""

    def __init__(self, poll: Callable[[], object]) -> None:
        self._poll = poll
        self._tasks = 0
        self._pause = SHORTEST_PAUSE
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count one more task; the first one starts the timer."""
        self._tasks += 1
        self._pause = SHORTEST_PAUSE
        if self._timer is None:
            self._again(loop)

    def leave(self) -> bool:
        """Count one task less; stop the timer, and return True, if it was the last."""
        self._tasks -= 1
        if self._tasks or self._timer is None:
            return False
        self._timer.cancel()
        return True

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._pause, self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(StoreError):  # the tasks that wait meet it when they read
            self._poll()
        self._pause = min(self._pause * GROWTH, LONGEST_PAUSE)
        self._again(loop)
