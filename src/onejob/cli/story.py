"""A job's story in sentences: why it waits, or how it ended, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from onejob.cli.output import number_of, when
from onejob.errors import UnknownJob

if TYPE_CHECKING:
    from onejob import App, Job


async def tell(app: App, job: Job) -> list[str]:
    """Tell why a job is where it is."""
    from onejob import State

    match job.state:
        case State.SCHEDULED:
            return [f"It is scheduled for {when(job.run_at)}.", *errors(job)]
        case State.RETRYABLE:
            return [f"Attempt {job.attempt} failed; the next one is due {when(job.run_at)}.", *errors(job)]
        case State.PENDING:
            return await pending(app, job)
        case State.AVAILABLE:
            return await available(app, job)
        case State.ACTIVE:
            return active(job)
        case State.COMPLETED:
            attempts = number_of(job.attempt, "attempt")
            return [f"It completed {when(job.finished_at)}, after {attempts}.", *holds(app, job)]
        case State.CANCELLED:
            return await cancelled(app, job)
        case State.DISCARDED:
            return [
                ended_late(job)
                if job.reason == "expired"
                else f"It failed for good {when(job.finished_at)}.",
                *errors(job),
                *replayable(job),
                *holds(app, job),
            ]
        case _:
            assert_never(job.state)


async def pending(app: App, job: Job) -> list[str]:
    """Name the job that this one waits behind."""
    holder = (await app.standing(job.next_key)).holder if job.next_key is not None else None
    if holder is None:
        return ["It waits for a job that is gone: run onejob doctor."]
    return [
        f"It waits behind job {holder.id}, which is {holder.state} and holds the same key.",
        "It starts after that one, however it ends; requests that come meanwhile are absorbed into it.",
    ]


async def available(app: App, job: Job) -> list[str]:
    """Say what a due job waits for: a task, a place, a worker."""
    if app.tasks and job.task not in app.tasks:
        return [f"It is due, but no task is named {job.task!r} in this app, so its workers leave it alone."]
    running = len(await app.jobs(state="active", queue=job.queue))
    if job.queue in await app.paused():
        return [f"It is due, but queue {job.queue!r} is paused: onejob resume APP {job.queue}"]
    queue = app.queues.get(job.queue)
    if queue is not None and queue.concurrency is not None and running >= queue.concurrency:
        return [f"It is due, but queue {job.queue!r} already runs {running} jobs, which is its limit."]
    since = f"It has been due since {when(job.run_at)} and waits for a free place in a worker"
    return [f"{since} of queue {job.queue!r}; running there now: {running}.", *errors(job)]


def active(job: Job) -> list[str]:
    """Say who runs a job, and since when."""
    story = [f"Worker {job.worker} has run it since {when(job.started_at)}, attempt {job.attempt}."]
    if job.cancel_requested:
        story.append("It has been told to stop.")
    return [*story, f"If that worker is dead, another takes the job back {when(job.lease_until)}."]


async def cancelled(app: App, job: Job) -> list[str]:
    """Say who cancelled a job, or which one took its work over and what became of that."""
    if job.superseded_by is None:
        return [f"It was cancelled {when(job.finished_at)}: {job.reason}.", *errors(job), *holds(app, job)]
    return [
        f"It was superseded {when(job.finished_at)}: a newer request of the same key took its work over.",
        *await heirs(app, job.superseded_by),
    ]


async def heirs(app: App, job_id: str | None) -> list[str]:
    """Follow a superseded job to the one that stands for it in the end."""
    story: list[str] = []
    while job_id is not None:
        try:
            newer = await app.job(job_id)
        except UnknownJob:
            return [*story, f"That was job {job_id}, which has been pruned since."]
        story.append(f"That is job {newer.id}, which is {newer.state}.")
        job_id = newer.superseded_by
    return story


def ended_late(job: Job) -> str:
    """Say when it was too late for a job."""
    return f"It had to start by {when(job.expires_at)} and did not, so it was discarded."


def errors(job: Job) -> list[str]:
    """Tell the last error, if there is one."""
    if not job.failures:
        return []
    last = job.failures[-1]
    return [f"Attempt {last['attempt']} of {job.retry.attempts} ended with {last['type']}: {last['message']}"]


def replayable(job: Job) -> list[str]:
    """Say when a dead letter comes back, and how to bring it back."""
    by_itself = [f"It comes back by itself {when(job.returns_at)}."] if job.returns_at else []
    return [*by_itself, f"To try again{' now' if by_itself else ''}: onejob replay APP {job.id}"]


def holds(app: App, job: Job) -> list[str]:
    """Say that a job which ended still holds its key."""
    if not app.holding(job):
        return []
    return [f"It still holds its key, {f'until {when(job.holds_until)}' if job.holds_until else 'for good'}."]
