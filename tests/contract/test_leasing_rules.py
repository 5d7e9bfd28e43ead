"""Every store starts the jobs that the pure rule of `core.leasing` chooses, in that order.

Each walk has a namespace of its own with random limits. Jobs of random queues, priorities, times, partitions
and tasks are enqueued, some runs end, queues are paused and resumed, and time passes. Each lease, of a random
capacity, is compared with `choose`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from onejob import Job, Retry, State
from onejob.core import runs
from onejob.core.decide import Request
from onejob.core.job import EPOCH, fingerprint
from onejob.core.leasing import PAUSED, Capacity, Lease, Load, Rate, choose
from onejob.core.runs import Completed, Failed, HandedBack, Result, Snoozed
from onejob.core.step import Step, View
from onejob.engine.steps import admission_step
from onejob.stores.contract import FullStore as Store
from onejob.stores.queries import Listed
from onejob.tasks.ids import new_id
from onejob.testing import Clock

QUEUES = ("a", "b", "c")
TASKS = ("mail", "report")
PARTITIONS = ("", "x", "y")  # "" for none, as jobs of a queue with a share have it
TESTS = 5
WALKS = 8  # in each test
LEASES = 25
CROWD = 120
SHOWN = 40  # jobs in a failure message
DURATION = timedelta(hours=1)
TIMED = {State.SCHEDULED, State.RETRYABLE}


class Walk:
    """A random walk of one namespace, with what its limits must count."""

    def __init__(self, store: Store, clock: Clock, chance: Random, name: str) -> None:
        self.store = store
        self.clock = clock
        self.chance = chance
        self.namespace = name
        self.has_limits = chance.random() < 0.6  # without any, a store may choose and start in one statement
        self.limits = self._some({queue: chance.randint(1, 4) for queue in QUEUES})
        self.shares = self._some({queue: chance.randint(1, 2) for queue in QUEUES})
        self.rates = self._some(
            {queue: Rate(chance.randint(1, 4), timedelta(seconds=10)) for queue in QUEUES}
        )
        self.starts: dict[str, list[datetime]] = {queue: [] for queue in QUEUES}

    def _some(self, values: Mapping[str, Any]) -> dict[str, Any]:
        often = 0.4 if self.has_limits else 0
        return {name: value for name, value in values.items() if self.chance.random() < often}

    # ── what happens between leases ──

    async def go_on(self) -> None:
        """Let time pass, enqueue jobs, end runs, and pause or resume a queue."""
        self.clock.advance(self.chance.choice([0, 0, 1, 3, 11]))
        requests = [self.request() for _ in range(self.chance.randint(0, 6))]
        if self.chance.random() < 0.05:
            requests += self.crowd()
        await self.store.apply([admission_step(request) for request in requests])
        await self.store.apply(self.some_ends(await self.jobs()))
        if self.chance.random() < 0.2:
            value = self.chance.choice([b"now", None])
            await self.store.put_setting(self.namespace, PAUSED, self.chance.choice(QUEUES), value)

    def request(self) -> Request:
        """Return a request for a random job."""
        chance = self.chance
        job_id, place = new_id()
        queue = chance.choice(QUEUES)
        job = Job(
            id=job_id,
            namespace=self.namespace,
            task=chance.choice(TASKS),
            queue=queue,
            state=State.AVAILABLE,
            priority=chance.choice([0, 0, 1, -1]),
            run_at=EPOCH,
            place=place,
            created_at=EPOCH,
            args=b"{}",
            meta=b"{}",
            payload_digest=fingerprint(b"{}", b"{}"),
            retry=Retry(attempts=3, base=2, factor=1, jitter=0),
            chain_id=job_id,
            partition=chance.choice(PARTITIONS) if queue in self.shares else None,
        )
        delay = chance.choice([None, None, timedelta(seconds=2), timedelta(seconds=5)])
        expires_in = chance.choice([None, None, None, timedelta(seconds=6)])
        return Request(job, delay=delay, expires_in=expires_in)

    def crowd(self) -> list[Request]:
        """Return many requests of one partition, which must not hide the jobs behind them."""
        alike = self.request()
        queue = self.chance.choice([*self.shares] or QUEUES)
        partition = self.chance.choice(PARTITIONS) if queue in self.shares else None
        job = msgspec.structs.replace(alike.job, queue=queue, partition=partition, priority=1)
        requests = [msgspec.structs.replace(alike, job=renamed(job)) for _ in range(CROWD)]
        return [*requests, *(self.request() for _ in range(6))]

    def some_ends(self, jobs: list[Job]) -> list[Step[Any]]:
        """Return steps that end some of the runs."""
        active = [job for job in jobs if job.state is State.ACTIVE]
        return [self.end(job) for job in self.chance.sample(active, self.chance.randint(0, len(active)))]

    def end(self, job: Job) -> Step[Any]:
        """Return a step that ends a run in a random way."""
        failed = Failed({"type": "Error", "message": "", "traceback": ""})
        results: list[Result] = [Completed(b"1"), failed, HandedBack(), Snoozed(timedelta(seconds=1))]
        result = self.chance.choice(results)
        return Step(partial(runs.settle, token=job.token, result=result), job.id, seen=job)

    # ── a lease, and the rule ──

    def wanted(self) -> Lease:
        """Return a random request for jobs."""
        chance = self.chance
        queues = chance.sample(QUEUES, chance.randint(1, 3))
        return Lease(
            namespace=self.namespace,
            worker="worker",
            queues={queue: chance.randint(0, 5) for queue in queues},
            total=chance.randint(1, 8),
            duration=DURATION,
            tasks=TASKS if chance.random() < 0.7 else TASKS[:1],
            limits=self.limits,
            shares=self.shares,
            rates=self.rates,
        )

    async def expected(self, wanted: Lease, jobs: list[Job]) -> list[str]:
        """Return the ids of the jobs that must start, best first."""
        now = self.store.now()
        candidates = [job for job in jobs if is_candidate(job, wanted, now)]
        active = Counter((job.queue, job.partition or "") for job in jobs if job.state is State.ACTIVE)
        paused = await self.store.settings(self.namespace, PAUSED)
        capacity = Capacity(wanted, Load(active, self.starts, set(paused)), now)
        return [job.id for job in choose(candidates, capacity)]

    async def lease(self) -> None:
        """Lease, and compare with the rule."""
        wanted, jobs = self.wanted(), await self.jobs()
        after = self.some_ends(jobs)
        written = {step.job_id: applied(step, self.store.now()) for step in after}
        expected = await self.expected(wanted, [written.get(job.id, job) for job in jobs])
        answers, leased, _ = await self.store.lease(wanted, after)
        assert [answer.job for answer in answers] == list(written.values())
        assert [job.id for job in leased] == expected, self.describe(wanted, await self.jobs())
        before = {job.id: written.get(job.id, job) for job in jobs}
        assert leased == [begun(before[job.id], self.store.now()) for job in leased]
        for job in leased:
            self.starts[job.queue].append(self.store.now())

    async def jobs(self) -> list[Job]:
        """Return all jobs of the walk."""
        return await self.store.find(Listed(namespace=self.namespace, limit=10_000))

    def describe(self, wanted: Lease, jobs: list[Job]) -> str:
        """Return the state for a failure message."""
        lines = [
            f"{job.id[-6:]} {job.state} {job.queue} {job.partition!r} priority {job.priority} at {job.run_at}"
            for job in jobs
            if not job.is_terminal
        ]
        return "\n".join([str(wanted), *lines[:SHOWN]])


def renamed(job: Job) -> Job:
    """Return an equal job with an id of its own."""
    job_id, place = new_id()
    return msgspec.structs.replace(job, id=job_id, chain_id=job_id, place=place)


def applied(step: Step[Any], now: datetime) -> Job:
    """Return the job of a step after it; no job of a walk has a key, so the step needs no other row."""
    [job] = step.act(View(now, step.seen)).updates
    return job


def begun(job: Job, now: datetime) -> Job | None:
    """Return a job as it runs after it was due and has started."""
    due = [*runs.mature(View(now, job)).updates, job][0]
    return runs.start(View(now, due), worker="worker", lease=DURATION).answer


def is_candidate(job: Job, wanted: Lease, now: datetime) -> bool:
    """Return whether a job may start now, apart from limits."""
    is_due = job.state is State.AVAILABLE or (job.state in TIMED and job.run_at <= now)
    is_late = job.expires_at is not None and job.expires_at <= now
    return is_due and not is_late and job.task in wanted.tasks and job.queue in wanted.queues


@pytest.mark.parametrize("number", range(TESTS))
async def test_a_lease_starts_what_the_rule_chooses(
    store: Store, clock: Clock, chance: Random, number: int
) -> None:
    for walk in range(WALKS):
        leasing = Walk(store, clock, chance, f"walk {number} {walk}")
        for _ in range(LEASES):
            await leasing.go_on()
            await leasing.lease()
    await store.close()
