"""A worker that is killed or stopped is reported within two heartbeats, and its liveness file goes stale."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onejob import App, Finding
from onejob.engine.presence import HEARTBEAT, SILENT_AFTER
from tests.chaos.children import eventually
from tests.chaos.test_ending import started
from tests.chaos.test_presence import workers

pytestmark = pytest.mark.timeout(180)

SLACK = 15.0  # seconds: of a machine that is busy with other tests
ONEJOB = str(Path(sys.executable).with_name("onejob"))


def failures(url: str) -> list[Finding]:
    """Return what is not well, by an app that knows the store only."""

    async def ask() -> list[Finding]:
        async with App(url) as app:
            return [one for one in await app.maintenance.health() if one.level == "fail"]

    return asyncio.run(ask())


def is_live(path: Path, *, max_age: str) -> bool:
    """Return whether the probe command succeeds."""
    command = [ONEJOB, "health", "--liveness-file", str(path), "--max-age", max_age]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_is_reported(tmp_path: Path, number: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with started(tmp_path, url) as worker:
        eventually(lambda: bool(workers(url)), "the worker has reported")
        assert failures(url) == []
        os.kill(worker.pid, number)
        began = time.monotonic()
        eventually(lambda: bool(failures(url)), "the worker is reported")
        took = time.monotonic() - began
        [finding] = failures(url)
    assert finding.check == "workers"
    assert f":{worker.pid}:" in finding.message
    assert took < SILENT_AFTER.total_seconds() + SLACK


def test_a_liveness_file_goes_stale_while_the_worker_hangs_and_is_removed_at_its_end(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "alive"
    age = f"{HEARTBEAT.total_seconds() + SLACK}s"
    with started(tmp_path, url, options=["--liveness-file", str(path)]) as worker:
        eventually(path.exists, "the worker has touched its file")
        assert is_live(path, max_age=age)
        os.kill(worker.pid, signal.SIGSTOP)
        eventually(lambda: not is_live(path, max_age=age), "the file is stale")
        os.kill(worker.pid, signal.SIGCONT)
        eventually(lambda: is_live(path, max_age=age), "the worker goes on")
        worker.terminate()
        assert worker.end() == 0
    assert not path.exists()
    assert not is_live(path, max_age=age)
