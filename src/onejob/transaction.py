"""Completing a job in one transaction with its handler's own writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from onejob import lifecycle
from onejob.codec import opened
from onejob.continuing import completed
from onejob.errors import CompletionError, LeaseLost, NotCommitted, Superseded
from onejob.job import Changes, Job, State
from onejob.lifecycle import Completed, Result
from onejob.payload import encode
from onejob.signals import Cancel
from onejob.stores.contract import Step

if TYPE_CHECKING:
    from onejob.context import Context


def settlement(context: Context, result: Result, progress: bytes | None, act: Callable[..., Changes]) -> Step:
    """Make the step by which `act` writes how a run ended."""
    job, app = context.job, context.app
    merge, replay = app.merge, app.replay_of(job)
    write = partial(act, token=job.token, result=result, merge=merge, replay=replay, progress=progress)
    return Step(write, job.id)


def ended(context: Context, value: object) -> Completed:
    """Make what a run comes to that has returned, unless a transaction of its own has made it already."""
    if context.block == "in doubt":
        raise NotCommitted
    if context.completion is None or context.settled is None:
        return completed(context, value)
    told = opened(context.app.safe, context.completion.value or b"null", "The result")
    if value is not None and encode(value, "The result", context.app.max_args) != told:
        context.app.log.warning(
            "job %s (%s) returned a value that is dropped, for its transaction had completed it: "
            "tell it inside, by current().returns(value)",
            context.job.id,
            context.job.task,
        )
    return context.completion


class Transaction:
    """A block whose writes, and the completion of the job, stand or fall together."""

    def __init__(self, context: Context, connection: Any) -> None:
        self._context = context
        self._store = context.app.store
        self._given = connection
        self._awaited: AbstractAsyncContextManager[Any]
        self._blocking: AbstractContextManager[Any]

    async def __aenter__(self) -> Any:
        """Give a connection inside a transaction."""
        self._awaited = self._run()
        return await self._awaited.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Complete the job and commit, or roll back."""
        return await self._awaited.__aexit__(kind, error, trace)

    def __enter__(self) -> Any:
        """Give a connection inside a transaction, to a plain function."""
        self._blocking = self._run_now()
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Complete the job and commit, or roll back."""
        return self._blocking.__exit__(kind, error, trace)

    # ── awaited and blocking, line by line the same ───────────────────────────────────────────────

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[Any]:
        with self._opened():
            async with self._store.transaction() if self._given is None else self._joined() as connection:
                yield connection
                made = completed(self._context, self._context.result)
                [answer] = await self._store.apply_within(connection, [self._completion(made)])
                settled = self._checked(answer)
            self._committed(settled)

    @contextmanager
    def _run_now(self) -> Iterator[Any]:
        with self._opened():
            with self._store.transaction_now() if self._given is None else self._joined_now() as connection:
                yield connection
                made = completed(self._context, self._context.result)
                [answer] = self._store.apply_within_now(connection, [self._completion(made)])
                settled = self._checked(answer)
            self._committed(settled)

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[Any]:
        await self._store.apply_within(self._given, [])  # a stranger is refused before anything is written
        yield self._given

    @contextmanager
    def _joined_now(self) -> Iterator[Any]:
        self._store.apply_within_now(self._given, [])
        yield self._given

    # ── what they share ───────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Let a run have one block at a time, and none after its end."""
        context = self._context
        before = context.block, context.completion, context.continuation
        if context.block == "open":
            raise CompletionError("transaction() is open already: write on the connection that it gave.")
        if context.settled is not None:
            raise CompletionError("The job is completed already: do all in one transaction().")
        context.block, context.result = "open", None
        try:
            yield
        except BaseException:
            if context.block == "open":  # rolled back, so that it may be tried again
                context.block, context.completion, context.continuation = before
            raise

    def _completion(self, made: Completed) -> Step:
        self._context.completion = made
        return settlement(self._context, made, self._context.told, lifecycle.settle)

    def _checked(self, answer: Job | BaseException | None) -> Job:
        """Refuse to commit unless the job is completed; from here on only the commit is missing."""
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            raise LeaseLost
        if answer.is_superseded:
            raise Superseded
        if answer.state is not State.COMPLETED:
            raise Cancel(answer.reason or "cancelled")
        self._context.block = "in doubt"
        return answer

    def _committed(self, settled: Job) -> None:
        """Note that the run is over, if it was ours to commit."""
        if self._given is None:
            self._context.block, self._context.settled = None, settled
