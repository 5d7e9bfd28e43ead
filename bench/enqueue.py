"""What an enqueue costs: one by one, awaited, together, repeated, in bulk."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from bench.measure import (
    LEVELS,
    Plan,
    Reading,
    Synchronous,
    alternate,
    at_least,
    below,
    percentile,
    shown,
    timing,
    true,
)
from bench.workload import INSERT, Invoice, open_app, open_bare, rows_of
from onejob import App

PRODUCERS = 64
BLOCKING = {"NORMAL": 0.6, "FULL": 0.85}  # fsync leaves less for us to lose


@dataclass
class Bench:
    """An app and a bare connection, each on a file of its own, that grow at the same pace."""

    app: App
    task: Invoice
    path: Path
    bare: sqlite3.Connection
    runner: asyncio.Runner
    customers: Iterator[int] = field(default_factory=count)

    def fresh(self, number: int) -> list[int]:
        """Take customers that nobody has been sent an invoice for."""
        return list(islice(self.customers, number))

    def each_bare(self, number: int) -> float:
        """Insert rows one by one."""
        rows = rows_of(self.task, self.fresh(number))
        execute = self.bare.cursor().execute
        with timing() as watch:
            for row in rows:
                execute(INSERT, row)
        return watch.rate(number)

    def bulk_bare(self, number: int) -> float:
        """Insert rows in one transaction."""
        rows = rows_of(self.task, self.fresh(number))
        with timing() as watch:
            self.bare.execute("BEGIN IMMEDIATE")
            self.bare.executemany(INSERT, rows)
            self.bare.execute("COMMIT")
        return watch.rate(number)

    def each_blocking(self, customers: list[int]) -> float:
        """Enqueue one by one from blocking code."""
        enqueue = self.task.enqueue_sync
        with timing() as watch:
            for customer in customers:
                enqueue(customer, "July")
        return watch.rate(len(customers))

    def each_awaited(self, customers: list[int]) -> float:
        """Enqueue one by one, awaiting each."""

        async def produce() -> None:
            for customer in customers:
                await self.task.enqueue(customer, "July")

        return self._time(produce, len(customers))

    def together(self, number: int) -> float:
        """Enqueue from many producers, each awaiting one call at a time."""
        shares = [self.fresh(number // PRODUCERS) for _ in range(PRODUCERS)]

        async def produce(customers: list[int]) -> None:
            for customer in customers:
                await self.task.enqueue(customer, "July")

        async def all_produce() -> None:
            async with asyncio.TaskGroup() as group:
                for share in shares:
                    group.create_task(produce(share))

        return self._time(all_produce, sum(map(len, shares)))

    def bulk(self, number: int) -> float:
        """Enqueue in one call, and look at every verdict."""
        customers = self.fresh(number)

        async def produce() -> None:
            admissions = await self.app.enqueue_many([self.task.call(i, "July") for i in customers])
            assert [admission.outcome for admission in admissions] == ["created"] * number

        return self._time(produce, number)

    def _time(self, produce: Callable[[], Coroutine[Any, Any, None]], number: int) -> float:
        async def timed() -> float:
            with timing() as watch:
                await produce()
            return watch.rate(number)

        return self.runner.run(timed())


@contextmanager
def opened(plan: Plan, name: str, synchronous: Synchronous) -> Iterator[Bench]:
    """Open both sides and warm them up."""
    path = plan.folder / f"{name}-{synchronous}.db"
    app, task = open_app(path, synchronous)
    with (
        asyncio.Runner() as runner,
        closing(open_bare(path.with_stem(f"{path.stem}-bare"), synchronous)) as bare,
    ):
        bench = Bench(app, task, path, bare, runner)
        bench.each_blocking(bench.fresh(20))
        bench.each_awaited(bench.fresh(20))
        bench.each_bare(20)
        yield bench
        runner.run(app.close())


def blocking(plan: Plan) -> Iterator[Reading]:
    """Measure keyed calls from blocking code, one after another."""
    number = plan.size(3000, 800)
    for synchronous in LEVELS:
        with opened(plan, "blocking", synchronous) as bench:
            pair = alternate(
                plan, lambda: bench.each_blocking(bench.fresh(number)), lambda: bench.each_bare(number)
            )
        yield at_least(f"enqueue_sync, one by one, {synchronous}", pair, BLOCKING[synchronous])


def awaited(plan: Plan) -> Iterator[Reading]:
    """Measure keyed calls that are awaited, one after another."""
    number = plan.size(3000, 800)
    for synchronous in LEVELS:
        with opened(plan, "awaited", synchronous) as bench:
            pair = alternate(
                plan, lambda: bench.each_awaited(bench.fresh(number)), lambda: bench.each_bare(number)
            )
            took = bench.runner.run(durations(bench.task, bench.fresh(number)))
        name = f"await enqueue, one by one, {synchronous}"
        middle = f"await enqueue, p50, {synchronous}", percentile(took, 50)
        if synchronous == "NORMAL":
            yield at_least(name, pair, 0.12)
            yield below(*middle, 1)
        else:  # the disk's own time, for the reader
            yield shown(name, pair)
            yield Reading(*middle, "ms")


async def durations(task: Invoice, customers: list[int]) -> list[float]:
    """Tell how many milliseconds each call takes."""
    took: list[float] = []
    for customer in customers:
        began = time.perf_counter()
        await task.enqueue(customer, "July")
        took.append((time.perf_counter() - began) * 1000)
    return took


def together(plan: Plan) -> Iterator[Reading]:
    """Measure group commit: producers at once against one after another."""
    number = plan.size(6400, 1280)
    with opened(plan, "together", "FULL") as bench:
        pair = alternate(
            plan, lambda: bench.together(number), lambda: bench.each_awaited(bench.fresh(number // 8))
        )
    yield at_least(f"{PRODUCERS} producers awaiting, FULL", pair, 3, against="ours, one by one")


def duplicates(plan: Plan) -> Iterator[Reading]:
    """Measure nine duplicates in ten against none, and see that they leave no trace but their count."""
    number = plan.size(3000, 800)
    for synchronous in LEVELS:
        with opened(plan, "duplicates", synchronous) as bench:
            for name, enqueue in (
                ("enqueue_sync", bench.each_blocking),
                ("await enqueue", bench.each_awaited),
            ):
                pair = alternate(
                    plan,
                    lambda: enqueue(repeated(bench.fresh(number // 10))),  # noqa: B023 - called in this turn
                    lambda: enqueue(bench.fresh(number)),  # noqa: B023 - as above
                )
                title, against = f"{name}, 90 % duplicates, {synchronous}", "ours, all distinct"
                judge = name == "enqueue_sync"
                yield (
                    at_least(title, pair, 2, against=against)
                    if judge
                    else shown(title, pair, against=against)
                )
            yield from traces(bench, synchronous)


def repeated(customers: list[int]) -> list[int]:
    """Ask for each customer ten times: at once, and again after the next ones."""
    return [
        customer for start in range(0, len(customers), 10) for customer in customers[start : start + 10] * 10
    ]


def traces(bench: Bench, synchronous: Synchronous) -> Iterator[Reading]:
    """Count what duplicates write: nothing until the ledger's turn, and never a row of a job."""
    customers = bench.fresh(100)
    bench.each_blocking(customers)
    log = bench.path.with_name(f"{bench.path.name}-wal")
    with closing(sqlite3.connect(bench.path, isolation_level=None)) as witness:

        def trace() -> tuple[int, ...]:
            [jobs] = witness.execute("SELECT count(*) FROM onejob_jobs").fetchone()
            [commits] = witness.execute("PRAGMA data_version").fetchone()
            return jobs, commits, log.stat().st_size, log.stat().st_mtime_ns

        def absorb(enqueue: Callable[[list[int]], float]) -> bool:
            bench.app.ledger.flush()  # the ledger has half a second until it writes again
            before = trace()
            enqueue(customers)
            return trace() == before

        for name, enqueue in (("enqueue_sync", bench.each_blocking), ("await enqueue", bench.each_awaited)):
            silent = any(absorb(enqueue) for _ in range(3))  # a slow machine may meet the ledger's turn
            title = f"{name}, commits of 100 duplicates, {synchronous}"
            yield true(title, 0 if silent else 1, "", "no row, no commit", passed=silent)


def bulk(plan: Plan) -> Iterator[Reading]:
    """Measure many calls at once, a verdict each."""
    number = plan.size(10_000, 2_000)
    for synchronous in LEVELS:
        with opened(plan, "bulk", synchronous) as bench:
            pair = alternate(plan, lambda: bench.bulk(number), lambda: bench.bulk_bare(number))
        yield at_least(
            f"enqueue_many of {number:,}, {synchronous}", pair, 0.4, unit="jobs/s", against="bare executemany"
        )
