"""What `onejob doctor` looks at in PostgreSQL: the server and its settings. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection

from onejob.stores.contract import Finding, Schema, utcnow
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.address import Address
from onejob.stores.sql.postgres.faults import unavailable
from onejob.stores.sql.postgres.schema import found_schema
from onejob.stores.sql.postgres.wire import ask
from onejob.stores.sql.rows import instant

OLDEST = 150000
TOLERABLE = timedelta(seconds=1)


class Settings(NamedTuple):
    """What the server says of itself."""

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


def connect(address: Address) -> Connection[Any]:
    """Open a connection for a look."""
    return psycopg.connect(address.url, autocommit=True, prepare_threshold=None)


def schema(address: Address) -> Schema:
    """Tell the version of our tables."""
    try:
        with connect(address) as connection:
            return found_schema(connection)
    except psycopg.Error as error:
        raise unavailable(error, address.place) from error


def examine(address: Address) -> list[Finding]:
    """Look at the server, its settings, its clock and our tables."""
    try:
        with connect(address) as connection:
            settings = Settings(*ask(connection, Ask("server_settings"))[0])
            return [
                *server(settings),
                *durability(settings),
                wakes(connection, settings, address.listen),
                clock(connection),
                tables(found_schema(connection), address),
            ]
    except psycopg.Error as error:
        message = str(unavailable(error, address.place))
        return [Finding("server", "fail", message, "Start it, or correct the URL.")]


def server(settings: Settings) -> Iterator[Finding]:
    """Tell whether this is a server that we know, and one that takes writes."""
    if settings.number < OLDEST:
        message = f"PostgreSQL {settings.version} is older than 15, the oldest that onejob is tested on."
        yield Finding("server", "warn", message, "Upgrade PostgreSQL.")
    else:
        yield Finding("server", "ok", f"PostgreSQL {settings.version}.")
    if settings.standby or settings.read_only == "on":
        kind = "a standby" if settings.standby else "read-only"
        yield Finding(
            "role", "fail", f"The server is {kind}: nothing can be enqueued.", "Connect to the primary."
        )
    else:
        yield Finding("role", "ok", "The server is a primary and takes writes.")
    if settings.encoding != "UTF8":
        message = f"The database's encoding is {settings.encoding}, which cannot keep every name."
        yield Finding("encoding", "warn", message, "Create the database with ENCODING 'UTF8'.")
    if settings.autovacuum != "on":
        message = "autovacuum is off: tables and indexes will grow without bound."
        yield Finding("autovacuum", "warn", message, "Turn it on, or vacuum onejob_jobs every few minutes.")


def durability(settings: Settings) -> Iterator[Finding]:
    """Tell what a crash may take."""
    if settings.fsync != "on" or settings.full_page_writes != "on":
        message = "fsync or full_page_writes is off: a crash of the machine may damage the database."
        yield Finding("fsync", "fail", message, "Turn both on.")
    else:
        yield Finding("fsync", "ok", "fsync and full_page_writes are on.")
    if settings.synchronous_commit == "off":
        message = "synchronous_commit=off: a crash may take the last requests, although they were answered."
        advice = "ALTER ROLE … SET synchronous_commit = on, if they matter."
        yield Finding("synchronous_commit", "warn", message, advice)
    else:
        message = f"synchronous_commit={settings.synchronous_commit}: an answered request survives a crash."
        yield Finding("synchronous_commit", "ok", message)


def wakes(connection: Connection[Any], settings: Settings, listen: str) -> Finding:
    """Tell whether somebody stands between us and the server, and how workers learn of new jobs."""
    if listen == "off":
        return Finding("pooler", "ok", "listen=off: workers look for work twice a second.")
    if settings.backend == connection.info.backend_pid:
        return Finding("pooler", "ok", "Connections go straight to the server: workers are woken by NOTIFY.")
    pooled = "A pooler stands before the server: statements are not prepared, and workers "
    if listen != "on":
        return Finding("pooler", "ok", f"{pooled}listen past it.")
    advice = "To wake workers at once, add the server's own address to the app's URL: ?listen=postgresql://…"
    return Finding("pooler", "warn", f"{pooled}look for work twice a second.", advice)


def clock(connection: Connection[Any]) -> Finding:
    """Compare the server's clock, which rules, with this machine's."""
    [[micros]] = ask(connection, Ask("clock"))
    apart = abs((instant(micros) or utcnow()) - utcnow())
    message = f"The server's clock, which rules, and this machine's are {apart.total_seconds():.3f} s apart."
    if apart <= TOLERABLE:
        return Finding("clock", "ok", message)
    return Finding(
        "clock", "warn", message, "Nothing is lost by that, but run_at= is yours: set the clocks by NTP."
    )


def tables(found: Schema, address: Address) -> Finding:
    """Compare the tables with those that this onejob knows."""
    if found.found == found.known:
        return Finding("schema", "ok", f"The tables have version {found.found}, the newest.")
    if found.found > found.known:
        message = (
            f"{address.place} has schema {found.found}, newer than {found.known}, which this onejob knows."
        )
        return Finding(
            "schema", "warn" if found.found == found.known + 1 else "fail", message, "Upgrade onejob."
        )
    there = f"schema {found.found}" if found.found else "no tables of onejob"
    message = f"{address.place} has {there}; this onejob knows {found.known}."
    return Finding("schema", "warn", message, "Run onejob migrate; the next use of the app does the same.")
