"""The tables of onejob in a SQLite file: created, upgraded or refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from onejob.errors import SchemaMismatch
from onejob.stores.columns import write_time
from onejob.stores.sql.schema import AHEAD
from onejob.stores.sql.statements import migrations
from onejob.stores.sqlite.session import SQL

SCHEMA = max(migrations("sqlite"))
OLD_TABLES = (
    "has tables of an older onejob, whose rows this version cannot read: use a new file, and let the old "
    "version finish the jobs of this one"
)


def prepare_schema(connection: sqlite3.Connection, path: Path, now: datetime) -> None:
    """Create or upgrade the tables of onejob, all or nothing; other tables are left alone.

    Raises:
        SchemaMismatch: The tables are not onejob's, or of a version that this one cannot read.
    """
    found = {name for (name,) in connection.execute(SQL["known_tables"])}
    if found and "onejob_schema" not in found:
        raise SchemaMismatch(
            f"{path} has tables named {', '.join(sorted(found))} that onejob did not make: use another file."
        )
    if has_old_tables(connection):
        raise SchemaMismatch(f"{path} {OLD_TABLES}.")
    version = (connection.execute(SQL["schema_version"]).fetchone()[0] or 0) if found else 0
    if version > SCHEMA + AHEAD:
        raise SchemaMismatch(
            f"{path} has schema {version}, newer than the {SCHEMA} that this onejob knows: upgrade onejob."
        )
    if version < SCHEMA:
        upgrade(connection, now)


def has_old_tables(connection: sqlite3.Connection) -> bool:
    """Return whether the tables are from before the row layout changed, which no migration converts."""
    return connection.execute(SQL["old_columns"]).fetchone() is not None


def upgrade(connection: sqlite3.Connection, now: datetime) -> None:
    """Apply the migrations that have not been applied, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(SQL["create_schema_table"])
        version = (
            connection.execute(SQL["schema_version"]).fetchone()[0] or 0
        )  # another process may upgrade too
        for number, script in migrations("sqlite").items():
            if number > version:
                for statement in split(script):
                    connection.execute(statement)
                connection.execute(SQL["record_schema_version"], (number, write_time(now)))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def split(script: str) -> Iterator[str]:
    """Split a migration into statements, which end with a semicolon at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
