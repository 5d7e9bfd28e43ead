"""The tables in a PostgreSQL database: created, upgraded, or refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg import Connection

from onejob.errors import SchemaMismatch
from onejob.stores.columns import write_time
from onejob.stores.contract import Schema
from onejob.stores.flow import Query
from onejob.stores.postgres.connection import ask_sync
from onejob.stores.sql.schema import AHEAD
from onejob.stores.sql.statements import migrations

SCHEMA = max(migrations("postgres"))


def found_schema(connection: Connection[Any]) -> Schema:
    """Return the version of the tables, 0 if there are none."""
    tables = {name for (name,) in ask_sync(connection, Query("known_tables"))}
    if "onejob_schema" not in tables:
        return Schema(0, SCHEMA)
    [[version]] = ask_sync(connection, Query("schema_version"))
    return Schema(version or 0, SCHEMA)


def prepare_schema(connection: Connection[Any], place: str, now: datetime) -> None:
    """Create or upgrade the tables, all or nothing; leave all other tables alone."""
    check_layout(connection, place)
    found = found_schema(connection).found
    if found > SCHEMA + AHEAD:
        raise SchemaMismatch(
            f"{place} has schema {found}, newer than the {SCHEMA} that this onejob knows: upgrade onejob."
        )
    if found < SCHEMA:
        with connection.transaction():
            ask_sync(connection, Query("migrating"))
            upgrade(connection, place, now)


def check_layout(connection: Connection[Any], place: str) -> None:
    """Refuse tables of onejob from before the row layout changed, which no migration converts."""
    columns = {name for (name,) in ask_sync(connection, Query("job_columns"))}
    if "held_key" in columns:
        raise SchemaMismatch(
            f"{place} has tables of an older onejob, whose rows this version cannot read: use a new "
            "database, or another schema with ?options=-csearch_path%3D…, and let the old version finish its "
            "jobs."
        )


def upgrade(connection: Connection[Any], place: str, now: datetime) -> None:
    """Apply the missing migrations, unless another process has done so meanwhile."""
    tables = {name for (name,) in ask_sync(connection, Query("known_tables"))}
    if tables and "onejob_schema" not in tables:
        names = ", ".join(sorted(tables))
        raise SchemaMismatch(
            f"{place} has tables that onejob did not create ({names}): use another database."
        )
    version = found_schema(connection).found
    ask_sync(connection, Query("create_schema_table"))
    for number, script in migrations("postgres").items():
        if number > version:
            connection.execute(script.encode())
            ask_sync(connection, Query("record_schema_version", (number, write_time(now))))
