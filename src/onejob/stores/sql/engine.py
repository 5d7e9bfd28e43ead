"""An open SQLite file: one connection that writes, one that reads, one that watches, and two threads."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from onejob.errors import AdmissionBusy, StoreUnavailable
from onejob.forks import generation
from onejob.job import Changes, View
from onejob.stores.book import attempt
from onejob.stores.contract import Step
from onejob.stores.lane import Closed, Lane
from onejob.stores.sql import flows
from onejob.stores.sql.faults import translated, translating
from onejob.stores.sql.flows import Ask, Plan, drive
from onejob.stores.sql.lockfile import LockFile, beside
from onejob.stores.sql.rows import Row, insertion
from onejob.stores.sql.schema import SQL, prepare_schema

Synchronous = Literal["FULL", "NORMAL"]

NEVER = -1  # the generation of a file that is to be opened anew
LOOKS = 4  # a look in vain costs a third of what it saves if it is not
CHECKPOINT_PAGES = 4000  # of the write-ahead log; its index holds a few more in one table


class Engine:
    """The open file: one connection that writes, one that reads, and a thread for each."""

    def __init__(
        self, path: Path, synchronous: Synchronous, timeout: float, clock: Callable[[], datetime]
    ) -> None:
        self.generation = generation()
        self._path = path
        self._synchronous: Synchronous = synchronous
        self._timeout = timeout
        self._clock = clock
        self._closed = False
        self._looks = 0  # how many requests to look at before they are tried: duplicates come in crowds
        self._mutex = threading.Lock()
        self._reading = threading.Lock()
        self._watching = threading.Lock()  # held for microseconds: event loops take it
        self._connect()
        self._writes = Lane(self._run_group, f"onejob writes {path.name}")
        self._reads = Lane(self._run_reads, f"onejob reads {path.name}")
        OPEN.add(self)

    def _connect(self) -> None:
        with translating(self._path), contextlib.ExitStack() as opened:
            self._lock = LockFile(beside(self._path), self._timeout)
            opened.callback(self._lock.close)
            create_private(self._path)
            with self._lock:
                self._writer, self._reader, self._watcher = (
                    opened.enter_context(contextlib.closing(self._connection())) for _ in range(3)
                )
                prepare_schema(self._writer, self._path, self._clock())
            # It checkpoints as part of a commit, and commits only ever under the lock.
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            opened.pop_all()  # all went well, so they stay open
        self._cursor, self._read_cursor = self._writer.cursor(), self._reader.cursor()

    def _connection(self) -> sqlite3.Connection:
        return connect(self._path, self._synchronous, self._timeout)

    def _disconnect(self) -> None:
        """Close the connections, under the lock if it can be had: the last to close checkpoints."""
        with contextlib.suppress(AdmissionBusy), self._lock:
            self._close_connections()
        self._close_connections()
        self._lock.close()

    def _close_connections(self) -> None:
        for connection in (self._watcher, self._reader, self._writer):
            connection.close()

    async def submit(self, plan: Plan, *, reads: bool = False) -> Any:
        """Hand a plan to the thread and await its answer."""
        lane = self._reads if reads else self._writes
        return await lane.submit(plan)

    def run(self, plan: Plan) -> Any:
        """Run a plan in a transaction of its own, on this thread."""
        with self._mutex, translating(self._path), self._opened():
            return self._transact([plan])[0]

    def run_one(self, step: Step) -> Changes:
        """Run one step the shortest way: a duplicate by reading alone, a new job by one guarded insert."""
        try:
            with self._mutex:
                lock = self._opened()
                if self._looks and (foreseen := self._foresee(step)) is not None:
                    return foreseen
                with lock:
                    return self._hope(step) or self._settle_one(step)
        except sqlite3.Error as error:  # `translating` would cost more than all else here
            raise translated(error, self._path) from error

    def _opened(self) -> LockFile:
        """Give the lock that every write needs, unless the file has been closed meanwhile."""
        if self._closed:
            raise Closed
        return self._lock

    def _foresee(self, step: Step) -> Changes | None:
        """Tell what a step comes to, by one consistent read and without the lock, unless it would write."""
        changes: Changes
        if step.key is not None and flows.is_simple(step):  # one statement shows all that it needs
            rows = self._cursor.execute(SQL["standing"], (step.key,)).fetchall()
            changes = attempt(step, flows.shown(step.key, rows, self._clock()))
        else:
            changes = self._run_read_on(self._cursor, partial(flows.foresee, step))
        return changes if self._is_absorbed(changes) else None

    def _is_absorbed(self, changes: Changes) -> bool:
        """Tell whether a request was a duplicate, and remember it for the next ones."""
        absorbed = changes.is_empty
        self._looks = LOOKS if absorbed else max(0, self._looks - 1)
        return absorbed

    def _hope(self, step: Step) -> Changes | None:
        """Act as if the key were free; the unique index says whether it was. None if it was not."""
        if not flows.is_simple(step):
            return None
        changes = step.act(View(self._clock()))
        if len(changes.inserts) != 1 or changes.inserts[0].blockers is not None:
            return None
        [job] = changes.inserts
        name, row = insertion(job)
        inserted = self._cursor.execute(SQL[f"{name}_if_free"], row).rowcount
        return changes if inserted == 1 else None

    def _settle_one(self, step: Step) -> Changes:
        changes: Changes
        [changes] = self._transact([partial(flows.settle, step)])
        self._is_absorbed(changes)
        return changes

    def _run_group(self, plans: Sequence[Plan]) -> list[Any]:
        """Run plans in one commit; if that fails, each alone, so that only the guilty one fails."""
        try:
            with self._mutex, translating(self._path), self._opened():
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
                self._opened()
                return self._run_read_on(self._read_cursor, plan)
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            return error

    def _run_read_on(self, cursor: sqlite3.Cursor, plan: Plan) -> Any:
        cursor.execute("BEGIN")
        try:
            return drive(plan(self._clock()), partial(ask, cursor))
        finally:
            cursor.execute("COMMIT")

    def data_version(self) -> int:
        """Tell a number that changes when another connection commits."""
        with self._watching, translating(self._path):
            if self._closed:
                raise Closed
            version: int = self._watcher.execute(SQL["data_version"]).fetchone()[0]
            return version

    def close(self) -> None:
        """Finish what was submitted, then close the file."""
        OPEN.discard(self)
        self._writes.close()
        self._reads.close()
        with self._mutex, self._reading, self._watching:
            self._closed = True
            self._disconnect()

    def suspend(self) -> None:
        """Close the file for the length of a fork, and let nobody in."""
        for lock in (self._mutex, self._reading, self._watching):
            lock.acquire()
        self._disconnect()

    def resume(self) -> None:
        """Open the file again after a fork."""
        try:
            self._connect()
        except AdmissionBusy:  # a handler's transaction has the lock, maybe the one that forked
            self._closed, self.generation = True, NEVER
            OPEN.discard(self)
        finally:
            for lock in (self._mutex, self._reading, self._watching):
                lock.release()


# SQLite keeps in memory which locks a process has on a file. A forked child would inherit that memory without
# the locks, and whoever closes first would remove the log under the other: so no file is open during a fork.
OPEN: weakref.WeakSet[Engine] = weakref.WeakSet()


def suspend_all() -> None:
    """Close every file before a fork."""
    for engine in list(OPEN):
        engine.suspend()


def resume_all() -> None:
    """Open them again in the parent; the child opens its own when it needs one."""
    for engine in list(OPEN):
        engine.resume()


os.register_at_fork(before=suspend_all, after_in_parent=resume_all, after_in_child=OPEN.clear)


def ask(cursor: sqlite3.Cursor, question: Ask) -> list[Row]:
    """Run one statement of a flow."""
    sql = SQL[question.name]
    if question.many:
        cursor.executemany(sql, question.parameters)
        return []
    return cursor.execute(sql, question.parameters).fetchall()


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
        connection.execute("PRAGMA mmap_size = 1073741824")  # reading a page costs no system call
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection
