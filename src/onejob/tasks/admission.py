"""The answer of every enqueue: what happened, to which job, and why."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from onejob.core.decide import Outcome, Refusal, Verdict
from onejob.core.durations import Duration
from onejob.core.job import Job
from onejob.core.suggestions import missing
from onejob.engine.decided import is_absorbed
from onejob.engine.engine import Engine
from onejob.errors import InvalidCall, ResultGone
from onejob.stores.contract import Guarantees
from onejob.tasks.chain import Chain
from onejob.tasks.foreign import ADMISSION
from onejob.tasks.registry import Registry
from onejob.tasks.results import cover, follow, refuse_deadlock, result_of, within

R = TypeVar("R")


class Admission(msgspec.Struct, Generic[R], frozen=True, eq=False):
    """The answer to every enqueue: what happened to the request, and which job serves it.

    Examples:
        >>> admission = await send_invoice.enqueue(7)
        >>> await admission.result(timeout="30s")
    """

    _engine: Engine
    _registry: Registry
    _verdict: Verdict

    if not TYPE_CHECKING:  # or type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a word of other job systems, say what to write instead."""
            raise missing(self, name, ADMISSION)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values, with the ids of its jobs."""
        return {
            "outcome": str(self.outcome),
            "deduplicated": self.deduplicated,
            "job": self.job.id,
            "state": str(self.job.state),
            "holder": self.holder.id if self.holder else None,
            "key": self.key,
            "payload_differs": self.payload_differs,
            "reason": self.reason,
        }

    @property
    def outcome(self) -> Outcome:
        """One of created, forced, replaced, kept, updated, rerun, rejected, stale."""
        return self._verdict.outcome

    @property
    def job(self) -> Job:
        """The job that serves this request, as it was at that moment."""
        return self._verdict.job

    @property
    def holder(self) -> Job | None:
        """The job that held the key when this request was decided; None if none did."""
        return self._verdict.holder

    @property
    def deduplicated(self) -> bool:
        """Whether another request's job serves this one."""
        return is_absorbed(self._verdict)

    @property
    def reason(self) -> str:
        """Why this happened, in one sentence."""
        return self._verdict.reason

    @property
    def payload_differs(self) -> bool:
        """Whether the job that held the key was requested with another payload."""
        return self._verdict.payload_differs

    @property
    def refusal(self) -> Refusal | None:
        """Why a rejected request was refused: duplicate, mismatch, merge or full; full has no job."""
        return self._verdict.refusal

    @property
    def depth(self) -> int | None:
        """How many jobs waited in the queue that refused this request because it was full."""
        return self._verdict.depth

    @property
    def shadow(self) -> Outcome | None:
        """What a shadow policy would have answered."""
        return self._verdict.shadow

    @property
    def chain(self) -> Chain[Any]:
        """The chain that serves this request."""
        return Chain(self._engine, self._registry, self.job.chain_id)

    @property
    def key(self) -> str | None:
        """The key in hexadecimal, or None if the request is not unique."""
        key = self._verdict.job.key
        return None if key is None else key.hex()

    @property
    def guarantees(self) -> Guarantees:
        """What the store that gave this answer declares about its strength and durability."""
        return self._engine.store.guarantees

    def __repr__(self) -> str:
        """Return outcome and job, without arguments."""
        return f"<Admission {self.outcome} {self.job.id} {self.job.task}>"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job that serves this request, and return what it returned.

        Args:
            timeout: How long to wait at most; without one, a warning in the log says what a job that does not
                start waits for.

        Raises:
            JobFailed: The job failed for good.
            JobCancelled: The job was cancelled.
            ResultGone: The job was pruned or deleted.
            WouldDeadlock: The job cannot end before the present run does.
            TimeoutError: The job did not end in time.
        """
        refuse_deadlock(self.job)
        async with within(timeout, self._engine, self._registry, [self.job.chain_id]):
            async for job in follow(self._engine, self.job.id):
                if job.is_terminal:
                    returns = self._registry.returns(job.task)  # a family has several tasks
                    return cast("R", result_of(self._engine, job, returns))
        raise ResultGone(f"Job {self.job.id} has been removed, and its result with it.")

    async def covered(self, timeout: Duration | None = None) -> None:
        """Wait until a run that started after this request has finished, whichever job ran.

        A failed run has finished, too.

        Args:
            timeout: How long to wait at most.

        Raises:
            NotCovered: No such run is due.
            WouldDeadlock: The job cannot end before the present run does.
            TimeoutError: The run did not finish in time.
        """
        refuse_deadlock(self.job)
        async with within(timeout, self._engine, self._registry, [self.job.chain_id]):
            await cover(self._engine, self.job.id, self.job.token)

    def result_sync(self, timeout: Duration | None = None) -> R:
        """Blocking variant of `result`."""
        return self._engine.run_sync(self.result(timeout))

    def covered_sync(self, timeout: Duration | None = None) -> None:
        """Blocking variant of `covered`."""
        return self._engine.run_sync(self.covered(timeout))


engine_of: Callable[[Admission[Any]], Engine] = attrgetter("_engine")
registry_of: Callable[[Admission[Any]], Registry] = attrgetter("_registry")
"""Return the engine and the registry that gave an admission; its attributes are not shown to users."""

JobLike = Job | Admission[Any] | str
"""A job, what enqueue returned, or an id."""


def id_of(job: object) -> str:
    """Return the id of a job, of an admission's job, or the id itself."""
    match job:
        case str():
            return job
        case Job():
            return job.id
        case Admission():
            return job.job.id
        case _ if isfunction(job):
            raise InvalidCall(f"app.job(…) reads a job: write @app.task above {job.__name__}.")
        case _:
            raise InvalidCall(f"{job!r} is no job: give a job, what enqueue returned, or an id.")
