"""The tables of a database, for both dialects: what is missing, and what `onejob doctor` says about them."""

from __future__ import annotations

from datetime import datetime

from onejob.stores.columns import write_time
from onejob.stores.contract import Finding, Schema
from onejob.stores.sql.statements import migrations, statements

AHEAD = 1
"""Every version works on the tables of the next one, so that processes can be upgraded one by one."""


def script_after(dialect: str, version: int, now: datetime, begin: str) -> str:
    """Return the migrations after a version as one script, which operators can run themselves."""
    missing = {number: text for number, text in migrations(dialect).items() if number > version}
    if not missing:
        return ""
    parts = [f"{begin};", f"{statements(dialect)['create_schema_table']};"]
    for number, text in missing.items():
        record = f"INSERT INTO onejob_schema (version, applied_at) VALUES ({number}, {write_time(now)});"  # noqa: S608
        parts += [text.strip(), record]
    return "\n\n".join([*parts, "COMMIT;\n"])


def examine_schema(place: object, schema: Schema) -> Finding:
    """Compare the version of the tables with the one that this onejob knows."""
    found, known = schema.found, schema.known
    if found == known:
        return Finding("schema", "ok", f"The tables have version {found}, the newest.")
    if found > known:
        message = f"{place} has schema {found}, newer than {known}, which this onejob knows."
        return Finding("schema", "warn" if found <= known + AHEAD else "fail", message, "Upgrade onejob.")
    message = (
        f"{place} has {f'schema {found}' if found else 'no tables of onejob'}; this onejob knows {known}."
    )
    return Finding("schema", "warn", message, "Run onejob migrate; the next use of the app does the same.")
