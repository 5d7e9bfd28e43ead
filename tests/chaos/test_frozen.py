"""A worker that is stopped by SIGSTOP delays the others by at most its lease and five seconds.

SQLite is not here: a stopped process that holds SQLite's write lock cannot be overtaken (docs/operating.md).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onejob import Job, State, Task
from tests.chaos.frozen import shop

ROOT = Path(__file__).parents[2]
LEASE = 2.0
TRIALS = int(os.environ.get("ONEJOB_TRIALS", "2"))  # of each kind; `make races` runs 30
JOBS = 40

pytestmark = [pytest.mark.races, pytest.mark.timeout(60 * TRIALS)]


@contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker in a process of its own, and kill it in the end."""
    command = [sys.executable, "-m", "tests.chaos.frozen", url, f"{LEASE}s"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


@pytest.mark.parametrize("task", ["limited", "single"])
@pytest.mark.parametrize("server", ["postgres", "redis"])
async def test_a_frozen_worker_does_not_stop_the_others(
    request: pytest.FixtureRequest, server: str, task: str, chance: random.Random
) -> None:
    url: str = request.getfixturevalue(f"{server}_url")
    for _ in range(TRIALS):
        await freeze_one(url, task, chance)


async def freeze_one(url: str, name: str, chance: random.Random) -> None:
    """Freeze a worker at a random moment, and check that another one runs everything in time."""
    async with shop(url) as app:
        task: Task[..., int] = app.tasks[name]
        with worker(url) as frozen:
            admissions = await app.enqueue_many([task.call(n) for n in range(JOBS)])
            assert frozen.stdout is not None
            await asyncio.to_thread(frozen.stdout.readline)  # it has started a job
            await asyncio.sleep(chance.uniform(0, 0.2))
            frozen.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            async with app.worker(concurrency=4, lease=f"{LEASE}s"):
                for admission in admissions:
                    await admission.result(timeout=LEASE + 20)
            alone = JOBS * 0.05  # seconds that the jobs need one after the other
            assert time.monotonic() - stopped < LEASE + 5 + alone
            jobs: list[Job] = [await app.job(admission.job.id) for admission in admissions]
            assert {job.state for job in jobs} == {State.COMPLETED}
