"""Completing a job in one transaction with its handler's own writes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from onejob.core.job import Job, State
from onejob.core.runs import Settled
from onejob.core.step import Step
from onejob.engine.engine import Engine
from onejob.errors import LeaseLost, NoTransactions, Superseded
from onejob.stores.contract import Transactions
from onejob.worker.signals import Cancel


class Completing(Protocol):
    """An attempt, as far as its transaction needs it."""

    engine: Engine
    job: Job
    continuation: Job | None

    def opened(self) -> AbstractContextManager[None]:
        """Allow one transaction at a time; a rollback restores the state."""

    def completion_step(self) -> Step[Settled | None]:
        """Return the step that completes the job."""

    def await_commit(self) -> None:
        """Note that from here on the job is completed if the transaction is committed."""

    def commit(self, settled: Job) -> None:
        """Note that the transaction was committed."""


class Open(NamedTuple):
    """Open a transaction of the store, and answer its connection."""


class Apply(NamedTuple):
    """Apply steps inside a transaction, and answer their answers."""

    connection: Any
    steps: list[Step[Any]]


class RefuseCycle(NamedTuple):
    """Raise BlockerCycle if a continuation would wait for its own chain."""

    continuation: Job


class RunBody(NamedTuple):
    """Run the body of the block with a connection."""

    connection: Any


class Close(NamedTuple):
    """Commit the transaction that was opened, or roll it back because of an error."""

    error: BaseException | None


Operation = Open | Apply | RefuseCycle | RunBody | Close
Flow = Generator[Operation, Any, None]


class Transaction:
    """A block whose writes, and the completion of the job, are committed or rolled back together.

    `_flow` says what happens, once; the two drivers below it do that, blocking or awaiting.
    """

    def __init__(self, attempt: Completing, connection: Any) -> None:
        store = attempt.engine.store
        if connection is None and not isinstance(store, Transactions):
            name = store.guarantees.store
            raise NoTransactions(
                f"The {name} store has no transactions: use SQLite or PostgreSQL for this task."
            )
        self._attempt = attempt
        self._store = attempt.engine.transactions()
        self._given = connection
        self._running: Flow
        self._opened: AbstractAsyncContextManager[Any]
        self._opened_sync: AbstractContextManager[Any]

    def _flow(self) -> Flow:
        with self._attempt.opened():
            if self._given is not None:
                yield Apply(self._given, [])  # a foreign connection is refused before anything is written
                yield RunBody(self._given)
                yield from self._complete(self._given)
                return  # the caller commits
            connection = yield Open()
            try:
                yield RunBody(connection)
                settled = yield from self._complete(connection)
            except BaseException as error:
                yield Close(error)
                raise
            yield Close(None)
            self._attempt.commit(settled)

    def _complete(self, connection: Any) -> Generator[Operation, Any, Job]:
        """Complete the job; raise, so that nothing is committed, unless it is completed then."""
        continuation = self._attempt.continuation
        if continuation is not None and continuation.blockers is not None:
            yield RefuseCycle(continuation)
        [answer] = yield Apply(connection, [self._attempt.completion_step()])
        settled = completed_job(answer)
        self._attempt.await_commit()
        return settled

    # ── awaiting ──────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Any:
        """Return a connection inside a transaction."""
        self._running = self._flow()
        return await self._advance(None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the job and commit, or roll back."""
        try:
            await self._advance(error)
        except BaseException as raised:
            if not is_same_error(raised, error):
                raise

    async def _advance(self, error: BaseException | None) -> Any:
        """Run operations until the body must run, and return its connection; or to the end."""
        answer: Any = None
        while True:
            operation = advance(self._running, answer, error)
            if operation is None or isinstance(operation, RunBody):
                return operation and operation.connection
            answer = error = None
            try:
                answer = await self._do(operation)
            except BaseException as raised:  # noqa: BLE001 - the flow raises it again
                error = raised

    async def _do(self, operation: Open | Apply | RefuseCycle | Close) -> Any:
        match operation:
            case Open():
                self._opened = self._store.transaction()
                return await self._opened.__aenter__()
            case Apply():
                return await self._store.apply_within(operation.connection, operation.steps)
            case RefuseCycle():
                return await self._attempt.engine.refuse_cycle(self._attempt.job, operation.continuation)
            case Close():
                return await self._opened.__aexit__(*details(operation.error))

    # ── blocking ──────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Any:
        """Return a connection inside a transaction, for a plain function."""
        self._running = self._flow()
        return self._advance_sync(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the job and commit, or roll back."""
        try:
            self._advance_sync(error)
        except BaseException as raised:
            if not is_same_error(raised, error):
                raise

    def _advance_sync(self, error: BaseException | None) -> Any:
        """Blocking variant of `_advance`."""
        answer: Any = None
        while True:
            operation = advance(self._running, answer, error)
            if operation is None or isinstance(operation, RunBody):
                return operation and operation.connection
            answer = error = None
            try:
                answer = self._do_sync(operation)
            except BaseException as raised:  # noqa: BLE001 - the flow raises it again
                error = raised

    def _do_sync(self, operation: Open | Apply | RefuseCycle | Close) -> Any:
        """Blocking variant of `_do`."""
        match operation:
            case Open():
                self._opened_sync = self._store.transaction_sync()
                return self._opened_sync.__enter__()
            case Apply():
                return self._store.apply_within_sync(operation.connection, operation.steps)
            case RefuseCycle():
                engine = self._attempt.engine
                return engine.portal.run(engine.refuse_cycle(self._attempt.job, operation.continuation))
            case Close():
                return self._opened_sync.__exit__(*details(operation.error))


def advance(flow: Flow, answer: Any, error: BaseException | None) -> Operation | None:
    """Resume a flow with an answer or an error; return its next operation, or None at its end."""
    try:
        return flow.send(answer) if error is None else flow.throw(error)
    except StopIteration:
        return None


def is_same_error(raised: BaseException, error: BaseException | None) -> bool:
    """Return whether a flow raised the body's own error; a generator wraps a StopIteration."""
    return raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)


def details(error: BaseException | None) -> tuple[Any, Any, Any]:
    """Return an error as a context manager takes it."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def completed_job(answer: Settled | BaseException | None) -> Job:
    """Return the job that a step has completed; raise if it has not completed it."""
    if isinstance(answer, BaseException):
        raise answer
    if answer is None:
        raise LeaseLost
    job = answer.job
    if job.is_superseded:
        raise Superseded
    if job.state is not State.COMPLETED:
        raise Cancel(job.reason or "cancelled")
    return job
