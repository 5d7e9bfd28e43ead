"""Workers whose tasks run in processes: kill -9 loses no job, ends none twice, leaves no process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from onejob import State
from tests.chaos.children import PATIENCE, ROOT, eventually, is_alive
from tests.journal import read

pytestmark = [pytest.mark.races, pytest.mark.timeout(600)]

CRUNCH = "tests.system.crunch"
SHORT = (
    "3s"  # for workers whose jobs others have to take over; a busy machine may delay a renewal by a second
)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def crunch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Import the app on a store that other processes can open."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    monkeypatch.setenv("CRUNCH_URL", url)
    monkeypatch.setenv("CRUNCH_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, CRUNCH, raising=False)
    module = import_module(CRUNCH)
    async with module.app:
        yield module


class Crew:
    """A worker that the command line starts."""

    def __init__(self, folder: Path, *options: str, lease: str) -> None:
        self.errors = folder / f"errors-{time.monotonic_ns()}"
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onejob", "worker", f"{CRUNCH}:app", "--lease", lease, *options],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def children(self) -> set[int]:
        """Return the pids of its child processes, whichever thread started them."""
        listed = Path(f"/proc/{self.pid}/task").glob("*/children")
        return {int(pid) for children in listed for pid in children.read_text().split()}

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to its whole group, as a terminal does, and return its exit code."""
        os.killpg(self.pid, number)
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self._process.poll() is None:
            self.kill()


@contextmanager
def working(folder: Path, *options: str, lease: str = "60s") -> Iterator[Crew]:
    """Run a worker for the length of a block."""
    crew = Crew(folder, *options, lease=lease)
    try:
        yield crew
    finally:
        crew.close()


def noted(folder: Path, name: str) -> int:
    """Wait for the process id that a run notes, and return it."""
    eventually((folder / name).exists, f"a run notes {name}")
    return int((folder / name).read_text())


def journal(folder: Path, event: str) -> Counter[int]:
    """Count starts or ends by the number of the job."""
    return Counter(note["n"] for note in read(folder / "journal") if note["event"] == event)


async def test_no_process_outlives_a_worker_that_was_killed(crunch: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "computing.pipe")
    computing = await crunch.hold_the_gil_at_first.enqueue("computing")
    with working(tmp_path, "--concurrency", "2", lease=SHORT) as first:
        busy = noted(tmp_path, "computing")
        idle = await (await crunch.where.enqueue()).result(PATIENCE)
        assert first.children() == {busy, idle}
        first.kill()
        wait_for_ends({busy, idle})
        held_until = (await crunch.app.job(computing.job.id)).lease_until
        assert held_until > crunch.app._engine.store.now(), (
            "the process ran on when another worker could have the job"
        )
    with working(tmp_path) as second:
        assert await computing.result(PATIENCE) == "attempt 2"
        assert second.end() == 0
    job = await crunch.app.job(computing.job.id)
    assert (job.state, job.attempt, job.token) == (State.COMPLETED, 2, 2)
    assert [failure["type"] for failure in job.failures] == ["LeaseExpired"]


async def test_a_killed_process_costs_its_own_job_an_attempt(crunch: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "computing.pipe")
    computing = await crunch.hold_the_gil_at_first.enqueue("computing")
    with working(tmp_path) as crew:
        victim = noted(tmp_path, "computing")
        others = [await crunch.write_down.enqueue(n, 0.3) for n in range(3)]
        eventually(lambda: len(journal(tmp_path, "start")) == 3, "the others run")
        os.kill(victim, signal.SIGKILL)
        assert await computing.result(PATIENCE) == "attempt 2"
        assert [await other.result(PATIENCE) for other in others] == [0, 1, 2]
        children = crew.children()
        assert victim not in children
        assert crew.end() == 0
    assert [pid for pid in children if is_alive(pid)] == []
    assert journal(tmp_path, "start") == journal(tmp_path, "end") == {0: 1, 1: 1, 2: 1}
    [failure] = (await crunch.app.job(computing.job.id)).failures
    assert failure["message"] == "the process that ran it ended with signal 9 (Killed)"


async def test_many_kills_of_workers_and_processes_lose_no_job(
    crunch: Any, tmp_path: Path, chance: random.Random
) -> None:
    asked = await crunch.app.enqueue_many([crunch.write_down.call(n, 0.02) for n in range(60)])
    seen: set[int] = set()
    for both in (True, False, True, False):
        with working(tmp_path, "--concurrency", "3", lease=SHORT) as crew:
            wait_for_starts(tmp_path, 5)
            if both:
                os.kill(chance.choice(sorted(crew.children())), signal.SIGKILL)
                wait_for_starts(tmp_path, 5)
            seen |= crew.children()
            crew.kill()
        wait_for_ends(seen)
    with working(tmp_path, "--concurrency", "3") as crew:
        assert [await one.result(PATIENCE) for one in asked] == list(range(60))
        seen |= crew.children()
        assert crew.end() == 0
    assert [pid for pid in seen if is_alive(pid)] == []
    starts, ends = journal(tmp_path, "start"), journal(tmp_path, "end")
    for n, one in enumerate(asked):
        job = await crunch.app.job(one.job.id)
        assert job.state is State.COMPLETED
        assert 1 <= ends[n] <= starts[n] <= job.attempt


def wait_for_starts(folder: Path, more: int) -> None:
    """Wait until this many more runs have started."""
    enough = sum(journal(folder, "start").values()) + more
    eventually(lambda: sum(journal(folder, "start").values()) >= enough, f"{enough} starts")


def wait_for_ends(pids: set[int]) -> None:
    """Wait until processes have ended."""
    eventually(lambda: not any(is_alive(pid) for pid in pids), "the processes end")


async def test_ctrl_c_lets_the_processes_end_their_jobs(crunch: Any, tmp_path: Path) -> None:
    asked = await crunch.write_down.enqueue(7, 1)
    with working(tmp_path) as crew:
        eventually(lambda: journal(tmp_path, "start") == {7: 1}, "the run starts")
        children = crew.children()
        assert crew.end(signal.SIGINT) == 0
    assert [pid for pid in children if is_alive(pid)] == []
    job = await crunch.app.job(asked.job.id)
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
    assert "INFO crunch: number 7 is written down" in crew.errors.read_text()


async def test_a_thread_that_blocks_its_worker_loses_the_job_but_does_no_harm(
    crunch: Any, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "starving.pipe")
    with working(tmp_path, lease=SHORT) as first:
        asked = await crunch.starve_the_worker_at_first.enqueue("starving")
        assert noted(tmp_path, "starving") == first.pid
        with working(tmp_path):
            assert await asked.result(PATIENCE) == "attempt 2"
            done = await crunch.app.job(asked.job.id)
            os.close(os.open(tmp_path / "starving.pipe", os.O_WRONLY))
            eventually(lambda: "its result is dropped" in first.errors.read_text(), "the first logs it")
    assert await crunch.app.job(asked.job.id) == done
    assert (done.state, done.attempt, done.token) == (State.COMPLETED, 2, 2)
