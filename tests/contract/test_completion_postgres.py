"""transaction() on PostgreSQL: every driver's connection, and connections that are kept between blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from onejob import App, Job, State, Unique, current
from onejob.errors import NotCommitted, StoreUnavailable, TransactionConflict
from onejob.stores.postgres.server import Url
from onejob.stores.postgres.store import PostgresStore
from onejob.testing import Clock, drain
from tests.contract.steps import RETRY, everything, mailer
from tests.contract.visits import WAYS, Isolation

SNAPSHOTS: list[Isolation] = ["REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
async def app(postgres_url: str, clock: Clock) -> AsyncIterator[App]:
    async with App(store=PostgresStore(postgres_url, clock=clock)) as app:
        app.maintenance.migrate()
        yield app


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Look from outside, and make the user's own table."""
    with closing(psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None)) as database:
        database.execute("CREATE TABLE ledger (who bigint PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
        yield database


def rows(database: psycopg.Connection) -> list[int]:
    return [who for (who,) in database.execute("SELECT who FROM ledger ORDER BY who").fetchall()]


async def only(app: App) -> Job:
    [job] = await everything(app)
    return job


# ── your own connection ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_job_is_completed_if_and_only_if_you_commit(
    app: App, database: psycopg.Connection, postgres_url: str, clock: Clock, way: str, ending: str
) -> None:
    seen: list[Any] = []

    @app.task(unique=Unique(by=()), retry=RETRY)
    async def note() -> str:
        async with WAYS[way](postgres_url, "READ COMMITTED") as visit:
            await visit.execute("INSERT INTO ledger VALUES (1)")
            await visit.complete("inside")
            seen.append(((await only(app)).state, rows(database)))
            await getattr(visit, ending if current().attempt == 1 else "commit")()
        return "afterwards"

    answer = await note.enqueue()
    await drain(app)
    if ending == "rollback":
        job = await only(app)
        assert (job.state, job.failures[0]["type"]) == (State.RETRYABLE, NotCommitted.__name__)
        assert (rows(database), job.is_holder) == ([], True)
        clock.advance("1h")
        await drain(app)
    assert set(map(str, seen)) == {str((State.ACTIVE, []))}
    assert (await answer.result(timeout=30), rows(database)) == ("inside", [1])
    assert (await only(app)).stand is None


@pytest.mark.parametrize("way", ["psycopg", "psycopg awaited", "asyncpg", "Django"])
@pytest.mark.parametrize("level", SNAPSHOTS)
async def test_a_transaction_that_sees_the_past_conflicts_with_a_heartbeat(
    app: App, database: psycopg.Connection, postgres_url: str, clock: Clock, way: str, level: Isolation
) -> None:
    worker = app.worker(drain=True)

    @app.task(retry=RETRY)
    async def note() -> None:
        async with WAYS[way](postgres_url, level) as visit:
            await visit.execute("INSERT INTO ledger VALUES (1)")
            if current().attempt == 1:
                clock.advance("1s")
                await worker._upkeep.renew()
            await visit.complete("inside")
            await visit.commit()

    await note.enqueue()
    await worker.run()
    assert (await only(app)).failures[0]["type"] == TransactionConflict.__name__
    assert rows(database) == []
    clock.advance("1h")
    await drain(app)
    assert ((await only(app)).state, rows(database)) == (State.COMPLETED, [1])


async def test_a_blocking_block_on_an_async_connection_is_refused_with_the_cure(
    app: App, postgres_url: str
) -> None:
    @app.task
    async def note() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            with current().transaction(connection=connection):
                pass

    await note.enqueue()
    await drain(app)
    assert "async with" in (await only(app)).failures[0]["message"]


# ── ours ──────────────────────────────────────────────────────────────────────────────────────────


async def test_our_connection_is_psycopgs_at_read_committed(app: App, database: psycopg.Connection) -> None:
    name = database.info.dbname
    database.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable".encode())
    try:
        await app.close()  # so that its connections are new
        levels: list[Any] = []
        show = "SHOW transaction_isolation"

        @app.task
        async def awaited() -> None:
            async with current().transaction() as tx:
                assert isinstance(tx, psycopg.AsyncConnection)
                levels.append(await (await tx.execute(show)).fetchone())

        @app.task
        def plain() -> None:
            with current().transaction() as tx:
                assert isinstance(tx, psycopg.Connection)
                levels.append(tx.execute(show).fetchone())

        await awaited.enqueue()
        await plain.enqueue()
        await drain(app)
        assert levels == [("read committed",)] * 2
        assert {job.state for job in await everything(app)} == {State.COMPLETED}
    finally:
        database.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation".encode())


@pytest.mark.parametrize("plain", [True, False])
async def test_nothing_of_one_blocks_session_is_left_to_the_next(
    app: App, database: psycopg.Connection, *, plain: bool
) -> None:
    settings = ("SET statement_timeout = '77s'", "CREATE TEMP TABLE mine (a int)", "LISTEN mine")
    look = (
        "SELECT pg_backend_pid(), current_setting('statement_timeout'), to_regclass('pg_temp.mine'),"
        " (SELECT count(*) FROM pg_listening_channels())"
    )
    seen: list[Any] = []

    @app.task(name="plain")
    def blocks() -> None:
        with current().transaction() as tx:
            seen.append(tx.execute(look).fetchone())
            tx.row_factory = dict_row
            tx.execute("SELECT pg_advisory_lock(1)")
            for sql in settings:
                tx.execute(sql)

    @app.task(name="awaited")
    async def awaits() -> None:
        async with current().transaction() as tx:
            seen.append(await (await tx.execute(look)).fetchone())
            tx.row_factory = dict_row
            await tx.execute("SELECT pg_advisory_lock(1)")
            for sql in settings:
                await tx.execute(sql)

    task = blocks if plain else awaits
    await app.enqueue_many([task.call() for _ in range(3)])
    await drain(app, concurrency=1)
    assert {job.state for job in await everything(app)} == {State.COMPLETED}
    assert len(set(seen)) == 1  # the same connection, and nothing on it
    locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1"
    assert database.execute(locked).fetchone() == (0,)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_kept_connection_that_broke_meanwhile_is_replaced(
    app: App, database: psycopg.Connection, *, plain: bool
) -> None:
    pids: list[int] = []

    @app.task(name="plain")
    def blocks() -> None:
        with current().transaction() as tx:
            pids.append(tx.info.backend_pid)

    @app.task(name="awaited")
    async def awaits() -> None:
        async with current().transaction() as tx:
            pids.append(tx.info.backend_pid)

    task = blocks if plain else awaits
    for _ in range(2):
        await task.enqueue()
        await drain(app)
        database.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[-1]])
    assert len(set(pids)) == 2
    assert {(job.state, job.attempt) for job in await everything(app)} == {(State.COMPLETED, 1)}


@pytest.mark.parametrize("plain", [True, False])
async def test_a_connection_that_breaks_inside_fails_the_attempt(
    app: App, database: psycopg.Connection, clock: Clock, *, plain: bool
) -> None:
    def end(pid: int) -> None:
        if current().attempt == 1:
            database.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    @app.task(name="plain", retry=RETRY)
    def blocks() -> None:
        with current().transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            end(tx.info.backend_pid)

    @app.task(name="awaited", retry=RETRY)
    async def awaits() -> None:
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO ledger VALUES (1)")
            end(tx.info.backend_pid)

    await (blocks if plain else awaits).enqueue()
    await drain(app)
    assert ((await only(app)).state, rows(database)) == (State.RETRYABLE, [])
    clock.advance("1h")
    await drain(app)
    assert ((await only(app)).state, rows(database)) == (State.COMPLETED, [1])


async def test_a_commit_that_the_server_refuses_fails_the_attempt(
    app: App, database: psycopg.Connection, clock: Clock
) -> None:
    @app.task(retry=RETRY)
    async def note() -> None:
        async with current().transaction() as tx:
            for _ in range(2 if current().attempt == 1 else 1):
                await tx.execute("INSERT INTO ledger VALUES (1)")  # the key is looked at when it commits

    await note.enqueue()
    await drain(app)
    job = await only(app)
    assert (job.state, job.failures[0]["type"], rows(database)) == (State.RETRYABLE, "UniqueViolation", [])
    clock.advance("1h")
    await drain(app)
    assert ((await only(app)).state, rows(database)) == (State.COMPLETED, [1])


async def test_the_block_refuses_a_manual_commit(app: App, database: psycopg.Connection) -> None:
    @app.task(retry=RETRY)
    async def note() -> None:
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO ledger VALUES (1)")
            await tx.commit()

    await note.enqueue()
    await drain(app)
    job = await only(app)
    assert (job.failures[0]["type"], rows(database)) == ("ProgrammingError", [])


async def test_blocks_take_no_connection_from_the_store(app: App) -> None:
    """More blocks than the store has connections, all open at once: the worker goes on."""
    barrier = asyncio.Barrier(20)

    @app.task
    async def note() -> None:
        async with current().transaction():
            await barrier.wait()

    await app.enqueue_many([note.call() for _ in range(20)])
    await mailer(app).enqueue(1)
    await drain(app, concurrency=30)
    assert {(job.state, job.attempt) for job in await everything(app)} == {(State.COMPLETED, 1)}


async def test_a_server_that_cannot_be_reached_is_named(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store.migrate()
    handlers = store._open().threads.handlers
    handlers.server = replace(handlers.server, url=Url("postgresql://127.0.0.1:1/nowhere"))
    with pytest.raises(StoreUnavailable, match=r": Connection refused\.$"), store.transaction_sync():
        pass
    await store.close()
