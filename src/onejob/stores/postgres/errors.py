"""Errors of PostgreSQL as errors of onejob: one sentence each, by SQLSTATE, whichever driver raised them."""

from __future__ import annotations

from onejob.errors import (
    AdmissionBusy,
    InvalidCall,
    OnejobError,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionConflict,
)

LOCK_TIMEOUT = "55P03"
DEADLOCK = "40P01"
SERIALIZATION = "40001"
UNIQUE = "23505"
NOT_WRITTEN = "22012"  # division by zero: how an update fails whose row is not as it was read
UNDEFINED_TABLE = "42P01"
DENIED = "42501"
OUTDATED_PLAN = "0A000"  # of our statements: a newer onejob has added a column since they were prepared
UNSTORABLE = {"22P05", "22021"}

MEANINGS = {
    "53100": "the disk is full; nothing of this request was stored",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left: raise max_connections, or use a pooler",
    "25006": "the server is read-only: connect to the primary",
    "57014": "the server cancelled a statement that took longer than statement_timeout",
    "57P01": "the server is shutting down",
    "57P02": "the server is shutting down",
    "57P03": "the server is starting up or shutting down",
    "28P01": "the password is wrong",
    OUTDATED_PLAN: "a newer onejob has changed the tables since: begin the transaction again",
    "3D000": "the database does not exist: create it",
}


class ConnectionLost(Exception):
    """The connection broke before anything was committed: the flow can run again on another one."""


def sqlstate(error: BaseException) -> str:
    """Return an error's SQLSTATE, the same in psycopg and asyncpg; empty if it has none."""
    return getattr(error, "sqlstate", None) or ""


def is_race(error: BaseException) -> bool:
    """Return whether the same transaction, begun again, may succeed."""
    return sqlstate(error) in {DEADLOCK, SERIALIZATION, UNIQUE, NOT_WRITTEN}


def is_busy(error: BaseException) -> bool:
    """Return whether another transaction was in the way for too long."""
    return isinstance(error, AdmissionBusy) or sqlstate(error) == LOCK_TIMEOUT


def translated(error: BaseException, place: str) -> OnejobError:
    """Return an error of a driver as one of onejob's."""
    state = sqlstate(error)
    if isinstance(error, OnejobError):
        return error
    if state in {LOCK_TIMEOUT, DEADLOCK, UNIQUE, NOT_WRITTEN}:
        return AdmissionBusy(f"{place}: another transaction that concerns this key does not end; try again.")
    if state == SERIALIZATION:
        return TransactionConflict()
    if state == UNDEFINED_TABLE:
        return SchemaMismatch(f"{place} has no tables of onejob: run onejob migrate.")
    if state in UNSTORABLE:
        return InvalidCall("PostgreSQL cannot store the character NUL in a name: leave it out.")
    return unavailable(error, place)


def refused(error: BaseException, place: str) -> StoreRefused:
    """Return the error that says what the server denies this user."""
    said = str(error).partition("\n")[0].rstrip(".")
    return StoreRefused(f"{place}: {said}: grant it to this user, as docs/postgresql.md shows.")


def unavailable(error: BaseException, place: str) -> StoreError:
    """Return the error that says why the server cannot be reached or refuses."""
    if sqlstate(error) == DENIED:
        return refused(error, place)
    lines = [" ".join(line.split()).rstrip(".") for line in str(error).splitlines()]
    lines = [line for line in lines if not line.endswith("?")]  # a question is a hint, not what was said
    said = "; ".join(filter(None, lines)) or type(error).__name__
    return StoreUnavailable(f"{place}: {MEANINGS.get(sqlstate(error), said)}.")
