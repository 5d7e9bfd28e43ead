"""SQLite, the embedded default: one file, many processes, one writer at a time.

Every write of this store happens under one advisory lock on a file beside the database, which is also
the only place where the write-ahead log is checkpointed. That makes waiting fair between processes, and it
keeps the store safe on SQLite versions that may corrupt a database when two connections checkpoint at the
same instant (before 3.51.3, 3.50.7 and 3.44.6).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from onejob.errors import ForeignConnection, StoreError
from onejob.forks import generation
from onejob.job import Job, View
from onejob.limits import Rate
from onejob.stores.bell import Bell
from onejob.stores.contract import Counts, Filter, Finding, Guarantees, Lease, Schema, Step, Tally, utcnow
from onejob.stores.lane import Closed
from onejob.stores.sql import block, flows, health
from onejob.stores.sql.engine import Engine, Synchronous, ask
from onejob.stores.sql.faults import translated, translating
from onejob.stores.sql.flows import Plan, drive
from onejob.stores.sql.rows import Row
from onejob.stores.sql.schema import SCHEMA, script_after

T = TypeVar("T")
SHORTEST_POLL, LONGEST_POLL = 0.001, 0.005  # seconds between two looks for other processes' commits

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
        answers: list[Any] = await self._submit(partial(flows.apply, steps))
        self._bell.ring()
        return answers

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps on the calling thread."""
        while True:
            try:
                return self._apply(self._open(), steps)
            except Closed:  # in between: the next one is open
                continue

    def _apply(self, engine: Engine, steps: Sequence[Step]) -> list[Any]:
        if len(steps) != 1:
            answers: list[Any] = engine.run(partial(flows.apply, steps))
            self._bell.ring()
            return answers
        changes = engine.run_one(steps[0])
        if not changes.is_empty:
            self._bell.ring()
        return [changes.answer]

    def apply_within_now(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Run steps inside the caller's transaction, on the caller's connection and thread."""
        answers: list[Any] = self._within(connection, partial(flows.apply, steps))
        return answers

    async def apply_within(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Do the same: a sqlite3 connection is the thread's that opened it."""
        return self.apply_within_now(connection, steps)

    @contextlib.contextmanager
    def transaction_now(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction on a connection of its own."""
        self._open()  # the schema must be there
        with block.opened(self.path, self._synchronous, self._timeout) as connection:
            yield connection
        self._bell.ring()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[sqlite3.Connection]:
        """Do the same, with a thread that waits for the lock and for the disk."""
        async with block.in_a_thread(self.transaction_now()) as connection:
            yield connection

    def tally_within_now(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count inside the caller's transaction, so that a rollback takes the count back."""
        self._within(connection, partial(flows.tally, tallies))

    async def tally_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Do the same: a sqlite3 connection is the thread's that opened it."""
        self.tally_within_now(connection, tallies)

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
        if not await self._read(partial(flows.anything_due, wanted)):
            return []
        leased: list[Job] = await self._submit(partial(flows.lease, wanted))
        return leased

    async def turn(self, steps: Sequence[Step], wanted: Lease) -> tuple[list[Any], list[Job]]:
        """Run steps and start due jobs in one commit."""
        answers, jobs = await self._submit(partial(flows.turn, steps, wanted))
        self._bell.ring()
        return answers, jobs

    def tally(self, tallies: Sequence[Tally]) -> None:
        """Add to the counters."""
        if tallies:
            self._use(lambda engine: engine.run(partial(flows.tally, tallies)))

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

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Read the last job of each chain."""
        jobs: list[Job | None] = await self._read(lambda _: flows.tails(chains))
        return jobs

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Read what was decided at run time."""
        found: dict[str, bytes] = await self._read(lambda _: flows.settings(namespace, kind))
        return found

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write one such decision, or take it back."""
        await self._submit(lambda _: flows.put_setting(namespace, kind, name, value))
        self._bell.ring()

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        counts: Counts = await self._read(lambda _: flows.counts(namespace))
        return counts

    async def tallies(self, namespace: str) -> list[Tally]:
        """Read the counters."""
        tallies: list[Tally] = await self._read(lambda _: flows.tallies(namespace))
        return tallies

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job; they are looked for outside the lock."""
        folded = 0
        while gone := await self._read(lambda _: flows.orphans(namespace)):
            await self._submit(partial(_fold, gone))
            folded += len(gone)
        return folded

    async def next_due(self, namespace: str, rates: Mapping[str, Rate] | None = None) -> datetime | None:
        """Tell when the next timed job is due, or a queue may start one again."""
        due: datetime | None = await self._read(partial(flows.next_due, namespace, rates))
        return due

    async def _read(self, plan: Plan) -> Any:
        return await self._submit(plan, reads=True)

    def pulse(self) -> tuple[int, int]:
        """Note how often this process has changed something, and the version that others' commits change."""
        return self._bell.rings, self._use(Engine.data_version)

    async def wait(self, timeout: float, since: tuple[int, int] | None = None) -> None:
        """Wait for a change by this process, or poll for one by another."""
        rings, version = self.pulse() if since is None else since
        ends = asyncio.get_running_loop().time() + timeout
        pause = SHORTEST_POLL
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            if self._use(Engine.data_version) != version or await self._bell.wait(min(pause, left), rings):
                return
            pause = min(pause * 1.02, LONGEST_POLL)

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    def _use(self, act: Callable[[Engine], T]) -> T:
        """Use the open file; if it is closed at this moment, the one that is opened next."""
        while True:
            try:
                return act(self._open())
            except Closed:
                continue

    async def _submit(self, plan: Plan, *, reads: bool = False) -> Any:
        """Do the same with a plan, by way of the engine's threads."""
        while True:
            try:
                return await self._open().submit(plan, reads=reads)
            except Closed:
                continue

    def _open(self) -> Engine:
        engine = self._engine
        if engine is not None and engine.generation == generation():
            return engine
        with self._opening:
            if self._engine is None or self._engine.generation != generation():
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


def _fold(counters: Sequence[Row], _now: datetime) -> flows.Flow[None]:
    return flows.fold(counters)


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
