"""A client whose wall clock is a day off, and steps while it runs, decides nothing by it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onejob import App, State, Unique

CLIENT = """
import asyncio, json, sys, time

off = float(sys.argv[2])
time.time, time.time_ns = (
    lambda real=time.time: real() + off,
    lambda real=time.time_ns: real() + int(off * 1e9),
)

import onejob.stores.contract as contract
from datetime import UTC, datetime, timedelta

contract.utcnow = lambda: datetime.now(UTC) + timedelta(seconds=off)  # before a store imports it
from tests.chaos.test_clock import shop

async def main():
    global off
    app, keyed, late, _ = shop(sys.argv[1])
    async with app, app.worker(queues=("default",), lease=2):
        while True:
            await app.maintenance.sweep()
            again, later = await keyed.enqueue(1), await late.options(delay="1h").enqueue()
            print(json.dumps([again.outcome, later.job.run_at.timestamp()]), flush=True)
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                return
            off = float(line)

asyncio.run(main())
"""
DAY = 86400


def shop(url: str) -> Any:
    """Return an app with a held key, a delayed job, and a job that a worker keeps."""
    app = App(url)
    app.queue("kept")
    gate = asyncio.Event()

    @app.task(unique=Unique(by="n", until="forever", within="1h"))
    async def keyed(n: int) -> None: ...

    @app.task
    async def late() -> None: ...

    @app.task(queue="kept")
    async def long() -> None:
        await gate.wait()

    return app, keyed, late, (long, gate)


def client_of(url: str, begins: int) -> subprocess.Popen[str]:
    """Start a client whose clock is so many seconds off, and is set by a line of input."""
    command = [sys.executable, "-c", CLIENT, url, str(begins)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("begins", [DAY, -DAY], ids=["ahead", "behind"])
@pytest.mark.parametrize("server", ["postgres", "redis"])
async def test_the_wall_clock_of_a_client_decides_nothing(
    request: pytest.FixtureRequest, server: str, begins: int
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    app, keyed, _, (long, gate) = shop(url)
    async with app, app.worker(queues=("kept",), lease=2):
        await keyed.enqueue(1)
        running = await long.enqueue()
        with client_of(url, begins) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            for off in (-begins, 26, 0):
                answer = await asyncio.to_thread(client.stdout.readline)
                outcome, run_at = json.loads(answer)
                assert outcome == "kept"
                apart = datetime.fromtimestamp(run_at, UTC) - datetime.now(UTC) - timedelta(hours=1)
                assert abs(apart.total_seconds()) < 20
                client.stdin.write(f"{off}\n")
                client.stdin.flush()
            client.stdin.close()
            assert await asyncio.to_thread(client.wait, 30) == 0
        gate.set()
        await running.result(timeout=30)
        job = await app.job(running.job.id)
        assert (job.state, job.attempt, job.failures) == (State.COMPLETED, 1, [])
        assert {job.state for job in await app.jobs(task="late")} == {State.SCHEDULED}
