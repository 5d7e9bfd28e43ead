"""Why a job waits, or how it ended, and what to do about it, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

import msgspec

from onejob.core.durations import when
from onejob.core.holds import holding, phase
from onejob.core.job import Job, State
from onejob.core.leasing import PAUSED, Queue, next_start
from onejob.core.text import number_of
from onejob.engine.engine import Engine
from onejob.engine.presence import read_workers
from onejob.errors import UnknownJob
from onejob.stores.queries import ByKey, Listed
from onejob.tasks.registry import Registry

ACTIVE_AT_MOST = 10_000  # running jobs of a queue that are looked at
HOLDERS_AT_MOST = 20  # jobs of a key that are looked at
NO_TASKS = "(No tasks are declared here, so limits are unknown: name the app, or its modules with --import.)"


class JobExplainer:
    """Explains why a job of an engine's namespace waits, or how it ended."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._now = engine.store.now()

    def when(self, moment: datetime | None) -> str:
        """Return a time and how far away it is."""
        return "at an unknown time" if moment is None else when(moment, self._now)

    async def explain(self, job: Job) -> list[str]:
        """Return why a job is in its state; the first sentence is the answer."""
        answer, *more = await self.state(job)
        return [answer, *self.last_run(job), *more]

    async def state(self, job: Job) -> list[str]:
        """Return why a job is in its state, without its last run."""
        match job.state:
            case State.SCHEDULED:
                return [f"It is scheduled for {self.when(job.run_at)}.", *self.expiry(job), *errors(job)]
            case State.RETRYABLE:
                retry = f"Attempt {job.attempt} failed; the next one is due {self.when(job.run_at)}."
                return [retry, *self.expiry(job), *errors(job)]
            case State.PENDING:
                return [*await self.pending(job), *self.expiry(job)]
            case State.AVAILABLE:
                return [await self.available(job), *self.expiry(job), *errors(job)]
            case State.ACTIVE:
                return self.active(job)
            case State.COMPLETED:
                attempts = number_of(job.attempt, "attempt")
                return [f"It completed {self.when(job.finished_at)}, after {attempts}.", *self.holds(job)]
            case State.CANCELLED:
                return await self.explain_cancelled(job)
            case State.DISCARDED:
                return [self.explain_discarded(job), *errors(job), *self.replayable(job), *self.holds(job)]
            case _:
                assert_never(job.state)

    async def pending(self, job: Job) -> list[str]:
        """Return which chains a job waits for, and which job it waits behind."""
        arrivals = zip(job.awaits, (job.arrived or b"").decode(), strict=True)
        lines = [await self.blocker(chain) for chain, arrived in arrivals if arrived == "0"]
        if not job.is_successor or job.key is None:
            return lines or ["It waits for a job that is gone: run onejob doctor."]
        query = ByKey(namespace=self._engine.namespace, key=job.key, limit=HOLDERS_AT_MOST)
        holders = [one for one in await self._engine.find(query) if one.is_holder]
        if not holders:
            return [*lines, "It waits behind a job that is gone: run onejob doctor."]
        return [
            *lines,
            f"It waits behind job {holders[0].id}, which is {holders[0].state} and holds the same key.",
            "It starts after that job, however it ends; requests that come meanwhile are absorbed into it.",
            *([f"It starts {self.when(job.run_at)} at the earliest."] if job.run_at > self._now else []),
        ]

    async def blocker(self, chain: str) -> str:
        """Return that a job waits for a chain, and the state of that chain."""
        [last] = await self._engine.tails([chain])
        if last is None:
            return f"It waits for chain {chain}, which is gone: cancel it, or delete it."
        state = phase(last)
        if state in {State.DISCARDED, State.CANCELLED}:
            return (
                f"It waits for chain {chain}, which is {state}: replay that with onejob replay APP {last.id}"
            )
        return f"It waits for chain {chain}, which is {state}."

    def expiry(self, job: Job) -> list[str]:
        """Return until when a waiting job may start, and that it never will if its time comes after that."""
        if job.expires_at is None:
            return []
        if job.run_at >= job.expires_at:
            return [f"It will not run: it expires {self.when(job.expires_at)}, and that is before its time."]
        return [f"It must start by {self.when(job.expires_at)}, or it is discarded."]

    # ── due ───────────────────────────────────────────────────────────────────────────────────────

    async def available(self, job: Job) -> str:
        """Return what a due job waits for: a task, its queue's limits, or a worker."""
        if self._registry.tasks and job.task not in self._registry.tasks:
            return (
                f"It is due, but no task is named {job.task!r} in this app, so its workers do not start it: "
                "import the module that declares it, or use an app that does."
            )
        query = Listed(
            namespace=self._engine.namespace, states={State.ACTIVE}, queue=job.queue, limit=ACTIVE_AT_MOST
        )
        running = await self._engine.find(query)
        obstacle = await self.full(job, running) or await self.explain_unserved(job)
        hint = "" if self._registry.tasks else f" {NO_TASKS}"
        if obstacle is not None:
            return f"It is due, but {obstacle}{hint}"
        since = f"It has been due since {self.when(job.run_at)} and waits for a worker with free capacity"
        return f"{since} of queue {job.queue!r}; running there now: {len(running)}.{hint}"

    async def full(self, job: Job, running: Sequence[Job]) -> str | None:
        """Return which limit of its queue keeps a due job from starting; None if none does."""
        name, store, space = repr(job.queue), self._engine.store, self._engine.namespace
        if job.queue in await store.settings(space, PAUSED):
            return f"queue {name} is paused: onejob resume APP {job.queue}"
        queue = self._registry.queues.get(job.queue) or Queue(name=job.queue)
        if queue.concurrency is not None and len(running) >= queue.concurrency:
            return f"queue {name} already runs {number_of(len(running), 'job')}, which is its limit."
        if queue.rate is not None:
            starts = await store.starts(space, job.queue, self._now - queue.rate.per)
            if (at := next_start(queue.rate, starts, self._now)) is not None:
                return (
                    f"queue {name} has used up its rate of {queue.rate}; "
                    f"the next job may start {self.when(at)}."
                )
        same = sum(one.partition == job.partition for one in running)
        if queue.partition_concurrency is not None and job.partition and same >= queue.partition_concurrency:
            return (
                f"partition {job.partition!r} of queue {name} already runs {number_of(same, 'job')}, "
                "which is its share."
            )
        return None

    async def explain_unserved(self, job: Job) -> str | None:
        """Return that no live worker would start a due job; None if one would."""
        workers = await read_workers(self._engine)
        alive = [worker for worker in workers if worker.is_alive(self._now)]
        if not alive:
            last = f"; the last was seen {self.when(workers[0].seen_at)}" if workers else ""
            return f"no worker is alive{last}: onejob worker APP"
        serving = [worker for worker in alive if job.queue in worker.queues]
        if not serving:
            return f"none of {number_of(len(alive), 'live worker')} serves queue {job.queue!r}."
        if not any(job.task in worker.tasks for worker in serving):
            return (
                f"none of {number_of(len(serving), 'live worker')} of queue {job.queue!r} knows the task "
                f"{job.task!r}: import the module that declares it where the workers start."
            )
        return None

    # ── running and ended ─────────────────────────────────────────────────────────────────────────

    def last_run(self, job: Job) -> list[str]:
        """Return which worker ran a job last, if it has run and does not run now."""
        if job.worker is None or job.state is State.ACTIVE:
            return []
        return [f"Worker {job.worker} ran it last; that run started {self.when(job.started_at)}."]

    def active(self, job: Job) -> list[str]:
        """Return which worker runs a job, and since when."""
        lines = [f"Worker {job.worker} has run it since {self.when(job.started_at)}, attempt {job.attempt}."]
        if job.progress is not None:
            lines.append(f"It reports that {msgspec.json.decode(job.progress)['fraction']:.0%} are done.")
        if job.cancel_requested:
            lines.append("It has been asked to stop.")
        return [*lines, f"If that worker is dead, another takes the job back {self.when(job.lease_until)}."]

    async def explain_cancelled(self, job: Job) -> list[str]:
        """Return why a job was cancelled, or which job took its work over and the state of that job."""
        if job.superseded_by is None:
            why = "" if job.reason == "cancelled" else f": {job.reason}"
            return [f"It was cancelled {self.when(job.finished_at)}{why}.", *errors(job), *self.holds(job)]
        ended = self.when(job.finished_at)
        return [
            f"It was superseded {ended}: a newer request of the same key took its work over.",
            *await self.heirs(job.superseded_by),
        ]

    async def heirs(self, job_id: str | None) -> list[str]:
        """Return the jobs that took a superseded job's work over, one after the other."""
        lines: list[str] = []
        while job_id is not None:
            try:
                newer = await self._engine.job(job_id)
            except UnknownJob:
                return [*lines, f"That was job {job_id}, which has been pruned since."]
            lines.append(f"That is job {newer.id}, which is {newer.state}.")
            job_id = newer.superseded_by
        return lines

    def explain_discarded(self, job: Job) -> str:
        """Return when and why a job failed for good."""
        if job.reason == "expired":
            return f"It had to start by {self.when(job.expires_at)} and did not, so it was discarded."
        return f"It failed for good {self.when(job.finished_at)}."

    def replayable(self, job: Job) -> list[str]:
        """Return when a dead letter is replayed automatically, and how to replay it now."""
        automatic = [f"It is replayed automatically {self.when(job.returns_at)}."] if job.returns_at else []
        return [*automatic, f"To try again{' now' if automatic else ''}: onejob replay APP {job.id}"]

    def holds(self, job: Job) -> list[str]:
        """Return that an ended job still holds its key, if it does."""
        if not job.is_holder or not holding(job, self._now):
            return []
        until = f"until {self.when(job.holds_until)}" if job.holds_until else "for ever"
        return [f"It still holds its key, {until}."]


def errors(job: Job) -> list[str]:
    """Return the last error, if there is one."""
    if not job.failures:
        return []
    last = job.failures[-1]
    return [f"Attempt {last['attempt']} of {job.retry.attempts} ended with {last['type']}: {last['message']}"]
