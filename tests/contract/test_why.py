"""`onejob why` names the true reason for every way in which a job can wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from onejob import App, Job, Unique, WorkerStatus
from onejob.core.job import alter
from onejob.core.step import Changes, Step
from onejob.engine.presence import report
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.steps import fail, lease, mailer, notify, run, start


async def why(app: App, job: Job) -> str:
    """Return what `onejob why` prints about a job."""
    return " ".join((await app.why(job.id)).sentences)


async def be_alive(app: App, **facts: Any) -> None:
    """Report a worker that knows the task `mail` and serves the queue `default`."""
    now = app._engine.store.now()
    known: dict[str, Any] = {
        "name": "w",
        "host": "h",
        "process": 1,
        "version": "1",
        "started_at": now,
        "seen_at": now,
        "queues": {"default": 1},
        "tasks": ["mail"],
        "running": [],
        "concurrency": 1,
    }
    await report(app._engine, WorkerStatus(**known | facts))


async def test_a_scheduled_job_waits_for_its_time(app: App) -> None:
    job = (await mailer(app).options(delay="1h").enqueue(1)).job
    assert (await why(app, job)).startswith("It is scheduled for ")


async def test_a_failed_job_waits_for_its_next_attempt(app: App) -> None:
    await mailer(app).enqueue(1)
    job = await fail(app, await start(app))
    told = await why(app, job)
    assert "Attempt 1 failed; the next one is due " in told
    assert "ValueError: no luck" in told


async def test_a_job_waits_for_its_blockers(app: App) -> None:
    mail = mailer(app)
    waiting = await mail.options(delay="1h").enqueue(1)
    running = await mail.enqueue(2)
    await start(app)
    job = (await mail.options(after=[waiting, running]).enqueue(3)).job
    told = await why(app, job)
    assert f"It waits for chain {waiting.job.id}, which is scheduled." in told
    assert f"It waits for chain {running.job.id}, which is active." in told


async def test_a_job_waits_no_longer_for_a_blocker_that_has_completed(app: App) -> None:
    mail = mailer(app)
    waiting = await mail.options(delay="1h").enqueue(1)
    done = await mail.enqueue(2)
    job = (await mail.options(after=[waiting, done]).enqueue(3)).job
    await notify(app, [await run(app)])
    assert done.job.id not in await why(app, job)


async def test_a_job_waits_for_a_blocker_that_has_failed(app: App) -> None:
    mail = mailer(app)
    blocker = await mail.enqueue(1)
    job = (await mail.options(after=[blocker]).enqueue(2)).job
    dead = await fail(app, await start(app), final=True)
    await notify(app, [dead])
    told = await why(app, job)
    assert f"It waits for chain {blocker.job.id}, which is discarded: replay that" in told
    assert f"onejob replay APP {dead.id}" in told


async def test_a_job_waits_for_a_blocker_that_is_gone(app: App) -> None:
    mail = mailer(app)
    blocker = await mail.options(delay="1h").enqueue(1)
    job = (await mail.options(after=[blocker]).enqueue(2)).job
    await app.delete(blocker.job.id, force=True)
    assert f"It waits for chain {blocker.job.id}, which is gone" in await why(app, job)


async def test_a_successor_waits_behind_the_holder(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    job = (await mail.enqueue(1, "b")).job
    assert f"It waits behind job {running.id}, which is active and holds the same key." in await why(app, job)


async def test_a_successor_with_blockers_waits_for_both(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    blocker = await mail.options(delay="1h").enqueue(2)
    job = (await mail.options(after=[blocker]).enqueue(1, "b")).job
    told = await why(app, job)
    assert f"It waits for chain {blocker.job.id}, which is scheduled." in told
    assert f"It waits behind job {running.id}" in told


async def test_a_due_job_waits_for_any_worker(app: App, clock: Clock) -> None:
    job = (await mailer(app).enqueue(1)).job
    assert "It is due, but no worker is alive: onejob worker" in await why(app, job)
    await be_alive(app)
    assert "no worker is alive" not in await why(app, job)
    clock.advance("11s")
    assert "no worker is alive; the last was seen " in await why(app, job)


async def test_a_due_job_waits_for_a_worker_of_its_queue(app: App) -> None:
    app.queue("other")
    job = (await mailer(app).enqueue(1)).job
    await be_alive(app, queues={"other": 1})
    assert "none of 1 live worker serves queue 'default'." in await why(app, job)


async def test_the_doctor_names_due_jobs_whose_task_no_app_or_worker_has(app: App, store: Store) -> None:
    await mailer(app).enqueue(1)
    async with App(store=store) as new:
        mailer(new, name="other")

        async def due(app: App) -> tuple[str, str]:
            [finding] = [one for one in await app.doctor() if one.check == "due jobs"]
            return finding.level, finding.message

        assert (await due(app))[0] == "ok"
        said = "Neither this app nor a live worker has the task of 1 due job: mail."
        assert await due(new) == ("warn", said)
        await be_alive(app)
        assert (await due(new))[0] == "ok"


async def test_a_due_job_waits_for_a_worker_that_knows_its_task(app: App) -> None:
    job = (await mailer(app).enqueue(1)).job
    await be_alive(app, tasks=["other"])
    assert "none of 1 live worker of queue 'default' knows the task 'mail'" in await why(app, job)


async def test_a_due_job_waits_for_a_worker_with_free_capacity(app: App) -> None:
    job = (await mailer(app).enqueue(1)).job
    await be_alive(app)
    told = await why(app, job)
    assert "waits for a worker with free capacity of queue 'default'; running there now: 0." in told


async def test_a_due_job_waits_for_a_task(app: App, store: Store) -> None:
    job = (await mailer(app).enqueue(1)).job
    async with App(store=store) as without_tasks, App(store=store) as other:
        mailer(other, name="other")
        assert "no task is named 'mail' in this app" in await why(other, job)
        assert "No tasks are declared here" in await why(without_tasks, job)


async def test_a_due_job_waits_for_its_paused_queue(app: App) -> None:
    job = (await mailer(app).enqueue(1)).job
    await app.queues.pause("default")
    assert "queue 'default' is paused" in await why(app, job)


async def test_a_due_job_waits_for_the_limit_of_its_queue(app: App) -> None:
    app.queue("narrow", concurrency=1)
    mail = mailer(app, queue="narrow")
    await mail.enqueue(1)
    await start(app)
    job = (await mail.enqueue(2)).job
    assert "queue 'narrow' already runs 1 job, which is its limit." in await why(app, job)


async def test_a_due_job_waits_for_the_rate_of_its_queue(app: App, clock: Clock) -> None:
    app.queue("slow", rate="2/1h")
    mail = mailer(app, queue="slow")
    await be_alive(app, queues={"slow": 1}, seen_at=clock() + timedelta(hours=2))
    jobs = [(await mail.enqueue(number)).job for number in range(3)]
    assert len(await lease(app)) == 2
    told = await why(app, jobs[2])
    assert "queue 'slow' has used up its rate of 2/1h; the next job may start " in told
    assert await app.queues.next_start("slow") == clock() + timedelta(hours=1)
    clock.advance("61m")
    assert await app.queues.next_start("slow") is None
    assert "waits for a worker with free capacity" in await why(app, jobs[2])


async def test_a_due_job_waits_for_the_share_of_its_partition(app: App) -> None:
    app.queue("shared", partition_concurrency=1)
    mail = mailer(app, queue="shared", partition="to")
    await be_alive(app, queues={"shared": 2})
    jobs = [(await mail.enqueue("Ada", number)).job for number in range(2)]
    other = (await mail.enqueue("Bob", 1)).job
    assert {job.id for job in await lease(app, total=1)} == {jobs[0].id}
    assert "partition 'Ada' of queue 'shared' already runs 1 job, which is its share." in await why(
        app, jobs[1]
    )
    assert "waits for a worker with free capacity" in await why(app, other)


async def test_a_waiting_job_that_expires_says_when(app: App) -> None:
    job = (await mailer(app).options(delay="1h", expires_in="2h").enqueue(1)).job
    assert "It must start by " in await why(app, job)


async def test_a_job_that_expires_before_its_time_never_runs(app: App, clock: Clock) -> None:
    job = (await mailer(app).options(delay="1h", expires_in="2h").enqueue(1)).job
    early = clock() + timedelta(minutes=10)
    act = lambda view: Changes(None, updates=(alter(view.job, expires_at=early),))  # noqa: E731
    await app._engine.store.apply([Step(act, job.id)])
    assert "It will not run: it expires " in await why(app, job)
