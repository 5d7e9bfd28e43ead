"""Health: each check fails for its own reason, on every store, and for no other."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from onejob import App, Finding, Job, Retry, Unique, WorkerStatus
from onejob.core.runs import extend
from onejob.core.step import Step
from onejob.engine.presence import report
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock, drain
from tests.contract.steps import LEASE, complete, fail, lease, mailer, start

ONCE = Retry.never()
HOUR = timedelta(hours=1)


async def worker(app: App, name: str = "w1", **facts: Any) -> None:
    """Write the row of a worker, seen now, that knows the app's tasks."""
    now = app._engine.store.now()
    known: dict[str, Any] = {
        "host": "here",
        "process": 7,
        "version": "1",
        "started_at": now,
        "seen_at": now,
        "queues": dict.fromkeys(app._registry.queues, 8),
        "tasks": sorted(app.tasks),
        "running": [],
        "concurrency": 8,
    }
    await report(app._engine, WorkerStatus(name=name, **known | facts))


async def test_a_worker_is_alive_by_the_clock_of_the_store(app: App, clock: Clock) -> None:
    await worker(app)  # seen now, at the time of a clock that is far from this machine's
    assert [one.alive for one in await app.activity.workers()] == [True]
    clock.advance(10)
    assert [one.alive for one in await app.activity.workers()] == [True]
    clock.advance(1)
    assert [one.alive for one in await app.activity.workers()] == [False]


async def findings(app: App, level: str = "fail", **limits: Any) -> dict[str, Finding]:
    """Return the findings of a level, by check."""
    return {one.check: one for one in await app.maintenance.health(**limits) if one.level == level}


async def test_all_is_well_on_an_empty_store(app: App) -> None:
    found = await app.maintenance.health()
    assert [one.check for one in found] == ["store", "lateness", "workers", "tasks", "holds", "dead letters"]
    assert {one.level for one in found} == {"ok"}


async def test_all_is_well_while_workers_keep_up(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    await worker(app)
    await mail.enqueue(1)
    await mail.options(delay="1h").enqueue(2)
    running = await start(app)
    await mail.enqueue(3)
    clock.advance(9)
    assert await findings(app) == {}
    await complete(app, running)
    assert await findings(app) == {}


# ── lateness ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_is_due_for_too_long_is_reported(app: App, clock: Clock) -> None:
    await mailer(app, queue="mail").enqueue(1)
    clock.advance("5m")
    await worker(app)
    assert await findings(app) == {}
    clock.advance(1)
    late = (await findings(app))["lateness"]
    assert late.message == "The oldest due job of queue mail has waited for 5m1s, more than 5m."
    assert "lateness" not in await findings(app, max_age="6m")


async def test_a_paused_queue_is_a_warning(app: App, clock: Clock) -> None:
    await mailer(app, queue="mail").enqueue(1)
    await app.queues.pause("mail")
    clock.advance("1h")
    assert await findings(app) == {}
    warned = await findings(app, "warn")
    assert warned["lateness"].message == "Queue mail is paused, and its oldest due job has waited for 1h."


# ── workers and tasks ─────────────────────────────────────────────────────────────────────────────


async def test_a_silent_worker_is_reported_for_an_hour(app: App, clock: Clock) -> None:
    await worker(app)
    clock.advance(10)
    assert await findings(app) == {}
    clock.advance(1)
    dead = (await findings(app))["workers"]
    assert dead.message == "Worker w1 has been silent for 11s and has not stopped in order."
    clock.advance("1h")
    assert await findings(app) == {}


async def test_a_worker_that_stopped_in_order_is_not_dead(app: App, clock: Clock) -> None:
    await worker(app, stopped=True)
    clock.advance(60)
    assert await findings(app) == {}


async def test_due_jobs_need_a_live_worker(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    assert await findings(app) == {}  # one may be about to start
    clock.advance(11)
    assert (await findings(app))["workers"].message == "No worker is alive, and jobs are due."
    [tasks] = [one for one in await app.maintenance.health() if one.check == "tasks"]
    assert tasks.message == "No worker is alive whose tasks could be compared with the due jobs."
    await worker(app)
    assert await findings(app) == {}


async def test_scheduled_jobs_need_no_worker_yet(app: App, clock: Clock) -> None:
    await mailer(app).options(delay="1h").enqueue(1)
    clock.advance("59m")
    assert await findings(app) == {}


@pytest.mark.parametrize("facts", [{"tasks": ["other"]}, {"queues": {"other": 8}}])
async def test_a_task_that_no_live_worker_runs_is_reported(
    app: App, clock: Clock, facts: dict[str, Any]
) -> None:
    await mailer(app).enqueue(1)
    clock.advance(11)
    await worker(app, **facts)
    found = await findings(app)
    assert found.keys() == {"tasks"}
    assert found["tasks"].message == "No live worker runs jobs of task mail in queue default."
    await worker(app, "w2")
    assert await findings(app) == {}


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────


async def renew(app: App, job: Job) -> None:
    """Renew the lease of a job for an hour."""
    await app._engine.store.apply([Step(partial(extend, token=job.token, lease=HOUR), job.id)])


async def test_a_hold_that_is_older_than_its_tasks_usual_run_is_reported(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    await drain(app)  # so that it is known that runs take milliseconds
    await mail.enqueue(2)
    job = await start(app)
    await renew(app, job)
    clock.advance(60)
    assert await findings(app) == {}
    clock.advance(1)
    found = await findings(app)
    assert found.keys() == {"holds"}
    assert f"Job {job.id} (mail) has held its key for a run of 1m1s" in found["holds"].message
    await complete(app, job)
    assert await findings(app) == {}


async def test_a_long_run_is_not_judged_without_a_key_or_a_usual_time(app: App, clock: Clock) -> None:
    common, unique = mailer(app), mailer(app, Unique(by="to"), name="unique")
    await common.enqueue(1)
    await drain(app)
    await common.enqueue(2)
    await unique.enqueue(3)
    for job in await lease(app):
        await renew(app, job)
    clock.advance("30m")
    assert await findings(app) == {}


async def test_a_job_past_its_lease_is_reported(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    clock.advance(LEASE + timedelta(seconds=10))
    assert await findings(app) == {}  # a worker would take it back about now
    clock.advance(1)
    past = (await findings(app))["holds"]
    assert past.message == f"Job {job.id} (mail) is past the end of its lease, and no worker takes it back."
    await app.maintenance.sweep()
    assert "holds" not in await findings(app)


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────


async def test_many_new_dead_letters_are_reported(app: App, clock: Clock) -> None:
    mail = mailer(app, retry=ONCE)
    await app.enqueue_many([mail.call(number) for number in range(3)])
    for job in await lease(app):
        await fail(app, job)
    assert await findings(app, max_dead=3) == {}
    found = await findings(app, max_dead=2)
    assert found["dead letters"].message == "More than 2 jobs failed for good within the last hour."
    clock.advance("61m")
    assert await findings(app, max_dead=2) == {}


async def test_namespaces_are_apart(store: Store, clock: Clock) -> None:
    async with App(store=store, namespace="other") as other, App(store=store) as app:
        await mailer(other).enqueue(1)
        await worker(other)
        clock.advance("10m")
        assert await findings(app) == {}
        assert (await findings(other)).keys() == {"lateness", "workers"}


def test_blocking_code_asks_too(store: Store, clock: Clock) -> None:
    app = App(store=store)
    mailer(app).enqueue_sync(1)
    clock.advance("10m")
    failed = {one.check for one in app.maintenance.health_sync() if one.level == "fail"}
    assert failed == {"lateness", "workers"}
    app.close_sync()
