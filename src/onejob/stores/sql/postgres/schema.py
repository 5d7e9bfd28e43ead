"""Our tables in a PostgreSQL database: made, upgraded, or refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg import Connection

from onejob.errors import SchemaMismatch
from onejob.stores.contract import Schema
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.voice import TEXTS
from onejob.stores.sql.postgres.wire import ask
from onejob.stores.sql.rows import micros
from onejob.stores.sql.statements import migrations

SCHEMA = max(migrations("postgres"))


def found_schema(connection: Connection[Any]) -> Schema:
    """Tell the version of our tables, 0 if there are none."""
    tables = {name for (name,) in ask(connection, Ask("known_tables"))}
    if "onejob_schema" not in tables:
        return Schema(0, SCHEMA)
    [[version]] = ask(connection, Ask("schema_version"))
    return Schema(version or 0, SCHEMA)


def prepare_schema(connection: Connection[Any], place: str, now: datetime) -> None:
    """Create or upgrade our tables, all or nothing; leave everybody else's alone."""
    found = found_schema(connection).found
    if (
        found > SCHEMA + 1
    ):  # every version works on the tables of the next, so that workers can be upgraded in turn
        raise SchemaMismatch(
            f"{place} has schema {found}, newer than the {SCHEMA} that this onejob knows: upgrade onejob."
        )
    if found < SCHEMA:
        with connection.transaction():
            ask(connection, Ask("migrating"))
            upgrade(connection, place, now)


def upgrade(connection: Connection[Any], place: str, now: datetime) -> None:
    """Apply the migrations that are missing, unless somebody else has meanwhile."""
    tables = {name for (name,) in ask(connection, Ask("known_tables"))}
    if tables and "onejob_schema" not in tables:
        names = ", ".join(sorted(tables))
        raise SchemaMismatch(f"{place} has tables that onejob did not make ({names}): use another database.")
    version = found_schema(connection).found
    ask(connection, Ask("create_schema_table"))
    for number, script in migrations("postgres").items():
        if number > version:
            connection.execute(script.encode())
            ask(connection, Ask("record_schema_version", (number, micros(now))))


def script_after(version: int, now: datetime) -> str:
    """Write what `upgrade` runs as one script for people who run it themselves."""
    todo = {number: text for number, text in migrations("postgres").items() if number > version}
    if not todo:
        return ""
    parts = ["BEGIN;", f"{TEXTS['migrating']};", f"{TEXTS['create_schema_table']};"]
    for number, text in todo.items():
        record = TEXTS["record_schema_version"].replace("$1", str(number)).replace("$2", str(micros(now)))
        parts += [text.strip(), f"{record};"]
    return "\n\n".join([*parts, "COMMIT;\n"])
