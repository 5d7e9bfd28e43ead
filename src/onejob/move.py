"""Move house: carry jobs, holds, marks and counts from one store to another.

A job is written to the new store before it is dropped from the old one. So whatever interrupts a move,
running it again completes it: nothing is lost on the way, and in the end nothing is there twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from onejob import lifecycle
from onejob.errors import InvalidCall
from onejob.job import INCOMPLETE, Job, Mark, State, Trait
from onejob.stores.contract import Filter, Step, Store, Tally

AT_ONCE = 500
CARRIED = INCOMPLETE | {State.DISCARDED}

Tell = Callable[[int, int], None]
"""Hears how many jobs have been looked at, and of how many."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of the jobs of the old store."""

    moved: int
    taken: int  # left there, because the new store has another job for their key
    left: int  # left there, because they have ended and hold nothing


async def move(source: Store, target: Store, *, history: bool, tell: Tell) -> Moved:
    """Carry everything that still matters; with `history`, also what has ended and holds nothing.

    Raises InvalidCall while jobs are running.
    """
    await refuse_running(source)
    found = [(job.id, job.namespace) async for job in everything(source)]
    await carry_counts(source, target, {namespace for _, namespace in found})
    ids = [job_id for job_id, _ in reversed(found)]  # the oldest first: a holder before who waits behind it
    moved = taken = left = 0
    for done in range(0, len(ids), AT_ONCE):
        tell(done, len(ids))
        batch = await carry(source, target, ids[done : done + AT_ONCE], history=history)
        moved, taken, left = moved + batch.moved, taken + batch.taken, left + batch.left
    tell(len(ids), len(ids))
    return Moved(moved, taken, left)


async def everything(source: Store) -> AsyncIterator[Job]:
    """Read all jobs, newest first."""
    offset = 0
    while page := await source.find(Filter(limit=AT_ONCE, offset=offset)):
        for job in page:
            yield job
        offset += len(page)


async def refuse_running(source: Store) -> None:
    """Refuse while workers are at it: what they finish in the old store would run again in the new one."""
    running = await source.find(Filter(states={State.ACTIVE}, limit=AT_ONCE))
    live = [job for job in running if job.lease_until is not None and job.lease_until > source.now()]
    if live:
        raise InvalidCall(f"{len(live)} jobs are running: stop the old store's workers, then move again.")


async def carry(source: Store, target: Store, ids: Sequence[str], *, history: bool) -> Moved:
    """Carry those of some jobs that matter."""
    jobs = [job for job in await source.get(ids) if job is not None]
    marks = {job.id: mark for job in jobs if (mark := await mark_of(job, source)) is not None}
    carried = [job for job in jobs if history or matters(job) or job.id in marks]
    arrived = await write(carried, marks, target)
    await source.apply([Step(lifecycle.depart, job_id) for job_id in arrived])
    return Moved(len(arrived), len(carried) - len(arrived), len(jobs) - len(carried))


def matters(job: Job) -> bool:
    """Tell whether a job is still to run, is a dead letter, or holds a key."""
    return job.state in CARRIED or job.held_key is not None or job.next_key is not None


async def mark_of(job: Job, source: Store) -> Mark | None:
    """Find the mark that names a job as its key's newest request."""
    if job.key is None or (job.version is None and not job.traits & Trait.NEWEST_WINS):
        return None
    mark = (await source.look(job.key)).mark
    return mark if mark is not None and mark.job == job.id else None


async def write(jobs: Sequence[Job], marks: Mapping[str, Mark], target: Store) -> list[str]:
    """Write jobs that are not there yet; answer the ids of those that are there now."""
    there = {job.id for job in await target.get([job.id for job in jobs]) if job is not None}
    news = [job for job in jobs if job.id not in there]
    acts = [(partial(lifecycle.arrive, job=job, mark=marks.get(job.id)), job) for job in news]
    answers = await target.apply([Step(act, key=job.key, marks=job.key is not None) for act, job in acts])
    return [*there, *(job.id for job in answers if isinstance(job, Job))]


async def carry_counts(source: Store, target: Store, namespaces: set[str]) -> None:
    """Bring the counters of absorbed requests up to those of the old store, however often this is done."""
    for namespace in sorted(namespaces):
        there = {named(tally): tally.count for tally in await target.tallies(namespace)}
        news = [lessened(tally, there.get(named(tally), 0)) for tally in await source.tallies(namespace)]
        target.tally([tally for tally in news if tally.count > 0])


def named(tally: Tally) -> tuple[str, str, str]:
    """Tell what a counter counts."""
    return tally.task, tally.outcome, tally.job_id


def lessened(tally: Tally, count: int) -> Tally:
    """Take off what has been counted already."""
    return Tally(tally.namespace, tally.task, tally.outcome, tally.job_id, tally.count - count)
