"""Threads for handlers that are plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

NAME = "onejob handler"  # the prefix of the threads' names

Outcome = tuple[Any, BaseException | None]
Work = tuple[Callable[[], Outcome], Callable[[Outcome], None]]


class HandlerThreads:
    """Idle threads, and new ones as needed; an abandoned function takes none from the others.

    They are daemon threads: a process that ends does not wait for a function whose job was handed back.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Work | None]] = []
        self._is_closed = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a plain function in a thread, in a copy of this task's context.

        If this is cancelled, the function is left to itself.
        """
        thread = self._idle.pop() if self._idle else start()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outcome: Outcome = (None, None)

        def end(reached: Outcome) -> None:
            nonlocal outcome
            outcome = reached
            ended.set()

        def report(reached: Outcome) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(end, reached)

        context = contextvars.copy_context()
        thread.put((lambda: context.run(catch, function), report))
        try:
            await ended.wait()
        except BaseException:
            thread.put(None)  # it ends when the function has returned
            raise
        self._keep(thread)
        value, error = outcome
        if error is not None:
            raise error
        return value

    def _keep(self, thread: SimpleQueue[Work | None]) -> None:
        if self._is_closed:
            thread.put(None)
        else:
            self._idle.append(thread)

    def close(self) -> None:
        """End idle threads; do not wait for the others."""
        self._is_closed = True
        for thread in self._idle:
            thread.put(None)
        self._idle.clear()


numbers = itertools.count(1)


def start() -> SimpleQueue[Work | None]:
    """Start a thread and return the queue from which it takes work; None ends it."""
    queue: SimpleQueue[Work | None] = SimpleQueue()
    threading.Thread(target=serve, args=[queue], name=f"{NAME} {next(numbers)}", daemon=True).start()
    return queue


def serve(queue: SimpleQueue[Work | None]) -> None:
    """Do work until there is no more."""
    while (work := queue.get()) is not None:
        call, report = work
        report(call())
        del work, call, report  # so that an idle thread keeps no arguments


def catch(function: Callable[[], Any]) -> Outcome:
    """Call a function and return its value or its error."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the run is awaited
        return None, error
