"""Workers killed at every point of a handler's transaction: each job's effect is there exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
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
from tests.chaos.payers import OPEN_ACCOUNT, POINTS, TABLES, Till, connect
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
    assert Counter(job.state for job in jobs) == {State.COMPLETED: ROUNDS * JOBS}
    assert {job.id: job.arguments["n"] for job in jobs} == dict(books.execute("SELECT job, n FROM ledger"))
    assert all(job.result == str(job.arguments["n"]).encode() for job in jobs)
    deaths = Counter(line["died_at"] for line in journal(tmp_path, "acks"))
    assert deaths == dict.fromkeys(POINTS, ROUNDS)
    assert max(job.attempt for job in jobs) > 1
