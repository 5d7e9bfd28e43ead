"""What an enqueue costs: one by one, awaited, from many producers, repeated, in bulk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from bench.measure import (
    Plan,
    Reading,
    Stopwatch,
    alternate,
    below,
    judged,
    percentile,
    shown,
    timing,
    true,
)
from bench.targets import Bare, Target, Written
from bench.workload import Invoice, open_app
from onejob import App

Produce = Callable[[], Coroutine[Any, Any, None]]
FLUSHED = 1.1  # seconds after which absorbed requests are counted in the store


@dataclass
class Bench:
    """An app and a bare driver, each with a store of its own; both stores grow at the same pace."""

    target: Target
    app: App
    task: Invoice
    url: str
    bare: Bare
    bare_url: str
    runner: asyncio.Runner
    customers: Iterator[int] = field(default_factory=count)
    invoiced: set[int] = field(default_factory=set)
    invoiced_bare: set[int] = field(default_factory=set)

    def new_customers(self, number: int) -> list[int]:
        """Return customers without an invoice."""
        return list(islice(self.customers, number))

    # ── the bare driver ───────────────────────────────────────────────────────────────────────────

    def each_bare(self, customers: list[int]) -> float:
        """Write one by one."""
        return self._block_bare(self.bare.each, customers)

    def each_bare_awaited(self, customers: list[int]) -> float:
        """Write one by one, awaiting each."""
        return self._await_bare(self.bare.each_awaited, customers)

    def ask_bare(self, customers: list[int]) -> float:
        """Write, or read the holder of the key."""
        return self._block_bare(self.bare.ask, customers)

    def ask_bare_awaited(self, customers: list[int]) -> float:
        """Write, or read the holder of the key, awaiting each."""
        return self._await_bare(self.bare.ask_awaited, customers)

    def bulk_bare(self, batches: list[list[int]]) -> float:
        """Write each batch at once."""
        all_rows = [self._rows(customers) for customers in batches]
        with timing() as watch:
            for rows in all_rows:
                self.bare.many(rows)
        return self._checked_bare(watch, batches)

    def _rows(self, customers: list[int]) -> list[Written]:
        return self.bare.prepare(customers)

    def _block_bare(self, write: Callable[[Sequence[Written]], None], customers: list[int]) -> float:
        rows = self._rows(customers)
        with timing() as watch:
            write(rows)
        return self._checked_bare(watch, [customers])

    def _await_bare(
        self, write: Callable[[Sequence[Written]], Coroutine[Any, Any, None]], customers: list[int]
    ) -> float:
        rows = self._rows(customers)
        return self._checked_bare(self._time(lambda: write(rows)), [customers])

    # ── ours ──────────────────────────────────────────────────────────────────────────────────────

    def each_blocking(self, customers: list[int]) -> float:
        """Enqueue one by one from blocking code."""
        enqueue = self.task.enqueue_sync
        with timing() as watch:
            for customer in customers:
                enqueue(customer, "July")
        return self._checked(watch, [customers])

    def each_awaited(self, customers: list[int]) -> float:
        """Enqueue one by one, awaiting each."""

        async def produce() -> None:
            for customer in customers:
                await self.task.enqueue(customer, "July")

        return self._checked(self._time(produce), [customers])

    def together(self, shares: list[list[int]]) -> float:
        """Enqueue from many producers, each awaiting one call at a time."""

        async def produce(customers: list[int]) -> None:
            for customer in customers:
                await self.task.enqueue(customer, "July")

        async def all_produce() -> None:
            async with asyncio.TaskGroup() as group:
                for share in shares:
                    group.create_task(produce(share))

        return self._checked(self._time(all_produce), shares)

    def bulk(self, batches: list[list[int]]) -> float:
        """Enqueue each batch in one call, and check every outcome."""

        async def produce() -> None:
            for customers in batches:
                admissions = await self.app.enqueue_many([self.task.call(i, "July") for i in customers])
                assert [admission.outcome for admission in admissions] == ["created"] * len(customers)

        return self._checked(self._time(produce), batches)

    def durations(self, customers: list[int]) -> list[float]:
        """Return how many milliseconds each awaited call takes."""
        took: list[float] = []

        async def produce() -> None:
            for customer in customers:
                began = time.perf_counter()
                await self.task.enqueue(customer, "July")
                took.append((time.perf_counter() - began) * 1000)

        self._checked(self._time(produce), [customers])
        return took

    # ── both ──────────────────────────────────────────────────────────────────────────────────────

    def _time(self, produce: Produce) -> Stopwatch:
        async def timed() -> Stopwatch:
            with timing() as watch:
                await produce()
            return watch

        return self.runner.run(timed())

    def _checked(self, watch: Stopwatch, batches: list[list[int]]) -> float:
        self.invoiced.update(*batches)
        assert self.target.count(self.url) == len(self.invoiced)
        return watch.rate(sum(map(len, batches)))

    def _checked_bare(self, watch: Stopwatch, batches: list[list[int]]) -> float:
        self.invoiced_bare.update(*batches)
        assert self.target.count(self.bare_url) == len(self.invoiced_bare)
        return watch.rate(sum(map(len, batches)))


@contextmanager
def opened(target: Target, name: str) -> Iterator[Bench]:
    """Open both sides and warm them up."""
    with (
        target.empty_store(name) as url,
        target.empty_store(f"{name}-bare") as bare_url,
        asyncio.Runner() as runner,
    ):
        app, task = open_app(url)
        bare = target.bare(bare_url)
        bench = Bench(target, app, task, url, bare, bare_url, runner)
        bench.each_blocking(bench.new_customers(20))
        bench.each_awaited(bench.new_customers(20))
        bench.each_bare(bench.new_customers(20))
        bench.each_bare_awaited(bench.new_customers(20))
        yield bench
        runner.run(app.close())
        runner.run(bare.close())


def blocking(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure keyed calls from blocking code, one after another."""
    number = plan.size(3000, 800)
    with opened(target, "blocking") as bench:
        pair = alternate(
            plan,
            lambda: bench.each_blocking(bench.new_customers(number)),
            lambda: bench.each_bare(bench.new_customers(number)),
        )
    yield judged(f"enqueue_sync, one by one, {target.label}", pair, target.bars["blocking"])


def awaited(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure keyed calls that are awaited, one after another."""
    number = plan.size(3000, 800)
    with opened(target, "awaited") as bench:
        pair = alternate(
            plan,
            lambda: bench.each_awaited(bench.new_customers(number)),
            lambda: bench.each_bare_awaited(bench.new_customers(number)),
        )
        middle = percentile(bench.durations(bench.new_customers(number)), 50)
    yield judged(f"await enqueue, one by one, {target.label}", pair, target.bars["awaited"])
    title = f"await enqueue, p50, {target.label}"
    # With fsync this is mostly the disk's time, and on a server the server's: only shown.
    yield below(title, middle, 1) if target.label == "NORMAL" else Reading(title, middle, "ms")


def together(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure group commit: many producers against one."""
    number = plan.size(6400, 1280)
    with opened(target, "together") as bench:
        pair = alternate(
            plan,
            lambda: bench.together(
                [bench.new_customers(number // target.producers) for _ in range(target.producers)]
            ),
            lambda: bench.each_awaited(bench.new_customers(number // 8)),
        )
    title = f"{target.producers} producers awaiting, {target.label}"
    yield judged(title, pair, target.bars["together"], against="ours, one by one")


def duplicates(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure nine duplicates in ten, and check that they write nothing but their count."""
    with opened(target, "duplicates") as bench:
        yield from (asking_the_same if target.asks else against_distinct)(plan, bench)
        yield from traces(bench)


def asking_the_same(plan: Plan, bench: Bench) -> Iterator[Reading]:
    """Compare with the bare driver, which gets the same calls."""
    number = plan.size(3000, 800) // 10
    for name, enqueue, ask in (
        ("enqueue_sync", bench.each_blocking, bench.ask_bare),
        ("await enqueue", bench.each_awaited, bench.ask_bare_awaited),
    ):
        pair = alternate(
            plan,
            lambda: enqueue(repeated(bench.new_customers(number))),  # noqa: B023 - called in this round
            lambda: ask(repeated(bench.new_customers(number))),  # noqa: B023 - as above
        )
        title = f"{name}, 90 % duplicates, {bench.target.label}"
        yield judged(title, pair, bench.target.bars["duplicates"])
    took = bench.durations(repeated(bench.new_customers(number)))
    yield below(f"await enqueue, 90 % duplicates, p99, {bench.target.label}", percentile(took, 99), 5)


def against_distinct(plan: Plan, bench: Bench) -> Iterator[Reading]:
    """Compare with our own new keys."""
    number, bar = plan.size(3000, 800), bench.target.bars["duplicates"]
    for name, enqueue, asked in (
        ("enqueue_sync", bench.each_blocking, bar),
        ("await enqueue", bench.each_awaited, None),
    ):
        pair = alternate(
            plan,
            lambda: enqueue(repeated(bench.new_customers(number // 10))),  # noqa: B023 - called in this round
            lambda: enqueue(bench.new_customers(number)),  # noqa: B023 - as above
        )
        title = f"{name}, 90 % duplicates, {bench.target.label}"
        yield judged(title, pair, asked, against="ours, all distinct")


def repeated(customers: list[int]) -> list[int]:
    """Return each customer ten times: in a row of ten customers, which is repeated."""
    return [
        customer for start in range(0, len(customers), 10) for customer in customers[start : start + 10] * 10
    ]


def traces(bench: Bench) -> Iterator[Reading]:
    """Count what duplicates write: nothing until the counters are flushed, and never a row of a job."""
    customers = bench.new_customers(100)
    bench.each_blocking(customers)
    with bench.target.watch_writes(bench.url) as trace:

        def absorb(enqueue: Callable[[list[int]], float]) -> tuple[bool, int]:
            time.sleep(FLUSHED)  # then the counters have half a second until they are written again
            before = trace()
            enqueue(customers)
            after = trace()
            return after.rows != before.rows, after.log - before.log

        for name, enqueue in (("enqueue_sync", bench.each_blocking), ("await enqueue", bench.each_awaited)):
            wrote, log = min(absorb(enqueue) for _ in range(5))  # a slow machine may meet the next flush
            title = f"{name}, 100 duplicates write, {bench.target.label}"
            yield true(title, int(wrote), "", bench.target.untouched, passed=not wrote)
            if bench.target.asks:
                yield Reading(f"{name}, 100 duplicates write to the log, {bench.target.label}", log, "bytes")


def held(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure awaited calls on held keys alone."""
    number = plan.size(3000, 800)
    with opened(target, "held") as bench:
        taken = bench.new_customers(100)
        bench.each_blocking(taken)
        bench.each_bare(taken)
        calls = [taken[call % len(taken)] for call in range(number)]
        pair = alternate(plan, lambda: bench.each_awaited(calls), lambda: bench.ask_bare_awaited(calls))
    yield judged(f"await enqueue, held keys, {target.label}", pair, target.bars["held"])


def bulk(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure many calls at once, with an outcome each."""
    number = plan.size(10_000, 2_000)
    size = min(target.batch, number)

    def batches(bench: Bench) -> list[list[int]]:
        return [bench.new_customers(size) for _ in range(number // size)]

    with opened(target, "bulk") as bench:
        pair = alternate(plan, lambda: bench.bulk(batches(bench)), lambda: bench.bulk_bare(batches(bench)))
        title = f"enqueue_many of {size:,}, {target.label}"
        yield judged(title, pair, target.bars["bulk"], unit="jobs/s", against="bare, at once")
        if "pgqueuer" in target.peers:
            yield from beside_pgqueuer(plan, bench, batches)


def beside_pgqueuer(
    plan: Plan, bench: Bench, batches: Callable[[Bench], list[list[int]]]
) -> Iterator[Reading]:
    """Compare with the only other one that returns an outcome per job."""
    from bench.peers import pgqueuer

    with bench.target.empty_store("bulk-pgqueuer") as url:
        bench.runner.run(pgqueuer.install(url))

        def enqueue() -> float:
            keys = [[str(customer) for customer in batch] for batch in batches(bench)]
            return bench.runner.run(pgqueuer.bulk(url, keys))

        pair = alternate(plan, lambda: bench.bulk(batches(bench)), enqueue)
    title = f"enqueue_many of {bench.target.batch:,}, {bench.target.label}"
    yield shown(title, pair, unit="jobs/s", against="pgqueuer")
