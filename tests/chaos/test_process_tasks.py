"""Workers whose tasks run in processes: kill -9 loses no job, ends none twice, and leaves nobody behind."""

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
from tests.chaos.test_processes import PATIENCE, ROOT, eventually
from tests.journal import read

pytestmark = pytest.mark.races

CRUNCH = "tests.system.crunch"
LEASE = "3s"  # a busy machine may keep a worker from renewing for a second or two


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def crunch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Import the app on a store that other processes reach."""
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
    """A worker of the command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.errors = folder / f"errors-{time.monotonic_ns()}"
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onejob", "worker", f"{CRUNCH}:app", "--lease", LEASE, *options],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def children(self) -> set[int]:
        """Look up who was started by it, in any of its threads."""
        listed = Path(f"/proc/{self.pid}/task").glob("*/children")
        return {int(pid) for children in listed for pid in children.read_text().split()}

    def kill(self) -> None:
        """Kill it as the kernel would."""
        self._process.kill()
        self._process.wait()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send its whole group a signal, as a terminal does, and tell how it ended."""
        os.killpg(self.pid, number)
        return self._process.wait(PATIENCE)

    def make_sure_of_its_end(self) -> None:
        if self._process.poll() is None:
            self.kill()


@contextmanager
def working(folder: Path, *options: str) -> Iterator[Crew]:
    crew = Crew(folder, *options)
    try:
        yield crew
    finally:
        crew.make_sure_of_its_end()


def is_there(pid: int) -> bool:
    """Tell whether a process lives; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def noted(folder: Path, name: str) -> int:
    """Wait for the process id that a run writes down."""
    eventually((folder / name).exists, f"a run notes {name}")
    return int((folder / name).read_text())


def journal(folder: Path, event: str) -> Counter[int]:
    """Count starts or ends per job's number."""
    return Counter(note["n"] for note in read(folder / "journal") if note["event"] == event)


async def test_nobody_outlives_a_worker_that_was_killed(crunch: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "computing.pipe")
    computing = await crunch.hold_the_gil_at_first.enqueue("computing")
    with working(tmp_path, "--concurrency", "2") as first:
        busy = noted(tmp_path, "computing")
        idle = await (await crunch.where.enqueue()).result(PATIENCE)
        assert first.children() == {busy, idle}
        first.kill()
        killed = time.monotonic()
        gone({busy, idle})
        assert time.monotonic() - killed < 1
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
    assert [pid for pid in children if is_there(pid)] == []
    assert journal(tmp_path, "start") == journal(tmp_path, "end") == {0: 1, 1: 1, 2: 1}
    [failure] = (await crunch.app.job(computing.job.id)).failures
    assert failure["message"] == "the process that ran it ended with signal 9 (Killed)"


@pytest.mark.timeout(300)
async def test_many_kills_of_both_lose_no_job(crunch: Any, tmp_path: Path) -> None:
    asked = await crunch.app.enqueue_many([crunch.write_down.call(n, 0.02) for n in range(60)])
    seen: set[int] = set()
    for both in (True, False, True, False):
        with working(tmp_path, "--concurrency", "3") as crew:
            started(tmp_path, 5)
            if both:
                os.kill(random.choice(sorted(crew.children())), signal.SIGKILL)
                started(tmp_path, 5)
            seen |= crew.children()
            crew.kill()
        gone(seen)
    with working(tmp_path, "--concurrency", "3") as crew:
        assert [await one.result(PATIENCE) for one in asked] == list(range(60))
        seen |= crew.children()
        assert crew.end() == 0
    assert [pid for pid in seen if is_there(pid)] == []
    starts, ends = journal(tmp_path, "start"), journal(tmp_path, "end")
    for n, one in enumerate(asked):
        job = await crunch.app.job(one.job.id)
        assert job.state is State.COMPLETED
        assert 1 <= ends[n] <= starts[n] <= job.attempt


def started(folder: Path, more: int) -> None:
    """Wait until some more runs have started."""
    enough = sum(journal(folder, "start").values()) + more
    eventually(lambda: sum(journal(folder, "start").values()) >= enough, f"{enough} starts")


def gone(pids: set[int]) -> None:
    """Wait until processes have ended."""
    eventually(lambda: not any(is_there(pid) for pid in pids), "they end")


async def test_ctrl_c_lets_the_processes_end_their_jobs(crunch: Any, tmp_path: Path) -> None:
    asked = await crunch.write_down.enqueue(7, 1)
    with working(tmp_path) as crew:
        eventually(lambda: journal(tmp_path, "start") == {7: 1}, "the run starts")
        children = crew.children()
        assert crew.end(signal.SIGINT) == 0
    assert [pid for pid in children if is_there(pid)] == []
    job = await crunch.app.job(asked.job.id)
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
    assert "INFO crunch: number 7 is written down" in crew.errors.read_text()


async def test_a_thread_that_starves_its_worker_loses_the_job_but_does_no_harm(
    crunch: Any, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "starving.pipe")
    with working(tmp_path) as first:
        asked = await crunch.starve_the_worker_at_first.enqueue("starving")
        assert noted(tmp_path, "starving") == first.pid
        with working(tmp_path):
            assert await asked.result(PATIENCE) == "attempt 2"
            done = await crunch.app.job(asked.job.id)
            os.close(os.open(tmp_path / "starving.pipe", os.O_WRONLY))
            eventually(lambda: "its result is dropped" in first.errors.read_text(), "the first says so")
    assert await crunch.app.job(asked.job.id) == done
    assert (done.state, done.attempt, done.token) == (State.COMPLETED, 2, 2)
