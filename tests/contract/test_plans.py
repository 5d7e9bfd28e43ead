"""Every lookup has its index: it costs the same however many jobs have finished (case 66)."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onejob import App, Unique
from onejob.stores.columns import NAMES
from onejob.stores.sql.statements import statements
from onejob.stores.sqlite.store import SQLiteStore
from tests.contract.steps import mailer

SQL = statements("sqlite")
ID = "sqlite_autoindex_onejob_jobs_1"

INDEXES = {
    "job": {ID},
    "jobs": {ID},
    "standing": {"onejob_keys (key=? AND stand>?)"},
    "standing_for_all": {"onejob_keys (key=? AND stand>?)"},
    "marks": {"PRIMARY KEY"},
    "depth": {"onejob_due", "COVERING INDEX onejob_timed", "COVERING INDEX onejob_pending"},
    "update_job": {ID},
    "ready_job": {ID},
    "start_job": {ID},
    "renew_job": {ID},
    "complete_job": {ID},
    "set_aside_job": {ID},
    "delete_job": {ID},
    "timed_due": {"onejob_timed (namespace=? AND run_at<?)"},
    "next_timed": {"COVERING INDEX onejob_timed"},
    "available_in_queue": {"onejob_due (namespace=? AND queue=?)"},
    "available_in_shares": {"onejob_shares (namespace=? AND queue=? AND partition=?)", ID},
    "available_without_partition": {"onejob_due (namespace=? AND queue=?)"},
    "active_in_shares": {"COVERING INDEX onejob_leased"},
    "recent_starts": {"onejob_started"},
    "delete_starts": {"onejob_started"},
    "find_held": {ID},
    "find_newest": {ID},
    "find_active": {"onejob_leased (namespace=?)"},
    "find_in_state": {"onejob_listed (namespace=? AND state=? AND id>? AND id<?)"},
    "find_oldest": {ID},
    "find_by_key": {"onejob_keys (key=?)"},
    "find_by_prefix": {ID + " (id>? AND id<?)"},
    "find_of_chain": {ID, "onejob_chains (chain_id=?)"},
    "find_expired": {"onejob_leased (namespace=? AND lease_until<?)"},
    "find_late": {"onejob_expiring (namespace=? AND expires_at<?)"},
    "find_overdue": {
        "onejob_due (namespace=? AND queue>?)",
        "onejob_due (namespace=? AND queue=? AND priority>?)",
        "onejob_due (namespace=? AND queue=? AND priority=?)",
        "onejob_timed (namespace=? AND run_at<?)",
        ID,
    },
    "find_ended": {"onejob_ended (namespace=? AND state=? AND finished_at<?)"},
    "find_prunable": {"onejob_kept (namespace=? AND kept_until>? AND kept_until<?)"},
    "find_returning": {"onejob_returning (namespace=? AND run_at<?)"},
    "find_stranded": {"onejob_pending (namespace=?)", "onejob_keys (key=? AND stand=?)"},
    "find_awaiting": {ID, "PRIMARY KEY (chain_id=?)"},
    "find_blocked": {"onejob_blocked (namespace=?)"},
    "tails": {ID, "onejob_chains (chain_id=?)"},
    "orphan_tallies": {"PRIMARY KEY", ID},
    "tallies_of_jobs": {"PRIMARY KEY (namespace=? AND job_id=?)"},
}

WHOLE_TABLE = {"counts", "keys_waiting"}  # they count all jobs of a namespace
ORDERED_BY_INDEX = {
    "timed_due",
    "available_in_queue",
    "find_held",
    "find_newest",
    "find_in_state",
    "find_oldest",
    "find_by_prefix",
    "find_late",
    "find_ended",
    "find_prunable",
    "find_returning",
    "find_blocked",
}


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    async with App(store=SQLiteStore(path)) as app:
        await mailer(app, Unique(by="to")).enqueue(1)
    return path


def explain(path: Path, statement: str) -> list[str]:
    """Return the plan of a statement, whatever its parameters are."""
    sql = SQL[statement]
    numbers = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    unnumbered = len(re.findall(r"\?(?!\d)", sql))
    given = ["[]"] * max([unnumbered, *numbers])
    with closing(sqlite3.connect(path)) as connection:
        return [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", given)]


@pytest.mark.parametrize("statement", INDEXES)
def test_case_66_a_statement_uses_its_indexes(path: Path, statement: str) -> None:
    plan = explain(path, statement)
    tables = [line for line in plan if line.startswith("SCAN onejob") and "USING" not in line]
    assert tables == []
    for index in INDEXES[statement]:
        assert any(index in line for line in plan), plan


@pytest.mark.parametrize("statement", sorted(ORDERED_BY_INDEX))
def test_a_page_is_read_in_order_without_a_sort(path: Path, statement: str) -> None:
    assert [line for line in explain(path, statement) if "TEMP B-TREE" in line] == []


def test_every_statement_that_reads_jobs_has_a_case() -> None:
    reads = {name for name, sql in SQL.items() if re.search(r"(FROM|JOIN|UPDATE) onejob_jobs", sql)}
    others = {"marks", "recent_starts", "delete_starts", "tallies_of_jobs"}
    assert reads == INDEXES.keys() - others | WHOLE_TABLE


def test_the_table_has_the_columns_of_a_row_in_their_order(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(onejob_jobs)")]
    assert columns == list(NAMES)
