"""What an enqueue costs: one by one, awaited, together, repeated, in bulk."""

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
from bench.places import Bare, Place, Written
from bench.workload import Invoice, jobs_of, open_app
from onejob import App

Produce = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Bench:
    """An app and a bare driver, each in a store of its own, that grow at the same pace."""

    place: Place
    app: App
    task: Invoice
    url: str
    bare: Bare
    bare_url: str
    runner: asyncio.Runner
    customers: Iterator[int] = field(default_factory=count)
    invoiced: set[int] = field(default_factory=set)
    invoiced_bare: set[int] = field(default_factory=set)

    def fresh(self, number: int) -> list[int]:
        """Take customers that nobody has been sent an invoice for."""
        return list(islice(self.customers, number))

    # ── the bare driver ───────────────────────────────────────────────────────────────────────────

    def each_bare(self, customers: list[int]) -> float:
        """Write one by one."""
        return self._block_bare(self.bare.each, customers)

    def each_bare_awaited(self, customers: list[int]) -> float:
        """Write one by one, awaiting each."""
        return self._await_bare(self.bare.each_awaited, customers)

    def ask_bare(self, customers: list[int]) -> float:
        """Write, or read who holds the key."""
        return self._block_bare(self.bare.ask, customers)

    def ask_bare_awaited(self, customers: list[int]) -> float:
        """Write, or read who holds the key, awaiting each."""
        return self._await_bare(self.bare.ask_awaited, customers)

    def bulk_bare(self, batches: list[list[int]]) -> float:
        """Write each batch in one go."""
        all_rows = [self._rows(customers) for customers in batches]
        with timing() as watch:
            for rows in all_rows:
                self.bare.many(rows)
        return self._checked_bare(watch, batches)

    def _rows(self, customers: list[int]) -> list[Written]:
        return self.bare.prepare(jobs_of(self.task, customers))

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
        """Enqueue each batch in one call, and look at every verdict."""

        async def produce() -> None:
            for customers in batches:
                admissions = await self.app.enqueue_many([self.task.call(i, "July") for i in customers])
                assert [admission.outcome for admission in admissions] == ["created"] * len(customers)

        return self._checked(self._time(produce), batches)

    def durations(self, customers: list[int]) -> list[float]:
        """Tell how many milliseconds each awaited call takes."""
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
        assert self.place.count(self.url) == len(self.invoiced)
        return watch.rate(sum(map(len, batches)))

    def _checked_bare(self, watch: Stopwatch, batches: list[list[int]]) -> float:
        self.invoiced_bare.update(*batches)
        assert self.place.count(self.bare_url) == len(self.invoiced_bare)
        return watch.rate(sum(map(len, batches)))


@contextmanager
def opened(place: Place, name: str) -> Iterator[Bench]:
    """Open both sides and warm them up."""
    with (
        place.fresh(name) as url,
        place.fresh(f"{name}-bare") as bare_url,
        asyncio.Runner() as runner,
    ):
        app, task = open_app(url)
        bare = place.bare(bare_url)
        bench = Bench(place, app, task, url, bare, bare_url, runner)
        bench.each_blocking(bench.fresh(20))
        bench.each_awaited(bench.fresh(20))
        bench.each_bare(bench.fresh(20))
        bench.each_bare_awaited(bench.fresh(20))
        yield bench
        runner.run(app.close())
        runner.run(bare.close())


def blocking(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure keyed calls from blocking code, one after another."""
    number = plan.size(3000, 800)
    with opened(place, "blocking") as bench:
        pair = alternate(
            plan,
            lambda: bench.each_blocking(bench.fresh(number)),
            lambda: bench.each_bare(bench.fresh(number)),
        )
    yield judged(f"enqueue_sync, one by one, {place.label}", pair, place.bars["blocking"])


def awaited(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure keyed calls that are awaited, one after another."""
    number = plan.size(3000, 800)
    with opened(place, "awaited") as bench:
        pair = alternate(
            plan,
            lambda: bench.each_awaited(bench.fresh(number)),
            lambda: bench.each_bare_awaited(bench.fresh(number)),
        )
        middle = percentile(bench.durations(bench.fresh(number)), 50)
    yield judged(f"await enqueue, one by one, {place.label}", pair, place.bars["awaited"])
    title = f"await enqueue, p50, {place.label}"
    # With fsync it is the disk's own time, and on a server the server's: for the reader.
    yield below(title, middle, 1) if place.label == "NORMAL" else Reading(title, middle, "ms")


def together(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure group commit: producers at once against one after another."""
    number = plan.size(6400, 1280)
    with opened(place, "together") as bench:
        pair = alternate(
            plan,
            lambda: bench.together([bench.fresh(number // place.producers) for _ in range(place.producers)]),
            lambda: bench.each_awaited(bench.fresh(number // 8)),
        )
    title = f"{place.producers} producers awaiting, {place.label}"
    yield judged(title, pair, place.bars["together"], against="ours, one by one")


def duplicates(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure nine duplicates in ten, and see that they leave no trace but their count."""
    with opened(place, "duplicates") as bench:
        yield from (asking_the_same if place.asks else against_distinct)(plan, bench)
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
            lambda: enqueue(repeated(bench.fresh(number))),  # noqa: B023 - called in this turn
            lambda: ask(repeated(bench.fresh(number))),  # noqa: B023 - as above
        )
        title = f"{name}, 90 % duplicates, {bench.place.label}"
        yield judged(title, pair, bench.place.bars["duplicates"])
    took = bench.durations(repeated(bench.fresh(number)))
    yield below(f"await enqueue, 90 % duplicates, p99, {bench.place.label}", percentile(took, 99), 5)


def against_distinct(plan: Plan, bench: Bench) -> Iterator[Reading]:
    """Compare with our own new keys."""
    number, bar = plan.size(3000, 800), bench.place.bars["duplicates"]
    for name, enqueue, asked in (
        ("enqueue_sync", bench.each_blocking, bar),
        ("await enqueue", bench.each_awaited, None),
    ):
        pair = alternate(
            plan,
            lambda: enqueue(repeated(bench.fresh(number // 10))),  # noqa: B023 - called in this turn
            lambda: enqueue(bench.fresh(number)),  # noqa: B023 - as above
        )
        title = f"{name}, 90 % duplicates, {bench.place.label}"
        yield judged(title, pair, asked, against="ours, all distinct")


def repeated(customers: list[int]) -> list[int]:
    """Ask for each customer ten times: at once, and again after the next ones."""
    return [
        customer for start in range(0, len(customers), 10) for customer in customers[start : start + 10] * 10
    ]


def traces(bench: Bench) -> Iterator[Reading]:
    """Count what duplicates write: nothing until the ledger's turn, and never a row of a job."""
    customers = bench.fresh(100)
    bench.each_blocking(customers)
    with bench.place.witness(bench.url) as trace:

        def absorb(enqueue: Callable[[list[int]], float]) -> tuple[bool, int]:
            bench.app.ledger.flush()  # the ledger has half a second until it writes again
            before = trace()
            enqueue(customers)
            after = trace()
            return after.rows != before.rows, after.log - before.log

        for name, enqueue in (("enqueue_sync", bench.each_blocking), ("await enqueue", bench.each_awaited)):
            wrote, log = min(absorb(enqueue) for _ in range(5))  # a slow machine may meet the ledger's turn
            title = f"{name}, 100 duplicates write, {bench.place.label}"
            yield true(title, int(wrote), "", bench.place.untouched, passed=not wrote)
            if bench.place.asks:
                yield Reading(f"{name}, 100 duplicates write to the log, {bench.place.label}", log, "bytes")


def bulk(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure many calls at once, a verdict each."""
    number = plan.size(10_000, 2_000)
    size = min(place.batch, number)

    def batches(bench: Bench) -> list[list[int]]:
        return [bench.fresh(size) for _ in range(number // size)]

    with opened(place, "bulk") as bench:
        pair = alternate(plan, lambda: bench.bulk(batches(bench)), lambda: bench.bulk_bare(batches(bench)))
        title = f"enqueue_many of {size:,}, {place.label}"
        yield judged(title, pair, place.bars["bulk"], unit="jobs/s", against="bare, in one go")
        if "pgqueuer" in place.peers:
            yield from beside_pgqueuer(plan, bench, batches)


def beside_pgqueuer(
    plan: Plan, bench: Bench, batches: Callable[[Bench], list[list[int]]]
) -> Iterator[Reading]:
    """Compare with the only other one that gives a verdict each."""
    from bench.peers import pgqueuer

    with bench.place.fresh("bulk-pgqueuer") as url:
        bench.runner.run(pgqueuer.install(url))

        def enqueue() -> float:
            keys = [[str(customer) for customer in batch] for batch in batches(bench)]
            return bench.runner.run(pgqueuer.bulk(url, keys))

        pair = alternate(plan, lambda: bench.bulk(batches(bench)), enqueue)
    title = f"enqueue_many of {bench.place.batch:,}, {bench.place.label}"
    yield shown(title, pair, unit="jobs/s", against="pgqueuer")
