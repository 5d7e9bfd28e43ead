"""Group commit: a thread that runs together whatever has gathered while it was busy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

Order = Any
"""What a store's lanes carry: whatever its `run` knows how to carry out."""

Entry = tuple[Order, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]

GROUP = 512  # requests that share one commit at most


class Closed(Exception):
    """The store has been closed meanwhile: open it again."""


class Lane:
    """A thread that takes whatever has gathered and runs it together: group commit."""

    def __init__(self, run: Callable[[Sequence[Order]], list[Any]], name: str) -> None:
        self._run = run
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._door = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def submit(self, order: Order) -> Any:
        """Await an order's answer; raises Closed if there will be none."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._door:
            if self._closed:
                raise Closed
            self._queue.put((order, loop, future))
        return await future

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            entries = [first, *self._gather()]
            live = [entry for entry in entries if entry is not None]
            answers = self._run([order for order, _, _ in live])
            for loop in {id(loop): loop for _, loop, _ in live}.values():
                mine = [
                    (future, answer)
                    for (_, at, future), answer in zip(live, answers, strict=True)
                    if at is loop
                ]
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    loop.call_soon_threadsafe(deliver, mine)
            if None in entries:
                return

    def _gather(self) -> list[Entry | None]:
        found: list[Entry | None] = []
        while len(found) < GROUP and not self._queue.empty():
            found.append(self._queue.get())
        return found

    def close(self) -> None:
        """Finish what was submitted, then stop."""
        with self._door:
            self._closed = True
            self._queue.put(None)
        self._thread.join()


def deliver(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Hand answers to those who await them; an exception is raised there."""
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
