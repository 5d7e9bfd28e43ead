"""Admission costs the same however much has finished, on PostgreSQL too: each lookup has its index (case 66).

A plan that is made for any parameters while the table is new and empty is kept by its connection when the
table has grown, so none may read the whole table, nor all that is active.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onejob.stores.sql.postgres.store import PostgresStore
from onejob.stores.sql.rows import PLAIN
from onejob.stores.sql.statements import statements

JOBS, HELD, NEXT, MARKS = "onejob_jobs_pkey", "onejob_held", "onejob_next", "onejob_marks_pkey"
PAUSED = "onejob_settings_pkey"
SQL = statements("postgres")
KEYS = ("'\\x" + "6b" * 64 + "'", "2")  # two keys, and how many they are
IDS = """'["a", "b"]'"""
ROWS = """'[{"id": "a", "held_key": "\\\\x6b"}, {"id": "b"}]'"""
ROW = ("NULL",) * len(PLAIN)
HOT: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "admit": ((ROWS,), {JOBS, HELD, NEXT}),
    "admit_plain": (ROW, {JOBS, HELD, NEXT}),
    "lock_jobs": ((IDS,), {JOBS}),
    "lock_untouched": ((IDS,), {JOBS}),
    "lock_predecessors": ((IDS,), {JOBS, HELD}),
    "lock_free_jobs": ((IDS,), {JOBS}),
    "lock_jobs_alone": ((IDS,), {JOBS}),
    "lock_holders": (KEYS, {JOBS, HELD}),
    "lock_standing": (KEYS, {JOBS, HELD, NEXT}),
    "lock_marks": (KEYS, {MARKS}),
    "standing": (KEYS[:1], {HELD, NEXT}),
    "standing_for_all": (KEYS, {HELD, NEXT}),
    "standing_besides": ((*KEYS, IDS), {HELD, NEXT}),
    "marks": (KEYS, {MARKS}),
    "lock_successors": (KEYS, {NEXT}),
    "job": (("'a'",), {JOBS}),
    "jobs": ((IDS,), {JOBS}),
    "keys_of": ((IDS,), {JOBS}),
    "find_by_key": (
        (KEYS[0], "NULL", "NULL", "NULL", "false", "true", "10", "0"),
        {HELD, NEXT, "onejob_key"},
    ),
    "find_expired": (("0", "10"), {"onejob_leased"}),
    "timed_due": (("0", "10"), {"onejob_timed"}),
    "next_due": (("''",), {"onejob_timed"}),
    "available_in_queue": (("''", "'default'", IDS, "10"), {"onejob_due", PAUSED}),
    "available_in_limit": (("''", "'default'", IDS, "10", "3"), {"onejob_due", "onejob_leased", PAUSED}),
    "available_in_shares": (("''", "'default'", IDS, "'[]'", "2", "10"), {JOBS, "onejob_shares"}),
    "active_in_queue": (("''", "'default'"), {"onejob_leased"}),
    "active_in_shares": (("''", "'default'"), {"onejob_leased"}),
    "find_late": (("0", "10", "0"), {"onejob_expiring"}),
    "starts_in_queue": (("''", "'default'"), {"onejob_started"}),
    "forget_starts": (("''", "'default'", "0"), {"onejob_started"}),
    "decisive_start": (("''", "'default'", "0", "9"), {"onejob_started"}),
    "find_ended": (("''", "'completed'", "9", "0", "''", "NULL", "'[]'", "10", "0"), {"onejob_ended"}),
    "find_ended_newest": (("''", "'discarded'", "9", "''", "NULL", "'[]'", "10", "0"), {"onejob_ended"}),
    "find_returning": (("''", "'mail'", "9", "10", "0"), {"onejob_returning"}),
    "update_job": ((ROWS,), {JOBS}),
    "start_job": ((IDS, "1", "1", "0", "0", "'w'"), {JOBS}),
    "complete_job": ((ROWS,), {JOBS}),
    "complete_untouched": ((IDS, IDS, "0", "'1'"), {JOBS, NEXT, MARKS}),
    "delete_job": ((IDS,), {JOBS}),
    "update_mark": ((ROWS,), {MARKS}),
    "drop_mark": ((ROWS,), {MARKS}),
}


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Make tables that are empty and that nobody has counted, and will not before the test ends."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(PostgresStore(postgres_url).migration_sql().encode())
        for table in ("onejob_jobs", "onejob_marks"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk through a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def plan_of(connection: psycopg.Connection, statement: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    """Ask how a prepared statement would be carried out."""
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
    """Tell whether a node reads one of our tables."""
    return str(node["Relation Name"]).startswith("onejob_")
