"""How soon an idle worker starts what another process enqueues.

    python -m bench.latency ours|bare FILE

waits for jobs and prints, for each, the nanoseconds since just before it was enqueued. The bare side asks
`PRAGMA data_version` every millisecond and reads the newest row. The clock is the machine's, not a process's.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from bench.measure import Plan, Reading, alternate, below, percentile, shown
from bench.workload import INSERT, open_bare, row_of
from onejob import App, Task

NEWEST = "SELECT args FROM onejob_jobs ORDER BY id DESC LIMIT 1"


def latency(plan: Plan) -> Iterator[Reading]:
    """Measure from just before the enqueue to the first line of the handler."""
    number = plan.size(50, 20)
    path = plan.folder / "latency.db"
    bare_path = plan.folder / "latency-bare.db"
    app, stamp = open_stamping_app(path)
    took: list[float] = []

    def ask_bare(sent: int) -> None:
        bare.execute(INSERT, row_of(stamp, sent))

    with (
        closing(open_bare(bare_path, "FULL")) as bare,
        idle_worker("ours", path) as ours,
        idle_worker("bare", bare_path) as watcher,
    ):
        pair = alternate(
            plan,
            lambda: median(collect(took, delays(ours, stamp.enqueue_sync, number))),
            lambda: median(delays(watcher, ask_bare, number)),
        )
    app.close_sync()
    yield below("idle, enqueue → start, p50", pair.ours, 5)
    yield shown("idle, enqueue → start, p50, against a bare poll", pair, unit="ms")
    yield Reading("idle, enqueue → start, p99", percentile(took, 99), "ms")
    yield Reading("idle, enqueue → start, slowest", max(took), "ms")


def collect(all_of_them: list[float], some: list[float]) -> list[float]:
    """Keep a round's values for later."""
    all_of_them += some
    return some


def delays(worker: subprocess.Popen[str], enqueue: Callable[[int], object], number: int) -> list[float]:
    """Enqueue one at a time, with a pause before each, and ask the worker when each began."""
    assert worker.stdout is not None
    found = []
    for _ in range(number):
        time.sleep(random.uniform(0.02, 0.05))
        enqueue(time.monotonic_ns())
        found.append(int(worker.stdout.readline()) / 1e6)
    return found


@contextmanager
def idle_worker(side: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a worker in another process and wait until it idles."""
    command = [sys.executable, "-m", "bench.latency", side, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)
        try:
            yield process
        finally:
            process.terminate()


def open_stamping_app(path: Path) -> tuple[App, Task[[int], None]]:
    """Make an app whose one task tells how long it took to be started."""
    app = App(f"sqlite:///{path}")

    @app.task(unique=True)
    async def stamp(sent: int) -> None:
        print(time.monotonic_ns() - sent, flush=True)

    return app, stamp


async def work(path: Path) -> None:
    """Run jobs until terminated."""
    app, _ = open_stamping_app(path)
    async with app, app.worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


def watch(path: Path) -> None:
    """Poll for rows until terminated."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        seen = connection.execute("PRAGMA data_version").fetchone()
        print("ready", flush=True)
        while True:
            version = connection.execute("PRAGMA data_version").fetchone()
            if version != seen:
                seen = version
                [args] = connection.execute(NEWEST).fetchone()
                print(time.monotonic_ns() - int(args.split(b":")[1].rstrip(b"}")), flush=True)
            time.sleep(0.001)


def main() -> None:
    """Run one side until terminated."""
    side, file = sys.argv[1:]
    if side == "bare":
        watch(Path(file))
    else:
        asyncio.run(work(Path(file)))


if __name__ == "__main__":
    main()
