"""An open SQLite file: a connection that writes, one that looks, one for long reads.

Writes run under `BEGIN IMMEDIATE`: those of blocking callers on their own thread, those of async callers on
one writer thread, in one commit for all that have gathered. A look takes microseconds and waits for no lock,
so it runs on the caller's thread, also on an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from onejob.core.job import Job
from onejob.core.step import View
from onejob.errors import AdmissionBusy, StoreError, StoreTimeout, StoreUnavailable
from onejob.stores.columns import INDEX, Unreadable, read_job
from onejob.stores.group_commit import Closed, GroupCommit
from onejob.stores.per_process import generation
from onejob.stores.salvage import salvage
from onejob.stores.sqlite.errors import translated, translating
from onejob.stores.sqlite.rows import insertion, whole
from onejob.stores.sqlite.schema import prepare_schema
from onejob.stores.sqlite.session import SQL, Row, Session
from onejob.stores.sqlite.steps import RowChanged, show_key
from onejob.stores.sqlite.write_lock import WriteLock

T = TypeVar("T")
Work = Callable[[Session], T]
Synchronous = Literal["FULL", "NORMAL"]

SERIALS = itertools.count()  # of openings: the versions of two cannot be compared
NEVER = -1  # the generation of a file that must be opened again
# After how many pages the log is copied into the file. With FULL a longer log costs more while it grows than
# the copying does; with NORMAL nothing else waits for the disk, and copying is most of what a commit costs.
CHECKPOINT_PAGES = {"FULL": 1000, "NORMAL": 4000}


class Database:
    """The open file. A method raises Closed once it is closed, and has done nothing then."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Synchronous,
        admission_timeout: float,
        store_timeout: float,
        clock: Callable[[], datetime],
    ) -> None:
        self.generation = generation()
        self.serial = next(SERIALS)
        self._path = path
        self._synchronous: Synchronous = synchronous
        self._admission_timeout = admission_timeout
        self._store_timeout = store_timeout
        self._clock = clock
        self._closed = False
        self._writing, self._looking, self._reading = threading.Lock(), threading.Lock(), threading.Lock()
        self._asked: dict[asyncio.AbstractEventLoop, list[tuple[bytes, asyncio.Future[View]]]] = {}
        self._connect()
        self._commits = GroupCommit(self._write_together, f"onejob writes {path.name}", store_timeout)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix=f"onejob reads {path.name}")
        OPEN.add(self)

    def _connect(self) -> None:
        with translating(self._path), contextlib.ExitStack() as opened:
            self._lock = WriteLock(self._path, self._admission_timeout)
            opened.callback(self._lock.close)
            create_private(self._path)
            with self._lock:
                connections = [opened.enter_context(contextlib.closing(self._connection())) for _ in range(3)]
                prepare_schema(connections[0], self._path, self._clock())
            opened.pop_all()  # all went well, so they stay open
        # Only this connection checkpoints, as part of a commit, and it commits only under the lock.
        connections[0].execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES[self._synchronous]}")
        self._connections = connections
        self._writer, self._looker, self._reader = (connection.cursor() for connection in connections)
        self._finalizer = weakref.finalize(self, disconnect, connections, self._lock)
        self._finalizer.atexit = False

    def _connection(self) -> sqlite3.Connection:
        return connect(self._path, self._synchronous, self._admission_timeout)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def write(self, work: Work[T]) -> T:
        """Run work in a transaction of its own, on this thread."""
        try:
            with self._writing:
                return self._transact([work])[0]  # type: ignore[no-any-return]
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def insert(self, job: Job) -> bool:
        """Insert a job in a commit of its own, and return whether the unique indexes allowed it."""
        name, row = insertion(job)
        try:
            with self._writing, self._opened():
                self._writer.execute(SQL[name], row)
        except sqlite3.IntegrityError:
            return False
        except sqlite3.Error as error:
            raise translated(error, self._path) from error
        return True

    async def submit(self, work: Work[T]) -> T:
        """Run work on the writer thread, in a commit that it shares with all that has gathered."""
        return await self._commits.submit(work)  # type: ignore[no-any-return]

    async def submit_together(self, work: Work[T]) -> T:
        """Run work on the writer thread, in a commit that it shares with its turn of the event loop."""
        return await self._commits.submit(work, gather=True)  # type: ignore[no-any-return]

    def _write_together(self, works: Sequence[Work[Any]]) -> list[Any]:
        """Run works in one commit; if that fails, each in its own, so that one failure fails one of them."""
        try:
            with self._writing, translating(self._path):
                return self._transact(works)
        except (StoreUnavailable, AdmissionBusy, Closed) as error:  # each of them would fail as late
            return [error for _ in works]
        except Exception as error:  # noqa: BLE001 - it is raised at the caller
            if len(works) == 1:
                return [error]
        return [self._write_together([work])[0] for work in works]

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        """Run works in one commit; again, reading all rows, if a job is not as its caller last saw it."""
        trusting = True
        while True:
            try:
                with self._opened():
                    return self._attempt(works, trusting=trusting)
            except (RowChanged, sqlite3.IntegrityError):
                if not trusting:
                    raise
                trusting = False

    def _opened(self) -> WriteLock:
        """Return the lock that every write needs, if the file is still open."""
        if self._closed:
            raise Closed
        return self._lock

    def _attempt(self, works: Sequence[Work[Any]], *, trusting: bool) -> list[Any]:
        cursor = self._writer
        cursor.execute("BEGIN IMMEDIATE")
        try:
            session = Session(cursor, self._clock(), trusting=trusting)
            answers = [work(session) for work in works]
            cursor.execute("COMMIT")
        except BaseException:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        return answers

    def set_aside(self, damage: Unreadable, mended: set[str]) -> None:
        """Write a row that cannot be read as a discarded job, so that all others can be used; only once."""
        if damage.id in mended:
            raise StoreError(f"{damage} It could not be set aside either.") from damage
        mended.add(damage.id)
        with contextlib.suppress(Closed):
            self.write(lambda session: set_aside(session, damage))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def look(self, work: Work[T]) -> T:
        """Run a work that reads for microseconds, on this thread, in one snapshot."""
        with self._looking:
            return self._read(work, self._looker)

    def look_at_key(self, key: bytes) -> View:
        """Return the holder and the successor of a key."""
        return show_key(self._rows("standing", (bytearray(key),)), self._clock())

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._writing.locked()

    async def look_together(self, key: bytes) -> View:
        """Return the holder and the successor of a key, read with those of other callers of this turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[View] = loop.create_future()
        if loop not in self._asked:
            self._asked[loop] = []
            loop.call_soon(self._answer, loop)
        self._asked[loop].append((key, future))
        return await future

    def _answer(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = self._asked.pop(loop)
        try:
            views = self._look_at_keys([key for key, _ in asked])
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), view in zip(asked, views, strict=True):
            if not future.done():
                future.set_result(view)

    def _look_at_keys(self, keys: Sequence[bytes]) -> list[View]:
        if len(keys) == 1:
            return [self.look_at_key(keys[0])]
        found: dict[bytes, list[Row]] = {key: [] for key in keys}
        for row in self._rows("standing_for_all", (b"".join(found), len(found))):
            found[row[INDEX["key"]]].append(row)
        now = self._clock()
        return [show_key(found[key], now) for key in keys]

    def _rows(self, name: str, parameters: Sequence[Any]) -> list[Row]:
        """Read rows, by the connection that writes if it is idle: it has the last commit in memory."""
        is_idle = self._writing.acquire(blocking=False)
        lock = self._writing if is_idle else self._looking
        if not is_idle:
            lock.acquire()
        try:
            if self._closed:
                raise Closed
            cursor = self._writer if is_idle else self._looker
            return cursor.execute(SQL[name], parameters).fetchall()
        except sqlite3.Error as error:
            raise translated(error, self._path) from error
        finally:
            lock.release()

    async def read(self, work: Work[T]) -> T:
        """Run a work that may read for long, on a thread, in one snapshot."""
        if self._closed:
            raise Closed
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._readers, self._read_long, work)
        done, _ = await asyncio.wait([reading], timeout=self._store_timeout)
        if not done:
            raise StoreTimeout(self._store_timeout, may_exist=False)
        return reading.result()

    def _read_long(self, work: Work[T]) -> T:
        with self._reading:
            return self._read(work, self._reader)

    def _read(self, work: Work[T], cursor: sqlite3.Cursor) -> T:
        if self._closed:
            raise Closed
        try:
            cursor.execute("BEGIN")
            try:
                return work(Session(cursor, self._clock()))
            finally:
                cursor.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def version(self) -> int:
        """Return a number that changes when any other connection commits, those of this object included."""
        with self._looking, translating(self._path):
            if self._closed:
                raise Closed
            version: int = self._looker.execute(SQL["data_version"]).fetchone()[0]
            return version

    # ── closing, and forks ────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Run what was submitted, then close the file."""
        OPEN.discard(self)
        self._commits.close()
        self._readers.shutdown()
        with self._writing, self._looking, self._reading:
            self._closed = True
            self._finalizer()

    def suspend(self) -> None:
        """Close the file for the duration of a fork; other threads wait."""
        for lock in (self._writing, self._looking, self._reading):
            lock.acquire()
        self._finalizer()

    def resume(self) -> None:
        """Open the file again after a fork."""
        try:
            self._connect()
        except (
            StoreError
        ):  # AdmissionBusy, if a handler's transaction has the lock, maybe the one that forked
            self._closed, self.generation = True, NEVER
            OPEN.discard(self)
        finally:
            for lock in (self._writing, self._looking, self._reading):
                lock.release()


# SQLite keeps in memory which locks a process has on a file. A forked child would inherit that memory without
# the locks, and the first of the two to close would remove the log under the other. So no file is open during
# a fork.
OPEN: weakref.WeakSet[Database] = weakref.WeakSet()


def suspend_all() -> None:
    """Close every file before a fork."""
    for database in list(OPEN):
        database.suspend()


def resume_all() -> None:
    """Open the files again in the parent; the child opens its own when it needs one."""
    for database in list(OPEN):
        database.resume()


os.register_at_fork(before=suspend_all, after_in_parent=resume_all, after_in_child=OPEN.clear)


def set_aside(session: Session, damage: Unreadable) -> None:
    """Write a row that cannot be read as a discarded job; leave it alone if it can be read meanwhile."""
    for row in session.rows("job", (damage.id,)):
        try:
            read_job(row)
        except Unreadable as cause:
            job = salvage(row, cause, session.now)
            session.write("set_aside_job", [whole(job)])
        return
    raise StoreError(f"{damage} Its row cannot be found by that id either.")


def disconnect(connections: Sequence[sqlite3.Connection], lock: WriteLock) -> None:
    """Close connections, under the lock if it can be had: the last to close checkpoints."""
    with contextlib.suppress(AdmissionBusy), lock:
        for connection in connections:
            connection.close()
    for connection in connections:
        connection.close()
    lock.close()


def create_private(path: Path) -> None:
    """Create the file readable for its owner only; SQLite gives its companions the same mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def connect(path: Path, synchronous: Synchronous, timeout: float) -> sqlite3.Connection:
    """Open a connection that commits and checkpoints only explicitly."""
    connection = sqlite3.connect(
        path.absolute(),  # a relative one that begins with file: would be read as a URI
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        use_log(connection, timeout)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA mmap_size = 1073741824")  # reading a page costs no system call
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def use_log(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch the file to a write-ahead log; SQLite does not wait for processes that do the same."""
    ends = time.monotonic() + timeout
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(0.001)
