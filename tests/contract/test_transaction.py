"""connection=: a job exists if and only if its caller commits (cases 20, 21, 24 to 26)."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onejob import AdmissionBusy, App, Duplicate, Event, Outcome, State, Unique, report_commits
from onejob.errors import (
    ForeignConnection,
    MergeFailed,
    PayloadMismatch,
    StoreError,
    StoreUnavailable,
    UnknownJob,
)
from onejob.stores.memory import MemoryStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from tests.contract.steps import absorbed, everything, mailer, run, start

BRIEF = 0.05  # seconds that an admission waits for somebody else's transaction


@pytest.fixture
async def app(tmp_path: Path, clock: Clock) -> AsyncIterator[App]:
    store = SQLiteStore(tmp_path / "jobs.db", clock=clock, synchronous="NORMAL", admission_timeout=BRIEF)
    async with App(store=store) as app:
        yield app


@pytest.fixture
def connection(app: App, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    app.maintenance.migrate()
    with closing(sqlite3.connect(tmp_path / "jobs.db", timeout=BRIEF)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
        connection.commit()
        yield connection


def orders(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT id FROM orders ORDER BY id")]


async def test_a_job_exists_if_the_caller_commits(app: App, connection: sqlite3.Connection) -> None:
    mail = mailer(app, Unique(by="to"))
    connection.execute("INSERT INTO orders VALUES (1)")
    admission = await mail.options(connection=connection).enqueue(1, "a")
    assert admission.outcome is Outcome.CREATED
    assert await everything(app) == []
    connection.commit()
    assert await everything(app) == [admission.job]
    assert orders(connection) == [1]
    assert (await run(app)).arguments["text"] == "a"


async def test_case_25_a_rollback_leaves_no_job_no_hold_and_no_count(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app, Unique(by="to"))
    connection.execute("INSERT INTO orders VALUES (1)")
    inside = mail.options(connection=connection)
    await inside.enqueue(1, "a")
    assert (await inside.enqueue(1, "b")).outcome is Outcome.KEPT
    connection.rollback()
    assert await everything(app) == []
    assert await app.holds() == []
    assert await absorbed(app) == {}
    assert orders(connection) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_rollback_takes_back_an_update_a_replacement_and_a_version(
    app: App, connection: sqlite3.Connection
) -> None:
    update = mailer(app, Unique.latest(by="to", version="text"), name="update")
    replace = mailer(app, Unique(by="to", on_conflict="replace"), name="replace")
    await update.enqueue(1, 5)
    await replace.enqueue(1, "old")
    before = await everything(app)
    assert (await update.options(connection=connection).enqueue(1, 9)).outcome is Outcome.UPDATED
    assert (await replace.options(connection=connection).enqueue(1, "new")).outcome is Outcome.REPLACED
    connection.rollback()
    assert await everything(app) == before
    assert (await update.enqueue(1, 6)).outcome is Outcome.UPDATED  # version 9 was never admitted


async def test_a_commit_counts_what_was_suppressed(app: App, connection: sqlite3.Connection) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    await mail.options(connection=connection).enqueue(1)
    await mail.options(connection=connection).enqueue(1)
    connection.commit()
    assert await absorbed(app) == {"kept": 2}


async def test_case_26_two_enqueues_of_one_key_in_one_transaction(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update")).options(connection=connection)
    first = await mail.enqueue(1, "a")
    second = await mail.enqueue(1, "b")
    assert (second.outcome, second.job.id) == (Outcome.UPDATED, first.job.id)
    connection.commit()
    assert (await run(app)).arguments["text"] == "b"


async def test_case_24_a_duplicate_does_not_abort_the_callers_transaction(
    app: App, connection: sqlite3.Connection
) -> None:
    keep, refuse = (
        mailer(app, Unique(by="to"), name="keep"),
        mailer(app, Unique(by="to", on_conflict="reject"), name="refuse"),
    )
    await keep.enqueue(1)
    await refuse.enqueue(1)
    connection.execute("INSERT INTO orders VALUES (1)")
    assert (await keep.options(connection=connection).enqueue(1)).outcome is Outcome.KEPT
    with pytest.raises(Duplicate):
        await refuse.options(connection=connection).enqueue(1)
    connection.execute("INSERT INTO orders VALUES (2)")
    connection.commit()
    assert orders(connection) == [1, 2]


async def test_a_part_of_ours_that_fails_leaves_the_callers_work(
    app: App, connection: sqlite3.Connection
) -> None:
    merge = mailer(app, Unique.coalesce(by="to", merge={"text": "append"}), name="merge")
    strict = mailer(app, Unique(by="to", on_mismatch="error"), name="strict")
    connection.execute("INSERT INTO orders VALUES (1)")
    await merge.options(connection=connection).enqueue(1, ["a"])
    await strict.options(connection=connection).enqueue(1, "a")
    with pytest.raises(MergeFailed):
        await merge.options(connection=connection).enqueue(1, "no list")
    with pytest.raises(PayloadMismatch):
        await strict.options(connection=connection).enqueue(1, "b")
    connection.execute("INSERT INTO orders VALUES (2)")
    connection.commit()
    assert orders(connection) == [1, 2]
    assert {
        job.arguments["text"] if job.task == "strict" else "".join(job.arguments["text"])
        for job in await everything(app)
    } == {"a"}


async def test_bulk_with_a_connection_is_atomic_as_a_whole(app: App, connection: sqlite3.Connection) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="reject"))
    calls = [mail.call(1), mail.call(2), mail.call(1)]
    admissions = await app.enqueue_many(calls, connection=connection)
    assert [a.outcome for a in admissions] == [Outcome.CREATED, Outcome.CREATED, Outcome.REJECTED]
    connection.rollback()
    assert await everything(app) == []

    await app.enqueue_many(calls, connection=connection)
    connection.commit()
    assert len(await everything(app)) == 2
    assert await absorbed(app) == {"rejected": 1}


async def test_bulk_with_a_connection_that_meets_a_full_disk_stores_nothing(
    app: App, connection: sqlite3.Connection
) -> None:
    """SQLite itself ends the caller's transaction then, savepoint or not: all of it falls, never a part."""
    mail = mailer(app, Unique(by="to"))
    connection.execute("INSERT INTO orders VALUES (1)")
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(StoreUnavailable, match="full"):
        await app.enqueue_many([mail.call(1), mail.call(2, "x" * 200_000)], connection=connection)
    assert not connection.in_transaction
    assert orders(connection) == []
    assert await everything(app) == []
    assert await absorbed(app) == {}


async def test_blocking_code_joins_a_transaction_too(app: App, connection: sqlite3.Connection) -> None:
    mail = mailer(app, Unique(by="to"))
    mail.options(connection=connection).enqueue_sync(1)
    app.enqueue_many_sync([mail.call(1), mail.call(2)], connection=connection)
    connection.commit()
    assert len(await everything(app)) == 2


async def test_the_callers_row_factory_and_savepoints_are_left_alone(
    app: App, connection: sqlite3.Connection
) -> None:
    connection.row_factory = sqlite3.Row
    mail = mailer(app, Unique(by="to")).options(connection=connection)
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.execute("SAVEPOINT onejob")
    await mail.enqueue(1)
    connection.execute("ROLLBACK TO onejob")
    connection.execute("RELEASE onejob")
    connection.commit()
    assert await everything(app) == []
    assert connection.execute("SELECT id FROM orders").fetchone()["id"] == 1


# ── whose transaction ─────────────────────────────────────────────────────────────────────────────


async def test_a_connection_to_another_database_is_refused(app: App, tmp_path: Path) -> None:
    mail = mailer(app, Unique(by="to"))
    for target in (tmp_path / "other.db", ":memory:"):
        with closing(sqlite3.connect(target)) as foreign:
            with pytest.raises(ForeignConnection):
                await mail.options(connection=foreign).enqueue(1)
            assert not foreign.in_transaction
    with pytest.raises(ForeignConnection, match="sqlite3"):
        await mail.options(connection=object()).enqueue(1)
    with pytest.raises(ForeignConnection):
        await app.enqueue_many([mail.call(1)], connection=object())
    assert await everything(app) == []


async def test_the_memory_store_has_no_transactions(connection: sqlite3.Connection) -> None:
    app = App(store=MemoryStore())
    with pytest.raises(ForeignConnection, match="leave connection= out"):
        await mailer(app, Unique(by="to")).options(connection=connection).enqueue(1)
    assert await everything(app) == []


async def test_a_connection_without_a_transaction_is_refused_with_the_cure(app: App, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        mail = mailer(app, Unique(by="to")).options(connection=connection)
        with pytest.raises(StoreError, match="BEGIN IMMEDIATE"):
            await mail.enqueue(1)
        connection.execute("BEGIN IMMEDIATE")
        await mail.enqueue(1)
        connection.execute("COMMIT")
    assert len(await everything(app)) == 1


async def test_a_connection_through_another_name_of_the_file_is_not_foreign(app: App, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        await mailer(app, Unique(by="to")).options(connection=connection).enqueue(1)
        connection.commit()
    assert len(await everything(app)) == 1


# ── the holder's transaction is open ──────────────────────────────────────────────────────────────


async def test_case_21_an_open_transaction_is_waited_for_within_a_bound(
    app: App, connection: sqlite3.Connection
) -> None:
    """Rule 8: no fake success; a typed error, and a client that tries again gets a true answer."""
    mail = mailer(app, Unique(by="to"))
    holder = await mail.options(connection=connection).enqueue(1)
    with pytest.raises(AdmissionBusy):
        await mail.enqueue(1)
    with pytest.raises(AdmissionBusy):
        await asyncio.to_thread(mail.enqueue_sync, 1)
    connection.commit()
    kept = await mail.enqueue(1)
    assert (kept.outcome, kept.job.id) == (Outcome.KEPT, holder.job.id)
    assert await absorbed(app) == {"kept": 1}


async def test_case_21_many_callers_that_wait_for_one_transaction_are_bounded_together(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.options(connection=connection).enqueue(1)
    async with asyncio.timeout(40 * BRIEF):  # far less than a hundred waits, one after the other
        answers = await asyncio.gather(*(mail.enqueue(n) for n in range(100)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {AdmissionBusy}


async def test_case_20_a_request_is_created_if_the_holders_transaction_rolls_back(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app, Unique(by="to"))
    lost = await mail.options(connection=connection).enqueue(1)
    with pytest.raises(AdmissionBusy):
        await mail.enqueue(1)
    connection.rollback()
    created = await mail.enqueue(1)
    assert created.outcome is Outcome.CREATED
    assert created.job.id != lost.job.id


async def test_case_20_a_request_that_waits_is_created_when_the_holder_rolls_back(
    tmp_path: Path, clock: Clock
) -> None:
    store = SQLiteStore(tmp_path / "jobs.db", clock=clock, synchronous="NORMAL", admission_timeout=30)
    async with App(store=store) as app:
        mail = mailer(app, Unique(by="to"))
        store.migrate()
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            await mail.options(connection=connection).enqueue(1)
            waiting = [asyncio.create_task(mail.enqueue(1)) for _ in range(5)]
            await asyncio.sleep(0)  # they are on their way to the writer
            connection.rollback()
            admissions = await asyncio.gather(*waiting)
        outcomes = [admission.outcome for admission in admissions]
        assert sorted(outcomes) == ["created", "kept", "kept", "kept", "kept"]
        assert [job.state for job in await everything(app)] == [State.AVAILABLE]


async def test_a_caller_who_meets_another_callers_transaction_keeps_its_own_connection(
    app: App, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.options(connection=connection).enqueue(1)
    with closing(sqlite3.connect(tmp_path / "jobs.db", timeout=BRIEF)) as second:
        with pytest.raises(AdmissionBusy):
            await mail.options(connection=second).enqueue(1)
        assert not second.in_transaction
        connection.rollback()
        assert (await mail.options(connection=second).enqueue(1)).outcome is Outcome.CREATED
        second.commit()
    assert len(await everything(app)) == 1


async def test_counts_that_cannot_be_written_now_are_kept_for_later(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    await mail.enqueue(1)
    connection.execute("BEGIN IMMEDIATE")
    app._engine.counters.flush()
    connection.rollback()
    assert await absorbed(app) == {"kept": 1}


async def test_a_job_enqueued_inside_a_transaction_runs_after_the_commit_only(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(2, "already there")
    first = await start(app)
    assert first.arguments["to"] == 2
    await mail.options(connection=connection).enqueue(1)
    assert await app.jobs(state="available") == []
    connection.commit()
    assert (await start(app)).arguments["to"] == 1


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────


async def test_hooks_are_called_for_a_callers_transaction_when_an_adapter_reports_its_commit(
    app: App, connection: sqlite3.Connection
) -> None:
    heard: list[tuple[str, str]] = []
    after_commit: list[Callable[[], None]] = []

    def report(given: Any, fire: Callable[[], None]) -> bool:
        after_commit.append(fire)
        return given is connection

    @app.on("created")
    async def note_created(event: Event) -> None:
        heard.append((event.kind, event.job.id))

    app.on("deduplicated")(lambda event: heard.append((event.kind, event.job.id)))
    report_commits(app, report)
    inside = mailer(app, Unique(by="to")).options(connection=connection)
    first = await inside.enqueue(1)
    inside.enqueue_sync(1)
    assert heard == []
    connection.commit()
    for fire in after_commit:
        fire()
    assert heard == [("created", first.job.id), ("deduplicated", first.job.id)]


async def test_hooks_are_not_called_for_a_transaction_that_no_adapter_reports(
    app: App, connection: sqlite3.Connection
) -> None:
    heard: list[Event] = []
    app.on("created")(heard.append)
    await mailer(app).options(connection=connection).enqueue(1)
    connection.commit()
    assert heard == []


async def test_a_short_id_in_a_transaction_names_a_committed_job(
    app: App, connection: sqlite3.Connection
) -> None:
    mail = mailer(app)
    committed = (await mail.enqueue(1)).job
    connection.execute("INSERT INTO orders VALUES (1)")
    inside = mail.options(connection=connection)
    own = (await inside.enqueue(2)).job
    waiting = mail.options(connection=connection, after=committed.id[:23])
    assert [(await waiting.enqueue(3)).job.awaits, waiting.enqueue_sync(4).job.awaits] == [[committed.id]] * 2
    with pytest.raises(UnknownJob, match="No job has the id"):
        await mail.options(connection=connection, after=own.id[:23]).enqueue(5)
    assert (await mail.options(connection=connection, after=own).enqueue(6)).job.awaits == [own.id]
    connection.commit()
    assert len(await everything(app)) == 5
