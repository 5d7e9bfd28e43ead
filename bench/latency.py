"""How soon an idle worker starts a job that another process enqueues.

    python -m bench.latency ours|bare URL

waits for jobs and prints, for each, the nanoseconds since just before it was enqueued. The bare side uses
what the store offers: it polls SQLite every millisecond and reads the newest row, listens to PostgreSQL and
claims a row, or blocks on a list of Redis. All processes of the machine share the clock.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from bench.measure import Plan, Reading, alternate, at_most, below, percentile, shown
from bench.targets import Target, watch
from onejob import App, Task


def latency(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure from just before the enqueue to the first line of the handler."""
    number = plan.size(50, 20)
    took: list[float] = []
    with target.empty_store("latency") as url, target.empty_store("latency-bare") as bare_url:
        app, stamp = open_stamping_app(url)
        bare = target.bare(bare_url)
        with idle_worker("ours", url) as ours, idle_worker("bare", bare_url) as watcher:
            pair = alternate(
                plan,
                lambda: median(collect(took, delays(ours, stamp.enqueue_sync, number))),
                lambda: median(delays(watcher, bare.send, number)),
            )
        app.close_sync()
        asyncio.run(bare.close())
    title, bar = f"idle, enqueue → start, {target.label}", target.bars["latency"]
    if bar is None:
        yield below(f"{title}, p50", pair.ours, 5)
        yield shown(f"{title}, p50, against a bare poll", pair, unit="ms")
    else:
        yield at_most(f"{title}, p50", pair, bar)
    yield Reading(f"{title}, p99", percentile(took, 99), "ms")
    yield Reading(f"{title}, slowest", max(took), "ms")


def collect(all_of_them: list[float], some: list[float]) -> list[float]:
    """Add the values of a round to those of all rounds, and return them."""
    all_of_them += some
    return some


def delays(worker: subprocess.Popen[str], enqueue: Callable[[int], object], number: int) -> list[float]:
    """Enqueue one at a time, with a pause before each, and read from the worker when each began."""
    assert worker.stdout is not None
    found = []
    for _ in range(number):
        time.sleep(random.uniform(0.02, 0.05))
        enqueue(time.monotonic_ns())
        found.append(int(worker.stdout.readline()) / 1e6)
    return found


@contextmanager
def idle_worker(side: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Start a worker in another process and wait until it is idle."""
    command = [sys.executable, "-m", "bench.latency", side, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)
        try:
            yield process
        finally:
            process.terminate()


def open_stamping_app(url: str) -> tuple[App, Task[[int], None]]:
    """Return an app whose one task prints how long it took to be started."""
    app = App(url)

    @app.task(unique=True)
    async def stamp(sent: int) -> None:
        print(time.monotonic_ns() - sent, flush=True)

    return app, stamp


async def work(url: str) -> None:
    """Run jobs until terminated."""
    app, _ = open_stamping_app(url)
    async with app, app.worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Run one side until terminated."""
    side, url = sys.argv[1:]
    if side == "bare":
        watch(url)
    else:
        asyncio.run(work(url))


if __name__ == "__main__":
    main()
