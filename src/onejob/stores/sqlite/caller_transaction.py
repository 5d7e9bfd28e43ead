"""The caller's own transaction on a SQLite file: on a connection of sqlite3, SQLAlchemy or Django.

A blocking connection is used in the caller's thread, to which it belongs.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from onejob.errors import ForeignConnection, InvalidCall, StoreError
from onejob.stores.sql.frameworks import begin_sqlalchemy, is_async_sqlalchemy, is_of, unwrap_django
from onejob.stores.sqlite.errors import translated
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.steps import RowChanged
from onejob.stores.sqlite.write_lock import may_corrupt

T = TypeVar("T")

UNKNOWN = "connection= must be a connection of sqlite3, SQLAlchemy or Django to {path}, not {kind}."
AWAIT = "connection= is asynchronous: write await task.enqueue(…), or async with current().transaction(…)."


def run_within(connection: Any, path: Path, work: Callable[[Session], T], now: datetime) -> T:
    """Run work inside the caller's transaction; if it fails, the caller's own writes stay."""
    if is_async_sqlalchemy(connection):
        raise InvalidCall(AWAIT)
    try:
        raw, cursor = join(connection, path)
        try:
            with savepoint(raw, cursor):
                return work(Session(cursor, now, trusting=True))
        except (RowChanged, sqlite3.IntegrityError):
            with savepoint(raw, cursor):
                return work(Session(cursor, now))
    except sqlite3.Error as error:
        raise translated(error, path) from error


async def run_within_async(connection: Any, path: Path, work: Callable[[Session], T], now: datetime) -> T:
    """Async variant of `run_within`.

    A connection of sqlite3 is used on this thread. SQLAlchemy runs the work in a greenlet, where each
    statement of the async driver is awaited.
    """
    if is_async_sqlalchemy(connection):
        result: T = await connection.run_sync(run_within, path, work, now)
        return result
    return run_within(connection, path, work, now)


def join(connection: Any, path: Path) -> tuple[Any, Any]:
    """Return the driver's connection to this database, and a cursor inside the caller's transaction."""
    raw, cursor = open_cursor(connection, path)
    files = cursor.execute("PRAGMA database_list").fetchall()
    if not any(name == "main" and file and path.samefile(file) for _, name, file in files):
        raise ForeignConnection(
            f"connection= belongs to another database than {path}; pass a connection to that."
        )
    if not raw.in_transaction and raw.isolation_level is None:
        raise StoreError('connection= is not in a transaction: run "BEGIN IMMEDIATE" on it first.')
    if may_corrupt():
        cursor.execute("PRAGMA wal_autocheckpoint = 0")  # the store checkpoints, under its lock
    if not raw.in_transaction:
        cursor.execute("BEGIN IMMEDIATE")
    return raw, cursor


def open_cursor(connection: Any, path: Path) -> tuple[Any, Any]:
    """Return the driver's connection, and a cursor that answers with plain tuples."""
    raw = connection
    if is_of(connection, "django"):
        raw = unwrap_django(connection)
    elif is_of(connection, "sqlalchemy"):
        pooled = begin_sqlalchemy(connection)
        raw = pooled.driver_connection
        if is_of(raw, "aiosqlite"):
            return raw, AwaitedCursor(pooled.cursor())
    if not isinstance(raw, sqlite3.Connection):
        kind = f"{type(raw).__module__}.{type(raw).__qualname__}"
        raise ForeignConnection(UNKNOWN.format(path=path, kind=kind))
    cursor = raw.cursor()
    cursor.row_factory = None  # whatever the caller's connection makes of rows
    return raw, cursor


class AwaitedCursor:
    """SQLAlchemy's cursor of aiosqlite; its methods return as those of sqlite3 do."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.fetchall = cursor.fetchall

    @property
    def rowcount(self) -> int:
        """How many rows the last statement has written."""
        number: int = self._cursor.rowcount
        return number

    def execute(self, statement: str, parameters: Any = ()) -> AwaitedCursor:
        """Run a statement."""
        self._cursor.execute(statement, parameters)
        return self

    def executemany(self, statement: str, rows: Any) -> AwaitedCursor:
        """Run a statement once per row of parameters."""
        self._cursor.executemany(statement, rows)
        return self


@contextlib.contextmanager
def savepoint(raw: Any, cursor: Any) -> Iterator[None]:
    """Roll back to the beginning of the block if it fails."""
    cursor.execute("SAVEPOINT onejob")
    try:
        yield
    except BaseException:
        if raw.in_transaction:  # a full disk may have rolled back everything
            cursor.execute("ROLLBACK TO onejob")
            cursor.execute("RELEASE onejob")
        raise
    cursor.execute("RELEASE onejob")
