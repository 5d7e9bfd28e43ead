"""The least that Python costs on SQLite: what no job system can leave out, and nothing that ours adds.

Nothing is bound, decided, fenced or answered here, so the lines of `blocking` and `drain` hardly come near.
It is no strict limit for a drain, whose statements may run on another processor than its Python.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import msgspec

from bench.drain import CONCURRENCY, in_a_process
from bench.enqueue import opened
from bench.measure import Plan, Reading, alternate, shown, timing
from bench.places import Place
from bench.places.sqlite import INSERT, connect, path_of
from bench.workload import job_of, open_app
from onejob.ids import new_id
from onejob.job import Job
from onejob.stores.sql.lockfile import LockFile, beside
from onejob.stores.sql.rows import read_job, write_plain
from onejob.stores.sql.statements import statements

SQL = statements("sqlite")
DUE = "SELECT * FROM onejob_jobs WHERE state = 'available' LIMIT ?"
LEASE = 15_000_000  # microseconds


def floor(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure the least against what ours is measured against."""
    yield least_enqueue(plan, place)
    yield least_drain(plan, place)


def least_enqueue(plan: Plan, place: Place) -> Reading:
    """Encode, hash arguments and key, make an id, and insert under the lock between processes."""
    number = plan.size(3000, 800)
    with opened(place, "floor") as bench, closing(connect(bench.url)) as connection:
        lock = LockFile(beside(path_of(bench.url)), 5.0)
        enqueue = partial(enqueue_least, connection, lock, job_of(bench.task, -1, "July"))
        pair = alternate(
            plan, lambda: enqueue(bench.fresh(number)), lambda: bench.each_bare(bench.fresh(number))
        )
        lock.close()
    return shown(f"enqueue, the least, {place.label}", pair)


def enqueue_least(connection: sqlite3.Connection, lock: LockFile, job: Job, customers: list[int]) -> float:
    """Insert one by one."""
    execute, encode, digest = connection.cursor().execute, msgspec.json.Encoder().encode, hashlib.sha256
    with timing() as watch:
        for customer in customers:
            args = encode({"customer_id": customer, "note": "July"})
            key = digest(b"send_invoice %d" % customer).digest()
            job_id, place = new_id(key)
            made = msgspec.structs.replace(
                job,
                id=job_id,
                chain_id=job_id,
                place=place,
                args=args,
                payload_digest=digest(args).digest(),
                key=key,
                held_key=key,
            )
            with lock:
                execute(INSERT, write_plain(made))
    return watch.rate(len(customers))


def least_drain(plan: Plan, place: Place) -> Reading:
    """Read, start and complete rows in batches, and run a task per job in between."""
    number = plan.size(*place.drained)
    pair = alternate(plan, lambda: drained(place, number), lambda: in_a_process(place, number, "huey"))
    return shown(f"drain, the least, {place.label}", pair, unit="jobs/s", against="huey")


def drained(place: Place, number: int) -> float:
    """Fill a queue and empty it."""
    with place.fresh("floor") as url:
        app, task = open_app(url)
        app.enqueue_many_sync([task.call(customer, "July") for customer in range(number)])
        app.close_sync()
        with closing(connect(url)) as connection, timing() as watch:
            assert asyncio.run(empty(connection)) == number
    return watch.rate(number)


async def empty(connection: sqlite3.Connection) -> int:
    """Run all that is due, and tell how much that was."""
    done: list[tuple[int, bytes, str]] = []
    number = 0
    while True:
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(SQL["complete_job"], done)
        jobs = [read_job(row) for row in connection.execute(DUE, (CONCURRENCY,))]
        starts = [("active", 1, now, 1, "least", now + LEASE, job.id) for job in jobs]
        connection.executemany(SQL["start_job"], starts)
        connection.execute("COMMIT")
        if not jobs:
            return number
        for task in [asyncio.create_task(run(**msgspec.json.decode(job.args))) for job in jobs]:
            await task
        done = [(now, b"null", job.id) for job in jobs]
        number += len(jobs)


async def run(customer_id: int, note: str) -> None:
    """Do nothing."""
