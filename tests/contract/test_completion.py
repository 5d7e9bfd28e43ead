"""transaction(): a handler's own writes and the completion of its job commit or roll back together."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onejob import App, Cancel, Job, RetryLater, State, Task, Unique, chain, current
from onejob.errors import (
    CompletionError,
    ContinuationError,
    ForeignConnection,
    LeaseLost,
    NotCommitted,
    NoTransactions,
    StoreUnavailable,
    Superseded,
)
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.stores.postgres.store import PostgresStore
from onejob.stores.redis.store import RedisStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock, drain
from tests.contract.steps import RETRY, everything, inside, start

ROW = (1, "written")
REFUSED = (sqlite3.IntegrityError, psycopg.IntegrityError)  # by the ledger's primary key


class Ledger:
    """The user's own table beside the jobs."""

    def __init__(self, place: str, look: Callable[[str], Any]) -> None:
        self.place = place  # what a driver needs to connect
        self._look = look
        self._look("CREATE TABLE ledger (who INTEGER PRIMARY KEY, text VARCHAR)")

    @property
    def rows(self) -> list[tuple[int, str]]:
        """What is committed, as others see it."""
        return [tuple(row) for row in self._look("SELECT who, text FROM ledger ORDER BY who").fetchall()]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def store(place: str, clock: Clock) -> Store:
    if place.startswith("postgresql"):
        return PostgresStore(place, clock=clock)
    return SQLiteStore(place, clock=clock, synchronous="NORMAL")


@pytest.fixture
def ledger(app: App, place: str) -> Iterator[Ledger]:
    app.maintenance.migrate()
    with closing(connect(place)) as outside:
        yield Ledger(place, outside.execute)


def connect(place: str) -> Any:
    """Return another connection, whose every statement is a transaction."""
    if place.startswith("postgresql"):
        return psycopg.connect(place, autocommit=True)
    return sqlite3.connect(place, isolation_level=None, check_same_thread=False)


async def write(tx: Any, who: int, text: str = "written") -> None:
    """Write a row on a connection of any kind."""
    done = write_now(tx, who, text)
    if isawaitable(done):
        await done


def write_now(tx: Any, who: int, text: str = "written") -> Any:
    return tx.execute(f"INSERT INTO ledger VALUES ({who}, '{text}')")  # noqa: S608 - our own words


def awaited(app: App, **policies: Any) -> Task[..., str]:
    """Register a task that writes one row and completes in one transaction."""

    async def note(who: int, seq: int = 0) -> str:
        async with current().transaction() as tx:
            await write(tx, who)
            return current().returns(f"noted {who} {seq}")

    return app.task(name="note", retry=RETRY, **policies)(note)


def plain(app: App, **policies: Any) -> Task[..., str]:
    """Register the same as a plain function."""

    def note(who: int, seq: int = 0) -> str:
        with current().transaction() as tx:
            write_now(tx, who)
            return current().returns(f"noted {who} {seq}")

    return app.task(name="note", retry=RETRY, **policies)(note)


Kind = Callable[..., Task[..., str]]
both = pytest.mark.parametrize("kind", [awaited, plain])


async def handle(app: App, job: Job) -> Any:
    """Run the handler of a leased job, without the worker that would settle it."""

    async def act() -> Any:
        done = app.tasks[job.task].function(**job.arguments)
        return await done if isawaitable(done) else done

    return await inside(app, job, act)


async def only(app: App) -> Job:
    [job] = await everything(app)
    return job


# ── commit ────────────────────────────────────────────────────────────────────────────────────────


@both
async def test_the_writes_the_result_and_the_completion_commit_together(
    app: App, ledger: Ledger, kind: Kind
) -> None:
    answer = await kind(app, unique=Unique(by="who")).enqueue(1)
    worker = app.worker(drain=True)
    await worker.run()
    job = await only(app)
    assert (job.state, job.attempt, job.stand) == (State.COMPLETED, 1, None)
    assert await answer.result(timeout=30) == "noted 1 0"
    assert ledger.rows == [ROW]
    assert worker.ended == {"completed": 1}


async def test_nothing_is_seen_before_the_end_and_all_of_it_at_the_end(app: App, ledger: Ledger) -> None:
    seen: list[Any] = []

    @app.task
    async def note() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
            current().progress(0.5, "half")
            seen.append((ledger.rows, (await only(app)).state))
        seen.append((ledger.rows, (await only(app)).state))

    await note.enqueue()
    await drain(app)
    assert seen == [([], State.ACTIVE), ([ROW], State.COMPLETED)]
    assert b"half" in ((await only(app)).progress or b"")


async def test_without_returns_the_result_is_none(app: App, ledger: Ledger) -> None:
    @app.task
    async def note() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)

    answer = await note.enqueue()
    await drain(app)
    await answer.result(timeout=30)
    assert ((await only(app)).result, ledger.rows) == (b"null", [ROW])


@both
async def test_the_hold_is_freed_and_the_successor_promoted_by_the_same_commit(
    app: App, ledger: Ledger, kind: Kind
) -> None:
    note = kind(app, unique=Unique.coalesce(by="who"))
    await note.enqueue(1)
    running = await start(app)
    behind = (await note.enqueue(1)).job
    assert behind.state is State.PENDING
    await handle(app, running)
    [first, second] = await everything(app)
    assert (first.state, first.stand) == (State.COMPLETED, None)
    assert (second.id, second.state, second.is_holder) == (behind.id, State.AVAILABLE, True)
    assert ledger.rows == [ROW]


@pytest.mark.parametrize("fails", [True, False])
async def test_what_is_enqueued_on_its_connection_is_part_of_it(
    app: App, ledger: Ledger, *, fails: bool
) -> None:
    note = awaited(app)

    @app.task
    async def mother() -> None:
        async with current().transaction() as tx:
            await write(tx, 7)
            await note.options(connection=tx).enqueue(8)
            if fails:
                raise Cancel("no")

    await mother.enqueue()
    await drain(app)
    assert ledger.rows == ([] if fails else [(7, "written"), (8, "written")])
    assert len(await everything(app)) == (1 if fails else 2)


async def test_a_plain_function_enqueues_on_its_connection_too(app: App, ledger: Ledger) -> None:
    note = plain(app)

    @app.task
    def mother() -> None:
        with current().transaction() as tx:
            write_now(tx, 7)
            note.options(connection=tx).enqueue_sync(8)

    await mother.enqueue()
    await drain(app)
    assert ledger.rows == [(7, "written"), (8, "written")]


async def test_many_blocks_at_once_take_turns(app: App, ledger: Ledger) -> None:
    note: Task[..., str] = awaited(app)
    also: Task[..., str] = app.task(name="also")(plain(App("memory://")).function)
    await app.enqueue_many([*(note.call(n) for n in range(20)), *(also.call(n) for n in range(20, 40))])
    await drain(app, concurrency=16)
    assert len(ledger.rows) == 40
    assert {(job.state, job.attempt) for job in await everything(app)} == {(State.COMPLETED, 1)}


# ── rollback ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["awaited", "plain"])
async def test_an_exception_rolls_all_back_and_fails_the_attempt(
    app: App, ledger: Ledger, clock: Clock, way: str
) -> None:
    async def awaits() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
            if current().attempt == 1:
                raise ValueError("no luck")

    def blocks() -> None:
        with current().transaction() as tx:
            write_now(tx, 1)
            if current().attempt == 1:
                raise ValueError("no luck")

    handler: Callable[..., Any] = awaits if way == "awaited" else blocks
    note: Task[..., None] = app.task(name="note", retry=RETRY)(handler)
    await note.enqueue()
    await drain(app)
    failed = await only(app)
    assert (failed.state, failed.failures[0]["message"]) == (State.RETRYABLE, "no luck")
    assert ledger.rows == []
    clock.advance("1h")
    await drain(app)
    assert ((await only(app)).state, ledger.rows) == (State.COMPLETED, [ROW])


async def test_a_handler_that_catches_may_end_without_it(app: App, ledger: Ledger) -> None:
    @app.task
    async def note() -> str:
        try:
            async with current().transaction() as tx:
                await write(tx, 1)
                await write(tx, 1)
        except REFUSED:
            return "nothing was noted"
        return "never reached"

    answer = await note.enqueue()
    await drain(app)
    assert (await answer.result(timeout=30), ledger.rows) == ("nothing was noted", [])


async def test_a_handler_may_try_again_in_a_second_block(app: App, ledger: Ledger) -> None:
    @app.task
    async def note() -> str:
        try:
            async with current().transaction() as tx:
                await write(tx, 2)
                current().returns("first")
                await write(tx, 2)
                return "never reached"
        except REFUSED:
            async with current().transaction() as tx:
                await write(tx, 1)
                return current().returns("second")

    answer = await note.enqueue()
    await drain(app)
    assert (await answer.result(timeout=30), ledger.rows) == ("second", [ROW])


async def test_a_result_that_cannot_be_stored_rolls_back(app: App, ledger: Ledger) -> None:
    @app.task(retry=RETRY)
    async def note() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
            current().returns(object())

    await note.enqueue()
    await drain(app)
    job = await only(app)
    assert (job.state, job.failures[0]["type"]) == (State.RETRYABLE, "UnencodableArgument")
    assert ledger.rows == []


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_a_transaction_that_the_handler_ended_does_not_complete(
    app: App, ledger: Ledger, sql: str
) -> None:
    @app.task(retry=RETRY)
    async def note() -> None:
        async with current().transaction() as tx:
            done = tx.execute(sql)
            if isawaitable(done):
                await done

    await note.enqueue()
    await drain(app)
    job = await only(app)
    assert job.state is State.RETRYABLE
    assert "transaction" in job.failures[0]["message"]
    assert ledger.rows == []


async def test_a_timeout_inside_rolls_back_and_lets_the_next_in(app: App, ledger: Ledger) -> None:
    @app.task(timeout="50ms", retry=RETRY)
    async def hang() -> None:
        async with current().transaction() as tx:
            await write(tx, 2)
            await asyncio.sleep(60)

    await hang.enqueue()
    await awaited(app).enqueue(1)
    await drain(app, concurrency=1)
    states = {job.task: job.state for job in await everything(app)}
    assert states == {"hang": State.RETRYABLE, "note": State.COMPLETED}
    assert ledger.rows == [ROW]


async def test_returns_outside_of_a_block_is_refused(app: App) -> None:
    @app.task(retry=RETRY)
    async def note() -> str:
        return current().returns("too early")

    await note.enqueue()
    await drain(app)
    [failure] = (await only(app)).failures
    assert failure["type"] == CompletionError.__name__
    assert failure["message"] == "returns() is for the inside of transaction(): elsewhere, return the value."


# ── the fence ─────────────────────────────────────────────────────────────────────────────────────


@both
async def test_a_run_that_was_taken_over_leaves_no_write(
    app: App, ledger: Ledger, clock: Clock, kind: Kind
) -> None:
    await kind(app).enqueue(1)
    slow = await start(app, worker="slow")
    clock.advance("1h")
    await app.maintenance.sweep()
    clock.advance("1h")
    quick = await start(app, worker="quick")
    assert (quick.id, quick.token) == (slow.id, slow.token + 1)

    with pytest.raises(LeaseLost):
        await handle(app, slow)
    assert ledger.rows == []
    assert await only(app) == quick
    await handle(app, quick)
    assert ((await only(app)).state, ledger.rows) == (State.COMPLETED, [ROW])
    for late in (slow, quick):
        with pytest.raises(Exception, match=r"UNIQUE|unique|no longer"):
            await handle(app, late)
    assert ledger.rows == [ROW]


@both
async def test_a_run_whose_job_was_taken_back_leaves_no_write(
    app: App, ledger: Ledger, clock: Clock, kind: Kind
) -> None:
    await kind(app).enqueue(1)
    slow = await start(app)
    clock.advance("1h")
    await app.maintenance.sweep()
    with pytest.raises(LeaseLost):
        await handle(app, slow)
    assert ((await only(app)).state, ledger.rows) == (State.RETRYABLE, [])


@both
async def test_a_run_that_a_newer_version_overtook_rolls_back(app: App, ledger: Ledger, kind: Kind) -> None:
    note = kind(app, unique=Unique.latest(by="who", version="seq"))
    await note.enqueue(1, 1)
    old = await start(app)
    await note.enqueue(1, 2)
    with pytest.raises(Superseded):
        await handle(app, old)
    assert ledger.rows == []
    assert [job.state for job in await everything(app)] == [State.ACTIVE, State.PENDING]


async def test_a_worker_ends_superseded_what_a_newer_version_overtook(app: App, ledger: Ledger) -> None:
    begun, may_go = asyncio.Event(), asyncio.Event()

    @app.task(unique=Unique.latest(by="who", version="seq"), retry=RETRY)
    async def note(who: int, seq: int) -> int:
        begun.set()
        await may_go.wait()
        async with current().transaction() as tx:
            await write(tx, who, f"version {seq}")
            return current().returns(seq)

    old = await note.enqueue(1, 1)
    async with app.worker():
        await begun.wait()
        new = await note.enqueue(1, 2)
        may_go.set()
        assert await old.result(timeout=30) == await new.result(timeout=30) == 2
    first, second = await everything(app)
    assert (first.state, first.superseded_by, first.result) == (State.CANCELLED, second.id, None)
    assert ledger.rows == [(1, "version 2")]


@both
async def test_a_request_to_cancel_that_comes_too_late_changes_nothing(
    app: App, ledger: Ledger, kind: Kind
) -> None:
    await kind(app).enqueue(1)
    job = await start(app)
    await app.cancel(job.id)
    assert await handle(app, job) == "noted 1 0"
    assert ((await only(app)).state, ledger.rows) == (State.COMPLETED, [ROW])


async def test_a_cancelled_run_rolls_back(app: App, ledger: Ledger) -> None:
    inside_block = asyncio.Event()

    @app.task
    async def note() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
            inside_block.set()
            await asyncio.sleep(60)

    await note.enqueue()
    async with app.worker() as worker:
        await inside_block.wait()
        [run] = worker._runs.values()
        run.stop("cancelled")
    assert ((await only(app)).state, ledger.rows) == (State.CANCELLED, [])


async def test_a_block_inside_a_block_is_refused_and_the_outer_one_stands(app: App, ledger: Ledger) -> None:
    @app.task
    async def note() -> str:
        async with current().transaction() as tx:
            await write(tx, 1)
            try:
                async with current().transaction():
                    pass
            except CompletionError as error:
                return current().returns(str(error))
        return ""

    answer = await note.enqueue()
    await drain(app)
    told = "transaction() is open already: write on the connection that it gave."
    assert (await answer.result(timeout=30), ledger.rows) == (told, [ROW])


# ── after the block ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [ValueError("too late"), RetryLater("1s")])
async def test_what_is_raised_afterwards_is_logged_and_changes_nothing(
    app: App, ledger: Ledger, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    @app.task
    async def note() -> str:
        async with current().transaction() as tx:
            await write(tx, 1)
            current().returns("done")
        raise error

    answer = await note.enqueue()
    worker = app.worker(drain=True)
    await worker.run()
    assert await answer.result(timeout=30) == "done"
    assert ((await only(app)).failures, ledger.rows) == ([], [ROW])
    assert worker.ended == {"completed": 1}
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "raised after its transaction had completed it" in line.getMessage()


@pytest.mark.parametrize(("value", "warned"), [("other", True), ("done", False), (None, False)])
async def test_a_value_returned_afterwards_is_dropped_with_a_word(
    app: App, ledger: Ledger, caplog: pytest.LogCaptureFixture, value: str | None, *, warned: bool
) -> None:
    @app.task
    async def note() -> str | None:
        async with current().transaction() as tx:
            await write(tx, 1)
            current().returns("done")
        return value

    answer = await note.enqueue()
    await drain(app)
    assert (await answer.result(timeout=30), ledger.rows) == ("done", [ROW])
    assert ("current().returns(value)" in caplog.text) is warned


async def test_a_second_block_is_refused_after_the_first_has_completed(app: App, ledger: Ledger) -> None:
    told: list[str] = []

    @app.task
    async def note() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
        try:
            async with current().transaction() as tx:
                await write(tx, 2)
        except CompletionError as error:
            told.append(str(error))

    await note.enqueue()
    await drain(app)
    assert told == ["The job is completed already: do all in one transaction()."]
    assert ledger.rows == [ROW]


@pytest.mark.usefixtures("ledger")
async def test_a_handler_that_goes_on_afterwards_is_not_stopped(
    app: App, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The store knows no lease of a completed job; that is no reason to call it lost."""
    completed, may_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task
    async def note() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
        completed.set()
        await may_go.wait()
        ended.set()

    await note.enqueue()
    async with app.worker() as worker:
        await completed.wait()
        clock.advance("1h")
        await worker._upkeep.renew()
        await worker._upkeep.watch()
        may_go.set()
    assert ended.is_set()
    assert worker.ended == {"completed": 1}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# ── a commit whose answer is lost ─────────────────────────────────────────────────────────────────


class Faulty:
    """A store whose next transaction is committed or rolled back without an answer."""

    def __init__(self, store: Store) -> None:
        self._store: Any = store
        self.ending = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _end(self, ending: str) -> None:
        if self.ending == ending:
            self.ending = ""
            raise StoreUnavailable("the connection is lost")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._store.transaction() as connection:
            yield connection
            self._end("rolled back")
        self._end("committed")

    @contextmanager
    def transaction_sync(self) -> Iterator[Any]:
        with self._store.transaction_sync() as connection:
            yield connection
            self._end("rolled back")
        self._end("committed")


@both
@pytest.mark.parametrize("ending", ["committed", "rolled back"])
async def test_the_store_is_asked_what_became_of_a_commit_that_was_not_answered(
    store: Store, ledger: Ledger, clock: Clock, kind: Kind, ending: str
) -> None:
    faulty = Faulty(store)
    app = App(store=faulty)
    faulty.ending = ending
    answer = await kind(app).enqueue(1)
    worker = app.worker(drain=True)
    await worker.run()
    job = await only(app)
    if ending == "committed":
        assert (job.state, job.failures, worker.ended) == (State.COMPLETED, [], {"completed": 1})
    else:
        assert (job.state, job.failures[0]["type"]) == (State.RETRYABLE, StoreUnavailable.__name__)
        assert ledger.rows == []
        clock.advance("1h")
        await drain(app)
    assert await answer.result(timeout=30) == "noted 1 0"
    assert ledger.rows == [ROW]


@pytest.mark.parametrize(("ending", "attempts"), [("committed", 1), ("rolled back", 2)])
async def test_a_handler_that_hides_it_is_asked_for_the_truth_too(
    store: Store, ledger: Ledger, clock: Clock, ending: str, attempts: int
) -> None:
    faulty = Faulty(store)
    app = App(store=faulty)
    faulty.ending = ending

    @app.task(retry=RETRY)
    async def note() -> str:
        try:
            async with current().transaction() as tx:
                await write(tx, 1)
                current().returns("inside")
        except StoreUnavailable:
            return "hidden"
        return ""

    answer = await note.enqueue()
    await drain(app)
    if attempts > 1:
        assert (await only(app)).failures[0]["type"] == NotCommitted.__name__
        clock.advance("1h")
        await drain(app)
    assert (await answer.result(timeout=30), (await only(app)).attempt) == ("inside", attempts)
    assert ledger.rows == [ROW]


async def test_a_second_block_after_a_commit_that_was_not_answered_is_fenced(
    store: Store, ledger: Ledger
) -> None:
    faulty = Faulty(store)
    app = App(store=faulty)
    faulty.ending = "committed"
    errors: list[type[Exception]] = []

    @app.task(retry=RETRY)
    async def note() -> None:
        for who in (1, 2):
            try:
                async with current().transaction() as tx:
                    await write(tx, who)
            except (StoreUnavailable, LeaseLost) as error:
                errors.append(type(error))

    await note.enqueue()
    await drain(app)
    assert errors == [StoreUnavailable, LeaseLost]
    assert ((await only(app)).state, ledger.rows) == (State.COMPLETED, [ROW])


# ── your own connection ───────────────────────────────────────────────────────────────────────────


def joining(app: App, ledger: Ledger, end: str) -> Task[..., str]:
    """Register a plain function that completes in a transaction of its own making, and ends that."""

    @app.task(retry=RETRY)
    def note() -> str:
        with closing(connect(ledger.place)) as connection:
            connection.execute("BEGIN")
            write_now(connection, 1)
            with current().transaction(connection=connection) as tx:
                assert tx is connection
                current().returns("inside")
            if current().attempt == 1:
                connection.execute(end)
            else:
                connection.execute("COMMIT")
        return "afterwards"

    return note


async def test_your_commit_completes_the_job(app: App, ledger: Ledger) -> None:
    answer = await joining(app, ledger, "COMMIT").enqueue()
    worker = app.worker(drain=True)
    await worker.run()
    assert (await answer.result(timeout=30), ledger.rows) == ("inside", [ROW])
    assert worker.ended == {"completed": 1}


async def test_without_your_commit_the_attempt_has_failed(app: App, ledger: Ledger, clock: Clock) -> None:
    answer = await joining(app, ledger, "ROLLBACK").enqueue()
    await drain(app)
    job = await only(app)
    assert (job.state, job.failures[0]["type"]) == (State.RETRYABLE, NotCommitted.__name__)
    assert ledger.rows == []
    clock.advance("1h")
    await drain(app)
    assert (await answer.result(timeout=30), ledger.rows) == ("inside", [ROW])


async def test_a_lost_lease_leaves_your_transaction_to_you(app: App, ledger: Ledger, clock: Clock) -> None:
    await joining(app, ledger, "COMMIT").enqueue()
    slow = await start(app)
    clock.advance("1h")
    await app.maintenance.sweep()
    with pytest.raises(LeaseLost):  # so your `with connection` rolls back
        await handle(app, slow)
    assert ledger.rows == []


async def test_a_stranger_is_refused_before_anything_is_written(app: App, tmp_path: Path) -> None:
    reached: list[bool] = []

    @app.task
    def note() -> None:
        with (
            closing(sqlite3.connect(tmp_path / "other.db")) as stranger,
            current().transaction(connection=stranger),
        ):
            reached.append(True)

    await note.enqueue()
    await drain(app)
    assert ((await only(app)).failures[0]["type"], reached) == (ForeignConnection.__name__, [])


# ── the rest of the chain ─────────────────────────────────────────────────────────────────────────


def continuing(app: App, *, way: str, fails: bool = False) -> Task[..., str]:
    """Register a task that goes on with another in the transaction that completes it."""
    then = app.task(name="then")(_then)

    async def awaits() -> str:
        async with current().transaction() as tx:
            await write(tx, 1)
            current().continue_with(then.call(2))
            if fails and current().attempt == 1:
                raise ValueError("no luck")
            return current().returns("first")

    def blocks() -> str:
        with current().transaction() as tx:
            write_now(tx, 1)
            current().continue_with(then.call(2))
            if fails and current().attempt == 1:
                raise ValueError("no luck")
            return current().returns("first")

    handler: Callable[..., Any] = awaits if way == "awaited" else blocks
    return app.task(name="first", retry=RETRY, unique=Unique(by=()))(handler)


async def _then(who: int) -> str:
    async with current().transaction() as tx:
        await write(tx, who)
        return current().returns("second")


either = pytest.mark.parametrize("way", ["awaited", "plain"])


@either
async def test_the_continuation_is_made_by_the_same_commit(app: App, ledger: Ledger, way: str) -> None:
    first = continuing(app, way=way)
    answer = await first.enqueue()
    running = await start(app)
    assert await handle(app, running) == "first"
    done, following = await everything(app)
    assert (done.state, done.stand, ledger.rows) == (State.COMPLETED, None, [ROW])
    assert (following.chain_id, following.chain_index, following.state) == (done.id, 1, State.AVAILABLE)
    assert (following.is_holder, following.key) == (True, running.key)
    await drain(app)
    assert await answer.chain.result(timeout=30) == "second"
    assert ledger.rows == [ROW, (2, "written")]
    assert (await first.enqueue()).outcome == "created"


@either
async def test_a_rollback_leaves_no_continuation_and_the_retry_makes_one(
    app: App, ledger: Ledger, clock: Clock, way: str
) -> None:
    await continuing(app, way=way, fails=True).enqueue()
    await drain(app)
    assert ([job.state for job in await everything(app)], ledger.rows) == ([State.RETRYABLE], [])
    clock.advance("1h")
    await drain(app)
    assert [(job.task, job.state) for job in await everything(app)] == [
        ("first", State.COMPLETED),
        ("then", State.COMPLETED),
    ]
    assert ledger.rows == [ROW, (2, "written")]


@either
async def test_a_chain_that_was_cancelled_is_rolled_back(app: App, ledger: Ledger, way: str) -> None:
    await continuing(app, way=way).enqueue()
    running = await start(app)
    await app.cancel(running.id)
    with pytest.raises(Cancel):
        await handle(app, running)
    assert (await only(app), ledger.rows) == (await app.job(running.id), [])


async def test_a_second_block_may_choose_another_continuation(app: App, ledger: Ledger) -> None:
    then = app.task(name="then")(_then)

    @app.task
    async def first() -> None:
        try:
            async with current().transaction() as tx:
                current().continue_with(then.call(2))
                await write(tx, 1)
                await write(tx, 1)
        except REFUSED:
            async with current().transaction() as tx:
                current().continue_with(then.call(3))
                await write(tx, 1)

    await first.enqueue()
    await drain(app)
    assert ledger.rows == [ROW, (3, "written")]


async def test_nothing_continues_what_is_completed(app: App, ledger: Ledger) -> None:
    told: list[str] = []
    then = app.task(name="then")(_then)

    @app.task
    async def first() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
        try:
            current().continue_with(then.call(2))
        except ContinuationError as error:
            told.append(str(error))

    await first.enqueue()
    await drain(app)
    assert told == ["The job is completed already: call continue_with inside transaction()."]
    assert ((await only(app)).state, ledger.rows) == (State.COMPLETED, [ROW])


async def test_a_chain_that_was_written_down_goes_on(app: App, ledger: Ledger) -> None:
    note = awaited(app)

    @app.task
    async def last(text: str) -> str:
        return text.upper()

    answer = await chain(note.call(1), last.step()).enqueue()
    await drain(app)
    assert (await answer.chain.result(timeout=30), ledger.rows) == ("NOTED 1 0", [ROW])


@both
async def test_jobs_that_wait_for_the_chain_are_notified(app: App, ledger: Ledger, kind: Kind) -> None:
    note = kind(app)

    @app.task
    async def after() -> str:
        [first] = current().blockers
        return f"after {first.result}"

    blocker = await note.enqueue(1)
    waiting = await after.options(after=[blocker]).enqueue()
    worker = app.worker(drain=True)
    await worker.run()
    assert await waiting.result(timeout=30) == "after noted 1 0"
    assert (ledger.rows, worker.repaired) == ([ROW], 0)


@pytest.mark.parametrize("ending", ["committed", "COMMIT"])
async def test_dependants_are_notified_of_a_commit_in_doubt_too(
    store: Store, ledger: Ledger, ending: str
) -> None:
    faulty = Faulty(store)
    app = App(store=faulty)
    faulty.ending = ending
    task = joining(app, ledger, ending) if ending == "COMMIT" else awaited(app)

    @app.task
    async def after() -> str:
        [first] = current().blockers
        return f"after {first.result}"

    blocker = await task.enqueue(*(() if ending == "COMMIT" else (1,)))
    waiting = await after.options(after=[blocker]).enqueue()
    worker = app.worker(drain=True)
    await worker.run()
    assert await waiting.result(timeout=30) in {"after noted 1 0", "after inside"}
    assert (ledger.rows, worker.repaired) == ([ROW], 0)


# ── stores without transactions ───────────────────────────────────────────────────────────────────


def open_memory(_request: pytest.FixtureRequest) -> Store:
    return MemoryStore()


def open_redis(request: pytest.FixtureRequest) -> Store:
    return RedisStore(request.getfixturevalue("redis_url"))


@both
@pytest.mark.parametrize(
    ("opened", "sentence"),
    [
        (open_memory, "The memory store has no transactions: use SQLite or PostgreSQL for this task."),
        (open_redis, "The redis store has no transactions: use SQLite or PostgreSQL for this task."),
    ],
)
async def test_a_store_without_transactions_says_so(
    request: pytest.FixtureRequest, opened: Callable[..., Store], sentence: str, kind: Kind
) -> None:
    async with App(store=opened(request)) as app:
        await kind(app).enqueue(1)
        await drain(app)
        [failure] = (await only(app)).failures
        assert (failure["type"], failure["message"]) == (NoTransactions.__name__, sentence)


@pytest.mark.parametrize("opened", [open_memory, open_redis])
async def test_nor_does_it_join_yours(request: pytest.FixtureRequest, opened: Callable[..., Store]) -> None:
    async with App(store=opened(request)) as app:

        @app.task
        async def note() -> None:
            async with current().transaction(connection=object()):
                pass

        await note.enqueue()
        await drain(app)
        [failure] = (await only(app)).failures
        assert failure["type"] == ForeignConnection.__name__


# ── those who wait ────────────────────────────────────────────────────────────────────────────────


async def test_a_block_that_others_wait_for_does_not_fail_the_worker(place: str) -> None:
    """On SQLite the worker's own writes wait for the block: leases, heartbeats, results, progress."""
    brief = 0.05
    store: Store = (
        PostgresStore(place, admission_timeout=brief)
        if place.startswith("postgresql")
        else SQLiteStore(place, admission_timeout=brief, synchronous="NORMAL")
    )
    async with App(store=store) as app:
        app.maintenance.migrate()
        with closing(connect(place)) as outside:
            Ledger(place, outside.execute)
        opened, other_ended, may_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @app.task
        async def holds() -> None:
            async with current().transaction() as tx:
                await write(tx, 1)
                opened.set()
                await may_go.wait()

        @app.task
        async def other() -> str:
            await opened.wait()
            current().progress(0.5)
            other_ended.set()
            return "other"

        answers: list[Any] = [await holds.enqueue(), await other.enqueue()]
        async with app.worker(lease="3s") as worker:
            await other_ended.wait()
            await asyncio.sleep(20 * brief)  # the chores have met the lock, and gone on
            assert not worker._main.done()  # type: ignore[union-attr]
            may_go.set()
            assert [await answer.result(timeout=30) for answer in answers] == [None, "other"]
        assert worker.ended == {"completed": 2}
        with closing(connect(place)) as outside:
            assert outside.execute("SELECT count(*) FROM ledger").fetchone()[0] == 1


async def test_waiting_for_a_block_does_not_hold_up_the_loop(app: App, ledger: Ledger) -> None:
    """A block on SQLite that waits for another's lock waits in a thread."""
    first_in, may_go = asyncio.Event(), asyncio.Event()
    beats = 0

    @app.task
    async def first() -> None:
        async with current().transaction() as tx:
            await write(tx, 1)
            first_in.set()
            await may_go.wait()

    @app.task
    async def second() -> None:
        await first_in.wait()
        async with current().transaction() as tx:
            await write(tx, 2)

    async def beat() -> None:
        nonlocal beats
        await first_in.wait()
        while beats < 50:
            beats += 1
            await asyncio.sleep(0.001)
        may_go.set()

    await first.enqueue()
    await second.enqueue()
    await asyncio.gather(drain(app), asyncio.create_task(beat()))
    assert (beats, len(ledger.rows)) == (50, 2)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # elsewhere nobody waits
async def test_a_run_that_is_cancelled_while_it_waits_for_the_lock_does_not_keep_it(
    app: App, ledger: Ledger
) -> None:
    note = awaited(app)
    await note.enqueue(1)
    first = await start(app)
    async with app._engine.transactions().transaction():
        before = threading.active_count()
        waiting = asyncio.create_task(handle(app, first))
        while threading.active_count() == before:  # noqa: ASYNC110 - a thread tells nobody that it has started
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert (await note.enqueue(2)).outcome == "created"
    assert ledger.rows == []
