"""The caller's own transaction, whatever holds it: psycopg, asyncpg, SQLAlchemy or Django.

What we do there stands in a savepoint: it stands or falls with the caller's transaction, and if it fails, the
caller's own work does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncRawCursor, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onejob.errors import AdmissionBusy, ForeignConnection, InvalidCall, StoreError, TransactionConflict
from onejob.stores.contract import Step, Tally
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres import flows
from onejob.stores.sql.postgres.faults import UNDEFINED_TABLE, UNIQUE, is_race, sqlstate, translated
from onejob.stores.sql.postgres.flows import Moved, Now, Patience, Rises, Settled, Talk
from onejob.stores.sql.postgres.voice import SQL, TEXTS
from onejob.stores.sql.postgres.wire import ask
from onejob.stores.sql.rows import Row

T = TypeVar("T")

NEITHER = (
    "connection= must be a connection of psycopg (3), asyncpg, SQLAlchemy or Django to {place}, not {kind}."
)
AWAIT = "connection= is asynchronous: write await task.enqueue(…), or async with current().transaction(…)."
BEGIN = "connection= is not in a transaction: begin one first, so that the job can stand or fall with it."
ANYBODY = "a caller"  # we do not see the commit, so this process has to be told of it like any other


@dataclass(frozen=True, slots=True)
class House:
    """The database that is ours, and how its visitors are treated."""

    place: str
    installation: str
    timeout: float
    prepares: bool  # whether a visitor's connection stays the same: a pooler's does not


# ── what is done there ────────────────────────────────────────────────────────────────────────────


def apply(steps: Sequence[Step], now: Now, house: House) -> Talk[list[Any]]:
    """Decide steps under locks, again if somebody was quicker and the caller's isolation lets us see it."""
    ends = time.monotonic() + house.timeout
    patience = Patience(int(house.timeout * 1000))
    rises: frozenset[str] = frozenset()
    while True:
        try:
            return (yield from guarded(flows.settle(steps, now, patience, rises), house))
        except Rises as rising:
            rises |= rising.ids
        except Moved:
            if time.monotonic() > ends:
                raise AdmissionBusy(f"{house.place}: the key changes hands too fast; try again.") from None


def guarded(talk: Talk[Settled], house: House) -> Talk[list[Any]]:
    """Carry on a talk in a savepoint; errors of the driver are thrown in here."""
    isolation = None
    yield [Ask("savepoint")]
    try:
        [[[found, isolation, lock_timeout]]] = yield [Ask("joined")]
        check_ours(found, house)
        yield [Ask("lock_timeout", (Patience(int(house.timeout * 1000)).text,))]
        answers, writes = yield from talk
        # Even if nothing was written: workers pass over what is locked here, until they hear of the end.
        yield [*writes, Ask("notify", (ANYBODY,)), Ask("lock_timeout", (lock_timeout,)), Ask("release")]
    except Exception as error:
        yield [Ask("undo"), Ask("release")]
        raise named(error, isolation, house) from error
    return answers


def tally(tallies: Sequence[Tally], now: datetime, house: House) -> Talk[None]:
    """Count what was absorbed, in rows that concern no other transaction."""
    try:
        yield from flows.tally(tallies, now, apart=True)
    except Exception as error:
        raise named(error, "", house) from error


def check_ours(found: str, house: House) -> None:
    """Refuse a connection to another database that happens to have tables of onejob."""
    if found != house.installation:
        raise ForeignConnection(f"connection= belongs to another database than {house.place}.")


def named(error: Exception, isolation: str | None, house: House) -> Exception:
    """Name what went wrong in the caller's transaction."""
    if isolation is None and sqlstate(error) == UNDEFINED_TABLE:
        return ForeignConnection(f"connection= has no tables of onejob: connect to {house.place}.")
    if isolation == "read committed" and (is_race(error) or isinstance(error, Moved)):
        return Moved()
    if sqlstate(error) == UNIQUE or isinstance(error, Moved):  # it cannot see who was quicker
        return TransactionConflict()
    return translated(error, house.place) if sqlstate(error) else error


# ── whose it is ───────────────────────────────────────────────────────────────────────────────────


def run_now(connection: Any, talk: Talk[T], house: House) -> T:
    """Carry on a talk in the transaction of blocking code."""
    raw = unwrapped(connection)
    if not isinstance(raw, Connection):
        raise InvalidCall(AWAIT) if is_awaited(raw) else ForeignConnection(stranger(raw, house))
    if raw.autocommit and raw.info.transaction_status is TransactionStatus.IDLE:
        raise StoreError(BEGIN)
    try:
        asks = next(talk)
        while True:
            try:
                rows = [ask(raw, one, prepare=house.prepares) for one in asks]
            except Exception as error:  # noqa: BLE001 - the talk decides what it means
                asks = talk.throw(error)
            else:
                asks = talk.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def run(connection: Any, talk: Talk[T], house: House) -> T:
    """Carry on a talk in the transaction of whoever awaits, or of blocking code."""
    raw = await awaited(connection)
    if not is_awaited(raw):
        return run_now(raw, talk, house)
    check_begun(raw)
    try:
        asks = next(talk)
        while True:
            try:
                rows = [await ask_awaited(raw, one, prepare=house.prepares) for one in asks]
            except Exception as error:  # noqa: BLE001 - the talk decides what it means
                asks = talk.throw(error)
            else:
                asks = talk.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def ask_awaited(raw: Any, question: Ask, *, prepare: bool) -> list[Row]:
    """Run one statement on a connection that is awaited."""
    if isinstance(raw, AsyncConnection):
        cursor = AsyncRawCursor(raw, row_factory=tuple_row)
        await cursor.execute(
            SQL[question.name], question.parameters or None, prepare=None if prepare else False, binary=True
        )
        return list(await cursor.fetchall()) if cursor.description is not None else []
    return list(await raw.fetch(TEXTS[question.name], *question.parameters))


def check_begun(raw: Any) -> None:
    """Refuse a connection on which every statement would be a transaction of its own."""
    if isinstance(raw, AsyncConnection):
        begun = not raw.autocommit or raw.info.transaction_status is not TransactionStatus.IDLE
    else:
        begun = raw.is_in_transaction()
    if not begun:
        raise StoreError(BEGIN)


def is_awaited(raw: Any) -> bool:
    """Tell whether this is a driver's connection that is awaited."""
    return isinstance(raw, AsyncConnection) or made_by(raw, "asyncpg")


def made_by(thing: Any, package: str) -> bool:
    """Tell whether a class of this thing comes from a package, without importing that."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(thing).__mro__)


def stranger(raw: Any, house: House) -> str:
    """Say what was expected."""
    return NEITHER.format(place=house.place, kind=f"{type(raw).__module__}.{type(raw).__qualname__}")


def unwrapped(connection: Any) -> Any:
    """Find the driver's connection under Django's or SQLAlchemy's, after these have begun."""
    if made_by(connection, "django"):
        return under_django(connection)
    if made_by(connection, "sqlalchemy"):
        if hasattr(connection, "get_raw_connection") or hasattr(connection, "sync_session"):
            raise InvalidCall(AWAIT)
        own = connection.connection() if callable(connection.connection) else connection
        own.exec_driver_sql("SELECT 1")  # so that SQLAlchemy knows that there is something to commit
        return own.connection.driver_connection
    return connection


async def awaited(connection: Any) -> Any:
    """Do the same for what is awaited."""
    if not made_by(connection, "sqlalchemy"):
        return unwrapped(connection)
    own = await connection.connection() if hasattr(connection, "sync_session") else connection
    if not hasattr(own, "get_raw_connection"):
        return unwrapped(connection)
    await own.exec_driver_sql("SELECT 1")
    return (await own.get_raw_connection()).driver_connection


def under_django(connection: Any) -> Any:
    """Find the driver's connection under Django's, which must be inside transaction.atomic."""
    if not connection.in_atomic_block:
        raise StoreError("connection= is not in a transaction: enqueue inside transaction.atomic().")
    connection.ensure_connection()
    return connection.connection
