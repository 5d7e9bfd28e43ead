"""Workers killed at every point of a handler's transaction: each job's effect is there exactly once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from onejob import State
from onejob.core.job import INCOMPLETE
from tests.chaos.children import PATIENCE, Child, check_sqlite_file, kill, running
from tests.chaos.payments import OPEN_ACCOUNT, POINTS, TABLES, Payments, connect, following
from tests.chaos.roles import Shop
from tests.journal import read

pytestmark = [pytest.mark.races, pytest.mark.timeout(900)]

ROUNDS, PROCESSES = 42, 1 + len(POINTS)  # 210 kills
JOBS = 40  # new ones per round
FEW = 10  # fewer unfinished jobs than this might not let every worker reach the point where it dies

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
async def payments(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Payments]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if sqlite else request.getfixturevalue("postgres_url")
    (tmp_path / "url").write_text(url)
    shop = Shop(tmp_path)
    async with shop.app:
        shop.app.maintenance.migrate()
        with closing(connect(url)) as connection:
            for sql in (*TABLES, OPEN_ACCOUNT):
                connection.execute(sql)
        yield Payments(shop, {})


@pytest.fixture
def database(payments: Payments) -> Iterator[Any]:
    """Connect beside onejob, to read jobs and payments in one statement."""
    with closing(connect(payments.url)) as connection:
        yield connection


class Customers:
    """Enqueue payments, and count them."""

    def __init__(self, payments: Payments) -> None:
        self._payments = payments
        self._numbers = count()
        self.asked: list[int] = []

    async def ask(self, number: int) -> None:
        """Enqueue this many payments, which take turns between the three tasks."""
        new = list(islice(self._numbers, number))
        tasks = self._payments.tasks
        await self._payments.app.enqueue_many([tasks[n % 3].call(n) for n in new])
        self.asked += new

    async def ask_if_few_are_left(self) -> None:
        """Enqueue more if the workers have nearly run out of work."""
        if len(await self._payments.app.jobs(state=INCOMPLETE, limit=FEW)) < FEW:
            await self.ask(FEW)


async def kill_at_every_point(forker: Child, customers: Customers, chance: random.Random) -> list[int]:
    """Start workers that die at a point each, and one to kill at a random moment; return how they ended."""
    worker = {"role": "payer", "lease": "500ms", "sweep": "0.1", "concurrency": "4"}
    deaths = [{"dies": point, "turn": str(chance.randint(1, 6))} for point in POINTS]
    forker.write(json.dumps([worker, *(worker | death for death in deaths)]))
    pids: list[int] = json.loads(await asyncio.to_thread(forker.read))
    ended = asyncio.create_task(asyncio.to_thread(forker.read))
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.sleep(chance.uniform(0, 0.8))
            kill(pids[0])
            while not ended.done():
                await customers.ask_if_few_are_left()
                await asyncio.wait([ended], timeout=0.1)
    finally:
        if not ended.done():
            kill(*pids)
    ends: list[int] = json.loads(await ended)
    return ends


async def test_two_hundred_kills_leave_every_effect_exactly_once(
    payments: Payments, database: Any, tmp_path: Path, chance: random.Random
) -> None:
    customers = Customers(payments)
    with running(tmp_path, {"role": "forker"}) as [forker]:
        for _ in range(ROUNDS):
            await customers.ask(JOBS)
            assert await kill_at_every_point(forker, customers, chance) == [-signal.SIGKILL] * PROCESSES
            if (tmp_path / "jobs.db").exists():
                check_sqlite_file(tmp_path)
            assert database.execute(UNPAID).fetchall() == []

    async with payments.app.worker(lease="10s"), asyncio.timeout(PATIENCE):
        while await payments.app.jobs(state=INCOMPLETE, limit=1):  # noqa: ASYNC110 - a worker has no event for it
            await asyncio.sleep(0.05)
    assert database.execute(UNPAID).fetchall() == []
    jobs = await payments.app.jobs(limit=1_000_000)
    followed = [following(n) for n in customers.asked if n % 3 == 0]
    assert Counter(job.arguments["n"] for job in jobs) == Counter([*customers.asked, *followed])
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {job.id: job.arguments["n"] for job in jobs} == dict(database.execute("SELECT job, n FROM ledger"))
    assert all(job.result == str(job.arguments["n"]).encode() for job in jobs)
    deaths = Counter(line["died_at"] for line in read(tmp_path / "acks"))
    assert deaths == dict.fromkeys(POINTS, ROUNDS)
    assert max(job.attempt for job in jobs) > 1


# ── fork ──────────────────────────────────────────────────────────────────────────────────────────

FORK = """
import asyncio, os, sys, threading, time
from onejob import App
from onejob.stores.sqlite.store import SQLiteStore

# A fork inside the transaction cannot have the lock in any time; one beside it has to wait for the lock.
store = SQLiteStore(sys.argv[2], admission_timeout=0.3 if sys.argv[1] == "inside" else 60)
task = App(store=store).task(name="task")(lambda n: None)
task.enqueue_sync(0)
inside, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # registered last, so it runs first


def hold():
    with store.transaction_sync() as connection:
        connection.execute("CREATE TABLE ledger (n INTEGER)")
        inside.set()
        if sys.argv[1] == "inside":
            fork()
        forking.wait()
        time.sleep(0.1)  # a fork beside this block has to wait for its end


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
assert store._open().version() > 0
"""


@pytest.mark.parametrize("where", ["inside", "beside"])
def test_a_fork_waits_for_a_transaction_and_breaks_nothing(where: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, where, str(tmp_path / "jobs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
