"""Workers killed at every point of a handler's transaction: each job's effect is there exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onejob import State
from onejob.job import INCOMPLETE
from tests.chaos.actors import Shop
from tests.chaos.payers import OPEN_ACCOUNT, POINTS, TABLES, Till, connect, following
from tests.chaos.test_processes import PATIENCE, Actor, acting, check_the_file, journal

pytestmark = [pytest.mark.races, pytest.mark.timeout(600)]

ROUNDS, CAST = 42, 1 + len(POINTS)  # 210 kills
JOBS = 40  # new ones per round

UNPAID = """
SELECT 'completed without its effect', id FROM onejob_jobs
WHERE state = 'completed' AND NOT EXISTS (SELECT 1 FROM ledger WHERE job = id)
UNION ALL
SELECT 'an effect without its completion', job FROM ledger
WHERE job NOT IN (SELECT id FROM onejob_jobs WHERE state = 'completed')
UNION ALL
SELECT 'twice', job FROM ledger GROUP BY job HAVING count(*) > 1
UNION ALL
SELECT 'a wrong balance', CAST(balance AS VARCHAR) FROM account WHERE balance <> (SELECT count(*) FROM ledger)
"""


@pytest.fixture(params=["sqlite", "postgres"])
async def till(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Till]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if sqlite else request.getfixturevalue("postgres_url")
    (tmp_path / "url").write_text(url)
    shop = Shop(tmp_path)
    async with shop.app:
        shop.app.migrate()
        with closing(connect(url)) as connection:
            for sql in (*TABLES, OPEN_ACCOUNT):
                connection.execute(sql)
        yield Till(shop, {})


@pytest.fixture
def books(till: Till) -> Iterator[Any]:
    """Look at jobs and payments together, as one statement sees them."""
    with closing(connect(till.url)) as connection:
        yield connection


def round_of_kills(company: Actor, chance: random.Random) -> list[int]:
    """Start workers that die at a point of their own, and one that is killed at some moment."""
    worker = {"role": "payer", "lease": "500ms", "sweep": "0.1", "concurrency": "4"}
    deaths = [{"dies": point, "turn": str(chance.randint(1, 6))} for point in POINTS]
    company.tell(json.dumps([worker, *(worker | death for death in deaths)]))
    alive: list[int] = json.loads(company.hear())
    guard = threading.Timer(PATIENCE, kill, alive)
    guard.start()
    time.sleep(chance.uniform(0, 0.8))
    kill(alive[0])
    ends: list[int] = json.loads(company.hear())
    guard.cancel()
    return ends


def kill(*pids: int) -> None:
    """Kill processes, as far as they still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_two_hundred_kills_leave_every_effect_exactly_once(
    till: Till, books: Any, tmp_path: Path
) -> None:
    chance = random.Random()
    with acting(tmp_path, {"role": "company"}) as [company]:
        for turn in range(ROUNDS):
            first = turn * JOBS
            calls = [till.tasks[n % 3].call(n) for n in range(first, first + JOBS)]
            await till.app.enqueue_many(calls)
            assert await asyncio.to_thread(round_of_kills, company, chance) == [-signal.SIGKILL] * CAST
            if (tmp_path / "jobs.db").exists():
                check_the_file(tmp_path)
            assert books.execute(UNPAID).fetchall() == []

    async with till.app.worker(lease="1s"), asyncio.timeout(PATIENCE):
        while await till.app.jobs(state=INCOMPLETE, limit=1):  # noqa: ASYNC110 - the worker tells nobody
            await asyncio.sleep(0.05)
    assert books.execute(UNPAID).fetchall() == []
    jobs = await till.app.jobs(limit=1_000_000)
    paid, followed = range(ROUNDS * JOBS), [following(n) for n in range(0, ROUNDS * JOBS, 3)]
    assert Counter(job.arguments["n"] for job in jobs) == Counter([*paid, *followed])
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {job.id: job.arguments["n"] for job in jobs} == dict(books.execute("SELECT job, n FROM ledger"))
    assert all(job.result == str(job.arguments["n"]).encode() for job in jobs)
    deaths = Counter(line["died_at"] for line in journal(tmp_path, "acks"))
    assert deaths == dict.fromkeys(POINTS, ROUNDS)
    assert max(job.attempt for job in jobs) > 1


# ── fork ──────────────────────────────────────────────────────────────────────────────────────────

FORK = """
import asyncio, os, sys, threading, time
from onejob import App
from onejob.stores.sql.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[2], admission_timeout=0.3)
task = App(store=store).task(name="task")(lambda n: None)
task.enqueue_sync(0)
inside = threading.Event()


def hold():
    with store.transaction_now() as connection:
        connection.execute("CREATE TABLE ledger (n INTEGER)")
        inside.set()
        if sys.argv[1] == "inside":
            fork()
        time.sleep(0.1)  # a fork beside it comes meanwhile


def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if sys.argv[1] == "inside" or task.enqueue_sync(1).outcome == "created" else 1)
    assert os.waitpid(child, 0)[1] == 0


block = threading.Thread(target=hold)
block.start()
inside.wait()
if sys.argv[1] == "beside":
    fork()
block.join()
assert task.enqueue_sync(2).outcome == "created"
assert asyncio.run(task.enqueue(3)).outcome == "created"
assert store._open().data_version() > 0
"""


@pytest.mark.parametrize("where", ["inside", "beside"])
def test_a_fork_waits_for_a_block_and_harms_nobody(where: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, where, str(tmp_path / "jobs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
