"""Admission costs the same however many jobs have ended, on PostgreSQL too: a lookup has its index (case 66).

A plan that was made for any parameters while the table had few rows is kept by its connection when the table
has grown, so none may read the whole table: neither one made without statistics, nor one for few rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onejob.stores.columns import CHANGING, NAMES
from onejob.stores.postgres.server import Url
from onejob.stores.postgres.store import PostgresStore
from onejob.stores.sql.statements import statements

JOBS, KEY, MARKS, CHAIN = "onejob_jobs_pkey", "onejob_key", "onejob_marks_pkey", "onejob_chain"
SETTINGS, SUBJECTS, TALLIES = "onejob_settings_pkey", "onejob_observed_subjects", "onejob_tallies_pkey"
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
    "find_held": (("''", "NULL", "NULL", "NULL", "'g'", "''", "10", "0"), {KEY}),
    "find_by_key": (("''", KEYS[0], "NULL", "NULL", "NULL", "'g'", "10", "0"), {KEY, "onejob_key_history"}),
    "find_by_prefix": (("''", "'01a1'", "'01a1g'", "6"), {JOBS}),
    "find_of_chain": (("''", "'a'", "10", "0"), {JOBS, CHAIN}),
    "find_active": (("''", "NULL", "NULL", "false", "'g'", "''", "10", "0"), {"onejob_leased"}),
    "find_in_state": (
        ("''", "'cancelled'", "NULL", "NULL", "false", "'g'", "''", "10", "0"),
        {"onejob_listed"},
    ),
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
    "start_available": (
        ("''", """'["default"]'""", "'[2]'", IDS, "10", "0", "'worker'", "9"),
        {SETTINGS, "onejob_due", JOBS},
    ),
    "update_job": ((*CHANGE, "0"), {JOBS}),
    "update_jobs": ((IDS, NUMBERS, IDS, "1", "'active'", *("NULL",) * 8, "0"), {JOBS}),
    "set_aside": ((*CHANGE, "0", "0"), {JOBS}),
    "delete_jobs": ((IDS,), {JOBS}),
    "update_mark": ((KEYS[0], "1", "'a'", "false", "0", "1", "'a'"), {MARKS}),
    "drop_mark": (KEYS[:1], {MARKS}),
    "limit_observations": (("'[{}]'", "100"), {SUBJECTS}),
    "observations_about": (("''", "'absorbed'", "'6b'", "10"), {SUBJECTS}),
    "observations": (("''", "'absorbed'", "10"), {"onejob_observed"}),
    "forget_observations": (("''", "'absorbed'", "1", "10"), {"onejob_observed"}),
    "find_newest": (("''", "NULL", "NULL", "NULL", "false", "'g'", "''", "10", "0"), {JOBS}),
    "find_oldest": (("''", "NULL", "NULL", "NULL", "false", "'g'", "''", "10", "0"), {JOBS}),
    "keys_waiting": (("''",), {KEY}),
    "settings": (("''", "'paused'"), {SETTINGS}),
    "count": (("'[{}]'",), {"onejob_apart"}),
    "tallies": (("''",), {TALLIES}),
    "tallies_of_jobs": (("''", "'[]'"), {TALLIES}),
    "fold_tallies": (("''", "10"), {TALLIES, JOBS}),
}
FEW = (  # rows of each table, so that it has statistics
    """INSERT INTO onejob_jobs (
        id, namespace, task, queue, state, priority, run_at, place, created_at, args, payload_digest,
        chain_index, key, stand, traits, attempt, token, revision, cancel_requested, policy
    ) SELECT i, '', 't', 'default', state, 0, i, i, i, '[]', '', 0, int8send(i), 0, 0, 0, 0, 0, false, '{}'
    FROM unnest(ARRAY['available', 'active', 'completed']) WITH ORDINALITY AS few (state, i)""",
    "INSERT INTO onejob_marks SELECT int8send(i), 1, i, false, 1 FROM generate_series(1::bigint, 3) AS i",
    "INSERT INTO onejob_waits SELECT i, i FROM generate_series(1, 3) AS i",
    "INSERT INTO onejob_settings SELECT '', 'paused', i, '' FROM generate_series(1, 3) AS i",
    "INSERT INTO onejob_starts SELECT '', 'default', i FROM generate_series(1, 3) AS i",
    "INSERT INTO onejob_tallies SELECT '', 't', 'kept', i, '', 1, 1, 1, '' FROM generate_series(1, 3) AS i",
    "INSERT INTO onejob_observations SELECT '', 'absorbed', i, '', i, '{}' FROM generate_series(1, 3) AS i",
    "ANALYZE",
)


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Create tables that are empty and stay without statistics, on a connection as the store opens them."""
    own = f"{Url(postgres_url).session_options(1000)} -c plan_cache_mode=force_generic_plan"
    with psycopg.connect(postgres_url, autocommit=True, options=own) as connection:
        connection.execute(PostgresStore(postgres_url).migration_sql().encode())
        for (table,) in connection.execute(SQL["known_tables"].encode()).fetchall():
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
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
    check_plan(connection, statement)


@pytest.mark.parametrize("statement", HOT)
def test_a_plan_made_for_few_rows_uses_the_index(connection: psycopg.Connection, statement: str) -> None:
    for few in FEW:
        connection.execute(few.encode())
    check_plan(connection, statement)


def check_plan(connection: psycopg.Connection, statement: str) -> None:
    """Check that a statement reads no whole table, and which indexes it reads."""
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
