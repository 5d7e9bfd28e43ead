"""The least that Python costs on SQLite: what no job system can leave out, and nothing that onejob adds.

No argument is bound, nothing is decided, fenced or answered here, so the rows of `blocking` and `drain`
cannot come close. For a drain it is not a strict limit: its statements may run on another core.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

from bench.drain import in_a_process
from bench.enqueue import Bench, opened
from bench.measure import Plan, Reading, alternate, shown, timing
from bench.rows import WIDE
from bench.targets import Target
from bench.targets.sqlite import Bare, columns_of, connect
from bench.workload import enqueue_invoices

DUE = "SELECT * FROM onejob_jobs WHERE state = 'available' LIMIT ?"
START = """
    UPDATE onejob_jobs
    SET state = 'active', attempt = 1, started_at = ?, token = 1, worker = 'least', lease_until = ?
    WHERE id = ?
"""
COMPLETE = "UPDATE onejob_jobs SET state = 'completed', finished_at = ?, lease_until = NULL WHERE id = ?"
LEASE = 15_000_000  # microseconds


def floor(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure the least against the references that onejob is measured against."""
    yield least_enqueue(plan, target)
    yield least_drain(plan, target)


def least_enqueue(plan: Plan, target: Target) -> Reading:
    """Encode, hash arguments and key, create an id, and insert."""
    number = plan.size(3000, 800)
    with opened(target, "floor") as bench:
        pair = alternate(
            plan,
            lambda: enqueue_least(bench, bench.new_customers(number)),
            lambda: bench.each_bare(bench.new_customers(number)),
        )
    return shown(f"enqueue, the least, {target.label}", pair)


def enqueue_least(bench: Bench, customers: list[int]) -> float:
    """Insert one by one into the bare driver's store."""
    assert isinstance(bench.bare, Bare)
    [row], columns = bench.bare.prepare(customers[:1]), bench.bare.columns
    own = [columns.index(name) for name in ("id", "place", "args", "payload_digest", "key")]
    held = [columns.index("held_key")] if "held_key" in columns else []
    marks, names = ", ".join("?" for _ in columns), ", ".join(columns)
    insert = f"INSERT INTO onejob_jobs ({names}) VALUES ({marks})"  # noqa: S608 - names from the schema
    values, digest, places = list(row), hashlib.sha256, count(time.time_ns())
    with closing(connect(bench.bare_url)) as connection, timing() as watch:
        execute = connection.cursor().execute
        for customer in customers:
            args = json.dumps({"customer_id": customer, "note": "July"})
            key = digest(b"send_invoice %d" % customer).digest()
            new = (secrets.token_hex(16), next(places), args, digest(args.encode()).digest(), key)
            for index, value in zip(own, new, strict=True):
                values[index] = value
            for index in held:
                values[index] = key
            execute(insert, values)
    bench.invoiced_bare.update(customers)
    assert bench.target.count(bench.bare_url) == len(bench.invoiced_bare)
    return watch.rate(len(customers))


def least_drain(plan: Plan, target: Target) -> Reading:
    """Read, start and complete rows in batches, and run an asyncio task per job in between."""
    number = plan.size(*target.drained)
    pair = alternate(plan, lambda: drained(target, number), lambda: in_a_process(target, number, "huey"))
    return shown(f"drain, the least, {target.label}", pair, unit="jobs/s", against="huey")


def drained(target: Target, number: int) -> float:
    """Fill a queue and empty it."""
    with target.empty_store("floor") as url:
        enqueue_invoices(url, range(number))
        with closing(connect(url)) as connection, timing() as watch:
            assert asyncio.run(empty(connection)) == number
    return watch.rate(number)


async def empty(connection: sqlite3.Connection) -> int:
    """Run all jobs that are due, and return their number."""
    columns = columns_of(connection)
    job_id, args = columns.index("id"), columns.index("args")
    done: list[tuple[int, str]] = []
    number = 0
    while True:
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(COMPLETE, done)
        rows = connection.execute(DUE, (WIDE,)).fetchall()
        connection.executemany(START, [(now, now + LEASE, row[job_id]) for row in rows])
        connection.execute("COMMIT")
        if not rows:
            return number
        for task in [asyncio.create_task(run(**json.loads(row[args]))) for row in rows]:
            await task
        done = [(now, row[job_id]) for row in rows]
        number += len(rows)


async def run(customer_id: int, note: str) -> None:
    """Do nothing."""
