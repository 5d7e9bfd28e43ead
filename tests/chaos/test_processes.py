"""Real processes that start together, are killed, stopped, ended and forked: no job is lost or made twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onejob import Job, State
from onejob.core.job import INCOMPLETE
from onejob.stores.queries import Stranded
from tests.chaos.children import PATIENCE, Child, check_sqlite_file, eventually, freeze, running, stop
from tests.chaos.roles import RETRY, Shop
from tests.journal import read

pytestmark = [pytest.mark.races, pytest.mark.timeout(600)]

WAYS = ("blocking", "together", "blocking", "bulk")


def journal(shop: Shop, name: str) -> list[dict[str, Any]]:
    """Read what child processes noted."""
    return read(shop.folder / name)


def wait_for_runs(shop: Shop, number: int) -> None:
    """Wait until the journal of runs has this many lines."""
    eventually(lambda: len(journal(shop, "runs")) >= number, f"{number} starts and finishes")


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


async def test_sixteen_producers_of_the_same_keys_make_each_job_once(
    shop: Shop, chance: random.Random
) -> None:
    roles = [
        {"role": "same-keys", "keys": 500, "how": WAYS[n % 4], "seed": chance.getrandbits(32)}
        for n in range(16)
    ]
    with running(shop.folder, *roles) as producers:
        assert [producer.end() for producer in producers] == [0] * 16

    answers = defaultdict(list)
    for line in journal(shop, "acks"):
        answers[line["args"][0]].append((line["outcome"], line["job"]))
    made = {job.arguments["n"]: job.id for job in await all_jobs(shop)}
    assert len(await all_jobs(shop)) == 500
    assert made.keys() == set(range(500)) == answers.keys()
    for n, given in answers.items():
        assert Counter(given) == {("created", made[n]): 1, ("kept", made[n]): 15}


# ── (b) kill -9 ───────────────────────────────────────────────────────────────────────────────────

ROUNDS, PROCESSES = 20, 10


def kill_in_random_order(forker: Child, chance: random.Random) -> list[int]:
    """Start workers and producers, kill each at a random moment, and return their exit codes."""
    workers = [{"role": "worker", "lease": "500ms", "sweep": "0.1"} for _ in range(4)]
    producers = [
        {"role": "endless", "how": chance.choice(WAYS), "seed": str(chance.getrandbits(32))}
        for _ in range(PROCESSES - 4)
    ]
    forker.write(json.dumps([*workers, *producers]))
    alive: list[int] = json.loads(forker.read())
    chance.shuffle(alive)
    try:
        while alive:
            time.sleep(chance.uniform(0, 0.2))
            os.kill(alive.pop(), signal.SIGKILL)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
    ends: list[int] = json.loads(forker.read())
    return ends


async def check(shop: Shop) -> None:
    """Check that every acknowledged job exists, and that no key has two holders or two successors."""
    if (shop.folder / "jobs.db").exists():
        check_sqlite_file(shop.folder)
    jobs = await all_jobs(shop)
    assert {line["job"] for line in journal(shop, "acks")} - {job.id for job in jobs} == set()
    stands = Counter((job.key, job.stand) for job in jobs if job.stand is not None)
    assert [key for key, number in stands.items() if number > 1] == []


async def test_two_hundred_kills_lose_nothing(shop: Shop, chance: random.Random) -> None:
    with running(shop.folder, {"role": "forker"}) as [forker]:
        for _ in range(ROUNDS):
            assert kill_in_random_order(forker, chance) == [-signal.SIGKILL] * PROCESSES
            await check(shop)

    assert await shop.app._engine.store.find(Stranded(namespace=shop.app.namespace)) == []
    await recover(shop)
    check_ends(await all_jobs(shop), journal(shop, "runs"))
    check_versions(journal(shop, "acks"), journal(shop, "runs"))


async def recover(shop: Shop) -> None:
    """Let a healthy worker finish every job."""
    crew = shop.app.worker(lease="10s")
    async with crew, asyncio.timeout(PATIENCE):
        while await shop.app.jobs(state=INCOMPLETE, limit=1):  # noqa: ASYNC110 - a worker has no event for it
            await asyncio.sleep(0.05)
    assert crew.repaired == 0


def check_ends(jobs: list[Job], runs: list[dict[str, Any]]) -> None:
    """Check that every job ended as it should, and ran for it."""
    finished = {line["job"] for line in runs if line["event"] == "finish"}
    starts = Counter(line["job"] for line in runs if line["event"] == "start")
    states = Counter(job.state for job in jobs)
    assert states[State.COMPLETED] > 0
    assert states.keys() <= {State.COMPLETED, State.CANCELLED}, states
    for job in jobs:
        assert not job.is_holder
        assert not job.is_successor
        assert job.attempt <= RETRY.attempts
        if job.state is State.COMPLETED:
            assert job.id in finished
        else:
            assert job.is_superseded
        if job.task == "keep":  # no update resets its attempts
            assert starts[job.id] <= job.attempt


def check_versions(acks: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Check that for each key the newest acknowledged version has run to its end."""
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


# ── (c) a worker that is frozen beyond its lease ──────────────────────────────────────────────────


async def test_the_late_result_of_a_stopped_worker_is_refused(shop: Shop) -> None:
    answer = await shop.gated.enqueue(1, 0)
    role = {"role": "worker", "lease": "2s", "sweep": 0.1}
    with running(shop.folder, role) as [first]:
        wait_for_runs(shop, 1)
        freeze(first, shop.folder)
        with running(shop.folder, role) as [second]:
            assert await answer.result(timeout=PATIENCE) == second.pid
            done = await shop.app.job(answer.job.id)
            shop.open_gate()
            first.send(signal.SIGCONT)
            # It may see that its lease is over before it hears that the job was taken over.
            eventually(lambda: "result is dropped" in first.errors.read_text(), "the first worker logs it")
            assert stop(first, second) == [0, 0]
    assert await shop.app.job(answer.job.id) == done
    assert (done.state, done.attempt, done.token) == (State.COMPLETED, 2, 2)


# ── (d) SIGTERM ───────────────────────────────────────────────────────────────────────────────────


async def test_sigterm_lets_the_run_end_and_starts_no_other(shop: Shop) -> None:
    started, waiting = await shop.gated.enqueue(1, 0), await shop.keep.enqueue(2, 0)
    with running(shop.folder, {"role": "worker", "lease": "20s", "concurrency": 1}) as [worker]:
        wait_for_runs(shop, 1)
        worker.send(signal.SIGTERM)
        eventually(lambda: journal(shop, "stops") == [{"pid": worker.pid}], "the worker has the signal")
        shop.open_gate()
        assert worker.end() == 0
    ended, untouched = await shop.app.job(started.job.id), await shop.app.job(waiting.job.id)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 1)
    assert (untouched.state, untouched.attempt, untouched.token) == (State.AVAILABLE, 0, 0)


async def test_sigterm_hands_back_what_outlasts_the_grace_time(shop: Shop) -> None:
    answer = await shop.slow.enqueue(3_600_000, 0)
    role = {"role": "worker", "lease": "20s", "grace": "300ms"}
    with running(shop.folder, role) as [worker]:
        wait_for_runs(shop, 1)
        began = time.monotonic()
        assert stop(worker) == [0]
        assert 0.3 <= time.monotonic() - began < 0.3 + 10  # the promise: grace + 10 s
    job = await shop.app.job(answer.job.id)
    assert (job.state, job.attempt, job.token, job.failures) == (State.AVAILABLE, 0, 1, [])
    assert job.is_holder


async def test_workers_that_come_and_go_spend_no_attempts(shop: Shop) -> None:
    held_up = [shop.gated.call(n, 0) for n in range(5)]  # first in the queue, so that every worker meets some
    calls = [*held_up, *(shop.slow.call(n, 0) for n in range(100, 220))]
    await shop.app.enqueue_many(calls)
    for _ in range(4):
        roles = [{"role": "worker", "lease": "20s", "grace": "50ms"}] * 3
        with running(shop.folder, *roles) as workers:
            wait_for_runs(shop, len(journal(shop, "runs")) + 1)
            assert stop(*workers) == [0] * 3
    shop.open_gate()
    await recover(shop)
    jobs = await all_jobs(shop)
    assert Counter((job.state, job.attempt) for job in jobs) == {(State.COMPLETED, 1): len(calls)}
    assert any(job.token > 1 for job in jobs)


# ── (e) fork ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_app_that_was_used_before_a_fork_works_on_both_sides(shop: Shop) -> None:
    with running(shop.folder, {"role": "both-sides"}) as [parent]:
        assert parent.end() == 0, parent.errors.read_text()
    sides = {line["side"]: line["own"] for line in journal(shop, "acks")}
    assert sides == {"child": "created", "parent": "created"}
    jobs = await all_jobs(shop)
    assert {job.arguments["n"]: job.state for job in jobs} == dict.fromkeys((1, 2, 3), State.COMPLETED)


@pytest.mark.parametrize("closes_first", ["parent", "child"])
async def test_closing_on_one_side_of_a_fork_leaves_the_other_working(shop: Shop, closes_first: str) -> None:
    with running(shop.folder, {"role": "outlive", "closes_first": closes_first}) as [parent]:
        assert parent.end() == 0, parent.errors.read_text()
    acked = {line["job"] for line in journal(shop, "acks")}
    assert len(acked) == 13
    assert {job.id for job in await all_jobs(shop)} == acked
    await check(shop)


async def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(shop: Shop) -> None:
    with running(shop.folder, {"role": "die"}) as [parent]:
        assert parent.end() == -signal.SIGKILL
        answer = await shop.keep.enqueue(1, 0)
    assert answer.outcome == "created"
