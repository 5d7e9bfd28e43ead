"""One suite, every store. To add a store, give it a factory here; no case may be skipped."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onejob import App
from onejob.stores.contract import Store
import os
from uuid import uuid4
from onejob.stores.redis.store import RedisStore
from onejob.stores.memory import MemoryStore
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.testing import Clock

REDIS = os.environ.get("ONEJOB_TEST_REDIS", "redis://127.0.0.1:7711/0")

Open = Callable[[Path, Clock], Store]


def open_memory(_folder: Path, clock: Clock) -> Store:
    return MemoryStore(clock=clock)


def open_sqlite(folder: Path, clock: Clock) -> Store:
    return SQLiteStore(folder / "jobs.db", clock=clock, synchronous="NORMAL")


def open_redis(folder: Path, clock: Clock) -> Store:
    return RedisStore(f"{REDIS}?prefix={uuid4().hex}", clock=clock)


STORES: dict[str, Open] = {"memory": open_memory, "sqlite": open_sqlite, "redis": open_redis}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Store:
    return STORES[request.param](tmp_path, clock)


@pytest.fixture
async def app(store: Store) -> AsyncIterator[App]:
    async with App(store=store) as app:
        yield app
