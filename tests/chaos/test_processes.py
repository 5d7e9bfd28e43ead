"""Real processes, started together, killed, stopped, ended and forked: nothing is lost or made twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from onejob import Job, State
from onejob.job import INCOMPLETE
from onejob.stores.contract import Filter
from tests.chaos.actors import RETRY, Shop
from tests.journal import read

pytestmark = pytest.mark.races

ROOT = Path(__file__).parents[2]
WAYS = ("blocking", "together", "blocking", "bulk")
PATIENCE = 60.0  # seconds for what another process is bound to do


# ── the stage ─────────────────────────────────────────────────────────────────────────────────────


class Actor:
    """A process of ours, by its pid."""

    def __init__(self, folder: Path, role: str, **options: Any) -> None:
        given = [f"{name}={value}" for name, value in options.items()]
        self.errors = folder / f"errors-{time.monotonic_ns()}"
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.actors", role, str(folder), *given],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.pid = self._process.pid

    def tell(self, line: str) -> None:
        """Say something to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def hear(self) -> str:
        """Wait for what it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end and tell its exit code."""
        return self._process.wait(PATIENCE)

    def make_sure_of_its_end(self) -> None:
        """Kill it, if it still lives."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def acting(folder: Path, *roles: dict[str, Any]) -> Iterator[list[Actor]]:
    """Start actors, let them go at the same moment, and leave none behind."""
    actors: list[Actor] = []
    try:
        actors += [Actor(folder, **role) for role in roles]
        for actor in actors:
            assert actor.hear() == "ready", actor.errors.read_text()
        for actor in actors:
            actor.tell("go")
        yield actors
    finally:
        for actor in actors:
            actor.make_sure_of_its_end()


def journal(folder: Path, name: str) -> list[dict[str, Any]]:
    """Read what actors noted."""
    return read(folder / name)


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for what another process is bound to do."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)


def wait_for_runs(shop: Shop, number: int) -> None:
    """Wait until so many lines stand in the journal of runs."""
    eventually(lambda: len(journal(shop.folder, "runs")) >= number, f"{number} starts and finishes")


def dismiss(*workers: Actor) -> list[int]:
    """Ask workers to end, and tell how they did."""
    for worker in workers:
        worker.send(signal.SIGTERM)
    return [worker.end() for worker in workers]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    (tmp_path / "url").write_text(url)
    shop = Shop(tmp_path)
    async with shop.app:
        yield shop


async def all_jobs(shop: Shop) -> list[Job]:
    return await shop.app.jobs(limit=1_000_000)


# ── (a) many producers, the same keys ─────────────────────────────────────────────────────────────


async def test_sixteen_producers_of_the_same_keys_make_each_job_once(shop: Shop) -> None:
    roles = [{"role": "same-keys", "keys": 500, "how": WAYS[n % 4]} for n in range(16)]
    with acting(shop.folder, *roles) as producers:
        assert [producer.end() for producer in producers] == [0] * 16

    answers = defaultdict(list)
    for line in journal(shop.folder, "acks"):
        answers[line["args"][0]].append((line["outcome"], line["job"]))
    made = {job.arguments["n"]: job.id for job in await all_jobs(shop)}
    assert len(await all_jobs(shop)) == 500
    assert made.keys() == set(range(500)) == answers.keys()
    for n, told in answers.items():
        assert Counter(told) == {("created", made[n]): 1, ("kept", made[n]): 15}


# ── (b) kill -9 ───────────────────────────────────────────────────────────────────────────────────

ROUNDS, CAST = 20, 10


def round_of_kills(company: Actor, chance: random.Random) -> list[int]:
    """Start workers and producers, kill each at a moment of its own, and tell how they ended."""
    workers = [{"role": "worker", "lease": "500ms", "sweep": "0.1"} for _ in range(4)]
    producers = [{"role": "endless", "how": chance.choice(WAYS)} for _ in range(CAST - 4)]
    company.tell(json.dumps([*workers, *producers]))
    alive: list[int] = json.loads(company.hear())
    chance.shuffle(alive)
    try:
        while alive:
            time.sleep(chance.uniform(0, 0.2))
            os.kill(alive.pop(), signal.SIGKILL)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
    ends: list[int] = json.loads(company.hear())
    return ends


async def check(shop: Shop) -> None:
    """Make sure that every promised job is there, and that no key has two holders or two successors."""
    if (shop.folder / "jobs.db").exists():
        check_the_file(shop.folder)
    jobs = await all_jobs(shop)
    assert {line["job"] for line in journal(shop.folder, "acks")} - {job.id for job in jobs} == set()
    for column in ("held_key", "next_key"):
        keys = Counter(getattr(job, column) for job in jobs)
        assert [key for key, number in keys.items() if key is not None and number > 1] == []


def check_the_file(folder: Path) -> None:
    """Look at the database as the kills left it, on a copy, so that onejob has to recover it by itself."""
    copy = folder / "copy"
    copy.mkdir()
    for name in ("jobs.db", "jobs.db-wal"):
        shutil.copyfile(folder / name, copy / name)
    with closing(sqlite3.connect(copy / "jobs.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    shutil.rmtree(copy)


@pytest.mark.timeout(300)
async def test_two_hundred_kills_lose_nothing(shop: Shop) -> None:
    chance = random.Random()
    with acting(shop.folder, {"role": "company"}) as [company]:
        for _ in range(ROUNDS):
            assert round_of_kills(company, chance) == [-signal.SIGKILL] * CAST
            await check(shop)

    assert await shop.app.store.find(Filter(stranded=True)) == []
    await recover(shop)
    check_ends(await all_jobs(shop), journal(shop.folder, "runs"))
    check_versions(journal(shop.folder, "acks"), journal(shop.folder, "runs"))


async def recover(shop: Shop) -> None:
    """Let a healthy worker bring everything to its end."""
    crew = shop.app.worker(lease="1s")
    async with crew, asyncio.timeout(PATIENCE):
        while await shop.app.jobs(state=INCOMPLETE, limit=1):  # noqa: ASYNC110 - the worker tells nobody
            await asyncio.sleep(0.05)
    assert crew.repaired == 0


def check_ends(jobs: list[Job], runs: list[dict[str, Any]]) -> None:
    """Make sure that every job ended as it should, and ran for it."""
    finished = {line["job"] for line in runs if line["event"] == "finish"}
    starts = Counter(line["job"] for line in runs if line["event"] == "start")
    states = Counter(job.state for job in jobs)
    assert states[State.COMPLETED] > 0
    assert states.keys() <= {State.COMPLETED, State.CANCELLED}, states
    for job in jobs:
        assert job.held_key is None
        assert job.next_key is None
        assert job.attempt <= RETRY.attempts
        if job.state is State.COMPLETED:
            assert job.id in finished
        else:
            assert job.is_superseded
        if job.task == "keep":  # nobody gives it a new budget
            assert starts[job.id] <= job.attempt


def check_versions(acks: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Make sure that of each key the newest version that was promised has run to its end."""
    promised: dict[int, int] = {}
    for line in acks:
        if line["task"] == "latest" and line["outcome"] != "stale":
            n, seq = line["args"]
            promised[n] = max(seq, promised.get(n, 0))
    ran: dict[int, int] = {}
    for line in runs:
        if line["task"] == "latest" and line["event"] == "finish":
            ran[line["n"]] = max(line["seq"], ran.get(line["n"], 0))
    assert promised
    assert {n: seq for n, seq in promised.items() if ran.get(n, 0) < seq} == {}


# ── (c) a worker that sleeps through its lease ────────────────────────────────────────────────────


async def test_the_late_result_of_a_stopped_worker_is_refused(shop: Shop) -> None:
    answer = await shop.stubborn.enqueue(1, 0)
    role = {"role": "worker", "lease": "500ms", "sweep": 0.1}
    with acting(shop.folder, role) as [first]:
        wait_for_runs(shop, 1)
        first.send(signal.SIGSTOP)
        with acting(shop.folder, role) as [second]:
            assert await answer.result(timeout=PATIENCE) == second.pid
            done = await shop.app.job(answer.job.id)
            (shop.folder / "go").touch()
            first.send(signal.SIGCONT)
            eventually(lambda: "was taken over" in first.errors.read_text(), "the first worker says so")
            assert dismiss(first, second) == [0, 0]
    assert await shop.app.job(answer.job.id) == done
    assert (done.state, done.attempt, done.token) == (State.COMPLETED, 2, 2)


# ── (d) SIGTERM ───────────────────────────────────────────────────────────────────────────────────


async def test_sigterm_lets_the_run_end_and_starts_no_other(shop: Shop) -> None:
    running, waiting = [await shop.slow.enqueue(n, 0) for n in (500, 501)]
    with acting(shop.folder, {"role": "worker", "lease": "5s", "concurrency": 1}) as [worker]:
        wait_for_runs(shop, 1)
        assert dismiss(worker) == [0]
    ended, untouched = await shop.app.job(running.job.id), await shop.app.job(waiting.job.id)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 1)
    assert (untouched.state, untouched.attempt, untouched.token) == (State.AVAILABLE, 0, 0)


async def test_sigterm_hands_back_what_outlasts_the_grace_time(shop: Shop) -> None:
    answer = await shop.slow.enqueue(3_600_000, 0)
    role = {"role": "worker", "lease": "5s", "grace": "300ms"}
    with acting(shop.folder, role) as [worker]:
        wait_for_runs(shop, 1)
        told = time.monotonic()
        assert dismiss(worker) == [0]
        assert 0.3 <= time.monotonic() - told < 2.3
    job = await shop.app.job(answer.job.id)
    assert (job.state, job.attempt, job.token, job.failures) == (State.AVAILABLE, 0, 1, [])
    assert job.held_key is not None


async def test_workers_that_come_and_go_spend_no_attempts(shop: Shop) -> None:
    calls = [shop.slow.call(n, 0) for n in range(100, 220)]
    await shop.app.enqueue_many(calls)
    for _ in range(4):
        roles = [{"role": "worker", "lease": "5s", "grace": "50ms"}] * 3
        with acting(shop.folder, *roles) as workers:
            wait_for_runs(shop, len(journal(shop.folder, "runs")) + 1)
            assert dismiss(*workers) == [0] * 3
    await recover(shop)
    jobs = await all_jobs(shop)
    assert Counter((job.state, job.attempt) for job in jobs) == {(State.COMPLETED, 1): len(calls)}
    assert any(job.token > 1 for job in jobs)


# ── (e) fork ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_app_that_was_used_before_a_fork_works_on_both_sides(shop: Shop) -> None:
    with acting(shop.folder, {"role": "both-sides"}) as [parent]:
        assert parent.end() == 0, parent.errors.read_text()
    sides = {line["side"]: line["own"] for line in journal(shop.folder, "acks")}
    assert sides == {"child": "created", "parent": "created"}
    jobs = await all_jobs(shop)
    assert {job.arguments["n"]: job.state for job in jobs} == dict.fromkeys((1, 2, 3), State.COMPLETED)


@pytest.mark.parametrize("leaver", ["parent", "child"])
async def test_whoever_closes_first_after_a_fork_takes_nothing_away(shop: Shop, leaver: str) -> None:
    with acting(shop.folder, {"role": "outlive", "leaver": leaver}) as [parent]:
        assert parent.end() == 0, parent.errors.read_text()
    acked = {line["job"] for line in journal(shop.folder, "acks")}
    assert len(acked) == 13
    assert {job.id for job in await all_jobs(shop)} == acked
    await check(shop)


async def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(shop: Shop) -> None:
    with acting(shop.folder, {"role": "die"}) as [parent]:
        assert parent.end() == -signal.SIGKILL
        answer = await shop.keep.enqueue(1, 0)
    assert answer.outcome == "created"
