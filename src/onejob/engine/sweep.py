"""The sweep: take back jobs of dead workers, end late jobs, promote stranded successors, notify dependants.

It works per namespace and takes every policy from the rows, so the outcome is the same whichever app of the
namespace sweeps. A merge function is the one exception, because no row can store it: a job whose successor
needs it is left to an app that has its task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from onejob.core import manual, replay, runs
from onejob.core.decide import Outcome, Verdict
from onejob.core.job import Job
from onejob.core.runs import Merge
from onejob.core.step import Step
from onejob.engine import dependants
from onejob.engine.engine import Engine, batches
from onejob.stores.queries import Expired, Late, Returning, Stranded

log = logging.getLogger("onejob")

AT_ONCE = 500
REPLAYED_AT_ONCE = 100  # dead letters that share a commit

MergeOf = Callable[[str], Merge | None]
"""Return a task's merge function; None if this app does not have the task."""


class Swept(NamedTuple):
    """How many jobs a sweep took back from dead workers, and how many waiting jobs it repaired."""

    rescued: int
    repaired: int


class Sweeper:
    """Sweeps a namespace; remembers which page of waiting jobs comes next."""

    def __init__(self, engine: Engine, merge_of: MergeOf) -> None:
        self._engine = engine
        self._merge_of = merge_of
        self._offset = 0  # of the waiting jobs that were looked at

    async def sweep(self) -> Swept:
        """Take back expired jobs, end late ones, promote stranded successors, notify dependants."""
        engine = self._engine
        await discard_late(engine)
        query = Expired(namespace=engine.namespace, by=engine.store.now(), limit=AT_ONCE)
        expired = await engine.find(query)
        rescued = await engine.apply(
            [Step(partial(runs.expire, merge=self._merge_of(job.task)), job.id) for job in expired]
        )
        stranded = await engine.find(Stranded(namespace=engine.namespace, limit=AT_ONCE))
        repaired = await engine.apply([Step(manual.repair, job.id) for job in stranded])
        notified = await self._notify_late()
        return Swept(count_jobs(rescued), count_jobs(repaired) + notified)

    async def _notify_late(self) -> int:
        """Notify the next page of waiting jobs of chains whose end they were not notified of."""
        flow = dependants.notify_late(self._offset, self._engine.namespace)
        looked_at, notified = await self._engine.run_flow(flow)
        self._offset = self._offset + looked_at - notified if looked_at == dependants.PAGE else 0
        return notified


def count_jobs(answers: Sequence[object]) -> int:
    """Count the answers that are jobs."""
    return sum(isinstance(answer, Job) for answer in answers)


async def discard_late(engine: Engine) -> int:
    """End waiting jobs that have expired, in batches; return how many."""
    ended = 0
    while True:
        query = Late(namespace=engine.namespace, by=engine.store.now(), limit=AT_ONCE)
        late = await engine.find(query)
        answers = await engine.apply([Step(runs.discard_late, job.id) for job in late])
        done = count_jobs(answers)
        ended += done
        if len(late) < AT_ONCE or not done:
            return ended


async def replay_due(engine: Engine) -> Counter[Outcome]:
    """Replay the dead letters whose time has come, at most a page; return how many had each outcome."""
    outcomes: Counter[Outcome] = Counter()
    query = Returning(namespace=engine.namespace, by=engine.store.now(), limit=AT_ONCE)
    ids = [job.id for job in await engine.find(query)]
    for some in batches(ids, REPLAYED_AT_ONCE):
        answers = await engine.apply([Step(replay.replay_due, job_id) for job_id in some])
        outcomes.update(answer.outcome for answer in answers if isinstance(answer, Verdict))
    if outcomes:
        listed = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        log.info("dead letters whose replay was due: %s", listed)
    return outcomes
