"""How long the pages of the dashboard take on a store with very many jobs, and on an empty and a small one.

    python -m tests.large sqlite --jobs 1000000
    python -m tests.large postgres redis --jobs 200000

What is compared is the time of the processor, that of the store's server included, because the clock also
shows what else the machine does. A page of the large store may take three times as long as that of the empty
one, and some milliseconds for the rows that it shows; the small store has enough jobs to fill every page.
The jobs are copies of real ones, a realistic share of each kind, spread over a week.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import psycopg
from starlette.applications import Starlette

from onejob import App, Job, State
from onejob.core import manual
from onejob.core.step import Step
from onejob.http import dashboard
from onejob.stores.columns import INDEX, NAMES, write_job
from onejob.stores.contract import Tally
from tests import servers
from tests.dashboard.shop import PATHS, Client, fill, make_shop

ROUNDS = 7  # in which each page is asked for once
BATCH = 1000
SMALL = 5000  # jobs that fill every page
SIZES = ("empty", "small", "large")
WEEK = timedelta(days=7)
FACTOR = 3  # how much longer a page may take than that of an empty store
ROWS = 0.006  # seconds that a page with rows may take beside that
ABSORBING = 20  # one job in so many has absorbed requests
TALLIED = 10_000  # counters written at once

SHARES = {
    ("fetch", "completed"): 6209,
    ("embed", "discarded"): 200,
    ("send_invoice", "completed"): 1000,  # they hold their keys for ever
    ("fetch", "available"): 1000,
    ("fetch", "scheduled"): 400,
    ("fetch", "retryable"): 100,
    ("fetch", "cancelled"): 90,
    ("sync_customer", "available"): 1000,  # they hold their keys
    ("sync_customer", "active"): 1,
}
"""How many of 10,000 jobs are copies of each kind."""

SEARCHES = (
    *("/jobs?q=state:completed", "/jobs?q=state:discarded", "/jobs?q=task:fetch", "/jobs?q=queue:mail"),
    *("/jobs?q=state:active", "/jobs?q=state:waiting task:sync_customer", "/jobs?q=is:holder"),
    *("/jobs?q=queue:none", "/jobs?q=task:none state:ended", "/jobs?q=args.number:3", "/jobs?q=nowhere"),
    *("/jobs?q=task:embed state:completed", "/dead?task=embed", "/why?q=send_invoice order=7"),
    *("/jobs/confirm?act=cancel&q=task:fetch", "/jobs/confirm?act=cancel&q=task:none"),
)


class Time(NamedTuple):
    """How long a page took, in seconds: on the clock, and of the processor."""

    clock: float
    processor: float


@dataclass(frozen=True)
class Stores:
    """The URLs of an empty store, a small one and a large one, and the process of their server."""

    urls: list[str]
    server: int | None = None

    def processor_time(self) -> float:
        """Return the seconds of the processor that this process and the server have used."""
        used = time.process_time()
        if self.server is not None:
            children = Path(f"/proc/{self.server}/task/{self.server}/children").read_text().split()
            for process in (self.server, *map(int, children)):
                with contextlib.suppress(OSError):  # it has ended
                    used += time.clock_gettime(~process << 3 | 2)  # the clock of a process, on Linux
        return used


# ── many jobs ─────────────────────────────────────────────────────────────────────────────────────


async def kinds(app: App) -> dict[tuple[str, str], Job]:
    """Return a job of each kind; those that `fill` does not make are made of others."""
    jobs = await app.jobs(limit=100)
    found = {(job.task, str(job.state)): job for job in jobs if job.chain_index == 0 and not job.is_successor}
    waiting, failed = found["fetch", "available"], found["embed", "discarded"]
    completed = found["send_invoice", "completed"]
    made = {
        "completed": msgspec.structs.replace(
            completed, task="fetch", queue="default", key=None, stand=None, result=b"3"
        ),
        "retryable": msgspec.structs.replace(waiting, state=State.RETRYABLE, attempt=1, errors=failed.errors),
        "cancelled": msgspec.structs.replace(
            completed, task="fetch", queue="default", key=None, stand=None, state=State.CANCELLED, result=None
        ),
    }
    found |= {("fetch", state): job for state, job in made.items()}
    now = datetime.now(UTC)
    found["sync_customer", "active"] = msgspec.structs.replace(
        found["sync_customer", "available"],
        state=State.ACTIVE,
        attempt=1,
        token=1,
        worker="somewhere.1",
        started_at=now,
        lease_until=now + WEEK,
    )
    return found


def copies(originals: dict[tuple[str, str], Job], number: int) -> Iterator[Job]:
    """Return copies of jobs with ids, keys and arguments of their own, spread over a week, oldest first."""
    chance, began = random.Random(7), datetime.now(UTC) - WEEK
    names, limits = list(SHARES), list(accumulate(SHARES.values()))
    for index in range(number):
        job = originals[chance.choices(names, cum_weights=limits)[0]]
        made_at = began + WEEK * (index / number)
        moved = made_at - job.created_at
        in_future = job.state in {State.SCHEDULED, State.RETRYABLE}
        times = {
            name: getattr(job, name) + moved
            for name in ("started_at", "finished_at", "kept_until", "held_at")
            if getattr(job, name) is not None
        }
        job_id = f"{int(made_at.timestamp() * 1000):012x}"
        job_id = f"{job_id[:8]}-{job_id[8:]}-7{chance.getrandbits(12):03x}-{str(uuid4())[19:]}"
        yield msgspec.structs.replace(
            job,
            id=job_id,
            chain_id=job_id,
            following=None,
            created_at=made_at,
            run_at=made_at + (WEEK * 2 if in_future else timedelta()),
            place=index + 1,
            key=chance.randbytes(32) if job.key else None,
            args=msgspec.json.encode(dict.fromkeys(job.arguments, index)),
            **times,
        )


def batched(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Return values in lists of a size."""
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


async def multiply(app: App, number: int) -> None:
    """Make an app's jobs very many, and let some of them have absorbed requests."""
    store, jobs = app._engine.store, copies(await kinds(app), number)
    match app.guarantees().store:
        case "sqlite":
            path = app.url.removeprefix("sqlite:///").partition("?")[0]
            await asyncio.to_thread(write_sqlite, path, jobs)
        case "postgresql":
            await asyncio.to_thread(write_postgres, app.url, jobs)
        case _:
            for some in batched(jobs, BATCH):
                steps = [Step(partial(manual.arrive, job=job, mark=None), key=job.key) for job in some]
                await store.apply(steps)
    now = datetime.now(UTC)
    busy = [job for job in await app.jobs(task="send_invoice", limit=number) if job.key]
    tallies = [
        Tally("", job.task, "kept", job.id, 3, now, job.created_at, "") for job in busy[: number // ABSORBING]
    ]
    for some in batched(tallies, TALLIED):
        store.count(some)
        await app.stats()  # which writes them


def row_of(job: Job) -> list[Any]:
    """Return the row of a job, with JSON as text."""
    row = write_job(job)
    for name in ("args", "meta", "result"):
        if row[INDEX[name]] is not None:
            row[INDEX[name]] = row[INDEX[name]].decode()
    return row


def write_sqlite(path: str, jobs: Iterator[Job]) -> None:
    """Write jobs to a file."""
    marks = ", ".join("?" * len(NAMES))
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            connection.executemany(f"INSERT INTO onejob_jobs VALUES ({marks})", map(row_of, jobs))  # noqa: S608
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def write_postgres(url: str, jobs: Iterator[Job]) -> None:
    """Write jobs to a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.cursor() as cursor, cursor.copy("COPY onejob_jobs FROM STDIN") as copy:
            for job in jobs:
                copy.write_row(row_of(job))
        connection.execute("VACUUM ANALYZE onejob_jobs")


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def running(site: Starlette) -> AsyncIterator[Client]:
    """Run a site with its regular counting, and return a client of it once there is a first count."""
    async with site.router.lifespan_context(site):
        client = Client(site)
        await client.text("/")
        yield client


async def measure(app: App, stores: Stores) -> dict[str, Time]:
    """Return how long each page takes; the medians of several rounds."""
    took: dict[str, list[Time]] = {}
    async with running(dashboard(app)) as client:
        paths = await pages(app)
        for _ in range(ROUNDS):
            for name, path in paths:
                clock, used = time.perf_counter(), stores.processor_time()
                response = await client.get(path)
                spent = Time(time.perf_counter() - clock, stores.processor_time() - used)
                took.setdefault(name, []).append(spent)
                assert response.status_code in {200, 303, 404, 503}, (path, response.text)
    return {
        name: Time(*(statistics.median(values) for values in zip(*some, strict=True)))
        for name, some in took.items()
    }


async def pages(app: App) -> list[tuple[str, str]]:
    """Return every page, with those of jobs, a key, a chain, and the second page of a list."""
    of_state = {
        state: next(iter(await app.jobs(state=state, limit=1)), None)
        for state in ("available", "completed", "discarded", "active")
    }
    holder = next((job for job in await app.holds(limit=20) if job.task == "sync_customer"), None)
    ids = {state: job.id if job else uuid4() for state, job in of_state.items()}
    key = holder.key.hex() if holder and holder.key else "ab" * 32
    letter = of_state["discarded"]
    own = {
        **{f"/jobs/{{{state}}}": f"/jobs/{job_id}" for state, job_id in ids.items()},
        "/keys/{key}": f"/keys/{key}",
        "/chains/{id}": f"/chains/{letter.chain_id if letter else uuid4()}",
        **{f"/why?q={{{state}}}": f"/why?q={job_id}" for state, job_id in ids.items()},
        "/why?q={key}": f"/why?q={key}",
        "/jobs?q={beginning}": f"/jobs?q={str(ids['completed'])[:13]}",
        "/jobs?q={key}": f"/jobs?q={key}",
    }
    return [*((path, path) for path in (*PATHS, *SEARCHES, "/metrics", "/health", "/ready")), *own.items()]


Figures = dict[str, tuple[Time, Time, Time]]  # of an empty, a small and a large store


async def compare(stores: Stores, jobs: int) -> Figures:
    """Return how long each page takes on an empty store, a small one, and one with very many jobs."""
    found = []
    for url, number in zip(stores.urls, (0, SMALL, jobs), strict=True):
        async with make_shop(url) as app:
            await app.stats()
            if number:
                await fill(app)
                await app.stats()  # which writes what was counted
                began = time.perf_counter()
                await multiply(app, number)
                kind, seconds = app.guarantees().store, time.perf_counter() - began
                print(f"{kind}: {number:,} jobs in {seconds:.0f} s", flush=True)
        async with make_shop(url) as app:
            found.append(await measure(app, stores))
    return {path: (found[0][path], found[1][path], found[2][path]) for path in found[0]}


def slow(found: Figures) -> list[str]:
    """Return the pages that take more than FACTOR times as long as on an empty store, beside their rows."""
    return [
        path for path, (empty, _, large) in found.items() if large.processor > FACTOR * empty.processor + ROWS
    ]


def show(found: Figures) -> None:
    """Print a table."""
    heads = [f"{size:>9}" for size in SIZES]
    print(f"{'':44} {'milliseconds of the processor':>36}   {'on the clock':>29}")
    print(f"{'page':44} {' '.join(heads)} {'ratio':>6}   {' '.join(heads)}")
    for path, times in found.items():
        used = " ".join(f"{one.processor * 1000:9.1f}" for one in times)
        took = " ".join(f"{one.clock * 1000:9.1f}" for one in times)
        print(f"{path:44} {used} {times[2].processor / times[0].processor:6.1f}   {took}")


@contextlib.contextmanager
def stores_of(kind: str) -> Iterator[Stores]:
    """Return three stores without jobs."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield Stores([f"sqlite:///{folder / name}.db?synchronous=NORMAL" for name in SIZES])
        elif kind == "postgres":
            server = stack.enter_context(servers.postgres())
            with psycopg.connect(server.url, autocommit=True) as owner:
                for name in SIZES:
                    owner.execute(f"CREATE DATABASE pages_{name}".encode())
            urls = [re.sub(r"^(\w+://[^/?]*)/?[^?]*", rf"\1/pages_{name}", server.url) for name in SIZES]
            yield Stores(urls, server.pid)
        else:
            server = stack.enter_context(servers.redis())
            base = re.sub(r"/\d*$", "", server.url)
            yield Stores([f"{base}/{number}" for number in (1, 2, 3)], server.pid)


def main() -> int:
    """Measure the stores that were named; fail if a page is too slow."""
    parser = argparse.ArgumentParser(prog="python -m tests.large", description=__doc__)
    parser.add_argument("stores", nargs="+", choices=["sqlite", "postgres", "redis"])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    failed = False
    for kind in options.stores:
        with stores_of(kind) as stores:
            found = asyncio.run(compare(stores, options.jobs))
        show(found)
        failed |= bool(slow(found))
        for path in slow(found):
            print(f"{kind}: {path} takes more than {FACTOR} times as long as on an empty store")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
