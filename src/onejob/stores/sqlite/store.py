"""SQLite, the embedded default: one file, many processes, one writer at a time.

Admission looks first: a request that writes nothing is answered from a read, without any lock. Otherwise the
step runs under `BEGIN IMMEDIATE`, on rows that are read again. A process that is stopped (SIGSTOP) while it
writes cannot be overtaken: other writers raise AdmissionBusy, which names the process if it can be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from onejob.core.leasing import Lease
from onejob.core.step import Changes, Step, View
from onejob.errors import OnejobError
from onejob.stores.columns import Unreadable
from onejob.stores.contract import Finding, Guarantees, Leased, Schema, Tally, utcnow
from onejob.stores.flow import Flow
from onejob.stores.group_commit import Closed
from onejob.stores.per_process import PerProcess
from onejob.stores.sql.reading import ReadingStore, put_setting
from onejob.stores.sql.schema import script_after
from onejob.stores.sqlite import counters, handler_transaction, health, leasing
from onejob.stores.sqlite.caller_transaction import run_within, run_within_async
from onejob.stores.sqlite.database import Database, Synchronous, Work
from onejob.stores.sqlite.errors import translating
from onejob.stores.sqlite.schema import SCHEMA
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.steps import (
    depends_on_key_alone,
    foresee,
    guarded_insert,
    run_guarded,
    run_steps,
    view_key,
)
from onejob.stores.sqlite.watch import Watch
from onejob.stores.store_clock import Clock, StoreClock
from onejob.stores.working_copy import attempt

T = TypeVar("T")
Given = TypeVar("Given")

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


class SQLiteStore(ReadingStore):
    """A store in one SQLite file."""

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Synchronous = "FULL",
        admission_timeout: float = 5.0,
        store_timeout: float = 10.0,
        clock: Clock = utcnow,
    ) -> None:
        """Name the file; the first use opens it.

        Args:
            path: The database file.
            synchronous: FULL survives power loss; NORMAL may lose the last commits then.
            admission_timeout: How many seconds to wait for another writer.
            store_timeout: How many seconds an async caller waits for an answer. A blocking call waits for
                locks no longer than `admission_timeout`; a disk that hangs can delay it further.
            clock: The store's time; all processes of a host share its clock.
        """
        self.path = Path(path)
        self.now = StoreClock(clock)
        self.guarantees = GUARANTEES[synchronous]
        self._synchronous: Synchronous = synchronous
        self._admission_timeout = admission_timeout
        self._opening = PerProcess(
            partial(  # without a reference to this store, so that a store that is dropped closes its file
                Database,
                self.path,
                synchronous=synchronous,
                admission_timeout=admission_timeout,
                store_timeout=store_timeout,
                clock=self.now,
            )
        )
        self._open = self._opening.get
        self._watch = Watch(self._version)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def apply_sync(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Look, then run steps on the calling thread."""
        changes = self._use(self._foresee, steps[0]) if len(steps) == 1 else None
        if changes is not None and changes.is_empty:
            return [changes.answer]
        answers = self._write_steps(steps, changes)
        self._watch.notify()
        return answers

    def _write_steps(self, steps: Sequence[Step[Any]], seen: Changes[Any] | None) -> list[Any]:
        """Insert the job of a step that was seen to do no more; otherwise run steps in a transaction."""
        job = None if seen is None else guarded_insert(steps[0], seen)
        if seen is not None and job is not None and self._use(Database.insert, job):
            return [seen.answer]
        return self._use(Database.write, partial(run_steps, steps=steps))

    async def apply(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Look on the calling thread, then run steps on the writer thread."""
        changes = await self._use_async(self._foresee_async, steps[0]) if len(steps) == 1 else None
        if changes is None:
            return await self._submit(partial(run_steps, steps=steps))
        if changes.is_empty:
            return [changes.answer]
        return await self._submit(partial(run_guarded, step=steps[0], changes=changes), gather=True)

    def _foresee(self, database: Database, step: Step[Any]) -> Changes[Any] | None:
        """Return what a request would change; None for a step on a job, which is there to change it."""
        if step.job_id is not None:
            return None
        if not depends_on_key_alone(step):
            return database.look(partial(foresee, step=step))
        return attempt(step, View(self.now()) if step.key is None else database.look_at_key(step.key))

    async def _foresee_async(self, database: Database, step: Step[Any]) -> Changes[Any] | None:
        """Async variant of `_foresee`; while a write is under way, callers of one turn share a look."""
        if step.key is None or not database.is_writing or not depends_on_key_alone(step):
            return self._foresee(database, step)
        return attempt(step, await database.look_together(step.key))

    # ── leasing ───────────────────────────────────────────────────────────────────────────────────

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        """Run steps and start due jobs in one commit; an idle worker, which has no steps, takes no lock."""
        if not after:
            foreseen = self._use(Database.look, partial(leasing.foresee, wanted=wanted))
            if foreseen is not None:
                return foreseen
        return await self._submit(lambda session: leasing.lease(session, wanted, after))

    # ── transactions ──────────────────────────────────────────────────────────────────────────────

    def apply_within_sync(self, connection: Any, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Run steps inside the caller's transaction, on the caller's connection and thread."""
        return self._within(connection, lambda session: run_steps(session, steps))

    async def apply_within(self, connection: Any, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Async variant of `apply_within_sync`."""
        return await self._within_async(connection, lambda session: run_steps(session, steps))

    def count_within_sync(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count inside the caller's transaction, so that a rollback undoes the count."""
        self._within(connection, lambda session: counters.count(session, tallies))

    async def count_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Async variant of `count_within_sync`."""
        await self._within_async(connection, lambda session: counters.count(session, tallies))

    def _within(self, connection: Any, work: Work[T]) -> T:
        self._open()  # the tables must exist
        return run_within(connection, self.path, work, self.now())

    async def _within_async(self, connection: Any, work: Work[T]) -> T:
        self._open()
        return await run_within_async(connection, self.path, work, self.now())

    @contextlib.contextmanager
    def transaction_sync(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction on a connection of its own."""
        self._open()  # the tables must exist
        with handler_transaction.begun(self.path, self._synchronous, self._admission_timeout) as connection:
            yield connection
        self._watch.notify()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[sqlite3.Connection]:
        """Open a transaction; a thread waits for locks and for the disk."""
        async with handler_transaction.in_thread(self.transaction_sync()) as connection:
            yield connection

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Return the jobs and the mark of a key."""
        return self._use(Database.look, lambda session: view_key(session, key))

    # ── settings and counters ─────────────────────────────────────────────────────────────────────

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write a setting, or remove it."""
        await self._submit(lambda session: session.run(put_setting(namespace, kind, name, value)))

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:  # noqa: ARG002 - no reply is lost
        """Add to the counters."""
        if tallies:
            self._use(Database.write, lambda session: counters.count(session, tallies))

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job; they are looked for outside the lock."""
        folded = 0
        while gone := await self._use_async(Database.read, partial(counters.orphans, namespace=namespace)):
            await self._submit(partial(counters.fold, gone=gone))
            folded += len(gone)
        return folded

    def use_clock(self, clock: Clock | None) -> Clock | None:
        """Take the time from another clock; return the one before."""
        return self.now.use(clock)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def position(self) -> int:
        """Return a number that rises with commits."""
        return self._watch.position()

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait for a commit of any process."""
        await self._watch.wait(timeout, self.position() if since is None else since)

    def _version(self) -> tuple[int, int] | None:
        """Return the version of the open file, or None; waiting opens no file."""
        database = self._opening.ready
        if database is None:
            return None
        try:
            return database.serial, database.version()
        except Closed:
            return None

    # ── operating ─────────────────────────────────────────────────────────────────────────────────

    def schema(self) -> Schema:
        """Return the version of the tables, over a connection that cannot write."""
        with translating(self.path):
            return Schema(health.schema_version(self.path), SCHEMA)

    def migrate(self) -> Schema:
        """Create the tables or upgrade them."""
        self._open()
        return self.schema()

    def migration_sql(self) -> str:
        """Return what `migrate` would run now, as one script."""
        return script_after("sqlite", self.schema().found, self.now(), "BEGIN IMMEDIATE")

    async def examine(self) -> list[Finding]:
        """Examine the library, the file and its settings."""
        with translating(self.path):
            return await asyncio.to_thread(health.examine, self.path, self._synchronous)

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    def _use(self, act: Callable[[Database, Given], T], given: Given) -> T:
        """Use the open file; if it was closed at this moment, the one that is opened next.

        A row that cannot be read is set aside, and the act begins again.
        """
        mended: set[str] = set()
        while True:
            try:
                return act(self._open(), given)
            except Closed:
                continue
            except Unreadable as damage:
                self._open().set_aside(damage, mended)

    async def _use_async(self, act: Callable[[Database, Given], Awaitable[T]], given: Given) -> T:
        """Async variant of `_use`."""
        mended: set[str] = set()
        while True:
            try:
                return await act(self._open(), given)
            except Closed:
                continue
            except Unreadable as damage:
                await asyncio.to_thread(self._open().set_aside, damage, mended)

    async def _read(self, make: Callable[[], Flow[T]], *, is_quick: bool = False) -> T:
        """Read: what is quick on this thread, the rest on another."""

        def work(session: Session) -> T:
            return session.run(make())

        return self._use(Database.look, work) if is_quick else await self._use_async(Database.read, work)

    async def _write(self, make: Callable[[], Flow[T]]) -> T:
        return await self._submit(lambda session: session.run(make()))

    def _use_sync(self, make: Callable[[], Flow[T]], *, writes: bool) -> T:
        act: Callable[[Database, Work[T]], T] = Database.write if writes else Database.look
        return self._use(act, lambda session: session.run(make()))

    async def _submit(self, work: Callable[[Session], T], *, gather: bool = False) -> T:
        """Write on the writer thread, at once or together with others of this turn of the event loop."""
        answer = await self._use_async(Database.submit_together if gather else Database.submit, work)
        self._watch.notify()
        return answer

    async def close(self) -> None:
        """Finish what is under way and close the file."""
        if (database := self._opening.take()) is not None:
            await asyncio.to_thread(database.close)
