"""Threads for handlers that are plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

NAME = "onejob handler"  # the prefix of the threads' names

numbers = itertools.count(1)

Outcome = tuple[Any, BaseException | None]
Work = tuple[contextvars.Context, Callable[[], Any], "asyncio.Future[Outcome]"]


class HandlerThreads:
    """Idle threads, and new ones as needed; an abandoned function takes none from the others.

    They take functions from one queue: a thread that has finished one goes on with the next, without waiting
    for the event loop. They are daemon threads: a process that ends does not wait for a function whose job
    was handed back.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = 0
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._idle: list[None] = []  # an item for each thread for which the queue has no function
        self._ended: deque[tuple[asyncio.Future[Outcome], Outcome]] = deque()
        self._will_deliver = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a plain function in a thread, in a copy of this task's context.

        If this is cancelled, the function is left to itself.
        """
        ended: asyncio.Future[Outcome] = self._loop.create_future()
        self._work.put((contextvars.copy_context(), function, ended))
        if self._idle:
            self._idle.pop()
        else:
            self._start()
        value, error = await ended
        if error is not None:
            raise error
        return value

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"{NAME} {next(numbers)}", daemon=True).start()

    def close(self) -> None:
        """End idle threads, and each of the others when its function has returned; do not wait for them."""
        for _ in range(self._threads):
            self._work.put(None)

    def _deliver(self) -> None:
        """Give their outcomes to those who wait for functions that have ended."""
        self._will_deliver = False  # first: what ends from now on may have to be delivered again
        while self._ended:
            ended, outcome = self._ended.popleft()
            if not ended.done():
                ended.set_result(outcome)

    # ── in the threads ──

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            context, function, ended = work
            self._ended.append((ended, context.run(catch, function)))
            self._idle.append(None)
            del work, context, function, ended  # so that an idle thread keeps no arguments
            if not self._will_deliver:
                self._will_deliver = True
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(self._deliver)


def catch(function: Callable[[], Any]) -> Outcome:
    """Call a function and return its value or its error."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the run is awaited
        return None, error
