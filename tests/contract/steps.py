"""Carry jobs through their lives by hand: no worker, no sleeping, no chance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from onejob import App, Call, Job, Retry, State, Task, Unique, lifecycle
from onejob.context import Context, enter
from onejob.continuing import completed
from onejob.fluent import Fluent
from onejob.lifecycle import Completed, Failed, HandedBack, Result, Snoozed, Stopped
from onejob.stores.contract import Filter, Lease, Step
from onejob.worker import limits

T = TypeVar("T")
Policy = Unique | Fluent | bool | None

LEASE = timedelta(seconds=15)
BACKOFF = 20  # seconds before the first retry of a mailer's job: 10 · 2^1
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
    """Register a task with two arguments: whom a mail is `to`, and its `text`."""

    async def mail(to: Any, text: Any = "") -> str:
        return f"{to}: {text}"

    return app.task(name=name, queue=queue, unique=unique, retry=retry, **policies)(mail)


# ── a worker's acts ───────────────────────────────────────────────────────────────────────────────


def wanted(app: App, *, total: int = 1000, worker: str = "worker") -> Lease:
    """Want whatever is due."""
    return Lease(
        namespace=app.namespace,
        worker=worker,
        queues=dict.fromkeys(app.queues, total),
        total=total,
        duration=LEASE,
        tasks=app.tasks.keys(),
        **limits(app.queues.values()),
    )


async def lease(app: App, *, total: int = 1000, worker: str = "worker") -> list[Job]:
    """Start whatever is due, best first."""
    return await app.store.lease(wanted(app, total=total, worker=worker))


async def start(app: App, *, worker: str = "worker") -> Job:
    """Start the one job that is due."""
    [job] = await lease(app, worker=worker)
    return job


async def settle(app: App, job: Job, result: Result) -> Job | None:
    """Write the result of a run as a worker does; None if the lease is lost."""
    [settled] = await app.store.apply([settlement(app, job, result)])
    assert settled is None or isinstance(settled, Job)
    return settled


def settlement(app: App, job: Job, result: Result) -> Step:
    """Make the step that writes the result of a run."""
    act = partial(
        lifecycle.settle, token=job.token, result=result, merge=app.merge, replay=app.replay_of(job)
    )
    return Step(act, job.id)


async def turn(app: App, ended: Sequence[Job]) -> tuple[list[Any], list[Job]]:
    """Complete runs and start whatever is due then, as a worker of limited queues does."""
    return await app.store.turn([settlement(app, job, Completed()) for job in ended], wanted(app))


async def settled(app: App, job: Job, result: Result) -> Job:
    """Write a result that must be taken."""
    after = await settle(app, job, result)
    assert after is not None
    return after


async def complete(app: App, job: Job, value: object = None, *, then: Job | None = None) -> Job:
    return await settled(app, job, Completed(msgspec.json.encode(value), then))


async def settle_with(app: App, job: Job, call: Call[Any]) -> None:
    """Complete a run with a continuation, as a worker does."""
    context = Context(app, job, None)
    context.continue_with(call)
    await settled(app, job, completed(context, None))


async def fail(app: App, job: Job, *, final: bool = False, error: Exception = NO_LUCK) -> Job:
    told = {"type": type(error).__name__, "message": str(error), "traceback": ""}
    return await settled(app, job, Failed(told, final=final))


async def snooze(app: App, job: Job, seconds: float) -> Job:
    return await settled(app, job, Snoozed(timedelta(seconds=seconds)))


async def hand_back(app: App, job: Job) -> Job:
    return await settled(app, job, HandedBack())


async def stop(app: App, job: Job) -> Job:
    return await settled(app, job, Stopped("cancelled"))


async def run(app: App, value: object = None) -> Job:
    """Start the one job that is due and complete it."""
    return await complete(app, await start(app), value)


async def discard(app: App, error: Exception = NO_LUCK) -> Job:
    """Start the one job that is due and let it fail for good."""
    return await fail(app, await start(app), final=True, error=error)


async def inside(app: App, job: Job, act: Callable[[], Awaitable[T]]) -> T:
    """Do something inside the run of a job, as its handler would."""

    async def handler() -> T:
        enter(Context(app, job, None))
        return await act()

    return await asyncio.create_task(handler())


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


async def everything(app: App) -> list[Job]:
    """Read every job, oldest first."""
    return await app.store.find(Filter(limit=100_000, newest_first=False))


async def live(app: App) -> list[Job]:
    """Read every job that has not ended, oldest first."""
    return [job for job in await everything(app) if not job.is_terminal]


async def states(app: App) -> list[State]:
    """Tell the states of all jobs, oldest first."""
    return [job.state for job in await everything(app)]


async def absorbed(app: App) -> dict[str, int]:
    """Tell how many requests were absorbed, by outcome, over all tasks."""
    counts: dict[str, int] = {}
    for outcomes in (await app.stats()).absorbed.values():
        for outcome, count in outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts
