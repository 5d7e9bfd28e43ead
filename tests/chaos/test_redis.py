"""A Redis server that is killed under load: every acknowledged job exists, and only once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from onejob import App, State, Task, Unique
from onejob.errors import StoreError
from onejob.stores.queries import Listed
from tests import servers
from tests.chaos.children import PATIENCE

PRODUCERS = 3
KEYS = 200  # per producer
KILLS = 3

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with servers.redis(durable=True) as server:
        yield server


def counting_app(url: str, runs: Counter[str]) -> tuple[App, Task[[str], None]]:
    app = App(url)

    @app.task(unique=Unique(until="forever"))
    async def count(name: str) -> None:
        runs[name] += 1

    return app, count


def produce(count: Task[[str], None], names: list[str], acknowledged: dict[str, str]) -> None:
    """Request every name until it is acknowledged, twice: a caller without an answer asks again."""
    for name in names * 2:
        while True:
            try:
                acknowledged.setdefault(name, count.enqueue_sync(name).job.id)
                break
            except StoreError:
                time.sleep(0.01)


def wait_until_acknowledged(acknowledged: dict[str, str], number: int) -> None:
    while len(acknowledged) < number:
        time.sleep(0.005)


async def test_a_killed_server_loses_nothing_and_doubles_nothing(server: servers.Server) -> None:
    runs: Counter[str] = Counter()
    app, count = counting_app(server.url, runs)
    acknowledged: dict[str, str] = {}
    names = [[f"{producer}-{number}" for number in range(KEYS)] for producer in range(PRODUCERS)]
    producers = [
        threading.Thread(target=produce, args=(count, mine, acknowledged), daemon=True) for mine in names
    ]
    async with app, app.worker(concurrency=8):
        for producer in producers:
            producer.start()
        for kill in range(1, KILLS + 1):
            await asyncio.to_thread(
                wait_until_acknowledged, acknowledged, KEYS * PRODUCERS * kill // (KILLS + 1)
            )
            await asyncio.to_thread(server.stop, immediately=True)
            await asyncio.to_thread(server.start)
        for producer in producers:
            await asyncio.to_thread(producer.join)
        async with asyncio.timeout(PATIENCE):
            while (await app.stats()).by_state[State.COMPLETED] < KEYS * PRODUCERS:
                await app._engine.store.wait(0.05)
        jobs = await app._engine.store.find(Listed(namespace=None, limit=10_000))
        findings = {finding.check: finding.level for finding in await app.doctor()}

    assert {job.arguments["name"]: job.id for job in jobs} == acknowledged
    assert len(jobs) == KEYS * PRODUCERS
    assert set(runs) == acknowledged.keys()  # a run whose end was not stored runs again
    assert findings["orphans"] == findings["successors"] == findings["holds"] == "ok"
