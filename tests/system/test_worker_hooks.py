"""A worker's lifespan, its start and stop hooks, and hooks that are slow."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onejob import App, Event, WorkerEvent, current
from onejob.engine import hooks
from onejob.errors import InvalidCall, InvalidPolicy
from onejob.testing import drain
from onejob.worker import lifespan as lifespans
from tests.system.live import eventually

PROGRAM = """
import os
from contextlib import asynccontextmanager
from pathlib import Path

from onejob import App, current

HERE = Path(__file__).parent


@asynccontextmanager
async def lifespan(app):
    yield {"opened in": os.getpid()}
    with (HERE / "closed").open("a") as closed:
        print(os.getpid(), file=closed)


app = App(f"sqlite:///{HERE / 'jobs.db'}", lifespan=lifespan)


@app.task(process=True)
def look() -> list[int]:
    return [current().state["opened in"], os.getpid()]


if __name__ == "__main__":
    asked = look.enqueue_sync()
    app.run_worker(drain=True)
    print(*asked.result_sync(30), os.getpid())
"""


# ── the lifespan ──────────────────────────────────────────────────────────────────────────────────


async def test_a_lifespan_is_open_while_a_worker_runs() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def lifespan(opened: App) -> AsyncIterator[dict[str, object]]:
        told.append("opened")
        yield {"app": opened, "pool": "a pool"}
        told.append("closed")

    async with App("memory://", lifespan=lifespan) as app:

        @app.task
        async def use() -> None:
            told.append(str(current().state["pool"]))
            assert current().state["app"] is app

        @app.task
        def use_in_thread() -> None:
            told.append(f"{current().state['pool']} in a thread")

        await use.enqueue()
        await use_in_thread.enqueue()
        app.on("worker_started")(lambda event: told.append(event.kind))
        app.on("worker_stopped")(lambda event: told.append(event.kind))
        await drain(app, concurrency=1)
    assert told == [
        *("opened", "worker_started", "a pool", "a pool in a thread", "worker_stopped", "closed"),
    ]


async def test_without_a_lifespan_the_state_is_empty() -> None:
    async with App("memory://") as app:

        @app.task
        async def look() -> int:
            return len(current().state)

        asked = await look.enqueue()
        await drain(app)
        assert await asked.result(30) == 0


async def test_a_worker_whose_lifespan_cannot_open_does_not_start() -> None:
    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[None]:
        if app.url:
            raise ConnectionError("no pool")
        yield

    async with App("memory://", lifespan=lifespan) as app:
        asked = await app.task(name="use")(len).enqueue("a")
        with pytest.raises(ConnectionError, match="no pool"):
            await drain(app)
        assert (await app.job(asked.job.id)).attempt == 0


async def test_a_lifespan_yields_a_mapping() -> None:
    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[object]:
        yield "a pool"

    async with App("memory://", lifespan=lifespan) as app:  # type: ignore[arg-type]
        with pytest.raises(InvalidPolicy, match=r'yielded str: write yield \{"name": value\}'):
            await drain(app)


async def test_a_lifespan_that_cannot_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[None]:
        yield
        raise ConnectionError("the pool is gone")

    async with App("memory://", lifespan=lifespan) as app:
        await drain(app)
    assert "the lifespan could not be closed" in caplog.text


def test_a_process_of_a_task_has_a_lifespan_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    opened, ran_in, worker = ran.stdout.split()
    assert opened == ran_in != worker
    assert sorted((tmp_path / "closed").read_text().split()) == sorted([ran_in, worker])


# ── start and stop ────────────────────────────────────────────────────────────────────────────────


async def test_hooks_are_called_at_a_workers_start_and_end() -> None:
    heard: list[WorkerEvent] = []
    async with App("memory://") as app:

        @app.on("worker_started")
        @app.on("worker_stopped")
        async def note(event: WorkerEvent) -> None:
            heard.append(event)

        await app.task(name="use")(len).enqueue("a")
        await app.worker(drain=True, name="w", concurrency=3).run()
    started, stopped = heard
    assert (started.kind, started.worker, started.concurrency) == ("worker_started", "w", 3)
    assert (started.queues, started.ended) == ({"default": 3}, {})
    assert (stopped.kind, stopped.ended) == ("worker_stopped", {"completed": 1})


def test_an_unknown_kind_of_event_is_refused() -> None:
    app = App("memory://")
    with pytest.raises(InvalidCall, match="names no event: write one of created, deduplicated"):
        app.on("finished")  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="which cannot be called: write a function"):
        app.on("created")("print")  # type: ignore[type-var]


# ── slow hooks ────────────────────────────────────────────────────────────────────────────────────


async def test_a_hook_that_waits_delays_no_job_and_is_awaited_at_the_end() -> None:
    async with App("memory://") as app:
        ended, heard = asyncio.Event(), list[str]()

        @app.on("started")
        async def wait(event: Event) -> None:
            await ended.wait()  # which happens only if the job runs although this hook waits
            heard.append(event.kind)

        @app.on("completed")
        async def note(event: Event) -> None:
            heard.append(event.kind)

        @app.task
        async def use() -> None:
            ended.set()

        await use.enqueue()
        await drain(app)
        assert heard == ["started", "completed"]


async def test_an_async_hook_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "HOOK_LIMIT", 0.01)
    async with App("memory://") as app:

        @app.on("created")
        async def never(_: Event) -> None:
            await asyncio.Event().wait()

        asked = await app.task(name="use")(len).enqueue("a")
        await drain(app)
        assert await asked.result(30) == 1
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "never failed at created of job" in record.message


async def test_a_worker_waits_when_too_many_hooks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "MOST_WAITING", 5)
    most, gate = 0, asyncio.Event()
    async with App("memory://") as app:

        @app.on("completed")
        async def slow(_: Event) -> None:
            nonlocal most
            await gate.wait()
            most = max(most, app._engine.hooks._waiting)

        async def too_many_wait() -> bool:
            return app._engine.hooks._waiting > 5

        length = app.task(name="use")(len)
        await app.enqueue_many([length.call("a") for _ in range(60)])
        draining = asyncio.create_task(drain(app, concurrency=4))
        await eventually(too_many_wait)
        gate.set()
        await draining
    assert 5 < most <= 5 + 4


# ── how long the end takes ────────────────────────────────────────────────────────────────────────


async def test_a_worker_that_is_hurried_does_not_wait_for_hooks_and_lifespan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespans, "END_WITHIN", 0.05)
    never = asyncio.Event()

    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[None]:
        yield
        await never.wait()

    async with App("memory://", lifespan=lifespan) as app:

        async def wait(_: Event | WorkerEvent) -> None:
            await never.wait()

        app.on("completed")(wait)
        app.on("worker_stopped")(wait)
        asked = await app.task(name="use")(len).enqueue("a")
        async with asyncio.timeout(30):
            async with app.worker(grace="10m") as worker:
                assert await asked.result(30) == 1
                worker.stop(at_once=True)
    assert "hooks were not called in time; calls that are dropped: 1" in caplog.text
    assert "the lifespan could not be closed" in caplog.text
