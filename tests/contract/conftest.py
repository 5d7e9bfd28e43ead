"""One suite, every store. To add a store, give it a factory here; no case may be skipped."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onejob import App
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock

Open = Callable[[pytest.FixtureRequest, Clock], Store]


def open_memory(_request: pytest.FixtureRequest, clock: Clock) -> Store:
    return MemoryStore(clock=clock)


def open_sqlite(request: pytest.FixtureRequest, clock: Clock) -> Store:
    from onejob.stores.sqlite.store import SQLiteStore

    folder: Path = request.getfixturevalue("tmp_path")
    return SQLiteStore(folder / "jobs.db", clock=clock, synchronous="NORMAL")


def open_postgres(request: pytest.FixtureRequest, clock: Clock) -> Store:
    from onejob.stores.postgres.store import PostgresStore

    return PostgresStore(request.getfixturevalue("postgres_url"), clock=clock)


def open_redis(request: pytest.FixtureRequest, clock: Clock) -> Store:
    from onejob.stores.redis.store import RedisStore

    return RedisStore(request.getfixturevalue("redis_url"), clock=clock)


STORES: dict[str, Open] = {
    "memory": open_memory,
    "sqlite": open_sqlite,
    "postgres": open_postgres,
    "redis": open_redis,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, clock: Clock) -> Store:
    return STORES[request.param](request, clock)


@pytest.fixture
async def app(store: Store) -> AsyncIterator[App]:
    async with App(store=store) as app:
        yield app
