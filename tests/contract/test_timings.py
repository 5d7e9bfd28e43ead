"""How long jobs waited and ran, by task and queue, and for how long the oldest due job of a queue waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from random import Random

import pytest

from onejob import App, Retry, Unique, current
from onejob.engine.timings import KIND, MOST_PAIRS, Recorder, forget_timings
from onejob.stores.contract import FullStore as Store
from onejob.stores.contract import Observation
from onejob.stores.queries import Overdue
from onejob.testing import Clock, drain
from tests.contract.steps import complete, fail, lease, mailer, start
from tests.system.live import eventually


async def rows(app: App) -> list[Observation]:
    return await app._engine.store.observations(app.namespace, KIND, limit=1000)


# ── the oldest due job ────────────────────────────────────────────────────────────────────────────


async def test_the_oldest_due_job_of_each_queue_is_found(app: App, clock: Clock) -> None:
    mail, report = mailer(app), mailer(app, name="report", queue="reports")
    assert (await app.stats()).oldest_due == {}
    await mail.enqueue(1)
    clock.advance(60)
    await mail.enqueue(2)
    await report.enqueue(3)
    clock.advance(5)
    assert (await app.stats()).oldest_due == {"default": 65.0, "reports": 5.0}
    [job] = await lease(app, total=1)
    await complete(app, job)
    assert (await app.stats()).oldest_due == {"default": 5.0, "reports": 5.0}


async def test_a_low_priority_job_that_waits_longest_is_found(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await mail.options(priority=-3).enqueue("old")
    clock.advance(100)
    for number in range(30):
        await mail.options(priority=number % 5).enqueue(number)
    clock.advance(1)
    assert (await app.stats()).oldest_due == {"default": 101.0}


async def test_a_job_whose_time_has_come_is_due_before_a_worker_sees_it(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await mail.options(delay=10).enqueue(1)
    clock.advance(9)
    assert (await app.stats()).oldest_due == {}
    clock.advance(21)
    assert (await app.stats()).oldest_due == {"default": 20.0}
    await fail(app, await start(app))  # it is retried after 10 s
    clock.advance(9)
    assert (await app.stats()).oldest_due == {}
    clock.advance(6)
    assert (await app.stats()).oldest_due == {"default": 5.0}


async def test_jobs_that_wait_for_others_are_not_due(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", on_active="rerun"))
    await mail.enqueue(1)
    running = await start(app)
    await mail.enqueue(1)
    await mail.options(after=[running.chain_id]).enqueue(2)
    clock.advance(300)
    assert (await app.stats()).oldest_due == {}
    await complete(app, running)
    clock.advance(2)
    assert (await app.stats()).oldest_due == {"default": 2.0}  # the successor is due since it was promoted


async def test_other_namespaces_do_not_count(store: Store, clock: Clock) -> None:
    async with App(store=store, namespace="other") as other, App(store=store) as app:
        await mailer(other).enqueue(1)
        clock.advance(5)
        assert (await app.stats()).oldest_due == {}
        assert (await other.stats()).oldest_due == {"default": 5.0}


async def test_every_store_finds_the_job_that_all_jobs_show(app: App, clock: Clock, chance: Random) -> None:
    tasks = [mailer(app, name=f"mail {n}", queue=f"queue {n % 2}") for n in range(3)]
    for number in range(60):
        task = chance.choice(tasks).options(
            priority=chance.randrange(-2, 3), delay=chance.choice([None, 1, 30, 500])
        )
        await task.enqueue(number)
        clock.advance(chance.choice([0, 1, 7]))
    jobs = await app.jobs(limit=1000)
    now = clock()
    due = [job for job in jobs if job.run_at <= now]
    expected = {q: max(now - job.run_at for job in due if job.queue == q) for q in {job.queue for job in due}}
    found = (await app.stats()).oldest_due
    assert found == {queue: age.total_seconds() for queue, age in expected.items()}


async def test_a_query_returns_few_jobs_of_many(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await app.enqueue_many([mail.call(number) for number in range(50)])
    found = await app._engine.find(Overdue(namespace="", by=clock(), limit=3))
    assert [job.arguments["to"] for job in found] == [0, 1, 2]


# ── waits and runs ────────────────────────────────────────────────────────────────────────────────


async def test_waits_and_runs_are_measured_by_task_and_queue(app: App, clock: Clock) -> None:
    @app.task(queue="slow")
    async def report() -> None:
        await asyncio.sleep(0.05)

    mail = mailer(app)
    await mail.enqueue(1)
    clock.advance(100)
    await mail.enqueue(2)
    await report.enqueue()
    await drain(app)
    found = (await app.stats()).timings
    assert found.keys() == {"5m", "1h"}
    for window in found.values():
        assert window.by_task.keys() == {"mail", "report"}
        assert window.by_queue.keys() == {"default", "slow"}
        assert window.by_task["mail"] == window.by_queue["default"]
        assert window.by_task["mail"].wait.count == window.by_task["mail"].run.count == 2
        assert window.by_task["mail"].wait.p99 == pytest.approx(100, rel=0.1)
        assert window.by_task["mail"].wait.p50 < 0.001
        assert 0.04 < window.by_queue["slow"].run.p50 < 60


async def test_windows_slide(app: App, clock: Clock) -> None:
    mail = mailer(app)
    for minutes in (40, 30, 3):
        await mail.enqueue(minutes)
        await drain(app)
        clock.advance(timedelta(minutes=minutes))
    found = (await app.stats()).timings
    assert found["5m"].by_task["mail"].run.count == 1
    assert found["1h"].by_task["mail"].run.count == 2  # of 33 and of 3 minutes ago, not of 73
    clock.advance("1h")
    assert (await app.stats()).timings["1h"].by_task == {}


async def test_several_workers_are_added_up(app: App) -> None:
    mail = mailer(app)
    for _ in range(3):
        await app.enqueue_many([mail.call(number) for number in range(4)])
        await drain(app)
    assert (await app.stats()).timings["5m"].by_task["mail"].run.count == 12
    assert len(await rows(app)) == 3


async def test_failed_runs_count_and_retries_wait_from_their_own_time(app: App, clock: Clock) -> None:
    @app.task
    async def fails() -> None:
        raise ValueError

    await fails.enqueue()
    await drain(app)
    clock.advance(30)
    await drain(app)
    times = (await app.stats()).timings["5m"].by_task["fails"]
    assert times.run.count == times.wait.count == 2
    assert 25 < times.wait.p99 < 33  # due again a second after the failure, started 29 s later


async def test_a_run_that_completes_in_its_own_transaction_is_measured(app: App) -> None:
    @app.task(retry=Retry.never())  # on a store without transactions the run fails, and is measured too
    async def pay() -> None:
        async with current().transaction():
            pass

    await pay.enqueue()
    await drain(app)
    assert (await app.stats()).timings["5m"].by_task["pay"].run.count == 1


async def test_a_worker_writes_while_it_runs_and_at_its_end(app: App) -> None:
    mail, worker = mailer(app), app.worker()

    async def has_ended(number: int) -> bool:
        return worker.ended["completed"] == number

    async with worker:
        await mail.enqueue(1)
        await eventually(partial(has_ended, 1))
        await worker._upkeep.heartbeat.beat()
        assert (await app.stats()).timings["5m"].by_task["mail"].run.count == 1
        await mail.enqueue(2)
        await eventually(partial(has_ended, 2))
    assert (await app.stats()).timings["5m"].by_task["mail"].run.count == 2
    assert len(await rows(app)) == 1  # the minute's row was replaced


async def test_old_rows_are_forgotten(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    await drain(app)
    clock.advance("119m")
    await app.maintenance.prune()
    assert len(await rows(app)) == 1
    clock.advance("2m")
    await forget_timings(app._engine)
    assert await rows(app) == []


# ── what a worker keeps in memory ─────────────────────────────────────────────────────────────────


async def test_what_could_not_be_written_is_written_again(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job, recorder = await start(app), Recorder("worker")
    recorder.start(job)
    [first] = recorder.take("")
    recorder.end(job, 0.5, clock())  # while the row is being written
    clock.advance(60)
    recorder.end(job, 0.5, clock())
    recorder.keep()
    again, next_minute = recorder.take("")
    assert again.id == first.id
    assert len(again.data) > len(first.data)
    assert next_minute.at - again.at == timedelta(minutes=1)
    recorder.written()
    assert recorder.take("") == []


async def test_a_minute_that_was_written_is_not_changed_any_more(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job, recorder, before = await start(app), Recorder("worker"), clock()
    recorder.end(job, 0.5, clock.advance(60))
    recorder.take("")
    recorder.written()
    recorder.end(job, 0.5, before)  # the clock was set back
    [row] = recorder.take("")
    assert row.at == before + timedelta(minutes=1)
    assert '"mail"' in row.data


async def test_a_worker_measures_a_limited_number_of_tasks(app: App, clock: Clock) -> None:
    recorder = Recorder("worker")
    for number in range(MOST_PAIRS + 5):
        await mailer(app, name=f"mail {number}").enqueue(1)
    for job in await lease(app):
        recorder.end(job, 0.5, clock())
    [row] = recorder.take("")
    assert row.data.count('"default"') == MOST_PAIRS
