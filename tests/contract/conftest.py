"""One suite, every store. To add a store, give it a factory here; no case may be skipped."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from onejob import App
from onejob.stores.contract import Store
from onejob.stores.memory import MemoryStore
from onejob.stores.redis.store import RedisStore
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.testing import Clock
from tests import servers

Open = Callable[[pytest.FixtureRequest, Path, Clock], Store]


def open_memory(_request: pytest.FixtureRequest, _folder: Path, clock: Clock) -> Store:
    return MemoryStore(clock=clock)


def open_sqlite(_request: pytest.FixtureRequest, folder: Path, clock: Clock) -> Store:
    return SQLiteStore(folder / "jobs.db", clock=clock, synchronous="NORMAL")


def open_redis(request: pytest.FixtureRequest, _folder: Path, clock: Clock) -> Store:
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock)


def open_redis_cluster(request: pytest.FixtureRequest, _folder: Path, clock: Clock) -> Store:
    return RedisStore(request.getfixturevalue("redis_cluster_url"), clock=clock)


STORES: dict[str, Open] = {
    "memory": open_memory,
    "sqlite": open_sqlite,
    "redis": open_redis,
    "redis-cluster": open_redis_cluster,
}


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[servers.Server]]:
    """Run a cluster for this worker."""
    with servers.redis_cluster() as nodes:
        yield nodes


@pytest.fixture
def redis_cluster_url(redis_cluster: list[servers.Server]) -> str:
    """Give a test an empty cluster."""
    for node in redis_cluster:
        with Redis.from_url(node.url) as cleaner:
            cleaner.flushall()
    return redis_cluster[0].url.replace("redis://", "redis+cluster://")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Store:
    return STORES[request.param](request, tmp_path, clock)


@pytest.fixture
async def app(store: Store) -> AsyncIterator[App]:
    async with App(store=store) as app:
        yield app
