"""What a caller does to jobs by their ids, or to a key: cancel, reschedule, delete, release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from onejob.core import manual
from onejob.core.job import UNSTARTED, Job
from onejob.core.step import Changes, Step, View
from onejob.core.text import is_name, number_of, storable
from onejob.engine.audit import record_release
from onejob.engine.dependants import is_awaited
from onejob.engine.engine import Engine, unknown_job
from onejob.errors import InvalidCall, OnejobError
from onejob.stores.queries import Awaiting


async def cancel_job(
    engine: Engine, job_id: str, *, successors: bool = False, reason: str = "cancelled"
) -> Job:
    """End a waiting job, or ask a running one to stop; return it as it is then."""
    act = partial(manual.cancel, reason=storable(reason), successors=successors)
    cancelled: manual.Cancelled = await act_on_job(engine, job_id, act, "cancelled")
    return cancelled.job


async def delete_job(engine: Engine, job_id: str, *, force: bool = False) -> Job:
    """Remove a job that does not run; raise InvalidCall if other jobs wait for it, unless `force`."""
    [job_id] = await engine.whole_ids([job_id])
    waiting = [] if force else await dependants_of(engine, job_id)
    if waiting:
        others = f" and {number_of(len(waiting) - 1, 'other job')}" if len(waiting) > 1 else ""
        verb = "wait" if others else "waits"
        raise InvalidCall(
            f"Job {waiting[0].id}{others} {verb} for job {job_id}: cancel that first, or force."
        )
    job: Job = await act_on_job(engine, job_id, manual.delete, "deleted")
    return job


async def dependants_of(engine: Engine, job_id: str) -> list[Job]:
    """Return the jobs that wait for a job's chain."""
    job = await engine.job(job_id)
    if not is_awaited(job):
        return []
    return await engine.find(Awaiting(namespace=engine.namespace, chains=[job.chain_id]))


async def act_on_job(
    engine: Engine, job_id: str, act: Callable[[View], Changes[Any]], participle: str
) -> Any:
    """Apply one act to a job; raise UnknownJob if there is none, InvalidCall if its state forbids the act."""
    [job_id] = await engine.whole_ids([job_id])
    answer = await apply_one(engine, Step(act, job_id)) if is_name(job_id) else None
    if answer is None:
        job = await engine.job(job_id)
        raise InvalidCall(f"Job {job_id} is {job.state}, so it cannot be {participle}.")
    return answer


async def release_key(
    engine: Engine, key: bytes, *, job: str | None = None, force: bool = False, reason: str = ""
) -> Job | None:
    """Release a key, perhaps only if a certain job holds it, and record that; return the job that held it."""
    [holder] = [None] if job is None else await engine.whole_ids([job])
    act = partial(manual.release, job=holder, force=force)
    released: Job | None = await apply_one(engine, Step(act, key=key))
    if released is not None:
        await record_release(engine, key, released, reason)
    return released


# ── rescheduling ──────────────────────────────────────────────────────────────────────────────────


def rescheduling(ids: Sequence[str], at: datetime | None, delay: timedelta | None) -> list[Step[Any]]:
    """Return the steps that move jobs to another time."""
    return [Step(partial(manual.reschedule, at=at, delay=delay), job_id) for job_id in ids]


def read_rescheduled(ids: Sequence[str], answers: Sequence[Any]) -> list[Job]:
    """Return jobs as they are after `rescheduling`; raise UnknownJob, or the first error."""
    for job_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, OnejobError):
            raise answer
        if answer is None:
            raise unknown_job(job_id)
    return list(answers)


def refuse_unmoved(job: Job) -> Job:
    """Return a job that waits; raise InvalidCall for one that could not be moved because it does not."""
    if job.state not in UNSTARTED:
        raise InvalidCall(f"Job {job.id} is {job.state}, so it cannot be rescheduled.")
    return job


async def apply_one(engine: Engine, step: Step[Any]) -> Any:
    """Apply one step; raise the error that it answers with."""
    [answer] = await engine.apply([step])
    if isinstance(answer, OnejobError):
        raise answer
    return answer
