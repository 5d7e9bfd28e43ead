"""A move that is killed between any two writes, and at random moments, loses nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from onejob import App, Job, Unique
from tests.chaos.children import PATIENCE, ROOT
from tests.contract.steps import absorbed, complete, everything, fail, lease, snooze

pytestmark = [pytest.mark.races, pytest.mark.timeout(600)]

RECEIVERS = 8
SIZE_UP = 1  # writes: the time that a process takes until it begins to move
KILLS = 4


@pytest.fixture(params=["sqlite to postgres", "postgres to redis", "redis to sqlite"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return the URLs of an old and a new store."""

    def url(name: str) -> str:
        sqlite = f"sqlite:///{tmp_path / 'jobs.db'}"
        return sqlite if name == "sqlite" else str(request.getfixturevalue(f"{name}_url"))

    old, new = request.param.split(" to ")
    return url(old), url(new)


@pytest.fixture
async def apps(urls: tuple[str, str]) -> AsyncIterator[tuple[App, App]]:
    """Open an app on each store."""
    async with App(urls[0]) as old, App(urls[1]) as new:
        yield old, new


async def fill(app: App) -> list[Job]:
    """Store waiting jobs, successors, dead letters, marks and counts; return all jobs that must be moved."""

    @app.task(unique=Unique.latest(by="to", version="seq"))
    async def send(to: int, seq: int) -> None: ...

    for number in range(RECEIVERS):
        await send.enqueue(number, 2)
    for job in await lease(app, total=2):
        await send.enqueue(job.arguments["to"], 3)  # a successor
        await send.enqueue(job.arguments["to"], 1)  # stale, and counted
        await snooze(app, job, 3600)
    for job in await lease(app, total=2):
        await fail(app, job, final=True)
    for job in await lease(app, total=2):
        await complete(app, job)  # its mark is needed
    return await everything(app)


def start_mover(old: str, new: str, writes: int) -> subprocess.Popen[bytes]:
    """Start a process that moves, and dies before a write unless `writes` is 0."""
    return subprocess.Popen([sys.executable, "-m", "tests.chaos.mover", old, new, str(writes)], cwd=ROOT)


def kill_after(mover: subprocess.Popen[bytes], seconds: float) -> int:
    """Kill a process after some time, unless it has ended before; return its exit code."""
    try:
        return mover.wait(seconds)
    except subprocess.TimeoutExpired:
        mover.kill()
        return mover.wait(PATIENCE)


async def check(jobs: Sequence[Job], old: App, new: App) -> None:
    """Check that every job is in at least one of the stores, as it was."""
    there = {job.id: job for job in await everything(new)}
    here = {job.id: job for job in await everything(old)}
    assert [there.get(job.id) or here.get(job.id) for job in jobs] == list(jobs)


async def test_a_move_that_is_killed_before_each_write_loses_nothing(
    urls: tuple[str, str], apps: tuple[App, App]
) -> None:
    old, new = apps
    jobs = await fill(old)
    kills = 0
    for writes in count(1):
        code = start_mover(*urls, writes).wait(PATIENCE)
        await check(jobs, old, new)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills > 5
    assert await everything(old) == []
    assert await everything(new) == jobs
    assert await absorbed(new) == {"rerun": 2, "stale": 2}


async def test_a_move_that_is_killed_at_random_moments_loses_nothing(
    urls: tuple[str, str], apps: tuple[App, App], chance: random.Random
) -> None:
    old, new = apps
    jobs = await fill(old)
    began = time.monotonic()
    assert start_mover(*urls, SIZE_UP).wait(PATIENCE) == -signal.SIGKILL
    took = time.monotonic() - began
    for _ in range(KILLS):
        kill_after(start_mover(*urls, 0), chance.uniform(0.7, 1.1) * took)
        await check(jobs, old, new)
    assert start_mover(*urls, 0).wait(PATIENCE) == 0
    assert await everything(old) == []
    assert await everything(new) == jobs
