"""One measurement of onejob in a process of its own: python -m bench.rows ROW URL COUNT.

It does COUNT operations in an empty store and prints how many it did per second. It uses only public names of
onejob, so that PYTHONPATH may name any source tree: this is what `bench.compare` does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, NamedTuple

from bench.measure import timing
from bench.workload import open_app
from onejob import App, State, Task, Unique, batch, current

WIDE = 500  # concurrency of a worker whose queue is full
NARROW = 8  # the default concurrency of a worker
LIMIT = 3  # jobs of the limited queue that may run at once
PROCESSES = 3  # workers of the limited queue
PRODUCERS = 16
CHAIN = 10  # jobs in a chain
HELD = 100  # keys
CROWD = 20_000  # live jobs
BULK = 1_000

Nothing = Task[[int], None]


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────────


def blocking(url: str, number: int) -> float:
    """Enqueue new keys from blocking code, one after another."""
    app, task = open_app(url)
    task.enqueue_sync(-1, "July")
    with timing() as watch:
        for customer in range(number):
            task.enqueue_sync(customer, "July")
    app.close_sync()
    return watch.rate(number)


async def awaited(url: str, number: int) -> float:
    """Enqueue new keys, awaiting one after another."""
    app, task = open_app(url)
    async with app:
        await task.enqueue(-1, "July")
        with timing() as watch:
            for customer in range(number):
                await task.enqueue(customer, "July")
    return watch.rate(number)


async def together(url: str, number: int) -> float:
    """Enqueue new keys from several producers, each awaiting one call at a time."""
    app, task = open_app(url)

    async def produce(customers: Sequence[int]) -> None:
        for customer in customers:
            await task.enqueue(customer, "July")

    async with app:
        await task.enqueue(-1, "July")
        with timing() as watch:
            shares = [range(first, number, PRODUCERS) for first in range(PRODUCERS)]
            await asyncio.gather(*map(produce, shares))
    return watch.rate(number)


def duplicates(url: str, number: int) -> float:
    """Enqueue held keys from blocking code."""
    app, task = open_app(url)
    app.enqueue_many_sync([task.call(customer, "July") for customer in range(HELD)])
    with timing() as watch:
        outcomes = {task.enqueue_sync(call % HELD, "July").outcome for call in range(number)}
    app.close_sync()
    assert outcomes == {"kept"}
    return watch.rate(number)


async def held(url: str, number: int) -> float:
    """Enqueue held keys, awaiting one after another."""
    app, task = open_app(url)
    async with app:
        await app.enqueue_many([task.call(customer, "July") for customer in range(HELD)])
        with timing() as watch:
            outcomes = {(await task.enqueue(call % HELD, "July")).outcome for call in range(number)}
    assert outcomes == {"kept"}
    return watch.rate(number)


async def bulk(url: str, number: int) -> float:
    """Enqueue new keys, many in one call."""
    app, task = open_app(url)
    async with app:
        await task.enqueue(-1, "July")
        with timing() as watch:
            for first in range(0, number, BULK):
                some = range(first, min(first + BULK, number))
                await app.enqueue_many([task.call(customer, "July") for customer in some])
    return watch.rate(number)


def crowd(url: str, number: int) -> float:
    """Enqueue new keys from blocking code, beside many live jobs."""
    app, task = open_app(url)
    for first in range(0, CROWD, BULK):
        app.enqueue_many_sync([task.call(-customer, "July") for customer in range(first, first + BULK)])
    with timing() as watch:
        for customer in range(1, number + 1):
            task.enqueue_sync(customer, "July")
    app.close_sync()
    return watch.rate(number)


# ── drain ─────────────────────────────────────────────────────────────────────────────────────────


def open_nothing(url: str, *, keyed: bool = False, limit: int | None = None) -> tuple[App, Nothing]:
    """Return an app with a task that does nothing."""
    app = App(url)
    if limit is not None:
        app.queue("limited", concurrency=limit)

    @app.task(queue="default" if limit is None else "limited", unique=Unique() if keyed else None)
    async def nothing(number: int) -> None: ...

    return app, nothing


async def drain(url: str, number: int, *, concurrency: int, keyed: bool = False) -> float:
    """Fill a queue, and empty it with one worker."""
    app, nothing = open_nothing(url, keyed=keyed)
    async with app:
        await app.enqueue_many([nothing.call(one) for one in range(number)])
        with timing() as watch:
            await app.worker(concurrency=concurrency, drain=True).run()
        await check_completed(app, number)
    return watch.rate(number)


async def check_completed(app: App, number: int) -> None:
    """Raise AssertionError unless this many jobs are completed."""
    assert (await app.stats()).by_state[State.COMPLETED] == number


async def drain_wide(url: str, number: int) -> float:
    """Drain with a wide worker."""
    return await drain(url, number, concurrency=WIDE)


async def drain_keyed(url: str, number: int) -> float:
    """Drain keyed jobs with a wide worker."""
    return await drain(url, number, concurrency=WIDE, keyed=True)


async def drain_narrow(url: str, number: int) -> float:
    """Drain with a worker of the default concurrency."""
    return await drain(url, number, concurrency=NARROW)


async def limited(url: str, number: int, *, limit: int | None = LIMIT) -> float:
    """Drain a limited queue with several worker processes."""
    app, nothing = open_nothing(url, limit=limit)
    async with app:
        await app.enqueue_many([nothing.call(one) for one in range(number)])
        with worker_processes(url, "no" if limit is None else str(limit)) as workers:
            began = time.monotonic_ns()
            for worker in workers:
                tell(worker, "go")
            ends = [int(await asyncio.to_thread(hear, worker)) for worker in workers]
        await check_completed(app, number)
    return number / (max(ends) - began) * 1e9


async def unlimited(url: str, number: int) -> float:
    """Drain a queue without a limit with the same worker processes."""
    return await limited(url, number, limit=None)


@contextmanager
def worker_processes(url: str, limit: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the workers of a queue, and wait until they are ready."""
    command = [sys.executable, "-m", "bench.rows", "worker", url, limit]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(PROCESSES)
        ]
        for worker in workers:
            assert hear(worker) == "ready"
        yield workers


def tell(worker: subprocess.Popen[str], line: str) -> None:
    """Write a line to a worker's input."""
    assert worker.stdin is not None
    print(line, file=worker.stdin, flush=True)


def hear(worker: subprocess.Popen[str]) -> str:
    """Wait for the next line of a worker's output."""
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


async def work(url: str, limit: str) -> None:
    """Connect, wait for a line of input, drain the queue, and print when it was empty."""
    app, _ = open_nothing(url, limit=None if limit == "no" else int(limit))
    async with app:
        await app.stats()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await app.worker(concurrency=NARROW, drain=True).run()
        print(time.monotonic_ns(), flush=True)


# ── chains ────────────────────────────────────────────────────────────────────────────────────────


async def chains(url: str, number: int, *, side: str = "chained") -> float:
    """Enqueue and run jobs: in chains, each by itself, or all of them as the blockers of one more."""
    app = App(url)

    @app.task
    async def step(left: int) -> int:
        if left:
            current().continue_with(step.call(left - 1))
        return left

    @app.task
    async def last() -> int:
        return len(current().blockers)

    async with app:
        await app.stats()  # creates the tables
        with timing() as watch:
            match side:
                case "chained":
                    await app.enqueue_many([step.call(CHAIN - 1) for _ in range(number // CHAIN)])
                case "single":
                    await app.enqueue_many([step.call(0) for _ in range(number)])
                case "fan-in":
                    await batch(*(step.call(0) for _ in range(number)), on_success=last.call()).enqueue()
            await app.worker(concurrency=WIDE, drain=True).run()
        await check_completed(app, number + (side == "fan-in"))
    return watch.rate(number)


async def single(url: str, number: int) -> float:
    """Enqueue and run single jobs."""
    return await chains(url, number, side="single")


async def fan_in(url: str, number: int) -> float:
    """Enqueue and run the blockers of one job."""
    return await chains(url, number, side="fan-in")


# ── latency ───────────────────────────────────────────────────────────────────────────────────────


async def latency(url: str, number: int) -> float:
    """Return the inverse of the median time from an enqueue to the start of the run, on an idle worker."""
    app, started, took = App(url), asyncio.Event(), list[float]()

    @app.task(unique=True)
    async def stamp(sent: int) -> None:
        took.append((time.monotonic_ns() - sent) / 1e9)
        started.set()

    async with app, app.worker():
        for _ in range(number):
            await asyncio.sleep(0.02)
            started.clear()
            await stamp.enqueue(time.monotonic_ns())
            await started.wait()
    return 1 / median(took)


# ── the command ───────────────────────────────────────────────────────────────────────────────────


class Row(NamedTuple):
    """A measurement, what it is called, and its sizes in full and quick."""

    run: Callable[[str, int], float | Coroutine[Any, Any, float]]
    title: str
    full: int
    quick: int


ROWS = {
    "blocking": Row(blocking, "enqueue_sync, new keys", 3000, 300),
    "awaited": Row(awaited, "await enqueue, new keys", 3000, 300),
    "together": Row(together, f"await enqueue, {PRODUCERS} producers", 6400, 640),
    "duplicates": Row(duplicates, "enqueue_sync, held keys", 5000, 500),
    "held": Row(held, "await enqueue, held keys", 5000, 500),
    "bulk": Row(bulk, f"enqueue_many of {BULK:,}", 10_000, 2_000),
    "crowd": Row(crowd, f"enqueue_sync beside {CROWD:,} live jobs", 2000, 300),
    "drain": Row(drain_wide, f"drain, concurrency {WIDE}", 10_000, 2_000),
    "drain-keyed": Row(drain_keyed, f"drain keyed jobs, concurrency {WIDE}", 10_000, 2_000),
    "drain-8": Row(drain_narrow, f"drain, concurrency {NARROW}", 5_000, 1_000),
    "limited": Row(limited, f"queue with a limit of {LIMIT}, {PROCESSES} workers", 1_500, 150),
    "unlimited": Row(unlimited, f"queue without a limit, {PROCESSES} workers", 5_000, 500),
    "chains": Row(chains, f"chains of {CHAIN}", 10_000, 1_000),
    "single": Row(single, "single jobs, enqueued and run", 10_000, 1_000),
    "fan-in": Row(fan_in, "a fan-in", 1_000, 200),
    "latency": Row(latency, "idle worker, enqueue to start (inverse of p50)", 100, 20),
}


def measure(name: str, url: str, number: int) -> float:
    """Run one row in this process and return how many operations it did per second."""
    result = ROWS[name].run(url, number)
    return result if isinstance(result, float) else asyncio.run(result)


def main() -> None:
    """Run one row, or one worker of the limited queue."""
    name, url, size = sys.argv[1:]
    if name == "worker":
        asyncio.run(work(url, size))
    else:
        print(measure(name, url, int(size)))


if __name__ == "__main__":
    main()
