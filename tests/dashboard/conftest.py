"""The dashboard on a memory store and on SQLite, empty and full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onejob import App
from onejob.http import dashboard
from tests.dashboard.shop import Client, fill, make_shop


@pytest.fixture(params=["memory", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
    async with make_shop(url) as made:
        yield made


@pytest.fixture
async def client(app: App) -> Client:
    return Client(dashboard(app))


@pytest.fixture
async def full(app: App) -> Client:
    await fill(app)
    return Client(dashboard(app))
