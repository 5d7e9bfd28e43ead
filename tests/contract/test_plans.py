"""Admission costs the same however much has finished: each lookup has its index (case 66)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onejob import App, Unique
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.stores.sql.statements import statements
from tests.contract.steps import mailer

KEY = b"k" * 32


@pytest.mark.parametrize(
    ("statement", "parameters", "indexes"),
    [
        ("standing", (KEY,), {"onejob_held", "onejob_next"}),
        ("standing_for_all", (KEY * 2, 2), {"onejob_held", "onejob_next"}),
        ("marks", (KEY, 1), {"PRIMARY KEY"}),
        ("job", ("id",), {"PRIMARY KEY"}),
        ("find_expired", (0, 10), {"onejob_leased"}),
        ("timed_due", (0, 10), {"onejob_timed"}),
        ("available_in_queue", ("", "default", "[]", 10), {"onejob_due"}),
        ("available_in_shares", ("", "default", "[]", "[]", 2, 10), {"onejob_shares", "PRIMARY KEY"}),
        ("find_late", (0, 10, 0), {"onejob_expiring"}),
        ("starts_in_queue", ("", "default"), {"onejob_started"}),
        ("depth", ("", "default"), {"onejob_due", "onejob_timed", "onejob_next", "onejob_blocked"}),
        ("find_ended", ("", "completed", 9, 0, "", None, "[]", 10, 0), {"onejob_ended"}),
        ("find_ended", ("", "completed", 9, 0, "", "mail", "[]", 10, 0), {"onejob_ended"}),
        ("find_ended_newest", ("", "discarded", 9, "", None, "[]", 10, 0), {"onejob_ended"}),
        ("find_returning", ("", "mail", 9, 10, 0), {"onejob_returning"}),
        ("orphan_tallies", ("", 10), {"PRIMARY KEY"}),
    ],
)
async def test_case_66_a_statement_of_the_hot_path_uses_its_index(
    tmp_path: Path, statement: str, parameters: tuple[object, ...], indexes: set[str]
) -> None:
    path = tmp_path / "jobs.db"
    async with App(store=SQLiteStore(path)) as app:
        await mailer(app, Unique(by="to")).enqueue(1)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            f"EXPLAIN QUERY PLAN {statements('sqlite')[statement]}", parameters
        ).fetchall()
    plan = [detail for *_, detail in rows]
    assert [line for line in plan if line.startswith("SCAN onejob_jobs")] == []
    for index in indexes:
        assert any(index in line for line in plan), plan
