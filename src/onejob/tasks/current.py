"""The run that is under way, as its handler sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from onejob.core.holds import gives_way
from onejob.core.job import Job
from onejob.core.manual import release_own
from onejob.core.step import Step
from onejob.core.suggestions import missing
from onejob.engine.engine import Engine
from onejob.engine.sealing import hide, place_in
from onejob.errors import CompletionError, ContinuationError, InvalidCall, NoCurrentJob, OnejobError
from onejob.tasks.blocking import blocking
from onejob.tasks.call import Call
from onejob.tasks.continuation import chosen_next
from onejob.tasks.foreign import CONTEXT
from onejob.tasks.registry import Registry
from onejob.tasks.results import result_of
from onejob.tasks.running import running, set_running
from onejob.tasks.signature import encode

T = TypeVar("T")


class Finished:
    """A chain that this job has waited for."""

    __slots__ = ("_engine", "_returns", "job")

    def __init__(self, engine: Engine, job: Job, returns: Any) -> None:
        self._engine = engine
        self.job = job
        self._returns = returns

    @property
    def result(self) -> Any:
        """What its last job returned; raises JobFailed or JobCancelled if the chain did not complete."""
        return result_of(self._engine, self.job, self._returns)

    def __repr__(self) -> str:
        """Return the chain and how it ended."""
        return f"<Finished {self.job.chain_id} {self.job.state}>"


def read_finished(engine: Engine, registry: Registry, tails: Sequence[Job]) -> tuple[Finished, ...]:
    """Return ended chains by their last jobs, with the types that their tasks return."""
    return tuple(Finished(engine, tail, registry.returns(tail.task)) for tail in tails)


class Transaction(Protocol):
    """A block whose writes and the completion of the job are committed together."""

    async def __aenter__(self) -> Any:
        """Return a connection inside a transaction."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the job and commit, or roll back."""

    def __enter__(self) -> Any:
        """Blocking variant of `__aenter__`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Blocking variant of `__aexit__`."""


class RunState(Protocol):
    """The state of a run, which the worker keeps; handlers reach it only through their Context."""

    job: Job
    deadline: datetime | None
    blockers: tuple[Finished, ...]
    progress: bytes | None  # as last reported
    continuation: Job | None  # the next job of the chain, as the handler chose it
    is_stopping: bool
    returned: object  # the result as given inside a transaction
    state: Mapping[str, Any]  # what the app's lifespan has opened

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction of the run is open."""

    @property
    def may_be_completed(self) -> bool:
        """Whether a transaction of the run has completed the job, or may have."""

    def transaction(self, connection: Any) -> Transaction:
        """Return a block that completes the job."""


class Context:
    """What a handler can read and report while it runs: the answer of `current()`."""

    __slots__ = ("_engine", "_run")

    def __init__(self, engine: Engine, run: RunState) -> None:
        self._engine = engine
        self._run = run

    if not TYPE_CHECKING:  # or type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a word of other job systems, say what to write instead."""
            raise missing(self, name, CONTEXT)

    @property
    def job(self) -> Job:
        """The job that runs."""
        return self._run.job

    @property
    def attempt(self) -> int:
        """The number of this attempt, counting from 1."""
        return self._run.job.attempt

    @property
    def deadline(self) -> datetime | None:
        """When the run's timeout ends it; None if it has no timeout."""
        return self._run.deadline

    @property
    def cancelled(self) -> bool:
        """Whether this run has been asked to stop; plain functions should check it now and then."""
        return self._run.is_stopping

    @property
    def state(self) -> Mapping[str, Any]:
        """What the app's lifespan has yielded when the worker started; empty if there is none."""
        return self._run.state

    @property
    def blockers(self) -> tuple[Finished, ...]:
        """The chains that this job has waited for, in the order in which `after=` names them."""
        return self._run.blockers

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the run is; it is stored within a second.

        Args:
            fraction: From 0 to 1; other numbers are cut off there.
            message: What is being done, in a few words.
        """
        report: dict[str, Any] = {"fraction": min(max(float(fraction), 0.0), 1.0), "message": message}
        if message and self._engine.sealer is not None:
            report = hide(self._engine.sealer, report, place_in(self._run.job, "progress"), "message")
        self._run.progress = msgspec.json.encode(report)

    def continue_with(self, call: Call[Any]) -> None:
        """Make a call the next job of this chain; it is created when this run completes, and only then.

        Args:
            call: `task.call(…)`. If its blockers would wait for this chain, the attempt fails with
                BlockerCycle when the run ends.

        Raises:
            ContinuationError: The run has a continuation already, or has completed.
            InvalidCall: The call has a connection of its own, or is not a call.
        """
        run = self._run
        if run.may_be_completed:
            raise ContinuationError("The job is completed already: call continue_with inside transaction().")
        if run.continuation is not None:
            raise ContinuationError("continue_with can only be called once")
        if not isinstance(call, Call):
            raise InvalidCall(f"continue_with({call!r}): write continue_with(task.call(…)).")
        run.continuation = chosen_next(run.job, call, self._engine.store.now())

    async def is_latest(self) -> bool:
        """Return whether no newer request of this key has been admitted since."""
        job = self._run.job
        if job.key is None:
            return True
        view = await self._engine.look(job.key)
        newer = view.successor is not None and view.successor.id != job.id
        return not newer and not gives_way(job, view.mark)

    is_latest_sync = blocking(is_latest)

    async def release(self) -> bool:
        """Release this job's key before the run ends; the job that waits behind it may start at once.

        Returns:
            Whether this job held the key; False if another job holds it, or none.
        """
        job = self._run.job
        if job.key is None:
            return False
        [answer] = await self._engine.apply([Step(partial(release_own, job=job), key=job.key)])
        if isinstance(answer, OnejobError):
            raise answer
        return answer

    release_sync = blocking(release)

    def transaction(self, *, connection: Any = None) -> Transaction:
        """Complete the job in one transaction with your own writes: `async with`, or `with` in a thread.

        The block gets a connection to write on, and commits at its end.

        Args:
            connection: Your connection, to join the transaction that you have opened there; then you commit.

        Raises:
            NoTransactions: The store has no transactions.
            CompletionError: A transaction of this run is open, or has completed the job.
            LeaseLost: The job is owned by another worker; nothing is committed.
        """
        return self._run.transaction(connection)

    def returns(self, value: T) -> T:
        """Set the job's result inside `transaction()`, because the handler returns after the commit.

        Args:
            value: The result.

        Returns:
            The value, so that you can write `return current().returns(value)`.

        Raises:
            CompletionError: No transaction of this run is open.
            UnencodableArgument: The value has no JSON form.
        """
        if not self._run.in_transaction:
            raise CompletionError(
                "returns() is for the inside of transaction(): elsewhere, return the value."
            )
        # A value that cannot be stored is refused here, where the handler can see it, not at the commit.
        encode(value, f"The result of {self._run.job.task}", self._engine.max_args)
        self._run.returned = value
        return value


def current() -> Context:
    """Return the context of the run under way; raise NoCurrentJob outside of a run."""
    context = running()
    if context is None:
        raise NoCurrentJob
    return cast("Context", context)


def enter(context: Context) -> None:
    """Make this the context of the present task or thread."""
    set_running(context)
