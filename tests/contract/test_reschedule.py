"""Moving waiting jobs to another time, and releasing a key only if a certain job holds it."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from onejob import App, Outcome, State, Unique
from onejob.errors import InvalidCall, UnknownJob
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.steps import complete, fail, hand_back, inside, lease, mailer, run, start

NOBODY = "01990c3e-5c1f-7000-8a55-3f1c6e0d9b42"


async def test_a_scheduled_job_is_moved_in_both_directions(app: App, clock: Clock) -> None:
    job = (await mailer(app, Unique(by="to")).options(delay="1h").enqueue(1)).job
    later = await app.reschedule(job, delay="3h")
    assert (later.state, later.run_at) == (State.SCHEDULED, clock() + timedelta(hours=3))
    sooner = await app.reschedule(job.id, at=clock() + timedelta(minutes=5))
    assert sooner == await app.job(job.id)
    assert await lease(app) == []
    clock.advance("5m")
    assert (await run(app)).id == job.id


async def test_an_available_job_can_wait(app: App, clock: Clock) -> None:
    admission = await mailer(app, Unique(by="to")).enqueue(1)
    moved = await app.reschedule(admission, delay="1h")
    assert moved.state is State.SCHEDULED
    assert moved.is_holder
    assert await lease(app) == []
    clock.advance("1h")
    assert (await run(app)).id == moved.id


async def test_a_job_runs_now(app: App) -> None:
    job = (await mailer(app).options(delay="1h").enqueue(1)).job
    assert (await app.run_now(job)).state is State.AVAILABLE
    assert (await run(app)).id == job.id


async def test_a_failed_job_runs_now_with_its_attempts(app: App) -> None:
    await mailer(app).enqueue(1)
    failed = await fail(app, await start(app))
    moved = await app.run_now(failed)
    assert (moved.state, moved.attempt) == (State.AVAILABLE, 1)
    assert (await start(app)).attempt == 2


async def test_a_failed_job_that_is_moved_stays_retryable(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    failed = await fail(app, await start(app))
    assert (await app.reschedule(failed, delay="1h")).state is State.RETRYABLE
    clock.advance("59m")
    assert await lease(app) == []
    clock.advance("1m")
    assert (await start(app)).attempt == 2


async def test_a_time_in_the_past_is_now_and_overtakes_nothing(app: App, clock: Clock) -> None:
    mail = mailer(app)
    moved = (await mail.options(delay="1h").enqueue(1)).job
    waiting = (await mail.enqueue(2)).job
    clock.advance("1s")
    assert (await app.reschedule(moved, at=clock() - timedelta(days=1))).run_at == clock()
    assert [job.id for job in await lease(app)] == [waiting.id, moved.id]


async def test_a_successor_still_waits_and_keeps_the_new_time(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    successor = (await mail.enqueue(1, "b")).job
    moved = await app.reschedule(successor, delay="1h")
    assert moved.state is State.PENDING
    await complete(app, running)
    assert await lease(app) == []
    assert (await app.run_now(successor)).state is State.AVAILABLE
    clock.advance("1s")
    assert (await run(app)).id == successor.id


async def test_a_blocked_job_still_waits_for_its_blockers(app: App) -> None:
    mail = mailer(app)
    blocker = await mail.options(delay="1h").enqueue(1)
    job = (await mail.options(after=[blocker]).enqueue(2)).job
    assert (await app.run_now(job)).state is State.PENDING
    assert await lease(app) == []


async def test_a_throttles_last_job_opens_its_window_at_its_new_time(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("10m", "first+last", by="to"))
    await mail.enqueue(1)
    await run(app)
    last = (await mail.enqueue(1, "b")).job
    assert last.held_at == last.run_at
    moved = await app.reschedule(last, delay="1h")
    assert moved.held_at == clock() + timedelta(hours=1)
    assert moved.holds_until == clock() + timedelta(minutes=70)


async def test_a_job_that_runs_or_has_ended_is_not_moved(app: App) -> None:
    await mailer(app).enqueue(1)
    running = await start(app)
    with pytest.raises(InvalidCall, match="is active, so it cannot be rescheduled"):
        await app.reschedule(running, delay="1h")
    done = await complete(app, running)
    with pytest.raises(InvalidCall, match="is completed, so it cannot be rescheduled"):
        await app.run_now(done)
    assert await app.job(done.id) == done


async def test_a_job_is_not_moved_past_its_expiry(app: App) -> None:
    job = (await mailer(app).options(delay="1m", expires_in="10m").enqueue(1)).job
    with pytest.raises(InvalidCall, match="choose a time before that"):
        await app.reschedule(job, delay="11m")
    assert await app.job(job.id) == job


async def test_many_jobs_are_moved_and_those_that_do_not_wait_are_unchanged(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await mail.enqueue(0)
    running = await start(app)
    jobs = [(await mail.options(delay="1h").enqueue(number)).job for number in range(3)]
    moved = await app.reschedule([running, *jobs], delay="2h")
    assert [job.id for job in moved] == [running.id, *(job.id for job in jobs)]
    assert moved[0] == running
    assert {job.run_at for job in moved[1:]} == {clock() + timedelta(hours=2)}


async def test_a_job_of_another_namespace_is_unknown(app: App, store: Store) -> None:
    job = (await mailer(app).options(delay="1h").enqueue(1)).job
    async with App(store=store, namespace="other") as other:
        for act in (other.run_now(job.id), other.reschedule([job.id], delay=1)):
            with pytest.raises(UnknownJob):
                await act
    assert await app.job(job.id) == job


@pytest.mark.parametrize("times", [{}, {"at": None}, {"delay": 1, "at": "soon"}, {"at": "soon"}])
async def test_a_time_that_makes_no_sense_is_refused(app: App, times: dict[str, object]) -> None:
    with pytest.raises(InvalidCall):
        await app.reschedule(NOBODY, **times)  # type: ignore[call-overload]


def test_blocking_code_moves_jobs_too(store: Store) -> None:
    app = App(store=store)
    job = mailer(app).options(delay="1h").enqueue_sync(1).job
    assert app.reschedule_sync(job, delay="2h").run_at > job.run_at
    assert app.run_now_sync([job])[0].state is State.AVAILABLE
    app.close_sync()


async def test_a_rollback_undoes_a_move_on_sqlite(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        job = (await mailer(app).options(delay="1h").enqueue(1)).job
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        for end in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN IMMEDIATE")
            assert (await app.run_now(job, connection=connection)).state is State.AVAILABLE
            connection.execute(end)
            expected = State.SCHEDULED if end == "ROLLBACK" else State.AVAILABLE
            assert (await app.job(job.id)).state is expected
        connection.close()


async def test_a_rollback_undoes_a_move_on_postgres(postgres_url: str) -> None:
    import psycopg

    async with App(postgres_url) as app:
        job = (await mailer(app).options(delay="1h").enqueue(1)).job
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            assert (await app.run_now(job, connection=connection)).state is State.AVAILABLE
            await connection.rollback()
            assert (await app.job(job.id)).state is State.SCHEDULED
            await app.run_now([job], connection=connection)
            await connection.commit()
        assert (await app.job(job.id)).state is State.AVAILABLE


# ── releasing a key ───────────────────────────────────────────────────────────────────────────────


async def test_a_key_is_released_only_if_the_named_job_holds_it(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    forced = await mail.options(force=True).enqueue(1)
    assert first.key is not None
    with pytest.raises(InvalidCall, match=f"Job {forced.job.id} holds the key, not job {first.job.id}"):
        await app.release(first.key, job=first.job.id)
    assert (await mail.enqueue(1)).job.id == forced.job.id
    released = await app.release(first.key, job=forced.job.id)
    assert released is not None
    assert released.id == forced.job.id
    assert await app.release(first.key, job=forced.job.id) is None
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_run_releases_its_own_key(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    successor = (await mail.enqueue(1, "b")).job
    assert await inside(app, running, release_current)
    assert (await app.job(successor.id)).state is State.AVAILABLE
    assert (await complete(app, running)).state is State.COMPLETED
    assert (await run(app)).id == successor.id


async def test_a_run_without_the_hold_releases_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    forced = await mail.options(force=True).enqueue(1)
    assert not await inside(app, running, release_current)
    assert (await mail.enqueue(1)).job.id == forced.job.id
    await hand_back(app, running)
    assert not await inside(app, running, release_current)  # the lease is over


async def test_a_run_without_a_key_releases_nothing(app: App) -> None:
    await mailer(app).enqueue(1)
    assert not await inside(app, await start(app), release_current)


async def release_current() -> bool:
    from onejob import current

    return await current().release()
