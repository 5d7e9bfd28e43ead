"""What `onejob doctor` examines in PostgreSQL: the server and its settings. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection

from onejob.stores.columns import read_time
from onejob.stores.contract import Finding, Schema, utcnow
from onejob.stores.flow import Query
from onejob.stores.postgres.connection import ask_sync
from onejob.stores.postgres.errors import unavailable
from onejob.stores.postgres.schema import found_schema
from onejob.stores.postgres.server import Url
from onejob.stores.sql.schema import examine_schema

OLDEST = 150000
TOLERABLE = timedelta(seconds=1)
READ = ("SELECT",)
WRITE = ("SELECT", "INSERT", "UPDATE")
ALL = (*WRITE, "DELETE")
COMMON = {
    **dict.fromkeys(("onejob_schema", "onejob_installation"), READ),
    **dict.fromkeys(("onejob_tallies", "onejob_settings", "onejob_observations"), ALL),
}
SHARED = ("onejob_jobs", "onejob_marks", "onejob_waits")
PRODUCER = {**COMMON, **dict.fromkeys(SHARED, WRITE)}
WORKER = {**COMMON, **dict.fromkeys((*SHARED, "onejob_starts"), ALL)}
PATIENCE = 10.0  # seconds to connect


class Settings(NamedTuple):
    """The server's own settings."""

    version: str
    number: int
    standby: bool
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    autovacuum: str
    encoding: str
    read_only: str
    backend: int


def connect(url: Url) -> Connection[Any]:
    """Open a connection that examines and changes nothing."""
    return psycopg.connect(url.url, prepare_threshold=None, **url.settings(PATIENCE))


def schema(url: Url) -> Schema:
    """Return the version of the tables."""
    try:
        with connect(url) as connection:
            return found_schema(connection)
    except psycopg.Error as error:
        raise unavailable(error, url.place) from error


def examine(url: Url) -> list[Finding]:
    """Examine the server, its settings, its clock and the tables."""
    try:
        with connect(url) as connection:
            settings = Settings(*ask_sync(connection, Query("server_settings"))[0])
            is_pooled = settings.backend != connection.info.backend_pid
            [[microseconds]] = ask_sync(connection, Query("clock"))
            return [
                *server(settings),
                *durability(settings),
                wakes(url.listen, is_pooled=is_pooled),
                clock(abs(read_time(microseconds) - utcnow())),
                examine_schema(url.place, found := found_schema(connection)),
                *(privileges(connection) if found.found else ()),
            ]
    except psycopg.Error as error:
        message = str(unavailable(error, url.place))
        return [Finding("server", "fail", message, "Start it, or correct the URL.")]


def either(bad: Finding, good: str, *, is_good: bool) -> Finding:
    """Return a finding, or that there is nothing wrong."""
    return Finding(bad.check, "ok", good) if is_good else bad


def server(found: Settings) -> Iterator[Finding]:
    """Return whether this is a known server, and one that accepts writes."""
    message = f"PostgreSQL {found.version} is older than 15, the oldest that onejob is tested on."
    old = Finding("server", "warn", message, "Upgrade PostgreSQL.")
    yield either(old, f"PostgreSQL {found.version}.", is_good=found.number >= OLDEST)
    message = f"The server is {'a standby' if found.standby else 'read-only'}: nothing can be enqueued."
    writes = not found.standby and found.read_only != "on"
    refuses = Finding("role", "fail", message, "Connect to the primary.")
    yield either(refuses, "The server is a primary and accepts writes.", is_good=writes)
    if found.encoding != "UTF8":
        message = f"The database's encoding is {found.encoding}, which cannot store every name."
        yield Finding("encoding", "warn", message, "Create the database with ENCODING 'UTF8'.")
    if found.autovacuum != "on":
        message = "autovacuum is off: tables and indexes will grow without bound."
        yield Finding("autovacuum", "warn", message, "Turn it on, or vacuum onejob_jobs every few minutes.")


def durability(found: Settings) -> Iterator[Finding]:
    """Return what a crash may lose."""
    message = "fsync or full_page_writes is off: a crash of the machine may damage the database."
    is_safe = (found.fsync, found.full_page_writes) == ("on", "on")
    unsafe = Finding("fsync", "fail", message, "Turn both on.")
    yield either(unsafe, "fsync and full_page_writes are on.", is_good=is_safe)
    message = "synchronous_commit=off: a crash may lose the last requests, although they were answered."
    advice = "ALTER ROLE … SET synchronous_commit = on, if they matter."
    good = f"synchronous_commit={found.synchronous_commit}: an answered request survives a crash."
    lossy = Finding("synchronous_commit", "warn", message, advice)
    yield either(lossy, good, is_good=found.synchronous_commit != "off")


def wakes(listen: str, *, is_pooled: bool) -> Finding:
    """Return whether a pooler was detected, and how workers learn of new jobs."""
    if listen == "off":
        return Finding("pooler", "ok", "listen=off: workers look for work twice a second.")
    if not is_pooled:
        return Finding("pooler", "ok", "Connections go straight to the server: workers are woken by NOTIFY.")
    pooled = "There is a pooler before the server: statements are not prepared, and workers "
    if listen != "on":
        return Finding("pooler", "ok", f"{pooled}listen past it.")
    advice = "To wake workers at once, add the server's own address to the app's URL: ?listen=postgresql://…"
    return Finding("pooler", "warn", f"{pooled}look for work twice a second.", advice)


def clock(apart: timedelta) -> Finding:
    """Return whether the server's clock, which decides, and this machine's agree."""
    seconds = apart.total_seconds()
    message = f"The server's clock, which decides, and this machine's are {seconds:.3f} s apart."
    advice = "Nothing is lost, but run_at= comes from your machines: set their clocks by NTP."
    return either(Finding("clock", "warn", message, advice), message, is_good=apart <= TOLERABLE)


def privileges(connection: Connection[Any]) -> Iterator[Finding]:
    """Return whether this user may enqueue, and whether it may run a worker."""
    held = {(table, right) for table, right in ask_sync(connection, Query("privileges", (list(WORKER),)))}
    to_enqueue, to_work = missing(PRODUCER, held), missing(WORKER, held)
    advice = "Grant it as docs/postgresql.md shows, or use another user."
    if to_enqueue:
        message = f"This user may not enqueue: it lacks {to_enqueue}."
        yield Finding("privileges", "fail", message, advice)
    elif to_work:
        message = f"This user may enqueue, but not run a worker: it lacks {to_work}."
        yield Finding("privileges", "warn", message, f"If it should run workers: {advice}")
    else:
        yield Finding("privileges", "ok", "This user may enqueue and run workers.")


def missing(needed: Mapping[str, Sequence[str]], held: Collection[tuple[str, str]]) -> str:
    """Return which privileges are missing, by table."""
    lacking = {table: [one for one in rights if (table, one) not in held] for table, rights in needed.items()}
    return "; ".join(f"{', '.join(rights)} on {table}" for table, rights in lacking.items() if rights)
