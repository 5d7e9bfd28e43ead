"""Wait for jobs and chains, and read what they returned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import msgspec

from onejob.core.durations import Duration, duration, seconds, spell
from onejob.core.job import EXPIRED, Job, State
from onejob.engine.engine import Engine
from onejob.engine.sealing import open_result, place_in, show
from onejob.errors import (
    JobCancelled,
    JobFailed,
    NotCovered,
    ResultError,
    ResultGone,
    StoreError,
    Unsealable,
    WouldDeadlock,
)
from onejob.stores.queries import ByKey
from onejob.tasks.registry import Registry
from onejob.tasks.running import running
from onejob.tasks.signature import convert
from onejob.tasks.why_job import JobExplainer

log = logging.getLogger("onejob")

LONG_WAIT = timedelta(seconds=10)  # without a timeout, before the log says what a caller waits for
LAST_WORD = 1.0  # seconds to find out how a job stands that has not ended in time
FIRST_LOOK, LAST_LOOK = 1.0, 8.0  # seconds between looks while nothing changes; a change ends the wait sooner


def refuse_deadlock(job: Job) -> None:
    """Raise WouldDeadlock inside a run for a job that can only start or end after that run."""
    context = running()
    if context is None:
        return
    behind = job.is_successor and job.key == context.job.key
    if behind or job.chain_id == context.job.chain_id:
        raise WouldDeadlock


async def follow(engine: Engine, job_id: str) -> AsyncIterator[Job]:
    """Yield a job each time it may have changed, and then the job that superseded it."""
    pause = FIRST_LOOK
    while True:
        seen = engine.store.position()
        [job] = await engine.get([job_id])
        if job is None:
            return
        if job.superseded_by is not None:
            job_id = job.superseded_by
            continue
        yield job
        pause = await wait_for_change(engine, seen, pause)


async def wait_for_change(engine: Engine, seen: Any, pause: float) -> float:
    """Wait until the store has changed since `seen`, or for `pause` seconds; return the next pause.

    While nothing changes, the pauses grow: a thousand waiting callers should cost almost nothing.
    """
    await engine.store.wait(pause, seen)
    return min(pause * 2, LAST_LOOK) if engine.store.position() == seen else FIRST_LOOK


@asynccontextmanager
async def within(
    timeout: Duration | None, engine: Engine, registry: Registry, chain_ids: Sequence[str]
) -> AsyncIterator[None]:
    """Limit how long a block waits for chains; the TimeoutError says what the first of them waits for.

    Without a limit, the log says it.
    """
    if timeout is None:
        warning = asyncio.create_task(warn_of_long_wait(engine, registry, chain_ids))
        try:
            yield
        finally:
            warning.cancel()
        return
    timer = asyncio.timeout(seconds(timeout))
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        raise TimeoutError(await still_waiting(engine, registry, chain_ids, timeout)) from None


async def warn_of_long_wait(engine: Engine, registry: Registry, chain_ids: Sequence[str]) -> None:
    """Log once what the first chain that has not ended waits for, unless it runs."""
    await asyncio.sleep(LONG_WAIT.total_seconds())
    with suppress(StoreError):
        job = await first_unended(engine, chain_ids)
        if job is not None and job.state is not State.ACTIVE:
            log.warning("%s", await standing(engine, registry, job, LONG_WAIT))


async def still_waiting(
    engine: Engine, registry: Registry, chain_ids: Sequence[str], timeout: Duration
) -> str:
    """Return what the first chain that has not ended in time waits for."""
    with suppress(StoreError, TimeoutError):
        async with asyncio.timeout(LAST_WORD):
            job = await first_unended(engine, chain_ids)
            if job is not None:
                return await standing(engine, registry, job, timeout)
    return f"Job {chain_ids[0]} has not ended after {spell(duration(timeout))}."


async def standing(engine: Engine, registry: Registry, job: Job, after: Duration) -> str:
    """Return the state of a job after a time, and what it waits for."""
    why = await JobExplainer(engine, registry).state(job)
    return f"Job {job.id} ({job.task}) is still {job.state} after {spell(duration(after))}. {why[0]}"


async def first_unended(engine: Engine, chain_ids: Sequence[str]) -> Job | None:
    """Return the last job of the first chain that has not ended, or of the chain that superseded it."""
    for tail in await engine.tails(chain_ids):
        job = tail
        while job is not None and job.superseded_by is not None:
            [job] = await engine.tails([job.superseded_by])
        if job is not None and not job.is_terminal:
            return job
    return None


async def cover(engine: Engine, job_id: str, seen: int) -> None:
    """Wait for a run of the job after the `seen`th, or for a run of a job that was admitted later."""
    async for job in follow(engine, job_id):
        fresh = job.id != job_id or job.token > seen
        if fresh and job.is_terminal and job.started_at is not None:
            return
        if job.is_terminal or (job.state is State.ACTIVE and not fresh):
            later = await admitted_after(engine, job)
            if later is None:
                raise NotCovered(f"Job {job.id} is {job.state} and no later run of its key is due.")
            await cover(engine, later.id, 0)
            return
    raise NotCovered(f"Job {job_id} has been removed before it ran.")


async def admitted_after(engine: Engine, job: Job) -> Job | None:
    """Return a job of the same key that was admitted later and has run, or will; None if there is none."""
    if job.key is None:
        return None
    view = await engine.look(job.key)
    newest = await engine.find(ByKey(namespace=job.namespace, key=job.key, limit=1))
    for later in (view.successor, view.holder, *newest):
        if later is not None and later.place > job.place and (later.started_at or not later.is_terminal):
            return later
    return None


def result_of(engine: Engine, job: Job, returns: Any) -> Any:
    """Return what an ended job returned; raise JobFailed, JobCancelled, ResultGone or ResultError."""
    if job.is_tombstone:
        raise ResultGone(f"Job {job.id} has been pruned, and its result with it.")
    if job.state is State.DISCARDED and job.reason == EXPIRED:
        raise JobFailed(f"Job {job.id} expired: it had to start by {job.expires_at} and did not.")
    if job.state is State.DISCARDED:
        last = job.failures[-1] if job.failures else {"type": "Error", "message": "unknown"}
        with suppress(Unsealable):
            last = show(engine.sealer, last, f"The error of job {job.id}", place_in(job, "error"))
        raise JobFailed(f"Job {job.id} failed for good: {last['type']}: {last['message']}")
    if job.state is State.CANCELLED:
        raise JobCancelled(f"Job {job.id} was cancelled: {job.reason}.")
    result = open_result(engine.sealer, job)
    value = None if result is None else msgspec.json.decode(result)
    try:
        return None if value is None else convert(value, returns)
    except msgspec.ValidationError as error:
        raise ResultError(f"Job {job.id} returned a value that its task does not declare: {error}.") from None
