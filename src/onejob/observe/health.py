"""Health: whether jobs are started in time and end as usual; a few reads, each of which has an index."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from onejob.core.durations import rough
from onejob.core.histogram import add_up, percentile
from onejob.core.job import Job, State
from onejob.core.leasing import PAUSED, longest_due
from onejob.engine.engine import Engine
from onejob.engine.presence import SILENT_AFTER, WorkerStatus, read_workers
from onejob.engine.timings import group, read_timings
from onejob.errors import OnejobError
from onejob.stores.contract import Finding
from onejob.stores.queries import Ended, Expired, Overdue

DEAD_FOR = timedelta(hours=1)  # how long a dead worker is reported
RECENT = timedelta(hours=1)  # in which dead letters are counted
RESCUED_AFTER = timedelta(seconds=10)  # after its lease, a job is taken back if any worker is alive
USUAL = 10  # times the 99th percentile of a task's runs are usual
SHORTEST = timedelta(minutes=1)  # a run that is shorter is never too long
LONGEST_LEASE = timedelta(days=365)
LOOKED_AT = 1000  # active jobs, those whose leases end first


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is not well: the age of the oldest due job, and dead letters in an hour."""

    max_age: timedelta
    max_dead: int
    timeout: float  # seconds in which the store must answer


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read from the store."""

    now: datetime
    due: Sequence[Job]
    paused: Collection[str]
    workers: Sequence[WorkerStatus]
    active: Sequence[Job]
    usual: Mapping[str, timedelta]  # the 99th percentile of runs by task, if a run may be too long
    dead: Sequence[Job]

    @property
    def alive(self) -> list[WorkerStatus]:
        """The workers that were seen within two heartbeats."""
        return [worker for worker in self.workers if worker.is_alive(self.now)]

    @property
    def left_waiting(self) -> list[Job]:
        """The due jobs, except those of paused queues, that an idle worker would have started by now."""
        waiting = [job for job in self.due if self.now - job.due_since > SILENT_AFTER]
        return [job for job in waiting if job.queue not in self.paused]


async def check_health(engine: Engine, limits: Limits) -> list[Finding]:
    """Return one finding per check, or more where something is not well."""
    try:
        async with asyncio.timeout(limits.timeout):
            seen = await look(engine, limits)
    except TimeoutError:
        return [unreachable(f"no answer within {limits.timeout:g} s")]
    except OnejobError as error:
        return [unreachable(str(error).rstrip("."))]
    reachable = Finding("store", "ok", "The store answers.")
    return [
        reachable,
        *lateness(seen, limits.max_age),
        *workers(seen),
        *tasks(seen),
        *holds(seen),
        *dead_letters(seen, limits.max_dead),
    ]


def unreachable(why: str) -> Finding:
    """Return the finding for a store that does not answer."""
    advice = "Check that its server runs and can be reached from here, then run onejob doctor."
    return Finding("store", "fail", f"The store does not answer: {why}.", advice)


async def look(engine: Engine, limits: Limits) -> Seen:
    """Read what the checks need."""
    store, namespace, now = engine.store, engine.namespace, engine.store.now()
    ended = Ended(namespace=namespace, state=State.DISCARDED, limit=limits.max_dead + 1)
    active = await store.find(Expired(namespace=namespace, by=now + LONGEST_LEASE, limit=LOOKED_AT))
    runs_long = any(job.is_holder and now - (job.started_at or now) > SHORTEST for job in active)
    return Seen(
        now,
        await store.find(Overdue(namespace=namespace, by=now)),
        await store.settings(namespace, PAUSED),
        await read_workers(engine),
        active,
        await usual_runs(engine) if runs_long else {},  # of many workers they are many rows
        await store.find(ended),
    )


async def usual_runs(engine: Engine) -> dict[str, timedelta]:
    """Return how long runs of each task take, by the 99th percentile of the last hour."""
    measured = (await read_timings(engine))["1h"]
    by_task = group(measured, by_queue=False)
    runs = {task: add_up(one.runs for one in some) for task, some in by_task.items()}
    return {task: timedelta(seconds=percentile(some, 0.99)) for task, some in runs.items() if some}


# ── the checks ────────────────────────────────────────────────────────────────────────────────────


def lateness(seen: Seen, max_age: timedelta) -> list[Finding]:
    """Report queues whose oldest due job has waited too long; a paused queue is a warning only."""
    found = []
    for queue, job in sorted(longest_due(seen.due, seen.now).items()):
        age = seen.now - job.due_since
        if age > max_age and queue in seen.paused:
            message = f"Queue {queue} is paused, and its oldest due job has waited for {rough(age)}."
            found.append(Finding("lateness", "warn", message, f"Resume it: onejob resume APP {queue}."))
        elif age > max_age:
            waited = f"{rough(age)}, more than {rough(max_age)}"
            message = f"The oldest due job of queue {queue} has waited for {waited}."
            advice = f"Start more workers; onejob why APP {job.id} says what the job waits for."
            found.append(Finding("lateness", "fail", message, advice))
    return found or [Finding("lateness", "ok", f"No due job has waited for more than {rough(max_age)}.")]


def workers(seen: Seen) -> list[Finding]:
    """Report workers that died, and jobs that are due while no worker is alive."""
    found = []
    for worker in seen.workers:
        silent = seen.now - worker.seen_at
        if SILENT_AFTER < silent <= DEAD_FOR:
            message = (
                f"Worker {worker.name} has been silent for {rough(silent)} and has not stopped in order."
            )
            advice = "It was killed, or hangs: look at its log. Its jobs are taken back by other workers."
            found.append(Finding("workers", "fail", message, advice))
    if not seen.alive and seen.left_waiting:
        message = "No worker is alive, and jobs are due."
        found.append(Finding("workers", "fail", message, "Start one: onejob worker APP."))
    number = len(seen.alive)
    alive = "1 worker is alive" if number == 1 else f"{number} workers are alive"
    return found or [Finding("workers", "ok", f"{alive}, and none died within the last hour.")]


def tasks(seen: Seen) -> list[Finding]:
    """Report tasks whose jobs are due and that no live worker would run, if any worker is alive."""
    left = Counter((job.task, job.queue) for job in seen.left_waiting if not is_served(job, seen.alive))
    if not seen.alive:
        return [Finding("tasks", "ok", "No worker is alive whose tasks could be compared with the due jobs.")]
    if not left:
        return [Finding("tasks", "ok", "Live workers know the tasks of all jobs that are due longest.")]
    advice = "Start a worker whose app has the task and that serves the queue."
    return [
        Finding("tasks", "fail", f"No live worker runs jobs of task {task} in queue {queue}.", advice)
        for task, queue in sorted(left)
    ]


def is_served(job: Job, alive: Iterable[WorkerStatus]) -> bool:
    """Return whether a worker knows the task of a job and serves its queue."""
    return any(job.task in worker.tasks and job.queue in worker.queues for worker in alive)


def holds(seen: Seen) -> list[Finding]:
    """Report jobs that outlived their lease, and holders of a key that run much longer than usual."""
    found = []
    for job in seen.active:
        running = seen.now - (job.started_at or seen.now)
        if job.lease_until is not None and seen.now - job.lease_until > RESCUED_AFTER:
            message = f"Job {job.id} ({job.task}) is past the end of its lease, and no worker takes it back."
            found.append(Finding("holds", "fail", message, "Start a worker: onejob worker APP."))
        elif job.is_holder and job.task in seen.usual and running > longest_run(seen.usual[job.task]):
            message = (
                f"Job {job.id} ({job.task}) has held its key for a run of {rough(running)}; "
                f"99 of 100 runs take at most {rough(seen.usual[job.task])}."
            )
            advice = f"If it hangs, end it: onejob cancel APP {job.id}. A timeout= does that by itself."
            found.append(Finding("holds", "fail", message, advice))
    return found or [
        Finding("holds", "ok", "No running job holds its key for longer than its task usually runs.")
    ]


def longest_run(usual: timedelta) -> timedelta:
    """Return from how long on a run is too long."""
    return max(USUAL * usual, SHORTEST)


def dead_letters(seen: Seen, most: int) -> list[Finding]:
    """Report that many jobs have failed for good within the last hour."""
    new = [job for job in seen.dead if seen.now - (job.finished_at or seen.now) < RECENT]
    if len(new) <= most:
        return [Finding("dead letters", "ok", f"At most {most} jobs failed for good within the last hour.")]
    message = f"More than {most} jobs failed for good within the last hour."
    return [Finding("dead letters", "fail", message, "See why: onejob dead APP --group.")]
