"""SQLite, the embedded default: one file, many processes, one writer at a time.

Every write of this store happens under one advisory lock on a file beside the database, which is also
the only place where the write-ahead log is checkpointed. That makes waiting fair between processes, and it
keeps the store safe on SQLite versions that may corrupt a database when two connections checkpoint at the
same instant (before 3.51.3, 3.50.7 and 3.44.6).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from onejob.errors import (
    AdmissionBusy,
    ForeignConnection,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from onejob.forks import generation
from onejob.job import Job, View
from onejob.stores.bell import Bell
from onejob.stores.contract import Counts, Filter, Finding, Guarantees, Lease, Schema, Step, Tally
from onejob.stores.sql import flows, health
from onejob.stores.sql.flows import Ask, Flow, drive
from onejob.stores.sql.lockfile import LockFile
from onejob.stores.sql.rows import Row, micros, write_job
from onejob.stores.sql.statements import migrations, statements

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL"]
Plan = Callable[[datetime], Flow[Any]]

SQL = statements("sqlite")
SCHEMA = max(migrations("sqlite"))
GROUP = 512  # requests that share one commit at most
CHECKPOINT_PAGES = 1000  # of the write-ahead log, as SQLite does by default
POLL = 0.004  # seconds between two looks for other processes' commits

GUARANTEES = MappingProxyType(
    {
        level: Guarantees(
            store="sqlite",
            strength="strong",
            scope="all processes of one host",
            durability=durability,
            not_promised="network file systems",
        )
        for level, durability in (
            ("FULL", "survives power loss (synchronous=FULL)"),
            ("NORMAL", "survives kill -9; power loss may take the last commits (synchronous=NORMAL)"),
        )
    }
)


def utcnow() -> datetime:
    """Read this machine's clock."""
    return datetime.now(UTC)


def may_corrupt(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Tell whether this SQLite has the write-ahead log reset bug."""
    if version >= (3, 51, 3):
        return False
    return not ((3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0))


class SQLiteStore:
    """A store in one SQLite file."""

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Synchronous = "FULL",
        admission_timeout: float = 5.0,
        clock: Callable[[], datetime] = utcnow,
    ) -> None:
        self.path = Path(path)
        self.now = clock
        self.guarantees = GUARANTEES[synchronous]
        self._synchronous = synchronous
        self._timeout = admission_timeout
        self._bell = Bell()
        self._opening = threading.Lock()
        self._engine: Engine | None = None

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in a commit that they share with whoever else is waiting."""
        if not steps:
            return []
        answers: list[Any] = await self._open().submit(partial(flows.apply, steps))
        self._bell.ring()
        return answers

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps on the calling thread."""
        engine = self._open()
        single = len(steps) == 1
        answers = [engine.run_one(steps[0])] if single else engine.run(partial(flows.apply, steps))
        self._bell.ring()
        return answers

    def apply_within(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Run steps inside the caller's transaction, on the caller's connection and thread."""
        answers: list[Any] = self._within(connection, partial(flows.apply, steps))
        return answers

    def tally_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count inside the caller's transaction, so that a rollback takes the count back."""
        if tallies:
            self._within(connection, partial(flows.tally, tallies))

    def _within(self, connection: Any, plan: Plan) -> Any:
        self._open()  # the schema must be there
        join(connection, self.path)
        try:
            with savepoint(connection):
                return drive(plan(self.now()), partial(ask, own_cursor(connection)))
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    async def lease(self, wanted: Lease) -> list[Job]:
        """Start due jobs; look first, so that an idle worker takes no lock."""
        engine = self._open()
        if not await engine.submit(partial(flows.anything_due, wanted.namespace), reads=True):
            return []
        leased: list[Job] = await engine.submit(partial(flows.lease, wanted))
        return leased

    def tally(self, tallies: Sequence[Tally]) -> None:
        """Add to the counters."""
        if tallies:
            self._open().run(partial(flows.tally, tallies))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Show who stands for a key."""
        view: View = await self._read(partial(flows.look, key))
        return view

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs by id."""
        jobs: list[Job | None] = await self._read(lambda _: flows.get(ids))
        return jobs

    async def find(self, wanted: Filter) -> list[Job]:
        """List jobs."""
        jobs: list[Job] = await self._read(lambda _: flows.find(wanted))
        return jobs

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        counts: Counts = await self._read(lambda _: flows.counts(namespace))
        return counts

    async def tallies(self, namespace: str) -> list[Tally]:
        """Read the counters."""
        tallies: list[Tally] = await self._read(lambda _: flows.tallies(namespace))
        return tallies

    async def next_due(self, namespace: str) -> datetime | None:
        """Tell when the next timed job is due."""
        due: datetime | None = await self._read(lambda _: flows.next_due(namespace))
        return due

    async def _read(self, plan: Plan) -> Any:
        return await self._open().submit(plan, reads=True)

    def pulse(self) -> tuple[int, int]:
        """Note how often this process has changed something, and the version that others' commits change."""
        return self._bell.rings, self._open().data_version()

    async def wait(self, timeout: float, since: tuple[int, int] | None = None) -> None:
        """Wait for a change by this process, or poll for one by another."""
        rings, version = self.pulse() if since is None else since
        ends = asyncio.get_running_loop().time() + timeout
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            if await self._bell.wait(min(POLL, left), rings) or self._open().data_version() != version:
                return

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    def _open(self) -> Engine:
        engine = self._engine
        if engine is not None and engine.generation == generation():
            return engine
        with self._opening:
            if self._engine is None or self._engine.generation != generation():
                # After a fork the parent's connection is left alone: closing it here would drop its locks.
                self._engine = Engine(self.path, self._synchronous, self._timeout, self.now)
            return self._engine

    def schema(self) -> Schema:
        """Tell the version of the tables, over a connection that cannot write."""
        with translating(self.path):
            return Schema(health.schema_version(self.path), SCHEMA)

    def migrate(self) -> Schema:
        """Make the tables or bring them up to date; opening does the same."""
        self._open()
        return self.schema()

    def migration_sql(self) -> str:
        """Write out what `migrate` would run now, as one script."""
        return script_after(self.schema().found, self.now())

    async def examine(self) -> list[Finding]:
        """Look at the library, the file and its settings."""
        with translating(self.path):
            return await asyncio.to_thread(
                health.examine, self.path, self._synchronous, SCHEMA, affected=may_corrupt()
            )

    async def close(self) -> None:
        """Finish what is under way and close the file."""
        with self._opening:
            engine, self._engine = self._engine, None
        if engine is not None and engine.generation == generation():
            await asyncio.to_thread(engine.close)


class Engine:
    """The open file: one connection that writes, one that reads, and a thread for each."""

    def __init__(
        self, path: Path, synchronous: Synchronous, timeout: float, clock: Callable[[], datetime]
    ) -> None:
        self.generation = generation()
        self._path = path
        self._clock = clock
        self._absorbing = False  # whether the last request turned out to be a duplicate
        self._mutex = threading.Lock()
        self._reading = threading.Lock()
        with translating(path), contextlib.ExitStack() as opened:
            self._lock = LockFile(path.with_name(path.name + ".lock"), timeout)
            opened.callback(self._lock.close)
            create_private(path)
            with self._lock:
                self._writer = connect(path, synchronous, timeout)
                opened.callback(self._writer.close)
                prepare_schema(self._writer, path, clock())
                # It checkpoints as part of a commit, and commits only ever under the lock.
                self._writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
                self._reader = connect(path, synchronous, timeout)
            opened.pop_all()  # all went well, so they stay open
        self._cursor = self._writer.cursor()
        self._read_cursor = self._reader.cursor()
        self._writes = Lane(self._run_group, f"onejob writes {path.name}")
        self._reads = Lane(self._run_reads, f"onejob reads {path.name}")

    async def submit(self, plan: Plan, *, reads: bool = False) -> Any:
        """Hand a plan to the thread and await its answer."""
        lane = self._reads if reads else self._writes
        return await lane.submit(plan)

    def run(self, plan: Plan) -> Any:
        """Run a plan in a transaction of its own, on this thread."""
        with self._mutex, translating(self._path), self._lock:
            return self._transact([plan])[0]

    def run_one(self, step: Step) -> Any:
        """Run one step the shortest way: a duplicate by reading alone, a new job by one guarded insert."""
        with self._mutex, translating(self._path):
            if self._absorbing and (foreseen := self._foresee(step)) is not None:
                return foreseen[0]
            with self._lock:
                return self._hope(step) or self._settle_one(step)

    def _foresee(self, step: Step) -> list[Any] | None:
        """Answer a step that changes nothing, from one consistent read and without the lock."""
        cursor = self._cursor
        cursor.execute("BEGIN")
        try:
            answers = drive(flows.foresee([step], self._clock()), partial(ask, cursor))
        finally:
            cursor.execute("COMMIT")
        self._absorbing = answers is not None
        return answers

    def _hope(self, step: Step) -> Any:
        """Act as if the key were free; the unique index says whether it was. None if it was not."""
        if step.job_id is not None or step.marks:
            return None
        changes = step.act(View(self._clock()))
        if len(changes.inserts) != 1:
            return None
        [job] = changes.inserts
        if self._cursor.execute(SQL["insert_job_if_free"], write_job(job)).rowcount != 1:
            return None
        return changes.answer

    def _settle_one(self, step: Step) -> Any:
        before = self._writer.total_changes
        [[answer]] = self._transact([partial(flows.apply, [step])])
        self._absorbing = self._writer.total_changes == before
        return answer

    def _run_group(self, plans: Sequence[Plan]) -> list[Any]:
        """Run plans in one commit; if that fails, each alone, so that only the guilty one fails."""
        try:
            with self._mutex, translating(self._path), self._lock:
                return self._transact(plans)
        except (StoreUnavailable, AdmissionBusy) as error:  # whoever tries alone would wait as long
            return [error for _ in plans]
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            if len(plans) == 1:
                return [error]
        return [self._run_group([plan])[0] for plan in plans]

    def _transact(self, plans: Sequence[Plan]) -> list[Any]:
        cursor = self._cursor
        cursor.execute("BEGIN IMMEDIATE")
        try:
            now = self._clock()
            answers = [drive(plan(now), partial(ask, cursor)) for plan in plans]
            cursor.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        return answers

    def _run_reads(self, plans: Sequence[Plan]) -> list[Any]:
        return [self._run_read(plan) for plan in plans]

    def _run_read(self, plan: Plan) -> Any:
        try:
            with self._reading, translating(self._path):
                cursor = self._read_cursor
                cursor.execute("BEGIN")
                try:
                    return drive(plan(self._clock()), partial(ask, cursor))
                finally:
                    cursor.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            return error

    def data_version(self) -> int:
        """Tell a number that changes when another connection commits."""
        with self._reading:
            version: int = self._read_cursor.execute(SQL["data_version"]).fetchone()[0]
            return version

    def close(self) -> None:
        """Stop the threads, then close the connections under the lock: the last to close checkpoints."""
        self._writes.close()
        self._reads.close()
        with self._mutex, self._reading, self._lock:
            self._reader.close()
            self._writer.close()
        self._lock.close()


class Lane:
    """A thread that takes whatever has gathered and runs it together: group commit."""

    def __init__(self, run: Callable[[Sequence[Plan]], list[Any]], name: str) -> None:
        self._run = run
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def submit(self, plan: Plan) -> Any:
        """Await a plan's answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.put((plan, loop, future))
        return await future

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            entries = [first, *self._gather()]
            live = [entry for entry in entries if entry is not None]
            answers = self._run([plan for plan, _, _ in live])
            for loop in {id(loop): loop for _, loop, _ in live}.values():
                mine = [
                    (future, answer)
                    for (_, at, future), answer in zip(live, answers, strict=True)
                    if at is loop
                ]
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    loop.call_soon_threadsafe(deliver, mine)
            if None in entries:
                return

    def _gather(self) -> list[Entry | None]:
        found: list[Entry | None] = []
        while len(found) < GROUP and not self._queue.empty():
            found.append(self._queue.get())
        return found

    def close(self) -> None:
        """Finish what was submitted, then stop."""
        self._queue.put(None)
        self._thread.join()


Entry = tuple[Plan, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


def deliver(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Hand answers to those who await them; an exception is raised there."""
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def ask(cursor: sqlite3.Cursor, question: Ask) -> list[Row]:
    """Run one statement of a flow."""
    sql = SQL[question.name]
    if question.many:
        cursor.executemany(sql, question.parameters)
        return []
    return cursor.execute(sql, question.parameters).fetchall()


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def create_private(path: Path) -> None:
    """Create the file for its owner's eyes only; SQLite gives its companions the same mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def connect(path: Path, synchronous: Synchronous, timeout: float) -> sqlite3.Connection:
    """Open a connection that commits only when told to, and never checkpoints by itself."""
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_schema(connection: sqlite3.Connection, path: Path, now: datetime) -> None:
    """Create or upgrade our tables, all or nothing; leave everybody else's alone."""
    found = {name for (name,) in connection.execute(SQL["known_tables"])}
    if found and "onejob_schema" not in found:
        raise SchemaMismatch(
            f"{path} has tables named {', '.join(sorted(found))} that onejob did not make: use another file."
        )
    version = (connection.execute(SQL["schema_version"]).fetchone()[0] or 0) if found else 0
    if version > SCHEMA:
        raise SchemaMismatch(
            f"{path} has schema {version}, newer than the {SCHEMA} that this onejob knows: upgrade onejob."
        )
    if version < SCHEMA:
        upgrade(connection, version, now)


def upgrade(connection: sqlite3.Connection, version: int, now: datetime) -> None:
    """Apply the migrations after `version` in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(SQL["create_schema_table"])
        for number, script in migrations("sqlite").items():
            if number > version:
                for statement in split(script):
                    connection.execute(statement)
                connection.execute(SQL["record_schema_version"], (number, micros(now)))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def script_after(version: int, now: datetime) -> str:
    """Write what `upgrade` runs as one script for people who run it themselves."""
    todo = {number: text for number, text in migrations("sqlite").items() if number > version}
    if not todo:
        return ""
    parts = ["BEGIN IMMEDIATE;", f"{SQL['create_schema_table']};"]
    for number, text in todo.items():
        record = SQL["record_schema_version"].replace("?, ?", f"{number}, {micros(now)}")
        parts += [text.strip(), f"{record};"]
    return "\n\n".join([*parts, "COMMIT;\n"])


def split(script: str) -> Iterator[str]:
    """Split a migration into statements, which end with a semicolon at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# ── the caller's transaction ──────────────────────────────────────────────────────────────────────


def join(connection: Any, path: Path) -> None:
    """Make sure that this is a connection to our database, inside a transaction."""
    if not isinstance(connection, sqlite3.Connection):
        raise ForeignConnection(
            f"connection= must be a sqlite3.Connection to {path}, not {type(connection).__name__}."
        )
    rows = own_cursor(connection).execute("PRAGMA database_list").fetchall()
    if not any(name == "main" and file and path.samefile(file) for _, name, file in rows):
        raise ForeignConnection(
            f"connection= belongs to another database than {path}; pass a connection to that."
        )
    if not connection.in_transaction and connection.isolation_level is None:
        raise StoreError('connection= is not in a transaction: run "BEGIN IMMEDIATE" on it first.')
    if may_corrupt():
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # this store checkpoints, under its lock
    if not connection.in_transaction:
        with translating(path):
            connection.execute("BEGIN IMMEDIATE")


def own_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Make a cursor that gives plain tuples, whatever the caller's row factory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


@contextlib.contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo our part alone if it fails, so that the caller's work stands."""
    cursor = connection.cursor()
    cursor.execute("SAVEPOINT onejob")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled everything back already
            cursor.execute("ROLLBACK TO onejob")
            cursor.execute("RELEASE onejob")
        raise
    cursor.execute("RELEASE onejob")


# ── errors ────────────────────────────────────────────────────────────────────────────────────────

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
MEANINGS = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing of this request was stored",
    sqlite3.SQLITE_READONLY: "the file is read-only; make it writable for this user",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that its folder exists and is writable",
    sqlite3.SQLITE_PERM: "the file may not be opened by this user",
    sqlite3.SQLITE_IOERR: "the disk gave an error; nothing of this request was stored",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a backup",
}


class translating(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a verb in `with`
    """Turn what SQLite raises into what onejob raises."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the typed error in the place of SQLite's."""
        if isinstance(error, sqlite3.Error):
            raise translated(error, self._path) from error
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise StoreUnavailable(f"{self._path}: {error.strerror or error}.") from error


def translated(error: sqlite3.Error, path: Path) -> StoreError:
    """Name an error of SQLite in one sentence."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in BUSY:
        return AdmissionBusy(f"{path} is being written in a transaction that does not end; try again.")
    if code == sqlite3.SQLITE_NOTADB:
        return SchemaMismatch(f"{path} is not a SQLite database: name another file.")
    return StoreUnavailable(f"{path}: {MEANINGS.get(code, error)}.")
