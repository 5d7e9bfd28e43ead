"""A newer onejob beside this one: its fields stay in the rows, and its tables can be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from onejob import App, Job, Outcome, State, Unique, current
from onejob.errors import SchemaMismatch, StoreUnavailable
from onejob.stores.memory import MemoryStore
from onejob.stores.postgres.schema import SCHEMA
from onejob.testing import Clock, drain
from tests.contract.conftest import STORES
from tests.contract.steps import (
    BACKOFF,
    LEASE,
    complete,
    discard,
    everything,
    fail,
    hand_back,
    lease,
    mailer,
    snooze,
    start,
)
from tests.contract.test_columns import put

NEWER_POLICY, NEWER_MORE = b'{"colour":"red"}', b'{"weights":[1,{"a":2}]}'


async def enqueue_newer(app: App, unique: Unique | None = None, **options: Any) -> Job:
    """Enqueue a job as a newer onejob would, which has fields that this one does not know."""
    job = (await mailer(app, unique).options(**options).enqueue(1)).job
    await app.delete(job.id)
    newer = msgspec.structs.replace(job, newer_policy=NEWER_POLICY, newer_more=NEWER_MORE)
    await put(app, newer)
    return newer


async def assert_kept(app: App, job: Job, state: State) -> None:
    [after] = await app._engine.store.get([job.id])
    assert after is not None
    assert after.state is state
    assert (after.newer_policy, after.newer_more) == (NEWER_POLICY, NEWER_MORE)


# ── fields ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_a_retry_and_a_completion_keep_them(app: App, clock: Clock) -> None:
    job = await enqueue_newer(app)
    running = await start(app)
    await assert_kept(app, job, State.ACTIVE)
    await fail(app, running)
    await assert_kept(app, job, State.RETRYABLE)
    clock.advance(BACKOFF)
    await complete(app, await start(app), "done")
    await assert_kept(app, job, State.COMPLETED)


async def test_a_worker_and_progress_keep_them(app: App) -> None:
    job = await enqueue_newer(app)

    async def mail(to: int, text: str = "") -> str:
        current().progress(0.5)
        return f"{to}: {text}"

    async with App(store=app._engine.store) as other:
        other.task(mail)
        await drain(other)
        assert (await other.job(job.id)).progress is not None
        await assert_kept(other, job, State.COMPLETED)


async def test_a_snooze_and_a_handed_back_run_keep_them(app: App, clock: Clock) -> None:
    job = await enqueue_newer(app)
    await snooze(app, await start(app), 60)
    await assert_kept(app, job, State.SCHEDULED)
    clock.advance(60)
    await hand_back(app, await start(app))
    await assert_kept(app, job, State.AVAILABLE)


async def test_a_crash_keeps_them(app: App, clock: Clock) -> None:
    job = await enqueue_newer(app)
    await lease(app)
    clock.advance(LEASE)
    await app.maintenance.sweep()
    await assert_kept(app, job, State.RETRYABLE)


async def test_a_dead_letter_and_its_replay_keep_them(app: App) -> None:
    job = await enqueue_newer(app)
    await discard(app)
    await assert_kept(app, job, State.DISCARDED)
    assert (await app.dead.replay(job.id)).outcome is Outcome.CREATED
    await assert_kept(app, job, State.AVAILABLE)


ACTS: dict[str, tuple[Callable[[App, Job], Awaitable[object]], State]] = {
    "reschedule": (lambda app, job: app.run_now(job.id), State.AVAILABLE),
    "cancel": (lambda app, job: app.cancel(job.id), State.CANCELLED),
    "update": (lambda app, _job: app.tasks["mail"].enqueue(1, "newest"), State.SCHEDULED),
    "release": (lambda app, job: app.release(job.key or b"", job=job.id), State.SCHEDULED),
}


@pytest.mark.parametrize("act", ACTS)
async def test_an_act_on_a_waiting_job_keeps_them(app: App, act: str) -> None:
    job = await enqueue_newer(app, Unique(by="to", on_conflict="update"), delay="1h")
    do, state = ACTS[act]
    await do(app, job)
    await assert_kept(app, job, state)
    [after] = await app._engine.store.get([job.id])
    assert after != job  # something has been written


async def test_a_move_keeps_them(app: App, clock: Clock) -> None:
    job = await enqueue_newer(app)
    async with App(store=MemoryStore(clock=clock)) as other:
        await app.maintenance.move_to(other)
        await assert_kept(other, job, State.AVAILABLE)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────

RECORD = "INSERT INTO onejob_schema (version, applied_at) VALUES ({}, 0)"
UPGRADE = (
    "ALTER TABLE onejob_jobs ADD COLUMN colour TEXT",
    "CREATE TABLE onejob_colours (name TEXT)",
    RECORD.format(SCHEMA + 1),
)


def upgrade_sqlite(request: pytest.FixtureRequest, statements: Sequence[str]) -> None:
    path: Path = request.getfixturevalue("tmp_path") / "jobs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def upgrade_postgres(request: pytest.FixtureRequest, statements: Sequence[str]) -> None:
    with psycopg.connect(request.getfixturevalue("postgres_url")) as connection:
        for statement in statements:
            connection.execute(statement.encode())


UPGRADES = {"sqlite": upgrade_sqlite, "postgres": upgrade_postgres}
databases = pytest.mark.parametrize("name", UPGRADES)


@databases
async def test_a_process_continues_while_a_newer_one_upgrades_the_tables(
    name: str, clock: Clock, request: pytest.FixtureRequest
) -> None:
    async with App(store=STORES[name](request, clock)) as app:
        await live_through(app, clock)
        UPGRADES[name](request, UPGRADE)
        await live_through(app, clock)


@databases
async def test_a_process_starts_on_the_tables_of_the_next_version(
    name: str, clock: Clock, request: pytest.FixtureRequest
) -> None:
    async with App(store=STORES[name](request, clock)) as app:
        app.maintenance.migrate()
        waiting = (await mailer(app, Unique.coalesce(by="to")).enqueue("waiting")).job
    UPGRADES[name](request, UPGRADE)
    async with App(store=STORES[name](request, clock)) as app:
        mailer(app, Unique.coalesce(by="to"))
        assert (await complete(app, await start(app))).id == waiting.id
        await live_through(app, clock)
        assert app.maintenance.schema().found == SCHEMA + 1
        [finding] = [finding for finding in await app.doctor() if finding.check == "schema"]
        assert (finding.level, finding.advice) == ("warn", "Upgrade onejob.")


@databases
async def test_tables_two_versions_ahead_are_refused(
    name: str, clock: Clock, request: pytest.FixtureRequest
) -> None:
    async with App(store=STORES[name](request, clock)) as app:
        app.maintenance.migrate()
    UPGRADES[name](request, [RECORD.format(SCHEMA + 2)])
    app = App(store=STORES[name](request, clock))
    with pytest.raises(SchemaMismatch, match="upgrade onejob"):
        await mailer(app).enqueue(1)
    await app.close()


def test_a_callers_transaction_on_postgres_succeeds_when_it_is_begun_again(postgres_url: str) -> None:
    app = App(postgres_url)
    mail = mailer(app, Unique(by="to"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for number in range(10):  # psycopg prepares what is often run
            with connection.transaction():
                mail.options(connection=connection).enqueue_sync(number % 3)
        with psycopg.connect(postgres_url, autocommit=True) as newer:
            for statement in UPGRADE:
                newer.execute(statement.encode())
        with pytest.raises(StoreUnavailable, match="begin the transaction again"), connection.transaction():
            mail.options(connection=connection).enqueue_sync(0)
        with connection.transaction():
            assert mail.options(connection=connection).enqueue_sync(0).deduplicated
    app.close_sync()


async def live_through(app: App, clock: Clock) -> None:
    """Write in every way: admission, update, retry, one more run, cancellation, bulk, replay, deletion."""
    mail = app.tasks.get("mail") or mailer(app, Unique.coalesce(by="to"))
    first = (await mail.enqueue(1)).job
    assert (await mail.enqueue(1, "newer")).job.id == first.id
    await fail(app, await start(app))
    clock.advance(BACKOFF)
    running = await start(app)
    assert (await mail.enqueue(1, "newest")).outcome is Outcome.RERUN
    await complete(app, running, "done")
    await complete(app, await start(app), "done")
    chained = await mail.options(delay="1h").enqueue(2)
    await app.cancel(chained.job.id)
    await app.delete(chained.job.id)
    await app.enqueue_many([mail.call(number) for number in range(5)])
    await drain(app)
    letter = (await mail.enqueue(7)).job
    await discard(app)
    await app.dead.replay(letter.id)
    await drain(app)
    assert {job.state for job in await everything(app)} == {State.COMPLETED}
    assert (await app.stats()).waiting == 0
    for ended in await everything(app):
        await app.delete(ended.id)
