"""The doctor looks at PostgreSQL: what it finds on a careless server, a careful one, and none at all."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from onejob import App, Unique
from onejob.stores.contract import Finding
from tests import servers


async def findings(app: App) -> dict[str, Finding]:
    return {finding.check: finding for finding in await app.doctor()}


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[App]:
    async with App(postgres_url) as app:

        @app.task(unique=Unique(by="n"))
        async def tidy(n: int) -> None: ...

        yield app


@pytest.fixture(scope="module")
def careful() -> Iterator[servers.Server]:
    with servers.postgres(durable=True) as server:
        yield server


async def test_the_settings_of_a_careless_server_are_reported(app: App) -> None:
    found = await findings(app)
    assert (found["fsync"].level, found["synchronous_commit"].level) == ("fail", "warn")
    assert all(found[check].advice for check in ("fsync", "synchronous_commit"))


async def test_a_careful_server_passes(careful: servers.Server) -> None:
    async with App(careful.url) as app:
        app.maintenance.migrate()
        found = await findings(app)
    assert {check: one for check, one in found.items() if one.level != "ok"} == {}


async def test_a_server_without_our_tables_is_refused_with_the_cure(app: App) -> None:
    found = await findings(app)
    assert found["schema"].level == "warn"
    assert "onejob migrate" in found["schema"].advice
    assert app.maintenance.schema().found == 0  # looking has made none


async def test_a_database_that_takes_no_writes_fails(careful: servers.Server) -> None:
    with psycopg.connect(careful.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE readers")
        connection.execute("ALTER DATABASE readers SET default_transaction_read_only = on")
    async with App(careful.url.replace("/postgres?", "/readers?")) as app:
        assert (await findings(app))["role"].level == "fail"


async def test_a_hold_that_a_dead_hand_left_behind_fails(app: App, postgres_url: str) -> None:
    job = (await app.tasks["tidy"].enqueue(1)).job
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE onejob_jobs SET state = 'completed', finished_at = 1 WHERE id = %s", (job.id,)
        )
    assert (await findings(app))["holds"].level == "fail"


async def test_a_missing_server_is_one_finding_and_no_password(tmp_path: Path) -> None:
    async with App(f"postgresql://user:secret@/jobs?host={tmp_path}") as app:
        found = await findings(app)
    assert found["server"].level == "fail"
    assert not any("secret" in one.message for one in found.values())
