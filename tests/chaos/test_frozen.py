"""A worker that is stopped by SIGSTOP, or cut off, delays the others by at most its lease and five seconds.

On SQLite a stopped process that holds the write lock cannot be overtaken (docs/operating.md); it is named.
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

from onejob import App, Job, State, Task
from onejob.errors import AdmissionBusy
from tests.chaos.children import eventually, process_state
from tests.chaos.frozen import shop
from tests.chaos.proxy import through

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


@pytest.mark.parametrize("how", ["stopped", "silent"])
@pytest.mark.parametrize("task", ["limited", "single"])
@pytest.mark.parametrize("server", ["postgres", "redis"])
async def test_a_frozen_worker_does_not_stop_the_others(
    request: pytest.FixtureRequest, server: str, task: str, how: str, chance: random.Random
) -> None:
    url: str = request.getfixturevalue(f"{server}_url")
    for _ in range(TRIALS if how == "stopped" else (TRIALS + 1) // 2):
        await freeze_one(url, task, how, chance)


async def freeze_one(url: str, name: str, how: str, chance: random.Random) -> None:
    """Freeze a worker at a random moment, and check that another one runs everything in time."""
    async with shop(url) as app:
        task: Task[..., int] = app.tasks[name]
        with through(url) as (proxy, its_url), worker(its_url) as frozen:
            admissions = await app.enqueue_many([task.call(n) for n in range(JOBS)])
            assert frozen.stdout is not None
            await asyncio.to_thread(frozen.stdout.readline)  # it has started a job
            await asyncio.sleep(chance.uniform(0, 0.2))
            if how == "stopped":
                frozen.send_signal(signal.SIGSTOP)
            else:
                proxy.silence(new=True)
            stopped = time.monotonic()
            async with app.worker(concurrency=4, lease=f"{LEASE}s"):
                for admission in admissions:
                    await admission.result(timeout=LEASE + 20)
            alone = JOBS * 0.05  # seconds that the jobs need one after the other
            assert time.monotonic() - stopped < LEASE + 5 + alone
            jobs: list[Job] = [await app.job(admission.job.id) for admission in admissions]
            assert {job.state for job in jobs} == {State.COMPLETED}


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────

WRITER = """
import contextlib, os, signal, sqlite3, sys
from pathlib import Path
from onejob.stores.sqlite.write_lock import WriteLock

path, how = sys.argv[1:]
with WriteLock(Path(path), 5) if how == "worker" else contextlib.nullcontext():
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.execute("COMMIT")
"""


@pytest.mark.parametrize("how", ["worker", "console"])
def test_a_stopped_process_that_writes_to_sqlite_is_named(tmp_path: Path, how: str) -> None:
    path = tmp_path / "jobs.db"
    app = App(f"sqlite:///{path}", admission_timeout=0.2)

    @app.task
    def work(n: int) -> None: ...

    work.enqueue_sync(1)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), how]) as writer:
        try:
            eventually(lambda: process_state(writer.pid) == "T", "the process is stopped")
            with pytest.raises(AdmissionBusy, match=f"process {writer.pid}, which is stopped"):
                work.enqueue_sync(2)
            writer.send_signal(signal.SIGCONT)
            assert writer.wait(10) == 0
        finally:
            writer.kill()
    work.enqueue_sync(3)
    assert len(app.jobs_sync()) == 2
    asyncio.run(app.close())
