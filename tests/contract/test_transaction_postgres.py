"""connection= on PostgreSQL: a job exists if and only if its caller commits (cases 20, 21, 23 to 26)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from onejob import AdmissionBusy, App, Duplicate, Outcome, State, Unique
from onejob.core.job import Stand
from onejob.errors import (
    ForeignConnection,
    InvalidCall,
    MergeFailed,
    StoreError,
    TransactionConflict,
    UnknownJob,
)
from onejob.stores.postgres.store import PostgresStore
from onejob.testing import Clock
from tests.contract.steps import absorbed, everything, lease, mailer, start, turn
from tests.contract.visits import LEVELS, WAYS, Isolation, Visit, configure_django, options

BRIEF = 0.3  # seconds that an admission waits for another transaction
SNAPSHOTS: list[Isolation] = ["REPEATABLE READ", "SERIALIZABLE"]  # levels at which the past is seen
DRIVERS = ["psycopg", "psycopg awaited", "asyncpg", "Django"]
KEEP = Unique(by="to")

any_way = pytest.mark.parametrize("way", WAYS)
any_driver = pytest.mark.parametrize("way", DRIVERS)
any_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture
async def app(postgres_url: str, clock: Clock) -> AsyncIterator[App]:
    async with App(store=PostgresStore(postgres_url, clock=clock, admission_timeout=BRIEF)) as app:
        app.maintenance.migrate()
        yield app


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Look from outside, and make the caller's own table."""
    with closing(psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None)) as database:
        database.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        yield database


def orders(database: psycopg.Connection) -> list[int]:
    return [number for (number,) in database.execute("SELECT id FROM orders ORDER BY id").fetchall()]


# ── commit and rollback ───────────────────────────────────────────────────────────────────────────


@any_way
@any_level
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_every_outcome_stands_or_falls_with_the_callers_transaction(
    app: App, database: psycopg.Connection, postgres_url: str, way: str, level: Isolation, ending: str
) -> None:
    keep = mailer(app, KEEP, name="keep")
    update = mailer(app, Unique(by="to", on_conflict="update"), name="update")
    replace = mailer(app, Unique(by="to", on_conflict="replace"), name="replace")
    rerun = mailer(app, Unique.coalesce(by="to"), name="rerun")
    await rerun.enqueue(1, "old")
    running = await start(app)
    held, changed, cancelled = [await task.enqueue(1, "old") for task in (keep, update, replace)]
    before = await everything(app)

    async with WAYS[way](postgres_url, level) as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        created = await visit.enqueue(keep, 2, "new")
        assert (created.outcome, created.job.arguments["to"]) == (Outcome.CREATED, 2)
        kept = await visit.enqueue(keep, 1, "new")
        assert (kept.outcome, kept.job.id) == (Outcome.KEPT, held.job.id)
        updated = await visit.enqueue(update, 1, "new")
        assert (updated.outcome, updated.job.id) == (Outcome.UPDATED, changed.job.id)
        replaced = await visit.enqueue(replace, 1, "new")
        assert (replaced.outcome, replaced.holder) == (Outcome.REPLACED, cancelled.job)
        followed = await visit.enqueue(rerun, 1, "new")
        assert (followed.outcome, followed.holder) == (Outcome.RERUN, running)
        many = await visit.enqueue_many(app, [keep.call(3), keep.call(3), keep.call(3), keep.call(1)])
        assert [one.outcome for one in many] == ["created", "kept", "kept", "kept"]
        assert await everything(app) == before
        assert orders(database) == []
        await getattr(visit, ending)()

    if ending == "rollback":
        assert await everything(app) == before
        assert await absorbed(app) == {}
        assert orders(database) == []
        assert (await keep.enqueue(2)).outcome is Outcome.CREATED
    else:
        made = {one.job.id for one in (created, replaced, followed, many[0])}
        after = {job.id: job for job in await everything(app)}
        assert after.keys() == made | {job.id for job in before}
        assert after[changed.job.id].arguments["text"] == "new"
        assert after[cancelled.job.id].superseded_by == replaced.job.id
        assert (after[followed.job.id].key, after[followed.job.id].stand) == (running.key, Stand.SUCCESSOR)
        assert len(await app.holds()) == 7
        assert await absorbed(app) == {"kept": 4, "updated": 1, "rerun": 1}
        assert orders(database) == [1]
        assert (await keep.enqueue(2)).job == created.job


@any_driver
async def test_case_26_two_requests_of_one_key_in_one_transaction(
    app: App, postgres_url: str, way: str
) -> None:
    update = mailer(app, Unique(by="to", on_conflict="update"))
    async with WAYS[way](postgres_url, "READ COMMITTED") as visit:
        first, second = [await visit.enqueue(update, 1, content) for content in ("a", "b")]
        await visit.commit()
    assert (second.outcome, second.job.id) == (Outcome.UPDATED, first.job.id)
    assert [job.arguments["text"] for job in await everything(app)] == ["b"]


@any_driver
async def test_case_24_what_we_refuse_does_not_abort_the_callers_transaction(
    app: App, database: psycopg.Connection, postgres_url: str, way: str
) -> None:
    refuse = mailer(app, Unique(by="to", on_conflict="reject"), name="refuse")
    merge = mailer(app, Unique.coalesce(by="to", merge={"text": "append"}), name="merge")
    await refuse.enqueue(1)
    async with WAYS[way](postgres_url, "READ COMMITTED") as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(Duplicate):
            await visit.enqueue(refuse, 1)
        await visit.enqueue(merge, 1, ["a"])
        with pytest.raises(MergeFailed):
            await visit.enqueue(merge, 1, "no list")
        await visit.execute("INSERT INTO orders VALUES (2)")
        await visit.commit()
    assert orders(database) == [1, 2]
    assert len(await everything(app)) == 2


@any_driver
async def test_a_savepoint_of_the_same_name_is_still_the_callers(
    app: App, database: psycopg.Connection, postgres_url: str, way: str
) -> None:
    mail = mailer(app, KEEP)
    async with WAYS[way](postgres_url, "READ COMMITTED") as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        await visit.execute("SAVEPOINT onejob")
        await visit.enqueue(mail, 1)
        await visit.execute("ROLLBACK TO SAVEPOINT onejob")
        await visit.enqueue(mail, 2)
        await visit.commit()
    assert [job.arguments["to"] for job in await everything(app)] == [2]
    assert orders(database) == [1]


# ── the caller sees the past ──────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("database")
@any_way
@pytest.mark.parametrize("level", SNAPSHOTS)
async def test_case_23_a_key_taken_since_the_snapshot_is_a_conflict_that_a_second_try_resolves(
    app: App, postgres_url: str, way: str, level: Isolation
) -> None:
    mail = mailer(app, KEEP)
    async with WAYS[way](postgres_url, level) as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        holder = await mail.enqueue(1)
        with pytest.raises(TransactionConflict):
            await visit.enqueue(mail, 1)
        with pytest.raises(TransactionConflict):  # as often as it is asked
            await visit.enqueue(mail, 1)
        await visit.rollback()
    async with WAYS[way](postgres_url, level) as visit:
        assert (await visit.enqueue(mail, 1)).job == holder.job
        await visit.commit()
    assert await absorbed(app) == {"kept": 1}


@any_driver
@pytest.mark.parametrize("policy", ["update", "replace"])
@pytest.mark.parametrize("level", SNAPSHOTS)
async def test_case_23_a_holder_changed_since_the_snapshot_is_a_conflict(
    app: App, database: psycopg.Connection, postgres_url: str, way: str, level: Isolation, policy: str
) -> None:
    mail = mailer(app, Unique(by="to", on_conflict=policy))  # type: ignore[arg-type]
    await mail.enqueue(1, "first")
    async with WAYS[way](postgres_url, level) as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        newest = await mail.enqueue(1, "second")
        with pytest.raises(TransactionConflict):
            await visit.enqueue(mail, 1, "third")
        await visit.rollback()
    assert (await app.job(newest.job.id)).arguments["text"] == "second"
    assert orders(database) == []


@any_driver
async def test_case_23_after_a_conflict_the_callers_earlier_work_can_still_be_committed(
    app: App, database: psycopg.Connection, postgres_url: str, way: str
) -> None:
    mail = mailer(app, KEEP)
    async with WAYS[way](postgres_url, "REPEATABLE READ") as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        await mail.enqueue(1)
        with pytest.raises(TransactionConflict):
            await visit.enqueue(mail, 1)
        assert (await visit.enqueue(mail, 2)).outcome is Outcome.CREATED
        await visit.execute("INSERT INTO orders VALUES (2)")
        await visit.commit()
    assert orders(database) == [1, 2]
    assert len(await everything(app)) == 2


@pytest.mark.usefixtures("database")
@any_driver
@pytest.mark.parametrize("level", SNAPSHOTS)
async def test_case_23_a_count_changed_since_the_snapshot_is_no_conflict(
    app: App, postgres_url: str, way: str, level: Isolation
) -> None:
    """The job is the same for both, and only the counter of those whom it absorbed has changed."""
    mail = mailer(app, KEEP)
    await mail.enqueue(1)
    async with WAYS[way](postgres_url, level) as visit:
        await visit.execute("INSERT INTO orders VALUES (1)")
        await mail.enqueue(1)
        assert await absorbed(app) == {"kept": 1}
        assert (await visit.enqueue(mail, 1)).outcome is Outcome.KEPT
        await visit.commit()
    assert await absorbed(app) == {"kept": 2}
    await mail.enqueue(1)
    assert await absorbed(app) == {"kept": 3}


# ── another transaction is open ───────────────────────────────────────────────────────────


async def test_case_21_an_open_transaction_is_waited_for_within_a_bound(app: App, postgres_url: str) -> None:
    """Rule 8: no fake success; a typed error, and a client that tries again gets a true answer."""
    mail = mailer(app, KEEP)
    async with WAYS["psycopg awaited"](postgres_url, "READ COMMITTED") as visit:
        holder = await visit.enqueue(mail, 1)
        for request in (mail.enqueue(1), asyncio.to_thread(mail.enqueue_sync, 1)):
            begun = time.monotonic()
            with pytest.raises(AdmissionBusy):
                await request
            assert BRIEF <= time.monotonic() - begun < 10 * BRIEF
        assert (await mail.enqueue(2)).outcome is Outcome.CREATED
        await visit.commit()
    assert (await mail.enqueue(1)).job == holder.job
    assert await absorbed(app) == {"kept": 1}


async def test_case_21_many_callers_that_wait_for_one_transaction_delay_no_other(
    app: App, postgres_url: str
) -> None:
    mail = mailer(app, KEEP)
    async with WAYS["psycopg awaited"](postgres_url, "READ COMMITTED") as visit:
        await visit.enqueue(mail, 0)
        answers = await asyncio.gather(*(mail.enqueue(n % 20) for n in range(100)), return_exceptions=True)
        await visit.rollback()
    busy = [type(answer) is AdmissionBusy for answer in answers]
    assert busy == [n % 20 == 0 for n in range(100)]
    assert len(await everything(app)) == 19


async def test_case_21_bulk_answers_what_is_free_and_names_what_is_busy(app: App, postgres_url: str) -> None:
    mail = mailer(app, KEEP)
    async with WAYS["psycopg awaited"](postgres_url, "READ COMMITTED") as visit:
        await visit.enqueue(mail, 2)
        with pytest.raises(AdmissionBusy):
            await app.enqueue_many([mail.call(n) for n in range(5)])
        await visit.rollback()
    assert sorted(job.arguments["to"] for job in await everything(app)) == [0, 1, 3, 4]


async def test_a_turn_waits_for_no_transaction(app: App, postgres_url: str) -> None:
    app.queue("narrow", concurrency=2)
    mail = mailer(app, Unique.coalesce(by="to"), queue="narrow")
    for n in range(3):
        await mail.enqueue(n)
    running = await lease(app)
    async with WAYS["psycopg awaited"](postgres_url, "READ COMMITTED") as visit:
        await visit.enqueue(mail, 0)  # it relies on the run of 0
        [held_up, ended], begun = await turn(app, running)
        await visit.rollback()
    assert isinstance(held_up, AdmissionBusy)
    assert ended.job.state is State.COMPLETED
    assert [job.arguments["to"] for job in begun] == [2]


def somebody_waits(database: psycopg.Connection) -> bool:
    """Return whether a session of this database waits for another."""
    [[waiting]] = database.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    ).fetchall()
    return bool(waiting)


async def blocked(task: asyncio.Task[object], database: psycopg.Connection) -> None:
    """Wait until a request waits for another transaction."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(somebody_waits, database):
            assert not task.done()


@pytest.mark.parametrize("waiter", ["nobody's", *DRIVERS[1:]])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_case_20_the_end_of_the_holders_transaction_decides_what_a_waiting_request_becomes(
    postgres_url: str, clock: Clock, waiter: str, ending: str
) -> None:
    async with AsyncExitStack() as stack:
        store = PostgresStore(postgres_url, clock=clock, admission_timeout=30)
        app = await stack.enter_async_context(App(store=store))
        app.maintenance.migrate()
        database = stack.enter_context(psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None))
        mail = mailer(app, KEEP)
        holder = await stack.enter_async_context(WAYS["psycopg awaited"](postgres_url, "READ COMMITTED"))
        first = await holder.enqueue(mail, 1)
        own: Visit | None = None
        if waiter != "nobody's":
            own = await stack.enter_async_context(WAYS[waiter](postgres_url, "READ COMMITTED"))
        request = asyncio.create_task(mail.enqueue(1) if own is None else own.enqueue(mail, 1))
        await blocked(request, database)
        await getattr(holder, ending)()
        answer = await request
        if own is not None:
            await own.commit()
        if ending == "commit":
            assert (answer.outcome, answer.job.id) == (Outcome.KEPT, first.job.id)
        else:
            assert answer.outcome is Outcome.CREATED
            assert answer.job.id != first.job.id
        assert [job.id for job in await everything(app)] == [answer.job.id]


@any_driver
async def test_a_caller_who_meets_another_callers_transaction_keeps_its_own(
    app: App, database: psycopg.Connection, postgres_url: str, way: str
) -> None:
    mail = mailer(app, KEEP)
    async with WAYS["psycopg awaited"](postgres_url, "READ COMMITTED") as first:
        await first.enqueue(mail, 1)
        async with WAYS[way](postgres_url, "READ COMMITTED") as second:
            await second.execute("INSERT INTO orders VALUES (1)")
            with pytest.raises(AdmissionBusy):
                await second.enqueue(mail, 1)
            await second.enqueue(mail, 2)
            await second.commit()
        await first.rollback()
    assert [job.arguments["to"] for job in await everything(app)] == [2]
    assert orders(database) == [1]


async def test_an_open_transaction_does_not_stop_the_counts_of_others(app: App, postgres_url: str) -> None:
    mail = mailer(app, KEEP)
    await mail.enqueue(1)
    await start(app)
    async with WAYS["psycopg awaited"](postgres_url, "READ COMMITTED") as visit:
        await visit.enqueue(mail, 1)
        await mail.enqueue(1)
        async with asyncio.timeout(10 * BRIEF):
            await asyncio.to_thread(app._engine.counters.flush)
        await visit.commit()
    assert await absorbed(app) == {"kept": 2}


async def test_two_callers_who_count_the_same_jobs_in_opposite_order_are_answered(
    app: App, postgres_url: str
) -> None:
    """Their runs are shared by both, so that only the counters can stand in the way."""
    mail = mailer(app, KEEP)
    for n in (1, 2):
        await mail.enqueue(n)
        await start(app)
    ways = ("psycopg awaited", "asyncpg")
    async with WAYS[ways[0]](postgres_url, "READ COMMITTED") as one:
        async with WAYS[ways[1]](postgres_url, "READ COMMITTED") as other:
            await one.enqueue(mail, 1)
            await other.enqueue(mail, 2)
            async with asyncio.timeout(20 * BRIEF):
                answers = await asyncio.gather(
                    one.enqueue(mail, 2), other.enqueue(mail, 1), return_exceptions=True
                )
            assert [getattr(answer, "outcome", answer) for answer in answers] == ["kept", "kept"]
            await other.commit()
        await one.commit()
    assert await absorbed(app) == {"kept": 4}


# ── whose transaction ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def elsewhere(postgres_url: str) -> Iterator[str]:
    """Make another database on the same server."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        name = f"{owner.info.dbname}_elsewhere"
        owner.execute(f"CREATE DATABASE {name}".encode())
        yield str(make_url(postgres_url).set(database=name).render_as_string(hide_password=False))
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("installed", [False, True])
async def test_a_connection_to_another_database_is_refused_and_left_as_it_was(
    app: App, elsewhere: str, *, installed: bool
) -> None:
    mail = mailer(app, KEEP)
    if installed:
        async with App(elsewhere) as other:
            other.maintenance.migrate()
    ways = [way for way in WAYS if way != "Django"]  # whose databases are configured once
    for way in ways:
        async with WAYS[way](elsewhere, "READ COMMITTED") as visit:
            await visit.execute("CREATE TABLE orders (id bigint)")
            with pytest.raises(ForeignConnection):
                await visit.enqueue(mail, 1)
            with pytest.raises(ForeignConnection):
                await visit.enqueue_many(app, [mail.call(1)])
            await visit.execute("INSERT INTO orders VALUES (1)")
            await visit.execute("DROP TABLE orders")
            await visit.commit()
    assert await everything(app) == []


async def test_what_is_no_connection_at_all_is_refused(app: App) -> None:
    mail = mailer(app, KEEP)
    with closing(sqlite3.connect(":memory:")) as sqlite:
        for stranger in (object(), "postgresql://", sqlite):
            with pytest.raises(ForeignConnection, match="psycopg"):
                await mail.options(connection=stranger).enqueue(1)
            with pytest.raises(ForeignConnection, match="psycopg"):
                mail.options(connection=stranger).enqueue_sync(1)


async def test_a_connection_without_a_transaction_is_refused_with_the_cure(
    app: App, postgres_url: str
) -> None:
    mail = mailer(app, KEEP)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(StoreError, match="begin one first"):
            mail.options(connection=connection).enqueue_sync(1)
        with connection.transaction():
            mail.options(connection=connection).enqueue_sync(1)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as awaited:
        with pytest.raises(StoreError, match="begin one first"):
            await mail.options(connection=awaited).enqueue(2)
        async with awaited.transaction():
            await mail.options(connection=awaited).enqueue(2)
    pooled = await asyncpg.connect(postgres_url)
    try:
        with pytest.raises(StoreError, match="begin one first"):
            await mail.options(connection=pooled).enqueue(3)
        async with pooled.transaction():
            await mail.options(connection=pooled).enqueue(3)
    finally:
        await pooled.close()
    assert [job.arguments["to"] for job in await everything(app)] == [1, 2, 3]


async def test_sqlalchemy_in_autocommit_is_refused_with_the_cure(app: App, postgres_url: str) -> None:
    mail = mailer(app, KEEP)
    with (
        create_engine(**options(postgres_url, "psycopg", "AUTOCOMMIT")).connect() as connection,
        pytest.raises(StoreError, match="begin one first"),
    ):
        mail.options(connection=connection).enqueue_sync(1)
    for driver in ("psycopg", "asyncpg"):
        async with create_async_engine(**options(postgres_url, driver, "AUTOCOMMIT")).connect() as awaited:
            with pytest.raises(StoreError, match="begin one first"):
                await mail.options(connection=awaited).enqueue(1)
    assert await everything(app) == []


async def test_django_outside_atomic_is_refused_with_the_cure(app: App, postgres_url: str) -> None:
    configure_django(postgres_url)
    mail = mailer(app, KEEP)

    def enqueue() -> None:
        connection = django.db.connections["default"]
        try:
            with pytest.raises(StoreError, match=r"transaction\.atomic"):
                mail.options(connection=connection).enqueue_sync(1)
            with django.db.transaction.atomic():
                mail.options(connection=connection).enqueue_sync(1)
        finally:
            connection.close()

    await asyncio.to_thread(enqueue)
    assert len(await everything(app)) == 1


@pytest.mark.parametrize("way", [way for way in WAYS if "async" in way or "awaited" in way])
async def test_blocking_code_cannot_use_a_connection_that_is_awaited(
    app: App, postgres_url: str, way: str
) -> None:
    mail = mailer(app, KEEP)
    async with WAYS[way](postgres_url, "READ COMMITTED") as visit:
        with pytest.raises(InvalidCall, match="await"):
            mail.options(connection=visit.connection).enqueue_sync(1)
        await visit.enqueue(mail, 1)
        await visit.commit()
    assert len(await everything(app)) == 1


# ── the caller's connection is left as it was ─────────────────────────────────────────────────────


async def setting(visit: Visit) -> str:
    """Read the caller's lock_timeout, on whatever driver."""
    rows = await visit.connection.fetch("SHOW lock_timeout") if hasattr(visit.connection, "fetch") else None
    if rows is None:
        cursor = await visit.execute("SHOW lock_timeout")
        rows = [
            await cursor.fetchone() if asyncio.iscoroutinefunction(cursor.fetchone) else cursor.fetchone()
        ]
    return str(rows[0][0])


@pytest.mark.parametrize("way", ["psycopg", "psycopg awaited", "asyncpg", "SQLAlchemy session"])
async def test_the_callers_lock_timeout_is_the_same_afterwards(app: App, postgres_url: str, way: str) -> None:
    keep, refuse = mailer(app, KEEP), mailer(app, Unique(by="to", on_conflict="reject"), name="refuse")
    await refuse.enqueue(1)
    async with WAYS["asyncpg pooled"](postgres_url, "READ COMMITTED") as other:
        await other.enqueue(keep, 9)
        async with WAYS[way](postgres_url, "READ COMMITTED") as visit:
            for timeout in ("0", "7s", "1min", "123ms"):
                await visit.execute(f"SET LOCAL lock_timeout = '{timeout}'")
                await visit.enqueue(keep, 1)
                assert await setting(visit) == timeout
                with pytest.raises(Duplicate):
                    await visit.enqueue(refuse, 1)
                assert await setting(visit) == timeout
            with pytest.raises(AdmissionBusy):
                await visit.enqueue(keep, 9)
            assert await setting(visit) == "123ms"
            await visit.commit()


async def test_row_factories_and_codecs_of_the_caller_do_not_disturb(app: App, postgres_url: str) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    with psycopg.connect(postgres_url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as blocking:
        first = mail.options(connection=blocking).enqueue_sync(1, "a")
        mail.options(connection=blocking).enqueue_sync(1, "b")
        assert blocking.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    async with await psycopg.AsyncConnection.connect(postgres_url, row_factory=dict_row) as awaited:
        await mail.options(connection=awaited).enqueue(1, "c")
    other = await asyncpg.connect(postgres_url)
    try:
        for kind in ("json", "jsonb"):
            await other.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with other.transaction():
            last = await mail.options(connection=other).enqueue(1, "d")
            assert await other.fetchval("""SELECT '{"a": 1}'::jsonb""") == {"a": 1}
    finally:
        await other.close()
    assert last.job.id == first.job.id
    assert [job.arguments["text"] for job in await everything(app)] == ["d"]


async def test_a_commit_wakes_tasks_that_wait_in_any_process_including_the_callers_own(
    app: App, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.stores.postgres.store.POLL", 60)
    mail = mailer(app, KEEP)
    async with App(postgres_url) as other, asyncio.timeout(30):
        stores: list[Any] = [app._engine.store, other._engine.store]
        before = [store._wakeup.count for store in stores]
        for store in stores:
            store.position()  # starts to listen, which may notify before the position is read
        await asyncio.gather(*map(PostgresStore.wait, stores, [60, 60], before))
        async with WAYS["asyncpg"](postgres_url, "READ COMMITTED") as visit:
            await visit.enqueue(mail, 1, "a")
            seen = [(store, store.position()) for store in stores]
            await visit.commit()
        await asyncio.gather(*(store.wait(60, pulse) for store, pulse in seen))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg awaited"])
async def test_behind_a_pooler_nothing_is_prepared_on_the_callers_connection(
    app: App, postgres_url: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction may be on another connection of the server, which would not know it."""
    opened = app._engine.store._open()  # type: ignore[attr-defined]
    monkeypatch.setattr(opened, "server", replace(opened.server, is_pooled=True))
    mail = mailer(app, Unique(by="to"))
    async with WAYS[driver](postgres_url, "READ COMMITTED") as visit:
        for to in range(10):  # psycopg by itself prepares what it is asked more than five times
            await visit.enqueue(mail, to)
        found = await visit.execute("SELECT count(*) FROM pg_prepared_statements")
        rows = await found.fetchall() if driver == "psycopg awaited" else found.fetchall()
        assert rows == [(0,)]


async def test_a_short_id_in_a_transaction_names_a_committed_job(app: App, postgres_url: str) -> None:
    mail = mailer(app)
    committed = (await mail.enqueue(1)).job
    with psycopg.connect(postgres_url) as connection:
        inside = mail.options(connection=connection)
        own = (await inside.enqueue(2)).job
        waiting = mail.options(connection=connection, after=committed.id[:23])
        assert [(await waiting.enqueue(3)).job.awaits, waiting.enqueue_sync(4).job.awaits] == [
            [committed.id]
        ] * 2
        with pytest.raises(UnknownJob, match="No job has the id"):
            await mail.options(connection=connection, after=own.id[:23]).enqueue(5)
        assert (await mail.options(connection=connection, after=own).enqueue(6)).job.awaits == [own.id]
    assert len(await everything(app)) == 5
