"""Move jobs, holds, marks and counters from one store to another.

A job is written to the new store before it is removed from the old one. A move that was interrupted is
completed by running it again: no job is lost, and in the end no job is in both stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from msgspec import structs

from onejob.core import manual
from onejob.core.job import INCOMPLETE, Job, Mark, State, Trait
from onejob.core.step import Step
from onejob.errors import InvalidCall
from onejob.stores.contract import FullStore, Tally
from onejob.stores.queries import Listed

AT_ONCE = 500
PROBE = "move"  # the kind of the settings by which a move notices that both stores are one
NEEDED = INCOMPLETE | {State.DISCARDED}

Report = Callable[[int, int], None]
"""Called with how many jobs have been looked at, and how many there are."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How many jobs were moved, and how many stay in the old store.

    Attributes:
        moved: Jobs that are in the new store now.
        taken: Jobs that stay, because the new store has another job for their key.
        left: Jobs that stay, because they have ended, hold no key, and no job that is moved needs them.
    """

    moved: int
    taken: int
    left: int


async def move(source: FullStore, target: FullStore, *, history: bool, report: Report) -> Moved:
    """Move the jobs that are still needed; with `history`, also jobs that have ended and hold no key.

    Raises:
        InvalidCall: Jobs are running.
    """
    await refuse_running(source)
    found = await survey(source)
    await copy_counts(source, target, found.namespaces)
    ids = found.ids
    moved = taken = left = 0
    for done in range(0, len(ids), AT_ONCE):
        report(done, len(ids))
        some = ids[done : done + AT_ONCE]
        batch = await move_batch(source, target, some, chains=found.chains, history=history)
        moved, taken, left = moved + batch.moved, taken + batch.taken, left + batch.left
    report(len(ids), len(ids))
    return Moved(moved, taken, left)


async def refuse_same_store(source: FullStore, target: FullStore) -> None:
    """Raise InvalidCall if two stores are one, whatever their URLs: what one writes, the other reads.

    A stored identity would not do, because a copy of a file or a database has the identity of its original.
    """
    probe = uuid4().hex
    await target.put_setting("", PROBE, probe, b"1")
    try:
        seen = await source.settings("", PROBE)
    finally:
        await target.put_setting("", PROBE, probe, None)
    if probe in seen:
        raise InvalidCall(
            "Both apps use the same store, so there is nothing to move: name the old store first, by its URL "
            "if your app has the new one already, and then the new store."
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """The jobs of a store, oldest first: a holder before its successor.

    Attributes:
        ids: All jobs.
        namespaces: Their namespaces.
        chains: The chains whose ended jobs are needed too, because another job continues or awaits them.
    """

    ids: Sequence[str]
    namespaces: set[str]
    chains: set[str]


async def survey(source: FullStore) -> Survey:
    """Read all jobs of a store."""
    ids: list[str] = []
    namespaces, chains = set[str](), set[str]()
    async for job in everything(source):
        ids.append(job.id)
        namespaces.add(job.namespace)
        if job.state in NEEDED:
            chains |= {job.chain_id, *job.awaits}
    return Survey(ids[::-1], namespaces, chains)


async def everything(source: FullStore) -> AsyncIterator[Job]:
    """Yield all jobs, newest first."""
    offset = 0
    while page := await source.find(Listed(namespace=None, limit=AT_ONCE, offset=offset)):
        for job in page:
            yield job
        offset += len(page)


async def refuse_running(source: FullStore) -> None:
    """Raise InvalidCall while jobs run: they would end in the old store and run again in the new one."""
    running = await source.find(Listed(namespace=None, states={State.ACTIVE}, limit=AT_ONCE))
    live = [job for job in running if job.lease_until is not None and job.lease_until > source.now()]
    if live:
        still = "1 job is" if len(live) == 1 else f"{len(live):,} jobs are"
        raise InvalidCall(f"{still} running: stop the old store's workers, then move again.")


async def move_batch(
    source: FullStore,
    target: FullStore,
    ids: Sequence[str],
    *,
    chains: Collection[str] = (),
    history: bool,
) -> Moved:
    """Move those of some jobs that are still needed, among them the ended jobs of some chains."""
    jobs = [job for job in await source.get(ids) if job is not None]
    marks = {job.id: mark for job in jobs if (mark := await mark_of(job, source)) is not None}
    carried = [job for job in jobs if history or is_needed(job) or job.id in marks or job.chain_id in chains]
    arrived = await write(carried, marks, target)
    await source.apply([Step(manual.depart, job_id) for job_id in arrived])
    return Moved(len(arrived), len(carried) - len(arrived), len(jobs) - len(carried))


def is_needed(job: Job) -> bool:
    """Return whether a job will run, is a dead letter, or holds a key."""
    return job.state in NEEDED or job.stand is not None


async def mark_of(job: Job, source: FullStore) -> Mark | None:
    """Return the mark that names a job as its key's newest request."""
    if job.key is None or (not job.traits & Trait.MARKED):
        return None
    mark = (await source.look(job.key)).mark
    return mark if mark is not None and mark.job == job.id else None


async def write(jobs: Sequence[Job], marks: Mapping[str, Mark], target: FullStore) -> list[str]:
    """Write jobs that the target does not have; return the ids of those that it has now."""
    there = {job.id for job in await target.get([job.id for job in jobs]) if job is not None}
    missing = [job for job in jobs if job.id not in there]
    acts = [(partial(manual.arrive, job=job, mark=marks.get(job.id)), job) for job in missing]
    answers = await target.apply([Step(act, key=job.key, marks=job.key is not None) for act, job in acts])
    return [*there, *(job.id for job in answers if isinstance(job, Job))]


async def copy_counts(source: FullStore, target: FullStore, namespaces: set[str]) -> None:
    """Raise the counters of absorbed requests to those of the old store; repeating it changes nothing."""
    for namespace in sorted(namespaces):
        there = {name_of(tally): tally.count for tally in await target.tallies(namespace)}
        missing = [
            remaining(tally, there.get(name_of(tally), 0)) for tally in await source.tallies(namespace)
        ]
        target.count([tally for tally in missing if tally.count > 0])


def name_of(tally: Tally) -> tuple[str, str, str]:
    """Return what a counter counts."""
    return tally.task, tally.outcome, tally.job_id


def remaining(tally: Tally, count: int) -> Tally:
    """Return a tally without what has been counted already."""
    return structs.replace(tally, count=tally.count - count)
