"""Every scenario runs on the memory store and on SQLite, by a clock that stands still."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onejob import App
from onejob.stores.memory import MemoryStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from tests.system.scenarios.stage import Stage


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(params=["memory", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[App]:
    store = (
        MemoryStore(clock=clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "jobs.db", synchronous="NORMAL", clock=clock)
    )
    async with App(store=store) as app:
        yield app


@pytest.fixture
def restart(tmp_path: Path, clock: Clock) -> Callable[[], App]:
    """Open the same file anew, as a restarted process does."""

    def open_again() -> App:
        return App(store=SQLiteStore(tmp_path / "restarted.db", synchronous="NORMAL", clock=clock))

    return open_again
