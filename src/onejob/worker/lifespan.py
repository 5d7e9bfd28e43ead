"""The lifespan of a worker or a child process: what is opened before its first job and closed after its last.

It is entered and left in one task, as libraries with cancel scopes demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from onejob.engine.engine import Engine
from onejob.engine.events import WorkerEvent, WorkerKind
from onejob.engine.hooks import Hooks
from onejob.errors import InvalidPolicy
from onejob.tasks.registry import Lifespan
from onejob.worker.attempt import NO_STATE

log = logging.getLogger("onejob")


END_WITHIN = 8.0  # seconds after the grace time in which hooks and the lifespan end
AT_LEAST = 0.1  # seconds for each of them, if handlers have used up that time


def seconds_left(hands_back_at: float | None) -> float:
    """Return how long a worker's end may take; one that stops ends in bounded time after its grace time."""
    if hands_back_at is None:
        return END_WITHIN
    return min(max(hands_back_at + END_WITHIN - time.monotonic(), AT_LEAST), END_WITHIN)


@contextlib.asynccontextmanager
async def living(
    lifespan: Lifespan | None,
    hooks: Hooks,
    event: Callable[[WorkerKind], WorkerEvent],
    seconds: Callable[[], float],
) -> AsyncIterator[Mapping[str, Any]]:
    """Open an app's lifespan and yield its state, and call the hooks for a worker's start and end inside it.

    Args:
        lifespan: What the app opens.
        hooks: The hooks of the engine.
        event: Returns the event of the start or the end.
        seconds: Returns how long hooks, and closing, may take at the end.
    """
    async with open_lifespan(lifespan, seconds) as state:
        if hooks.registered:
            await hooks.fire([event("worker_started")])
        try:
            yield state
        finally:
            if hooks.registered:
                await hooks.finish(seconds())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds()):
                        await hooks.fire([event("worker_stopped")])


@contextlib.asynccontextmanager
async def open_lifespan(
    lifespan: Lifespan | None, seconds: Callable[[], float]
) -> AsyncIterator[Mapping[str, Any]]:
    """Open a lifespan and yield its state; close it at the end, in `seconds()` at most.

    An error while it opens is raised: no job can run without it. One while it closes is logged, because the
    jobs have ended.
    """
    if lifespan is None:
        yield NO_STATE
        return
    manager = lifespan()
    state = await manager.__aenter__()
    try:
        yield check_state(state)
    finally:
        try:
            async with asyncio.timeout(seconds()):
                await manager.__aexit__(None, None, None)
        except Exception:
            log.exception("the lifespan could not be closed")


def check_state(state: object) -> Mapping[str, Any]:
    """Return what a lifespan has yielded; raise InvalidPolicy unless it is a mapping or None."""
    if state is None:
        return NO_STATE
    if not isinstance(state, Mapping):
        raise InvalidPolicy(
            f'The lifespan yielded {type(state).__name__}: write yield {{"name": value}}, or yield alone.'
        )
    return state


class LifespanThread:
    """A lifespan for blocking code: it is open on the event loop of the engine's portal."""

    def __init__(self, engine: Engine, lifespan: Lifespan | None, seconds: float) -> None:
        """Open the lifespan; raise what it raises."""
        self.state: Mapping[str, Any] = NO_STATE
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        if lifespan is not None:
            state: Future[Mapping[str, Any]] = Future()
            engine.run_sync(self._start(lifespan, seconds, state))
            self.state = state.result()

    async def _start(self, lifespan: Lifespan, seconds: float, state: Future[Mapping[str, Any]]) -> None:
        self._ends = asyncio.Event()
        self._task = asyncio.create_task(self._live(lifespan, seconds, state))

    async def _live(self, lifespan: Lifespan, seconds: float, state: Future[Mapping[str, Any]]) -> None:
        try:
            async with open_lifespan(lifespan, lambda: seconds) as found:
                state.set_result(found)
                await self._ends.wait()
        except BaseException as error:
            if state.done():
                raise
            state.set_exception(error)

    def close(self) -> None:
        """Close the lifespan."""
        if self._task is not None:
            self._engine.run_sync(self._end(self._task))

    async def _end(self, task: asyncio.Task[None]) -> None:
        self._ends.set()
        await asyncio.wait([task])
