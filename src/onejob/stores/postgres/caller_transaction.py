"""The caller's own transaction, on a connection of psycopg, asyncpg, SQLAlchemy or Django.

The steps run inside a savepoint: they are committed or rolled back with the caller's transaction, and if they
fail, the caller's own work does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from onejob.core.step import Step
from onejob.errors import AdmissionBusy, ForeignConnection, InvalidCall, StoreError, TransactionConflict
from onejob.stores.columns import Unreadable
from onejob.stores.contract import Tally
from onejob.stores.flow import Batch, Flow, Query, Row, drive_async
from onejob.stores.postgres.connection import ask
from onejob.stores.postgres.errors import UNDEFINED_TABLE, is_race, sqlstate, translated
from onejob.stores.postgres.records import tally_records
from onejob.stores.postgres.server import Server
from onejob.stores.postgres.steps import Moved, Transaction, decide, writes
from onejob.stores.postgres.upkeep import set_aside
from onejob.stores.sql.frameworks import begin_sqlalchemy, is_async_sqlalchemy, is_of, unwrap_django

T = TypeVar("T")

UNKNOWN = (
    "connection= must be a connection of psycopg (3), asyncpg, SQLAlchemy or Django to {place}, not {kind}."
)
AWAIT = "connection= is asynchronous: write await task.enqueue(…), or async with current().transaction(…)."
BEGIN = "connection= is not in a transaction: begin one first, so that the job is committed with it."
CALLER = "a caller"  # the sender of a NOTIFY whose commit this process does not see, so it must hear of it


# ── the flows ─────────────────────────────────────────────────────────────────────────────────────


def apply_within(server: Server, steps: Sequence[Step[Any]]) -> Flow[list[Any]]:
    """Decide steps under locks, again if another transaction changed them and the isolation shows it."""
    ends = time.monotonic() + server.admission_timeout
    mended: set[str] = set()
    while True:
        try:
            return (yield from apply_once(server, steps))
        except Unreadable as damage:
            yield from set_aside(damage, mended, server.now())
        except Moved:
            if time.monotonic() > ends:
                message = f"{server.place}: the key changes faster than it can be read; try again."
                raise AdmissionBusy(message) from None


def apply_once(server: Server, steps: Sequence[Step[Any]]) -> Flow[list[Any]]:
    """Decide steps in a savepoint, and put the caller's lock_timeout back."""
    isolation = None
    yield [Query("savepoint")]
    try:
        [[[found, isolation, lock_timeout]]] = yield [Query("identify")]
        check_installation(found, server)
        restored = Query("lock_timeout", (lock_timeout,))
        transaction = Transaction(Query("lock_timeout", (str(int(server.admission_timeout * 1000) or 1),)))
        answers, draft = yield from decide(transaction, server.now, dict(enumerate(steps)))
        # Notify even if nothing was written: workers skip rows that are locked here until the commit.
        notify = Query("notify", (CALLER,))
        written = writes(draft, counting="count_apart")
        yield from transaction.send(*written, notify, restored, Query("release"))
    except Exception as error:
        yield [Query("undo"), Query("release")]
        raise name_error(error, isolation, server) from error
    return [answers[index] for index in range(len(steps))]


def check_installation(found: str, server: Server) -> None:
    """Refuse a connection to another database that has tables of onejob, too."""
    if found != server.installation:
        raise ForeignConnection(f"connection= belongs to another database than {server.place}.")


def count_within(server: Server, tallies: Sequence[Tally]) -> Flow[None]:
    """Count absorbed requests, in rows that concern no other transaction."""
    try:
        yield [Query("count_apart", (tally_records(tallies, server.now()),))]
    except Exception as error:
        raise name_error(error, "", server) from error


def name_error(error: Exception, isolation: str | None, server: Server) -> Exception:
    """Return what an error means in the caller's transaction."""
    if isolation is None and sqlstate(error) == UNDEFINED_TABLE:
        return ForeignConnection(f"connection= has no tables of onejob: connect to {server.place}.")
    if is_race(error) or isinstance(error, Moved):  # its isolation may hide the change
        return Moved() if isolation == "read committed" else TransactionConflict()
    return translated(error, server.place) if sqlstate(error) else error


# ── the connection ────────────────────────────────────────────────────────────────────────────────


async def run_within(server: Server, connection: Any, make: Callable[[], Flow[T]], *, blocks: bool) -> T:
    """Run a flow in the transaction of async or of blocking code."""
    if blocks and is_async(connection):
        raise InvalidCall(AWAIT)
    raw = await unwrap(connection)
    check_begun(raw, server)
    prepares = False if server.is_pooled else None  # the next transaction may be on another session

    async def run_batch(batch: Batch) -> list[list[Row]]:
        return [await ask(raw, query, prepare=prepares) for query in batch]

    return await drive_async(make(), run_batch)


def check_begun(raw: Any, server: Server) -> None:
    """Refuse what is no connection, or one on which every statement would be a transaction of its own."""
    if isinstance(raw, Connection | AsyncConnection):
        begun = not raw.autocommit or raw.info.transaction_status is not TransactionStatus.IDLE
    elif is_of(raw, "asyncpg"):
        begun = raw.is_in_transaction()
    else:
        kind = f"{type(raw).__module__}.{type(raw).__qualname__}"
        raise ForeignConnection(UNKNOWN.format(place=server.place, kind=kind))
    if not begun:
        raise StoreError(BEGIN)


def is_async(connection: Any) -> bool:
    """Return whether this is an async connection or session of a driver or of SQLAlchemy."""
    if is_of(connection, "sqlalchemy"):
        return is_async_sqlalchemy(connection)
    return isinstance(connection, AsyncConnection) or is_of(connection, "asyncpg")


async def unwrap(connection: Any) -> Any:
    """Return the driver's connection behind one of Django or SQLAlchemy, after these have begun."""
    if is_of(connection, "django"):
        return unwrap_django(connection)
    if not is_of(connection, "sqlalchemy"):
        return connection
    if not is_async(connection):
        return begin_sqlalchemy(connection).driver_connection
    own = await connection.connection() if hasattr(connection, "sync_session") else connection
    await own.exec_driver_sql("SELECT 1")
    return (await own.get_raw_connection()).driver_connection
