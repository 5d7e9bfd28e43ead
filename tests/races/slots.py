"""Do worker processes keep to a queue's limit, and do they use it: python -m tests.races.slots --help.

Four worker processes run jobs of one queue that allows three at once. Every run notes when it began and when
it ended, by the machine's monotonic clock. The notes show how many ran at the same time, at most three, and
how busy the three slots were: the part of the time in which a handler ran there, and the part in which the
store had a job active there, which is all that a limit can promise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onejob import App, Task, current
from tests.races.stores import STORES

LIMIT = 3
WORKERS = 4
LEAST = 0.95
WARM_UP = 2.0  # seconds that are not counted
LEASE = "5s"

Span = tuple[float, float]


def open_app(url: str, notes: Path | None = None, work: float = 0) -> tuple[App, Task[[int], None]]:
    """Open the store, with a task that notes when it ran."""
    app = App(url)
    app.queue("narrow", concurrency=LIMIT)
    file = None if notes is None else os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @app.task(queue="narrow")
    async def occupy_a_slot(_number: int) -> None:
        began = time.monotonic()
        await asyncio.sleep(work)
        assert file is not None  # only workers run it
        started = current().job.started_at
        assert started is not None
        os.write(file, b"%f %f %f\n" % (began, time.monotonic(), started.timestamp()))

    return app, occupy_a_slot


# ── the processes ─────────────────────────────────────────────────────────────────────────────────


async def run_worker(url: str, notes: Path, work: float) -> None:
    """Work until SIGTERM."""
    app, _ = open_app(url, notes, work)
    async with app:
        worker = app.worker(concurrency=LIMIT, lease=LEASE, grace="5s")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def spawn(url: str, folder: Path, number: int, work: float) -> subprocess.Popen[bytes]:
    """Start a worker process."""
    notes = folder / f"notes-{number}"
    words = [sys.executable, "-m", "tests.races.slots", "--worker", url, str(notes), "--work", str(work)]
    return subprocess.Popen(words)


@contextmanager
def workers(url: str, folder: Path, work: float) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Run all workers for the length of a block."""
    running = {number: spawn(url, folder, number, work) for number in range(WORKERS)}
    try:
        yield running
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def wait_for_all(folder: Path) -> None:
    """Wait until every worker has started."""
    while len(list(folder.glob("notes-*"))) < WORKERS:
        time.sleep(0.05)


async def feed(
    url: str, folder: Path, seconds: float, work: float, kills: float | None, chance: random.Random
) -> Span:
    """Keep jobs waiting while workers run, kill one every `kills` seconds; return the time that counts."""
    app, task = open_app(url)
    async with app:
        number = int(LIMIT * (seconds + 10) / work)  # more than can be done in the time
        await app.enqueue_many([task.call(number) for number in range(number)])
        with workers(url, folder, work) as running:
            await asyncio.to_thread(wait_for_all, folder)
            began = time.monotonic() + WARM_UP
            kill_at = began + (kills or seconds)
            while (now := time.monotonic()) < began + seconds:
                await asyncio.sleep(0.25)
                if now > kill_at:
                    number = chance.randrange(WORKERS)
                    running[number].kill()
                    running[number].wait()
                    running[number] = spawn(url, folder, number, work)
                    kill_at = now + (kills or seconds)
            return began, time.monotonic()


# ── what the notes show ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Finding:
    """The findings of a race."""

    runs: int
    most: int
    busy: float  # a handler ran
    active: float  # the store had a job active


def judge(folder: Path, counted: Span, settled: Iterable[Span] = ()) -> Finding:
    """Read the notes of all workers."""
    lines = [line.split() for path in folder.glob("notes-*") for line in path.read_text().splitlines()]
    spans = [(float(line[0]), float(line[1])) for line in lines]
    return Finding(len(spans), most_at_once(spans), share(spans, counted), share(settled, counted))


def most_at_once(spans: Iterable[Span]) -> int:
    """Return how many overlapped at most; a span that begins as another ends does not overlap it."""
    events = sorted([(end, -1) for _, end in spans] + [(begin, 1) for begin, _ in spans])
    now = most = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def share(spans: Iterable[Span], counted: Span) -> float:
    """Return the part of the slots that was in use."""
    first, last = counted
    used = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in spans)
    return used / (LIMIT * (last - first))


async def active_spans(url: str) -> list[Span]:
    """Return when jobs were active by the store, on the clock of the notes."""
    app, _ = open_app(url)
    shift = time.monotonic() - time.time()
    found: list[Span] = []
    async with app:
        offset = (app._engine.store.now().timestamp() - time.time()) if not url.startswith("sqlite") else 0.0
        page = 2000
        for first in range(0, 1_000_000, page):
            jobs = await app.jobs(state="completed", limit=page, offset=first)
            found += [
                (job.started_at.timestamp() + shift - offset, job.finished_at.timestamp() + shift - offset)
                for job in jobs
                if job.started_at is not None and job.finished_at is not None
            ]
            if len(jobs) < page:
                return found
    return found


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def race(store: str, seconds: float, work: float, kills: float | None, chance: random.Random) -> Finding:
    """Race on one store."""
    with tempfile.TemporaryDirectory(prefix="onejob-slots-") as name, STORES[store](Path(name)) as url:
        folder = Path(name)
        counted = asyncio.run(feed(url, folder, seconds, work, kills, chance))
        return judge(folder, counted, [] if kills else asyncio.run(active_spans(url)))


def report(store: str, work: float, finding: Finding) -> str:
    """Return the findings of a race in one line."""
    return (
        f"{store:10} jobs of {work * 1000:3.0f} ms: {finding.runs:7,} runs, at most {finding.most} at once, "
        f"slots busy {finding.busy:6.1%}, active {finding.active:6.1%}"
    )


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.races.slots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=30, help="how long each race lasts (30)")
    parser.add_argument(
        "--work", type=float, action="append", help="seconds that a job takes (0.05 and 0.005)"
    )
    parser.add_argument("--kills", type=float, help="kill -9 a worker every KILLS seconds")
    parser.add_argument(
        "--seed", type=int, help="repeat what was drawn (default: a new seed, which is printed)"
    )
    parser.add_argument("--worker", nargs=2, metavar=("URL", "NOTES"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Race, and fail if a limit was exceeded or not used."""
    options = arguments()
    if options.worker:
        url, notes = options.worker
        asyncio.run(run_worker(url, Path(notes), options.work[0]))
        return 0
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    sys.stdout.write(f"--seed {seed}\n")
    chance, sound = random.Random(seed), True
    for store in options.store or STORES:
        for work in options.work or (0.05, 0.005):
            finding = race(store, options.seconds, work, options.kills, chance)
            sys.stdout.write(report(store, work, finding) + "\n")
            sys.stdout.flush()
            sound = sound and finding.most <= LIMIT and (bool(options.kills) or finding.active >= LEAST)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
