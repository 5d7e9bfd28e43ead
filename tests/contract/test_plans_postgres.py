"""Admission costs the same however many jobs have ended, on PostgreSQL too: a lookup has its index (case 66).

A plan that was made for any parameters while the table was new and empty is kept by its connection when the
table has grown, so none may read the whole table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onejob.stores.columns import CHANGING, NAMES
from onejob.stores.postgres.store import PostgresStore
from onejob.stores.sql.statements import statements

JOBS, KEY, MARKS, CHAIN = "onejob_jobs_pkey", "onejob_key", "onejob_marks_pkey", "onejob_chain"
SETTINGS = "onejob_settings_pkey"
SQL = statements("postgres")
KEYS = ("'\\x" + "6b" * 64 + "'", "2")  # two keys, and how many they are
IDS = """'["a", "b"]'"""
NUMBERS = "'[1, 2]'"
ROW = ("NULL",) * len(NAMES)
CHANGE = ("'a'", "1", *("NULL",) * len(CHANGING))
HOT: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "admit_job": (ROW, {KEY}),
    "admit_jobs": ((IDS, "'[{}, {}]'", NUMBERS, KEYS[0], KEYS[0], *ROW[5:]), {KEY}),
    "lock_jobs": ((IDS,), {JOBS}),
    "lock_free_jobs": ((IDS,), {JOBS}),
    "lock_jobs_alone": ((IDS,), {JOBS}),
    "lock_free_jobs_alone": ((IDS,), {JOBS}),
    "lock_predecessors": ((IDS,), {JOBS, KEY}),
    "lock_holders": (KEYS, {JOBS, KEY}),
    "lock_standing": (KEYS, {JOBS, KEY}),
    "lock_successors": (KEYS, {KEY}),
    "lock_marks": (KEYS, {MARKS}),
    "keys_of": ((IDS,), {JOBS}),
    "job": (("'a'",), {JOBS}),
    "jobs": ((IDS,), {JOBS}),
    "standing": ((*KEYS, IDS), {KEY}),
    "marks": (KEYS, {MARKS}),
    "tails": ((IDS,), {JOBS, CHAIN}),
    "depth": (("''", "'default'"), {"onejob_due", "onejob_timed", "onejob_pending"}),
    "find_by_key": (("''", KEYS[0], "NULL", "NULL", "NULL", "'g'", "10", "0"), {KEY}),
    "find_by_prefix": (("''", "'01a1'", "'01a1g'", "6"), {JOBS}),
    "find_of_chain": (("''", "'a'", "10", "0"), {JOBS, CHAIN}),
    "find_active": (("''", "NULL", "NULL", "false", "'g'", "10", "0"), {"onejob_leased"}),
    "find_expired": (("''", "0", "10"), {"onejob_leased"}),
    "find_late": (("''", "0", "10"), {"onejob_expiring"}),
    "find_overdue": (("''", "0", "10"), {"onejob_due", "onejob_timed", JOBS}),
    "find_ended": (("''", "'completed'", "9", "''", "NULL", "10"), {"onejob_ended"}),
    "find_prunable": (("''", "9", "0", "''", "10"), {"onejob_prunable"}),
    "find_returning": (("''", "9", "10"), {"onejob_returning"}),
    "find_stranded": (("''", "10"), {"onejob_pending", KEY}),
    "find_awaiting": (("''", IDS, "10", "0"), {"onejob_waits_pkey", JOBS}),
    "find_blocked": (("''", "10", "0"), {"onejob_pending"}),
    "mature": (("''", "0", "10"), {"onejob_timed", JOBS}),
    "paused": (("''",), {SETTINGS}),
    "active": (("''", IDS), {"onejob_leased"}),
    "recent_starts": (("''", "'default'", "0"), {"onejob_started"}),
    "note_starts": (("''", "'default'", "0", "1", "2"), {"onejob_started"}),
    "available": (("''", "'default'", IDS, "10"), {"onejob_due"}),
    "available_in_shares": (("''", "'default'", IDS, "2", "10"), {JOBS, "onejob_shares", "onejob_leased"}),
    "available_without_partition": (("''", "'default'", IDS, "10"), {JOBS, "onejob_due"}),
    "next_due": (("''",), {"onejob_timed"}),
    "update_job": ((*CHANGE, "0"), {JOBS}),
    "update_jobs": ((IDS, NUMBERS, IDS, "1", "'active'", *("NULL",) * 8, "0"), {JOBS}),
    "set_aside": ((*CHANGE, "0", "0"), {JOBS}),
    "delete_jobs": ((IDS,), {JOBS}),
    "update_mark": ((KEYS[0], "1", "'a'", "false", "0", "1", "'a'"), {MARKS}),
    "drop_mark": (KEYS[:1], {MARKS}),
}


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Create tables that are empty and stay without statistics until the test ends."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(PostgresStore(postgres_url).migration_sql().encode())
        connection.execute("SET enable_bitmapscan = off")  # as the store's own connections do
        for table in ("onejob_jobs", "onejob_marks"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def plan_of(connection: psycopg.Connection, statement: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    """Return the plan of a prepared statement."""
    types = dict(re.findall(r"\$(\d+)::(double precision|\w+)", SQL[statement]))
    declared = ", ".join(types[number] for number in sorted(types, key=int))
    assert len(types) == len(parameters)
    connection.execute(f"PREPARE asked ({declared}) AS {SQL[statement]}".encode())
    explain = f"EXPLAIN (FORMAT JSON) EXECUTE asked ({', '.join(parameters)})"
    [[text]] = connection.execute(explain.encode()).fetchall()
    plan: dict[str, Any] = (json.loads(text) if isinstance(text, str) else text)[0]["Plan"]
    return plan


@pytest.mark.parametrize("statement", HOT)
def test_case_66_a_plan_made_for_an_empty_table_uses_the_index(
    connection: psycopg.Connection, statement: str
) -> None:
    parameters, indexes = HOT[statement]
    plan = list(nodes(plan_of(connection, statement, parameters)))
    assert [node for node in plan if node["Node Type"] == "Seq Scan" and is_ours(node)] == []
    assert {node["Index Name"] for node in plan if "Index Name" in node} == indexes


def is_ours(node: dict[str, Any]) -> bool:
    """Return whether a node reads one of our tables."""
    return str(node["Relation Name"]).startswith("onejob_")


def test_statements_name_every_column_in_the_order_of_the_table() -> None:
    """A new field is one line of the table of columns; the statements that name columns must follow."""
    for name in ("admit_job", "admit_jobs", "insert_job"):
        named = re.search(r"INSERT INTO onejob_jobs \(([^)]*)\)", SQL[name])
        assert named is not None
        assert tuple(re.findall(r"\w+", named[1])) == NAMES
    for name in ("update_job", "set_aside"):
        changed = [
            (column, int(number))
            for column, number in re.findall(r"(\w+) = (?:coalesce\()?\$(\d+)", SQL[name])
        ]
        assert changed[: len(CHANGING)] == [(column, index + 3) for index, column in enumerate(CHANGING)]
