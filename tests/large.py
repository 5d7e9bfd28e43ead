"""How long the pages of the dashboard take on a store with very many jobs, and on a small one.

    python -m tests.large sqlite --jobs 1000000
    python -m tests.large postgres redis --jobs 200000

A page without rows says little about one with rows, so the limit is three times the time of the same page of
a store whose pages are full. The jobs are copies of real ones of every state, with ids and keys of their own;
Redis gets them by enqueue_many.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from starlette.applications import Starlette

from onejob import App
from onejob.http import dashboard
from tests import servers
from tests.dashboard.shop import PATHS, Client, fill, make_shop

TIMES = 5  # that each page is asked for
BATCH = 20_000
SMALL = 5000  # jobs that fill every page
NAMES = ("empty", "small", "large")
FACTOR = 3  # how much longer a page may take than that of a small store
NOISE = 0.004  # seconds by which two measurements of the same page differ
COLUMNS = {"id": 0, "chain_id": 12, "key": 17, "stand": 18}  # of onejob_jobs

SEARCHES = (
    *("/jobs?q=state:completed", "/jobs?q=state:discarded", "/jobs?q=task:fetch", "/jobs?q=queue:mail"),
    *(
        "/jobs?q=state:waiting task:sync_customer",
        "/jobs?q=is:holder",
        "/dead?task=embed",
        "/jobs?q=args.number:3",
    ),
    *("/why?q=send_invoice order=7", "/jobs/confirm?act=cancel&q=task:fetch"),
)


# ── many jobs ─────────────────────────────────────────────────────────────────────────────────────


def copies(rows: Sequence[Sequence[Any]], number: int) -> Iterator[tuple[Any, ...]]:
    """Return copies of jobs, with ids and keys of their own, as old as the jobs they are copied from."""
    alone = [row for row in rows if row[COLUMNS["chain_id"]] is None and row[COLUMNS["stand"]] != 1]
    for index in range(number):
        row = list(alone[index % len(alone)])
        unique = uuid4()
        row[COLUMNS["id"]] = f"{row[COLUMNS['id']][:14]}{str(unique)[14:]}"
        if row[COLUMNS["key"]] is not None:
            row[COLUMNS["key"]] = unique.bytes * 2
        yield tuple(row)


def multiply_sqlite(path: str, number: int) -> None:
    """Copy the jobs of a file."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM onejob_jobs").fetchall()
        marks = ", ".join("?" * len(rows[0]))
        with connection:
            connection.executemany(f"INSERT INTO onejob_jobs VALUES ({marks})", copies(rows, number))  # noqa: S608
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def multiply_postgres(url: str, number: int) -> None:
    """Copy the jobs of a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("SELECT * FROM onejob_jobs").fetchall()
        with connection.cursor() as cursor, cursor.copy("COPY onejob_jobs FROM STDIN") as copy:
            for row in copies(rows, number):
                copy.write_row(row)
        connection.execute("ANALYZE")


async def multiply(app: App, number: int) -> None:
    """Make an app's jobs very many."""
    kind = app.guarantees().store
    if kind == "sqlite":
        return await asyncio.to_thread(
            multiply_sqlite, app.url.removeprefix("sqlite:///").partition("?")[0], number
        )
    if kind == "postgresql":
        return await asyncio.to_thread(multiply_postgres, app.url, number)
    fetch, held = app.tasks["fetch"], app.tasks["sync_customer"]
    for first in range(0, number, BATCH):
        some = range(first, min(first + BATCH, number))
        await app.enqueue_many([held.call(one) if one % 2 else fetch.call(one) for one in some])
    return None


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def running(site: Starlette) -> AsyncIterator[Client]:
    """Run a site with its regular counting, and return a client of it once there is a first count."""
    async with site.router.lifespan_context(site):
        client = Client(site)
        await client.text("/")
        yield client


async def measure(app: App) -> dict[str, float]:
    """Return how long each page takes, in seconds."""
    found = {}
    async with running(dashboard(app)) as client:
        for name, path in await pages(app):
            took = []
            for _ in range(TIMES):
                began = time.perf_counter()
                response = await client.get(path)
                took.append(time.perf_counter() - began)
                assert response.status_code in {200, 404, 503}, (path, response.text)
            found[name] = statistics.median(took)
    return found


async def pages(app: App) -> list[tuple[str, str]]:
    """Return every page, with those of a job, a key and a chain."""
    letter = next(iter(await app.jobs(state="discarded", limit=1)), None)
    holder = next(iter(await app.jobs(task="sync_customer", limit=1)), None)
    own = {
        "/jobs/{id}": f"/jobs/{letter.id if letter else uuid4()}",
        "/keys/{key}": f"/keys/{holder.key.hex() if holder and holder.key else 'ab' * 32}",
        "/chains/{id}": f"/chains/{letter.chain_id if letter else uuid4()}",
        "/why?q={id}": f"/why?q={letter.id if letter else uuid4()}",
    }
    return [*((path, path) for path in (*PATHS, *SEARCHES, "/metrics")), *own.items()]


Figures = dict[str, tuple[float, float, float]]  # of an empty, a small and a large store


async def compare(urls: Sequence[str], jobs: int) -> Figures:
    """Return how long each page takes on an empty store, a small one, and one with very many jobs."""
    found = []
    for url, number in zip(urls, (0, SMALL, jobs), strict=True):
        async with make_shop(url) as app:
            await app.stats()
            if number:
                await fill(app)
                began = time.perf_counter()
                await multiply(app, number)
                print(
                    f"{app.guarantees().store}: {number:,} jobs in {time.perf_counter() - began:.0f} s",
                    flush=True,
                )
            found.append(await measure(app))
    return {path: (found[0][path], found[1][path], found[2][path]) for path in found[0]}


def slow(found: Figures) -> list[str]:
    """Return the pages that take more than FACTOR times as long as on a small store."""
    return [path for path, (_, small, large) in found.items() if large > FACTOR * small + NOISE]


def show(found: Figures) -> None:
    """Print a table."""
    print(f"{'page':44} {'empty':>9} {'small':>9} {'large':>9} {'ratio':>6}")
    for path, (empty, small, large) in found.items():
        figures = " ".join(f"{one * 1000:6.1f} ms" for one in (empty, small, large))
        print(f"{path:44} {figures} {large / small:6.1f}")


@contextlib.contextmanager
def stores(kind: str) -> Iterator[list[str]]:
    """Return the URLs of three stores without jobs."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield [f"sqlite:///{folder / name}.db?synchronous=NORMAL" for name in NAMES]
        elif kind == "postgres":
            url = stack.enter_context(servers.postgres()).url
            with psycopg.connect(url, autocommit=True) as owner:
                for name in NAMES:
                    owner.execute(f"CREATE DATABASE pages_{name}".encode())
            yield [re.sub(r"^(\w+://[^/?]*)/?[^?]*", rf"\1/pages_{name}", url) for name in NAMES]
        else:
            url = stack.enter_context(servers.redis()).url.rstrip("/")
            base = re.sub(r"/\d+$", "", url)
            yield [f"{base}/{number}" for number in (1, 2, 3)]


def main() -> int:
    """Measure the stores that were named; fail if a page is too slow."""
    parser = argparse.ArgumentParser(prog="python -m tests.large", description=__doc__)
    parser.add_argument("stores", nargs="+", choices=["sqlite", "postgres", "redis"])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    failed = False
    for kind in options.stores:
        with stores(kind) as urls:
            found = asyncio.run(compare(urls, options.jobs))
        show(found)
        failed |= bool(slow(found))
        for path in slow(found):
            print(f"{kind}: {path} takes more than {FACTOR} times as long as on a small store")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
