"""Group commit: a thread that runs together all requests that have gathered while it was busy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from onejob.errors import StoreTimeout

Run = Callable[[Sequence[Any]], list[Any]]
Entry = tuple[Any, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]

GROUP = 512  # the most requests that share one commit


class Closed(Exception):
    """The store was closed before the request was run: open it again."""


class GroupCommit:
    """Takes requests of async callers to a thread, which starts with the first of them.

    The thread has no reference to the owner of `run` while it waits, so an owner that is dropped without a
    call of `close` is collected, and ends the thread.
    """

    def __init__(self, run: Run, name: str, timeout: float) -> None:
        """Prepare the thread.

        Args:
            run: A method that runs requests together and returns one answer each; an answer that is an
                exception is raised at the request's caller.
            name: The thread's name.
            timeout: How many seconds a caller waits for its answer.
        """
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._timeout = timeout
        arguments = (self._queue, weakref.WeakMethod(run))
        self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        self._started = False
        self._gathering: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
        weakref.finalize(self, self._queue.put, None).atexit = False

    async def submit(self, request: Any, *, gather: bool = False) -> Any:
        """Return the answer of a request.

        Args:
            request: What is given to `run`.
            gather: Hand it over with all others of this turn of the event loop, so that they share a commit
                although the thread is idle.

        Raises:
            Closed: The thread has ended; the request was not run.
            StoreTimeout: There is no answer yet.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        entry = (request, loop, future)
        if not gather:
            self._hand_over([entry])
        elif (gathered := self._gathering.get(loop)) is not None:
            gathered.append(entry)
        else:
            self._gathering[loop] = [entry]
            loop.call_soon(self._hand_over_gathered, loop)
        timer = loop.call_later(self._timeout, _give_up, future, self._timeout)
        try:
            return await future
        finally:
            timer.cancel()

    def _hand_over(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            if self._closed:
                raise Closed
            if not self._started:
                self._started = True
                self._thread.start()
            for entry in entries:
                self._queue.put(entry)

    def _hand_over_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        entries = self._gathering.pop(loop)
        try:
            self._hand_over(entries)
        except Closed as closed:
            _deliver([(future, closed) for _, _, future in entries])

    def close(self) -> None:
        """Run the requests that were submitted, then end the thread."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if self._started:
            self._thread.join()


def _work(queue: SimpleQueue[Entry | None], run: weakref.WeakMethod[Run]) -> None:
    while (first := queue.get()) is not None:
        gathered = [first, *_gather(queue)]
        entries = [entry for entry in gathered if entry is not None]
        _answer(entries, run)
        if None in gathered:
            return
        del first, gathered, entries  # they know the owner


def _gather(queue: SimpleQueue[Entry | None]) -> list[Entry | None]:
    found: list[Entry | None] = []
    while len(found) < GROUP and not queue.empty():
        found.append(queue.get())
    return found


def _answer(entries: Sequence[Entry], run: weakref.WeakMethod[Run]) -> None:
    act = run()
    requests = [request for request, _, _ in entries]
    answers = [Closed() for _ in requests] if act is None else act(requests)
    for loop in {id(loop): loop for _, loop, _ in entries}.values():
        mine = [
            (future, answer) for (_, at, future), answer in zip(entries, answers, strict=True) if at is loop
        ]
        with contextlib.suppress(RuntimeError):  # the loop has closed, so no task awaits the answers
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _give_up(future: asyncio.Future[Any], seconds: float) -> None:
    if not future.done():
        future.set_exception(StoreTimeout(seconds, may_exist=True))
