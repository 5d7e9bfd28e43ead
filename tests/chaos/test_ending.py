"""SIGTERM ends `onejob worker` within the grace time and ten seconds, whatever the store and handlers do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from onejob import App, Job, Retry, State, Task
from tests.chaos.children import eventually
from tests.chaos.proxy import Proxy, through

pytestmark = pytest.mark.timeout(120)

GRACE = 1.0
PROMISE = GRACE + 10

SHOP = '''
import asyncio
import contextlib
import os
import time
from pathlib import Path

from onejob import App, Retry



async def last_for_ever():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@contextlib.asynccontextmanager
async def lifespan(app):
    yield {}
    if ENDLESS == "lifespan":
        await last_for_ever()


ENDLESS = os.environ.get("ENDLESS")
app = App(os.environ["SHOP_URL"], lifespan=lifespan)


@app.on("completed")
async def hear(event):
    if ENDLESS == "hook":
        await last_for_ever()


@app.task
async def gated():
    """End when the gate is open."""
    Path("begun").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)


@app.task
async def swallow():
    """Ignore every cancellation."""
    Path("begun").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@app.task
def block():
    """Occupy a thread."""
    Path("begun").touch()
    time.sleep(3600)


@app.task
async def block_loop():
    """Let nothing else run in the process."""
    Path("begun").touch()
    time.sleep(3600)


ERRORS = {"KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit, "SystemExit": SystemExit}


@app.task(retry=Retry(attempts=2, base=0))
async def fail(name: str):
    raise ERRORS[name]


@app.task(retry=Retry(attempts=2, base=0))
def fail_in_thread(name: str):
    raise ERRORS[name]


if __name__ == "__main__":
    app.run_worker(grace="1s")
'''


class Worker:
    """A worker process."""

    def __init__(self, folder: Path, url: str, *command: str, env: Mapping[str, str]) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "SHOP_URL": url, **env}, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        """Return what it has printed and logged."""
        return self._log.read_text()

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait for its end as long as is promised, and return its exit code."""
        began = time.monotonic()
        try:
            return self._process.wait(PROMISE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker still runs {time.monotonic() - began:.1f} s after SIGTERM:\n{self.log}")

    def close(self) -> None:
        """Kill it if it still runs."""
        self.kill()


COMMANDS = {
    "command": (sys.executable, "-m", "onejob", "worker", "shop:app", "--grace", f"{GRACE}s"),
    "run_worker": (sys.executable, "shop.py"),
}


@contextmanager
def started(
    folder: Path,
    url: str,
    how: str = "command",
    options: Sequence[str] = (),
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Worker]:
    """Start a worker in a process, and leave none behind."""
    (folder / "shop.py").write_text(SHOP)
    worker = Worker(folder, url, *COMMANDS[how], *options, env=env)
    try:
        yield worker
    finally:
        worker.close()


def begun(folder: Path) -> None:
    """Wait until a handler has begun."""
    eventually((folder / "begun").exists, "a handler begins")


async def absent() -> None:
    """Never called: this process only enqueues."""


async def absent_by_name(name: str) -> None:
    """Never called."""


async def enqueued(url: str, task: str, *arguments: str) -> Job:
    """Enqueue one job of the shop from this process."""
    async with App(url) as app:
        function = absent_by_name if arguments else absent
        declared: Task[..., None] = app.task(name=task, retry=Retry(attempts=2, base=0))(function)
        return (await declared.enqueue(*arguments)).job


async def found(url: str, job: Job) -> Job:
    """Return a job as the store has it."""
    async with App(url) as app:
        return await app.job(job.id)


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["postgres", "redis"])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str, str]]:
    """Yield a proxy, the URL that leads through it, and the URL of the server."""
    url = request.getfixturevalue(f"{request.param}_url")
    with through(url) as (proxy, shown):
        yield proxy, shown, url


@pytest.mark.parametrize("how", ["down", "silent"])
async def test_a_worker_that_cannot_write_a_result_ends(
    proxied: tuple[Proxy, str, str], tmp_path: Path, how: str
) -> None:
    proxy, url, direct = proxied
    job = await enqueued(direct, "gated")
    with started(tmp_path, url) as worker:
        begun(tmp_path)
        if how == "down":
            proxy.close()
        else:
            proxy.silence(new=True)
        (tmp_path / "gate").touch()
        await asyncio.sleep(0.5)  # the result waits to be written
        worker.terminate()
        assert worker.end() == 0
        assert "their leases expire, jobs: 1" in worker.log
    assert (await found(direct, job)).state is State.ACTIVE  # until its lease expires


async def test_a_worker_in_the_users_process_ends(redis_url: str, tmp_path: Path) -> None:
    with through(redis_url) as (proxy, url):
        await enqueued(redis_url, "gated")
        with started(tmp_path, url, "run_worker") as worker:
            begun(tmp_path)
            proxy.silence(new=True)
            worker.terminate()
            assert worker.end() == 0


# ── handlers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.mark.parametrize("task", ["swallow", "block"])
async def test_a_handler_that_does_not_stop_is_handed_back(url: str, tmp_path: Path, task: str) -> None:
    await check_hand_back(url, tmp_path, task, "command")


@pytest.mark.parametrize("task", ["swallow", "block"])
async def test_a_handler_in_the_users_process_is_handed_back(tmp_path: Path, task: str) -> None:
    await check_hand_back(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, task, "run_worker")


@pytest.mark.parametrize("how", ["command", "run_worker"])
async def test_a_handler_that_blocks_the_event_loop_does_not_keep_the_process(
    tmp_path: Path, how: str
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    job = await enqueued(url, "block_loop")
    with started(tmp_path, url, how) as worker:
        begun(tmp_path)
        worker.terminate()
        assert worker.end() == 1
        assert "the process ends before its worker: a job blocks the event loop" in worker.log
    assert (await found(url, job)).state is State.ACTIVE  # until its lease expires


@pytest.mark.parametrize("what", ["hook", "lifespan"])
async def test_a_hook_or_lifespan_that_does_not_stop_does_not_keep_the_process(
    tmp_path: Path, what: str
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "gate").touch()
    await enqueued(url, "gated")
    with started(tmp_path, url, env={"ENDLESS": what}) as worker:
        begun(tmp_path)
        await asyncio.sleep(0.5)  # the hook is called
        worker.terminate()
        worker.end()


async def check_hand_back(url: str, folder: Path, task: str, how: str) -> None:
    """Check that a job is available again when its worker has ended."""
    job = await enqueued(url, task)
    with started(folder, url, how) as worker:
        begun(folder)
        worker.terminate()
        assert worker.end() == 0
    left = await found(url, job)
    assert (left.state, left.attempt, left.failures) == (State.AVAILABLE, 0, [])


@pytest.mark.parametrize("task", ["fail", "fail_in_thread"])
async def test_an_error_that_ends_programs_ends_only_its_job(url: str, tmp_path: Path, task: str) -> None:
    names = ("KeyboardInterrupt", "GeneratorExit", "SystemExit")
    failing = [await enqueued(url, task, name) for name in names]
    good = await enqueued(url, "gated")
    with started(tmp_path, url) as worker:
        begun(tmp_path)
        async with App(url) as app:
            while not all(job.is_terminal for job in await app.jobs(task=task)):  # noqa: ASYNC110 - they end in another process
                await asyncio.sleep(0.05)
        (tmp_path / "gate").touch()
        worker.terminate()
        assert worker.end() == 0
    for job, name in zip(failing, names, strict=True):
        ended = await found(url, job)
        assert (ended.state, ended.attempt) == (State.DISCARDED, 2)
        assert [failure["type"] for failure in ended.failures] == [name, name]
    assert (await found(url, good)).state is State.COMPLETED
