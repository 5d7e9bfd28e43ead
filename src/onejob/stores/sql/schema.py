"""Our tables in a SQLite file: made, upgraded, or refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from onejob.errors import SchemaMismatch
from onejob.stores.sql.rows import micros
from onejob.stores.sql.statements import migrations, statements

SQL = statements("sqlite")
SCHEMA = max(migrations("sqlite"))


def prepare_schema(connection: sqlite3.Connection, path: Path, now: datetime) -> None:
    """Create or upgrade our tables, all or nothing; leave everybody else's alone."""
    found = {name for (name,) in connection.execute(SQL["known_tables"])}
    if found and "onejob_schema" not in found:
        raise SchemaMismatch(
            f"{path} has tables named {', '.join(sorted(found))} that onejob did not make: use another file."
        )
    version = (connection.execute(SQL["schema_version"]).fetchone()[0] or 0) if found else 0
    if version > SCHEMA:
        raise SchemaMismatch(
            f"{path} has schema {version}, newer than the {SCHEMA} that this onejob knows: upgrade onejob."
        )
    if version < SCHEMA:
        upgrade(connection, version, now)


def upgrade(connection: sqlite3.Connection, version: int, now: datetime) -> None:
    """Apply the migrations after `version` in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(SQL["create_schema_table"])
        for number, script in migrations("sqlite").items():
            if number > version:
                for statement in split(script):
                    connection.execute(statement)
                connection.execute(SQL["record_schema_version"], (number, micros(now)))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def script_after(version: int, now: datetime) -> str:
    """Write what `upgrade` runs as one script for people who run it themselves."""
    todo = {number: text for number, text in migrations("sqlite").items() if number > version}
    if not todo:
        return ""
    parts = ["BEGIN IMMEDIATE;", f"{SQL['create_schema_table']};"]
    for number, text in todo.items():
        record = SQL["record_schema_version"].replace("?, ?", f"{number}, {micros(now)}")
        parts += [text.strip(), f"{record};"]
    return "\n\n".join([*parts, "COMMIT;\n"])


def split(script: str) -> Iterator[str]:
    """Split a migration into statements, which end with a semicolon at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
