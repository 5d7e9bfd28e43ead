"""Whether admission stays as fast when the table is full."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from statistics import mean, median

from bench.measure import Pair, Plan, Reading, alternate, at_most, below, percentile, shown
from bench.workload import INSERT, Invoice, open_app, open_bare, rows_of

# What the rows of a crowd have of their own; all else is copied from a row that was admitted.
OWN = {
    "id": "printf('00000000-%04x-7000-8000-%012x', i >> 16, i)",
    "chain_id": "printf('00000000-%04x-7000-8000-%012x', i >> 16, i)",
    "place": "i",
    "key": "randomblob(32)",
    "payload_digest": "randomblob(32)",
}
FINISHED = {
    **OWN,
    "state": "'completed'",
    "started_at": "run_at",
    "finished_at": "run_at + i",
    "held_key": "NULL",
}
LIVE = {**OWN, "held_key": "randomblob(32)", "run_at": "run_at + i"}
INDEXES = """
    SELECT name, sql FROM sqlite_schema
    WHERE type = 'index' AND tbl_name = 'onejob_jobs' AND sql IS NOT NULL
"""


def crowd(plan: Plan) -> Iterator[Reading]:
    """Measure new keys in a full and in an empty table, without fsync, which would hide the difference."""
    finished = plan.size(1_000_000, 90_000)
    live = plan.size(100_000, 10_000)
    number = plan.size(2000, 500)
    crowded_path = plan.folder / "crowd.db"
    fill(crowded_path, finished, live)
    crowded_app, crowded = open_app(crowded_path, "NORMAL")
    empty_app, empty = open_app(plan.folder / "crowd-empty.db", "NORMAL")
    customers = count()
    in_crowd: list[float] = []
    alone: list[float] = []

    def admit(task: Invoice, took: list[float]) -> float:
        found = admissions(task, list(islice(customers, number)))
        took += found
        return median(found)

    admit(crowded, [])
    admit(empty, [])
    pair = alternate(plan, lambda: admit(crowded, in_crowd), lambda: admit(empty, alone))
    crowded_app.close_sync()
    empty_app.close_sync()

    title = f"admission beside {finished:,} finished, {live:,} live"
    yield at_most(f"{title}, p50", pair, 1.25, against="ours, empty table")
    yield shown(
        f"{title}, mean",
        Pair(mean(in_crowd), mean(alone), mean(in_crowd) / mean(alone)),
        unit="ms",
        against="ours, empty table",
    )
    yield below(f"{title}, p99", percentile(in_crowd, 99), 5)


def admissions(task: Invoice, customers: list[int]) -> list[float]:
    """Tell how many milliseconds each admission takes."""
    took = []
    for customer in customers:
        began = time.perf_counter()
        task.enqueue_sync(customer, "July")
        took.append((time.perf_counter() - began) * 1000)
    return took


def fill(path: Path, finished: int, live: int) -> None:
    """Copy one admitted row many times over; indexes are made afterwards, which is quicker."""
    app, task = open_app(path, "NORMAL")
    [row] = rows_of(task, [-1])
    app.close_sync()
    with closing(open_bare(path, "NORMAL")) as connection:
        connection.execute(INSERT, row)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")
        indexes = connection.execute(INDEXES).fetchall()
        connection.execute("BEGIN")
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        copy(connection, FINISHED, 0, finished)
        copy(connection, LIVE, finished, finished + live)
        for _, create in indexes:
            connection.execute(create)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def copy(connection: sqlite3.Connection, own: dict[str, str], start: int, end: int) -> None:
    """Copy the first row, giving each copy what it has of its own."""
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(onejob_jobs)")]
    values = ", ".join(own.get(name, name) for name in columns)
    connection.execute(
        f"""
        WITH RECURSIVE series (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM series WHERE i + 1 < ?2),
            first AS MATERIALIZED (SELECT * FROM onejob_jobs ORDER BY id DESC LIMIT 1)
        INSERT INTO onejob_jobs SELECT {values} FROM series, first
        """,  # noqa: S608 - names from the schema, expressions from above
        (start, end),
    )
