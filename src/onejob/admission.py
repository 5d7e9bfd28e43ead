"""The answer of every enqueue: what happened, to which job, and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from onejob.codec import open_result, show
from onejob.context import running
from onejob.decide import DEDUPLICATED, Outcome, Refusal, Verdict
from onejob.errors import (
    JobCancelled,
    JobFailed,
    NotCovered,
    ResultError,
    ResultGone,
    Unsealable,
    WouldDeadlock,
)
from onejob.job import EXPIRED, Job, State
from onejob.payload import convert
from onejob.schedule import Duration, duration
from onejob.stores.contract import Filter, Guarantees

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.chains import Chain

R = TypeVar("R")
LOOK_AGAIN = 1.0  # seconds; the store's hints make it sooner


class Admission(msgspec.Struct, Generic[R], frozen=True, eq=False):
    """What became of a request. Always an answer, never None."""

    _app: App
    _verdict: Verdict
    _returns: Any

    @property
    def outcome(self) -> Outcome:
        """One of created, forced, replaced, kept, updated, rerun, rejected, stale."""
        return self._verdict.outcome

    @property
    def job(self) -> Job:
        """The job that stands for this request, as it was at that moment."""
        return self._verdict.job

    @property
    def holder(self) -> Job | None:
        """The job that held the key when this request came, if one did."""
        return self._verdict.holder

    @property
    def deduplicated(self) -> bool:
        """Whether another request's job stands for this one."""
        return self._verdict.outcome in DEDUPLICATED and self._verdict.refusal != "full"

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        return self._verdict.reason

    @property
    def payload_differs(self) -> bool:
        """Whether the job that was there had been asked for with another payload."""
        return self._verdict.payload_differs

    @property
    def refusal(self) -> Refusal | None:
        """Why a rejected request was refused: duplicate, mismatch, merge or full; the last has no job."""
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
        """The chain that stands for this request: its status, and the result of its last job."""
        from onejob.chains import Chain

        return Chain(self._app, self.job.chain_id)

    @property
    def key(self) -> str | None:
        """The key in hexadecimal, or None if the request is not unique."""
        key = self._verdict.job.key
        return None if key is None else key.hex()

    @property
    def guarantees(self) -> Guarantees:
        """What the store that gave this answer declares about it: how strong, how durable, what not."""
        return self._app.guarantees()

    def __repr__(self) -> str:
        """Say outcome and job, without arguments."""
        return f"<Admission {self.outcome} {self.job.id} {self.job.task}>"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job that stands for this request, and return what it returned.

        Raises JobFailed, JobCancelled, ResultGone, WouldDeadlock or TimeoutError.
        """
        refuse_deadlock(self.job)
        async with asyncio.timeout(seconds(timeout)):
            async for job in follow(self._app, self.job.id):
                if job.is_terminal:
                    return cast("R", result_of(self._app, job, self._returns))
        raise ResultGone(f"Job {self.job.id} has been removed, and its result with it.")

    async def covered(self, timeout: Duration | None = None) -> None:
        """Wait until a run that started after this request has finished, whichever job's run that was.

        Raises NotCovered at once if no such run is due, and whatever the run's own end raises in `result`
        is not raised here: a failed run has run.
        """
        refuse_deadlock(self.job)
        async with asyncio.timeout(seconds(timeout)):
            await cover(self._app, self.job.id, self.job.token)

    def result_sync(self, timeout: Duration | None = None) -> R:
        """Do `result` from blocking code."""
        return self._app.portal.run(self.result(timeout))

    def covered_sync(self, timeout: Duration | None = None) -> None:
        """Do `covered` from blocking code."""
        return self._app.portal.run(self.covered(timeout))


def seconds(timeout: Duration | None) -> float | None:
    """Read a timeout in any form."""
    return None if timeout is None else duration(timeout).total_seconds()


def refuse_deadlock(job: Job) -> None:
    """Refuse to await, inside a run, what can only start or end after it."""
    context = running()
    if context is None:
        return
    behind = job.next_key is not None and job.next_key == context.job.key
    if behind or job.chain_id == context.job.chain_id:
        raise WouldDeadlock


async def follow(app: App, job_id: str) -> AsyncIterator[Job]:
    """Yield the job each time it may have changed, going on to whichever job superseded it."""
    while True:
        seen = app.store.pulse()
        [job] = await app.store.get([job_id])
        if job is None:
            return
        if job.superseded_by is not None:
            job_id = job.superseded_by
            continue
        yield job
        await app.store.wait(LOOK_AGAIN, seen)


async def cover(app: App, job_id: str, seen: int) -> None:
    """Wait for a run of the job after the `seen`th, or for one of a job that was admitted later."""
    async for job in follow(app, job_id):
        fresh = job.id != job_id or job.token > seen
        if fresh and job.is_terminal and job.started_at is not None:
            return
        if job.is_terminal or (job.state is State.ACTIVE and not fresh):
            later = await admitted_after(app, job)
            if later is None:
                raise NotCovered(f"Job {job.id} is {job.state} and no later run of its key is due.")
            await cover(app, later.id, 0)
            return
    raise NotCovered(f"Job {job_id} has been removed before it ran.")


async def admitted_after(app: App, job: Job) -> Job | None:
    """Find a job of the same key that came later and has run, or will."""
    if job.key is None:
        return None
    view = await app.store.look(job.key)
    newest = await app.store.find(Filter(key=job.key, limit=1))
    for later in (view.successor, view.holder, *newest):
        if later is not None and later.place > job.place and (later.started_at or not later.is_terminal):
            return later
    return None


def result_of(app: App, job: Job, returns: Any) -> Any:
    """Return what a finished job returned, or raise what became of it."""
    if job.is_tombstone:
        raise ResultGone(f"Job {job.id} has been pruned, and its result with it.")
    if job.state is State.DISCARDED and job.reason == EXPIRED:
        raise JobFailed(f"Job {job.id} expired: it had to start by {job.expires_at} and did not.")
    if job.state is State.DISCARDED:
        last = job.failures[-1] if job.failures else {"type": "Error", "message": "unknown"}
        with suppress(Unsealable):
            last = show(app.safe, last, f"The error of job {job.id}")
        raise JobFailed(f"Job {job.id} failed for good: {last['type']}: {last['message']}")
    if job.state is State.CANCELLED:
        raise JobCancelled(f"Job {job.id} was cancelled: {job.reason}.")
    result = open_result(app.safe, job)
    value = None if result is None else msgspec.json.decode(result)
    try:
        return None if value is None else convert(value, returns)
    except msgspec.ValidationError as error:
        raise ResultError(f"Job {job.id} returned what its task does not declare: {error}.") from None
