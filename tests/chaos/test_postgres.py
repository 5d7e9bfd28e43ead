"""A PostgreSQL server that crashes under load: every acknowledged job exists, and only once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from onejob import App, Job, State, Task, Unique
from onejob.core.job import INCOMPLETE
from onejob.errors import StoreError, StoreUnavailable
from onejob.stores.queries import Stranded
from tests import servers
from tests.chaos.children import PATIENCE
from tests.chaos.roles import RETRY

pytestmark = [pytest.mark.races, pytest.mark.timeout(900)]

CRASHES = 2


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """Run a durable server of the test's own."""
    with servers.postgres(durable=True) as server:
        yield server


class Shop:
    """An app with tasks that count how often they ran."""

    def __init__(self, url: str, runs: Counter[str]) -> None:
        self.app = App(url)
        self.once = self._task("once", Unique(by="n", until="forever"), runs)
        self.latest = self._task("latest", Unique.latest(by="n", version="seq"), runs)

    def _task(self, name: str, policy: Unique, runs: Counter[str]) -> Task[[int, int], None]:
        async def run(n: int, seq: int) -> None:
            runs[f"{name} {n} {seq if name == 'latest' else ''}"] += 1

        return self.app.task(name=name, unique=policy, retry=RETRY)(run)


@pytest.fixture
def runs() -> Counter[str]:
    return Counter()


@pytest.fixture
async def shops(server: servers.Server, runs: Counter[str]) -> AsyncIterator[list[Shop]]:
    async with AsyncExitStack() as stack:
        shops = [Shop(server.url, runs) for _ in range(2)]
        for shop in shops:
            shop.app.maintenance.migrate()
            await stack.enter_async_context(shop.app)
        yield shops


class Promises:
    """The requests that the store has acknowledged."""

    def __init__(self) -> None:
        self.once: dict[int, set[str]] = defaultdict(set)
        self.latest: dict[int, int] = {}

    async def insist(self, shop: Shop, n: int, seq: int) -> None:
        """Repeat a request with the same key until it is acknowledged."""
        while True:
            try:
                self.once[n].add((await shop.once.enqueue(n, seq)).job.id)
                if (await shop.latest.enqueue(n % 10, seq)).outcome != "stale":
                    self.latest[n % 10] = max(seq, self.latest.get(n % 10, 0))
            except StoreUnavailable:
                await asyncio.sleep(0.01)
            else:
                return


async def produce(
    shop: Shop, promises: Promises, enough: asyncio.Event, chance: random.Random, *, first: int
) -> None:
    """Request new keys, and old ones again."""
    n = first
    while not enough.is_set():
        numbers = [n, chance.randrange(n + 1), *range(n + 1, n + 4)]
        await asyncio.gather(*(promises.insist(shop, one, n + 1) for one in numbers))
        n += 4


async def crash(server: servers.Server, promises: Promises, chance: random.Random) -> None:
    """Let some requests through, crash the server at a random moment, and start it again."""
    for _ in range(CRASHES):
        known = len(promises.once)
        while len(promises.once) < known + 60:  # noqa: ASYNC110 - producers have no event for it
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.uniform(0, 0.05))
        await asyncio.to_thread(server.stop, immediately=True)
        await asyncio.to_thread(server.start)


async def test_a_crash_of_the_server_loses_nothing_and_doubles_nothing(
    server: servers.Server, shops: list[Shop], runs: Counter[str], chance: random.Random
) -> None:
    promises, enough = Promises(), asyncio.Event()
    crews = [shop.app.worker(lease="1s") for shop in shops]
    async with asyncio.timeout(2 * PATIENCE), AsyncExitStack() as stack:
        for crew in crews:
            await stack.enter_async_context(crew)
        async with asyncio.TaskGroup() as group:
            for number, shop in enumerate(shops):
                group.create_task(produce(shop, promises, enough, chance, first=number * 2))
            await crash(server, promises, chance)
            enough.set()
        await all_ended(shops[0].app)
    assert [crew.repaired for crew in crews] == [0, 0]
    check(server.url, await shops[0].app.jobs(limit=1_000_000), promises, runs)
    assert await shops[0].app._engine.store.find(Stranded(namespace=shops[0].app.namespace)) == []


async def all_ended(app: App) -> None:
    """Wait until no job is left to run."""
    async with asyncio.timeout(PATIENCE):
        while await unfinished(app):  # noqa: ASYNC110 - workers have no event for it
            await asyncio.sleep(0.05)


async def unfinished(app: App) -> bool:
    try:
        return bool(await app.jobs(state=INCOMPLETE, limit=1))
    except StoreError:
        return True


def check(url: str, jobs: list[Job], promises: Promises, runs: Counter[str]) -> None:
    """Check that every acknowledged request has exactly one job, which ran."""
    made = {job.arguments["n"]: {job.id} for job in jobs if job.task == "once"}
    assert len(made) == sum(job.task == "once" for job in jobs)
    assert made == promises.once
    assert {job.state for job in jobs} <= {State.COMPLETED, State.CANCELLED}
    for job in jobs:
        assert job.is_superseded or job.state is State.COMPLETED
        if job.task == "once":
            assert 1 <= runs[f"once {job.arguments['n']} "] <= job.attempt
    for n, seq in promises.latest.items():
        assert any(runs[f"latest {n} {later}"] for later in range(seq, seq + 10_000))
    with psycopg.connect(url) as connection:
        twice = b"SELECT 1 FROM onejob_jobs WHERE stand IS NOT NULL GROUP BY key, stand HAVING count(*) > 1"
        assert connection.execute(twice).fetchall() == []
