"""What PostgreSQL raises, as what onejob raises: one sentence each, by SQLSTATE, whatever the driver."""

from __future__ import annotations

from onejob.errors import (
    AdmissionBusy,
    InvalidCall,
    OnejobError,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
)

LOCK_TIMEOUT = "55P03"
DEADLOCK = "40P01"
SERIALIZATION = "40001"
UNIQUE = "23505"
UNDEFINED_TABLE = "42P01"
UNSTORABLE = {"22P05", "22021"}

MEANINGS = {
    "53100": "the disk is full; nothing of this request was stored",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left: raise max_connections, or use a pooler",
    "25006": "the server is read-only: connect to the primary",
    "42501": "this user may not do that: grant it, or use another user",
    "57P01": "the server is shutting down",
    "57P02": "the server is shutting down",
    "57P03": "the server is starting up or shutting down",
    "28P01": "the password is wrong",
    "3D000": "the database does not exist: create it",
}


def sqlstate(error: BaseException) -> str:
    """Read an error's SQLSTATE, the same in psycopg and asyncpg; empty if it has none."""
    return getattr(error, "sqlstate", None) or ""


def is_race(error: BaseException) -> bool:
    """Tell whether the same transaction, begun again, may well go through."""
    return sqlstate(error) in {DEADLOCK, SERIALIZATION, UNIQUE}


def translated(error: BaseException, place: str) -> OnejobError:
    """Name an error in one sentence."""
    state = sqlstate(error)
    if state in {LOCK_TIMEOUT, DEADLOCK, UNIQUE}:
        return AdmissionBusy(f"{place}: another transaction that concerns this key does not end; try again.")
    if state == SERIALIZATION:
        return TransactionConflict()
    if state == UNDEFINED_TABLE:
        return SchemaMismatch(f"{place} has no tables of onejob: run onejob migrate.")
    if state in UNSTORABLE:
        return InvalidCall("PostgreSQL cannot store the character NUL in a name: leave it out.")
    return unavailable(error, place)


def unavailable(error: BaseException, place: str) -> StoreError:
    """Say that the server could not be reached, or would not."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return StoreUnavailable(f"{place}: {MEANINGS.get(sqlstate(error), said)}.")
