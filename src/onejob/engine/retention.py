"""Retention: prune ended jobs without disturbing other callers.

Jobs are pruned in small batches, each a short write. The pause after a batch is three times as long as the
batch took, so that most of the store's time is left to others, however many jobs there are to prune.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import perf_counter

import msgspec

from onejob.core import manual
from onejob.core.job import Job, Trait
from onejob.core.step import Step, View
from onejob.engine.absorbed_log import forget_entries
from onejob.engine.audit import forget_releases
from onejob.engine.engine import Engine
from onejob.engine.presence import forget_workers
from onejob.engine.recorded_requests import forget_requests
from onejob.engine.timings import forget_timings
from onejob.stores.queries import Awaiting, Prunable

ALL = 1_000_000  # more jobs than wait for one batch
AT_ONCE = 100  # jobs pruned in one write
EVERY = timedelta(minutes=1)  # between passes of all workers together
FOLD_EVERY = timedelta(hours=1)  # between searches for counters of jobs that are gone
PAUSE, LONGEST_PAUSE = 3.0, 1.0  # times as long as a batch took, and seconds at most


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many jobs `app.maintenance.prune` has looked at, deleted and emptied so far.

    Attributes:
        looked_at: Ended jobs whose retention is over.
        deleted: Jobs that were deleted.
        emptied: Jobs that stay without their payload, because they hold a key or store its version.
    """

    looked_at: int = 0
    deleted: int = 0
    emptied: int = 0

    def __add__(self, more: Pruned) -> Pruned:
        """Return the sum of both."""
        return Pruned(
            self.looked_at + more.looked_at, self.deleted + more.deleted, self.emptied + more.emptied
        )


Report = Callable[[Pruned], None]
"""Called after each batch with the sum so far."""


# ── a pass ────────────────────────────────────────────────────────────────────────────────────────


async def prune(engine: Engine, *, dry_run: bool = False, report: Report = lambda _: None) -> Pruned:
    """Prune the ended jobs whose retention is over; a dry run only counts them."""
    total = Pruned()
    async for batch in prunable(engine):
        begun = perf_counter()
        jobs = await find_unneeded(engine, batch)
        total += await (foresee(engine, jobs) if dry_run else prune_jobs(engine, jobs))
        report(total)
        await asyncio.sleep(min(PAUSE * (perf_counter() - begun), LONGEST_PAUSE))
    return total


async def prunable(engine: Engine) -> AsyncIterator[list[Job]]:
    """Yield the ended jobs whose retention is over, in batches."""
    by, after = engine.store.now(), None
    while True:
        query = Prunable(namespace=engine.namespace, by=by, after=after, limit=AT_ONCE)
        found = await engine.find(query)
        if found:
            yield found
        if len(found) < AT_ONCE:
            return
        last = found[-1]
        assert last.kept_until is not None  # the query says so
        after = (last.kept_until, last.id)


async def find_unneeded(engine: Engine, jobs: list[Job]) -> list[Job]:
    """Return the jobs whose result no waiting job will still read."""
    chains = [job.chain_id for job in jobs if job.traits & Trait.AWAITED]
    query = Awaiting(namespace=engine.namespace, chains=chains, limit=ALL)
    waiting = await engine.find(query) if chains else []
    needed = {chain for job in waiting for chain in job.awaits}
    return [job for job in jobs if job.chain_id not in needed]


async def prune_jobs(engine: Engine, jobs: Sequence[Job]) -> Pruned:
    """Prune jobs in one write."""
    answers = await engine.apply([Step(manual.prune, job.id) for job in jobs])
    return sum_pruned(answers)


async def foresee(engine: Engine, jobs: Sequence[Job]) -> Pruned:
    """Return what pruning jobs would do."""
    now, answers = engine.store.now(), []
    for job in jobs:
        view = View(now) if job.key is None else await engine.look(job.key)
        answers.append(manual.prune(msgspec.structs.replace(view, job=job)).answer)
    return sum_pruned(answers)


def sum_pruned(answers: Sequence[object]) -> Pruned:
    """Return the sum of pruning steps."""
    return Pruned(
        len(answers),
        sum(answer == "deleted" for answer in answers),
        sum(answer == "emptied" for answer in answers),
    )


# ── taking turns ──────────────────────────────────────────────────────────────────────────────────


class Chores(msgspec.Struct):
    """When the workers of a namespace last pruned and folded counters, as the store keeps it."""

    pruned_at: datetime
    folded_at: datetime


async def prune_in_turn(engine: Engine) -> Pruned | None:
    """Prune if no worker has done so for a while; return None if another worker has.

    Two workers that start at the same instant may both prune: that costs a little and harms nothing.
    """
    store, namespace, now = engine.store, engine.namespace, engine.store.now()
    last = await last_chores(engine)
    if last is not None and now - last.pruned_at < EVERY:
        return None
    fold = last is None or now - last.folded_at >= FOLD_EVERY
    chores = Chores(now, now if last is None or fold else last.folded_at)
    await store.put_setting(namespace, "chores", "prune", msgspec.json.encode(chores))
    done = await prune(engine)
    await forget_observations(engine)
    if fold:
        await store.fold(namespace)
    return done


async def forget_observations(engine: Engine) -> None:
    """Remove entries of the logs, recorded requests, rows of workers and timings that are too old."""
    store, namespace, now = engine.store, engine.namespace, engine.store.now()
    await forget_entries(store, namespace, now - engine.log_kept_for)
    await forget_requests(store, namespace, now)
    await forget_workers(engine)
    await forget_releases(engine)
    await forget_timings(engine)


async def last_chores(engine: Engine) -> Chores | None:
    """Return when workers last did their chores; None if they never did."""
    found = (await engine.store.settings(engine.namespace, "chores")).get("prune")
    return None if found is None else msgspec.json.decode(found, type=Chores)
