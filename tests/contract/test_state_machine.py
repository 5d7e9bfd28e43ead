"""Whatever is done to the memory store and to another, in whatever order, they answer and hold the same.

The machine is `onejob.testing.contract.agreement`. ONEJOB_HYPOTHESIS=deep looks for longer. To add a
store, say in OTHERS how it is opened for an example, how it crashes, and what is left of it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from redis import Redis

from onejob.stores.contract import FullStore as Store
from onejob.stores.postgres.store import PostgresStore
from onejob.stores.redis.store import RedisStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from onejob.testing.contract.agreement import Other, check_agreement
from tests.depth import DEEP, examples

pytestmark = pytest.mark.timeout(36_000 if DEEP else 900)  # shrinking a failure takes its time


class Place(Other, Protocol):
    """A store that is compared with the memory store, on a real server or in a file."""

    examples: int

    def close(self) -> None:
        """Leave nothing at all."""


class Files:
    """SQLite: a folder for each example; a crash leaves the log not folded in, as kill -9 does."""

    examples = 200

    def __init__(self, _request: pytest.FixtureRequest) -> None:
        self._crashed: list[SQLiteStore] = []

    async def begin(self, clock: Clock) -> Store:
        self._clock = clock
        self._folder = Path(tempfile.mkdtemp(prefix="onejob-machine-"))
        return self._opened(self._folder / "jobs.db")

    def _opened(self, path: Path) -> Store:
        self._store = SQLiteStore(path, synchronous="NORMAL", clock=self._clock)
        return self._store

    async def reopen(self, *, crash: bool) -> Store:
        path = self._store.path
        if not crash:
            await self._store.close()
            return self._opened(path)
        self._crashed.append(self._store)
        copy = self._folder / f"crash-{len(self._crashed)}.db"
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        return self._opened(copy)

    async def end(self) -> None:
        for store in (*self._crashed, self._store):
            await store.close()
        self._crashed.clear()
        shutil.rmtree(self._folder)

    def close(self) -> None:
        """Leave nothing: every example has taken its folder with it."""


class Tables:
    """PostgreSQL: one database, emptied between examples; a crash ends every connection of ours."""

    examples = 40

    def __init__(self, request: pytest.FixtureRequest) -> None:
        url = request.getfixturevalue("postgres_url")
        self._clock = Clock()
        self._store = PostgresStore(url, clock=self._now)
        self._store.migrate()
        self._surgeon = psycopg.connect(url, autocommit=True)

    def _now(self) -> datetime:
        return self._clock()

    async def begin(self, clock: Clock) -> Store:
        self._clock = clock
        self._surgeon.execute(
            "TRUNCATE onejob_jobs, onejob_marks, onejob_tallies, onejob_settings, onejob_starts, onejob_waits"
        )
        return self._store

    async def reopen(self, *, crash: bool) -> Store:
        if crash:
            self._surgeon.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onejob'"
                " AND datname = current_database()"
            )
        else:
            await self._store.close()
        return self._store

    async def end(self) -> None:
        """Leave that to the next example."""

    def close(self) -> None:
        self._surgeon.close()
        asyncio.run(self._store.close())


class Keys:
    """Redis: one database, emptied between examples; a crash leaves connections behind, and no script."""

    examples = 100
    options = ""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._url = request.getfixturevalue("redis_url")
        self._left: list[RedisStore] = []
        self._surgeon = Redis.from_url(self._url)

    async def begin(self, clock: Clock) -> Store:
        self._clock = clock
        self._surgeon.flushdb()
        return self._opened()

    def _opened(self) -> Store:
        self._store = RedisStore(f"{self._url}{self.options}", clock=self._clock)
        return self._store

    async def reopen(self, *, crash: bool) -> Store:
        if crash:
            self._left.append(self._store)
            self._surgeon.script_flush()
        else:
            await self._store.close()
        return self._opened()

    async def end(self) -> None:
        for store in (*self._left, self._store):
            await store.close()
        self._left.clear()

    def close(self) -> None:
        self._surgeon.close()


class Buckets(Keys):
    """Redis with jobs in many buckets, as in a cluster."""

    examples = 50
    options = "?buckets=16"


OTHERS: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "sqlite": Files,
    "postgres": Tables,
    "redis": Keys,
    "redis in buckets": Buckets,
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_store_answers_and_holds_as_the_memory_store_does(
    other: str, request: pytest.FixtureRequest
) -> None:
    place = OTHERS[other](request)
    try:
        check_agreement(
            place,
            examples=examples(place.examples, deep=100 * place.examples),
            steps=60 if DEEP else 40,
        )
    finally:
        place.close()
