"""What a worker does, one act at a time: start a job, settle it, act inside its run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from onejob.app.app import App
from onejob.core import runs
from onejob.core.fluent import Fluent
from onejob.core.job import Job, Retry, State
from onejob.core.leasing import Lease, Rate
from onejob.core.policy import Unique
from onejob.core.runs import Completed, Failed, HandedBack, Result, Settled, Snoozed, Stopped
from onejob.core.step import Step
from onejob.engine.dependants import begin_to_wait, endings, notify_dependants
from onejob.stores.queries import Listed
from onejob.tasks.call import Call
from onejob.tasks.current import enter
from onejob.tasks.task import Task
from onejob.testing.inside import engine_of, registry_of
from onejob.worker.attempt import Attempt
from onejob.worker.options import limits

T = TypeVar("T")
Policy = Unique | Fluent | bool | None

LEASE = timedelta(seconds=15)
BACKOFF = 20  # seconds, after which the first retry of a mailer's job is due: it waits for 10
NO_LUCK = ValueError("no luck")
RETRY = Retry(attempts=3, base=10, factor=2, cap="1h", jitter=0)


def mailer(
    app: App,
    unique: Policy = None,
    *,
    name: str = "mail",
    queue: str = "default",
    retry: Retry = RETRY,
    **policies: Any,
) -> Task[..., str]:
    """Register a task with two arguments: to whom a mail goes, and its text."""

    async def mail(to: Any, text: Any = "") -> str:
        return f"{to}: {text}"

    return app.task(name=name, queue=queue, unique=unique, retry=retry, **policies)(mail)


# ── a worker's acts ───────────────────────────────────────────────────────────────────────────────


def wanted(app: App, *, total: int = 1000, worker: str = "worker") -> Lease:
    """Return a request for all jobs that are due."""
    return Lease(
        namespace=app.namespace,
        worker=worker,
        queues=dict.fromkeys(registry_of(app).queues, total),
        total=total,
        duration=LEASE,
        tasks=app.tasks.keys(),
        **limits(registry_of(app).queues.values()),
    )


async def lease(app: App, *, total: int = 1000, worker: str = "worker") -> list[Job]:
    """Start all jobs that are due, best first."""
    return (await engine_of(app).store.lease(wanted(app, total=total, worker=worker))).jobs


async def next_due(app: App, namespace: str = "", rates: Mapping[str, Rate] | None = None) -> datetime | None:
    """Return when a worker without capacity in any queue should look again."""
    asked = Lease(
        namespace=namespace,
        worker="idle",
        queues=dict.fromkeys(rates or ["default"], 0),
        total=1,
        duration=LEASE,
        tasks=app.tasks.keys(),
        rates=rates or {},
    )
    return (await engine_of(app).store.lease(asked)).next_due


async def start(app: App, *, worker: str = "worker") -> Job:
    """Start the one job that is due."""
    [job] = await lease(app, worker=worker)
    return job


async def settle(app: App, job: Job, result: Result) -> Job | None:
    """Write the result of a run as a worker does; None if the lease is lost."""
    [settled] = await engine_of(app).store.apply([settlement(app, job, result)])
    assert settled is None or isinstance(settled, Settled)
    return None if settled is None else settled.job


def settlement(app: App, job: Job, result: Result) -> Step[Any]:
    """Return the step that writes the result of a run."""
    act = partial(runs.settle, token=job.token, result=result, merge=registry_of(app).merge)
    return Step(act, job.id)


async def turn(app: App, ended: Sequence[Job]) -> tuple[list[Any], list[Job]]:
    """Complete runs and start all jobs that are due then, as a worker of limited queues does."""
    answers, jobs, _ = await engine_of(app).store.lease(
        wanted(app), [settlement(app, job, Completed()) for job in ended]
    )
    return answers, jobs


async def settled(app: App, job: Job, result: Result) -> Job:
    """Write a result that must be taken."""
    after = await settle(app, job, result)
    assert after is not None
    return after


async def complete(app: App, job: Job, value: object = None, *, then: Job | None = None) -> Job:
    """Write that a run has completed; return the job."""
    return await settled(app, job, Completed(msgspec.json.encode(value), then))


async def settle_with(app: App, job: Job, call: Call[Any]) -> None:
    """Complete a run with a continuation, as a worker does."""
    attempt = Attempt(engine_of(app), registry_of(app), job)
    attempt.context.continue_with(call)
    await settled(app, job, attempt.complete(None))


async def fail(app: App, job: Job, *, final: bool = False, error: Exception = NO_LUCK) -> Job:
    """Write that a run has failed; return the job."""
    error_as_stored = {"type": type(error).__name__, "message": str(error), "traceback": ""}
    return await settled(app, job, Failed(error_as_stored, final=final))


async def snooze(app: App, job: Job, seconds: float) -> Job:
    """Write that a run is snoozed; return the job."""
    return await settled(app, job, Snoozed(timedelta(seconds=seconds)))


async def hand_back(app: App, job: Job) -> Job:
    """Write that a run is handed back; return the job."""
    return await settled(app, job, HandedBack())


async def stop(app: App, job: Job) -> Job:
    """Write that a run has stopped because it was cancelled; return the job."""
    return await settled(app, job, Stopped("cancelled"))


async def run(app: App, value: object = None) -> Job:
    """Start the one job that is due and complete it."""
    return await complete(app, await start(app), value)


async def discard(app: App, error: Exception = NO_LUCK) -> Job:
    """Start the one job that is due and let it fail for good."""
    return await fail(app, await start(app), final=True, error=error)


async def inside(app: App, job: Job, act: Callable[[], Awaitable[T]]) -> T:
    """Act inside the run of a job, as its handler would."""

    async def handler() -> T:
        enter(Attempt(engine_of(app), registry_of(app), job).context)
        return await act()

    return await asyncio.create_task(handler())


async def notify(app: App, ended: Sequence[Job | None]) -> int:
    """Notify the dependants of chains that ended; a worker does so after each settle."""
    return await engine_of(app).run_flow(notify_dependants(endings(ended), app.namespace))


async def expect_blockers(app: App, continuation: Job) -> None:
    """Let a continuation that was written begin to wait; a worker does so after each settle."""
    await engine_of(app).run_flow(begin_to_wait(await app.job(continuation.id), {}))


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


async def everything(app: App) -> list[Job]:
    """Return every job, oldest first."""
    return await engine_of(app).store.find(Listed(namespace=None, limit=100_000, newest_first=False))


async def live(app: App) -> list[Job]:
    """Return every job that has not ended, oldest first."""
    return [job for job in await everything(app) if not job.is_terminal]


async def states(app: App) -> list[State]:
    """Return the states of all jobs, oldest first."""
    return [job.state for job in await everything(app)]


async def absorbed(app: App) -> dict[str, int]:
    """Return how many requests were absorbed, by outcome, over all tasks."""
    counts: dict[str, int] = {}
    for outcomes in (await app.stats()).absorbed.values():
        for outcome, count in outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts
