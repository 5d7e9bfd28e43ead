"""The run that is under way, as its handler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from onejob.codec import hide
from onejob.continuing import chosen_next
from onejob.errors import CompletionError, ContinuationError, InvalidCall, NoCurrentJob
from onejob.job import Job
from onejob.lifecycle import Completed, gives_way
from onejob.payload import encode

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.tasks import Call
    from onejob.transaction import Transaction

T = TypeVar("T")

_running: ContextVar[Context | None] = ContextVar("onejob_running", default=None)


class Finished:
    """A chain that this job has waited for."""

    __slots__ = ("_app", "_returns", "job")

    def __init__(self, app: App, job: Job, returns: Any) -> None:
        self._app = app
        self.job = job
        self._returns = returns

    @property
    def result(self) -> Any:
        """What its last job returned; raises JobFailed or JobCancelled if it did not complete."""
        from onejob.admission import result_of

        return result_of(self._app, self.job, self._returns)

    def __repr__(self) -> str:
        """Name the chain and how it ended."""
        return f"<Finished {self.job.chain_id} {self.job.state}>"


def finished(app: App, tails: Sequence[Job]) -> tuple[Finished, ...]:
    """Show chains by their last jobs, with the types that their tasks return."""
    return tuple(
        Finished(app, tail, task.signature.returns if (task := app.tasks.get(tail.task)) else Any)
        for tail in tails
    )


class Context:
    """What a handler may ask and tell while it runs."""

    __slots__ = (
        *("app", "block", "blockers", "completion", "continuation", "deadline", "job", "result", "settled"),
        *("stop", "told"),
    )

    def __init__(self, app: App, job: Job, deadline: datetime | None) -> None:
        self.app = app
        self.job = job
        self.deadline = deadline
        self.stop = False  # set on the loop, read in the run's own thread
        self.told: bytes | None = None
        self.blockers: tuple[Finished, ...] = ()  # the chains that this job has waited for, in order
        self.continuation: Job | None = None  # what goes on with its chain, as its handler has chosen
        self.block: Literal["open", "in doubt"] | None = None  # of transaction(): not ended, or maybe not
        self.result: object = None  # as it was told inside that
        self.completion: Completed | None = None  # as that has written it, if it was committed
        self.settled: Job | None = None  # as it is since that was committed

    @property
    def attempt(self) -> int:
        """Which try this is, counting from 1."""
        return self.job.attempt

    @property
    def cancelled(self) -> bool:
        """Whether this run has been told to stop; plain functions should look now and then."""
        return self.stop

    @property
    def completing(self) -> bool:
        """Whether a transaction of the run's own has completed the job, or may have by now."""
        return self.settled is not None or self.block == "in doubt"

    def progress(self, fraction: float, message: str = "") -> None:
        """Tell how far the run is, from 0 to 1; stored within a second."""
        told: dict[str, Any] = {"fraction": min(max(float(fraction), 0.0), 1.0), "message": message}
        if message and self.app.safe is not None:
            told = hide(self.app.safe, told, "message")
        self.told = msgspec.json.encode(told)

    def continue_with(self, call: Call[Any]) -> None:
        """Let a call be the next job of this chain; it is made when, and only if, this run completes."""
        if self.completing:
            raise ContinuationError("The job is completed already: call continue_with inside transaction().")
        if self.continuation is not None:
            raise ContinuationError("continue_with can only be called once")
        if not hasattr(call, "task"):
            raise InvalidCall(f"continue_with({call!r}): write continue_with(task.call(…)).")
        if call.task.connection is not None:
            raise InvalidCall("A continuation is written with its run's completion: leave connection= out.")
        chosen = chosen_next(self.job, call, self.app.store.now())
        if chosen.blockers is not None:
            self.app.portal.run(self.app.refuse_cycle(self.job, chosen))
        self.continuation = chosen

    async def is_latest(self) -> bool:
        """Tell whether no newer request of this key has been admitted since."""
        if self.job.key is None:
            return True
        view = await self.app.store.look(self.job.key)
        newer = view.successor is not None and view.successor.id != self.job.id
        return not newer and not gives_way(self.job, view.mark)

    def transaction(self, *, connection: Any = None) -> Transaction:
        """Complete the job in one transaction with your own writes: `async with`, or `with` in a thread.

        It gives a connection to write on, and commits. With connection= it is yours, and you commit.
        """
        from onejob.transaction import Transaction

        return Transaction(self, connection)

    def returns(self, value: T) -> T:
        """Tell the job's result inside transaction(), for what the handler returns comes after the commit."""
        if self.block != "open":
            raise CompletionError(
                "returns() is for the inside of transaction(): elsewhere, return the value."
            )
        encode(value, f"The result of {self.job.task}", self.app.max_args)  # else the block cannot commit
        self.result = value
        return value

    def is_latest_sync(self) -> bool:
        """Tell the same from a plain function."""
        return self.app.portal.run(self.is_latest())


def current() -> Context:
    """Return the context of the run under way."""
    context = _running.get()
    if context is None:
        raise NoCurrentJob
    return context


def running() -> Context | None:
    """Return the context of the run under way, or None outside of one."""
    return _running.get()


def enter(context: Context) -> None:
    """Make this the run under way, for the present task or thread."""
    _running.set(context)
