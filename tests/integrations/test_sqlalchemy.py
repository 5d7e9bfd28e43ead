"""SQLAlchemy's connections and sessions, blocking and async, on SQLite and PostgreSQL: one transaction."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from onejob import App, Outcome, Task, Unique, current
from onejob.errors import ForeignConnection, InvalidCall
from onejob.testing import drain

WAYS = ["Connection", "Session", "AsyncConnection", "AsyncSession"]
any_way = pytest.mark.parametrize("way", WAYS)
any_store = pytest.mark.parametrize("store", ["sqlite", "postgres"])


@dataclass(frozen=True)
class Caller:
    """Your transaction: what you pass as connection=, and how you use it."""

    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[None]]
    enqueue: Callable[..., Awaitable[Any]]


@asynccontextmanager
async def calling(way: str, url: str) -> AsyncIterator[Caller]:
    """Yield a caller in the chosen way; what it does not commit is rolled back."""
    if way.startswith("Async"):
        drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
        engine = create_async_engine(with_driver(url, drivers), poolclass=NullPool)
        async with AsyncSession(engine) if way == "AsyncSession" else engine.connect() as own:

            async def enqueue(task: Task[..., Any], *args: Any) -> Any:
                return await task.options(connection=own).enqueue(*args)

            yield Caller(own, lambda sql: own.execute(text(sql)), own.commit, enqueue)
        await engine.dispose()
        return
    blocking = create_engine(with_driver(url, {"postgresql": "postgresql+psycopg"}), poolclass=NullPool)
    with Session(blocking) if way == "Session" else blocking.connect() as held:

        async def enqueue_sync(task: Task[..., Any], *args: Any) -> Any:
            return task.options(connection=held).enqueue_sync(*args)

        async def execute(sql: str) -> Any:
            return held.execute(text(sql))

        async def commit() -> None:
            held.commit()

        yield Caller(held, execute, commit, enqueue_sync)
    blocking.dispose()


def with_driver(url: str, drivers: dict[str, str]) -> str:
    scheme = url.partition(":")[0]
    return url.replace(scheme, drivers.get(scheme, scheme), 1)


@pytest.fixture
def url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return re.sub(r"^postgres(ql)?:", "postgresql:", request.getfixturevalue("postgres_url"))


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url) as app:
        app.maintenance.migrate()
        async with calling("AsyncConnection", url) as caller:
            await caller.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            await caller.commit()
        yield app


@pytest.fixture
def mail(app: App) -> Task[[int], None]:
    @app.task(unique=Unique(by="to"))
    def mail(to: int) -> None: ...

    return mail


async def orders(url: str) -> list[int]:
    async with calling("Connection", url) as caller:
        return [number for (number,) in await caller.execute("SELECT id FROM orders ORDER BY id")]


@any_store
@any_way
async def test_a_job_exists_if_and_only_if_the_caller_commits(
    app: App, mail: Task[[int], None], url: str, way: str
) -> None:
    async with calling(way, url) as caller:
        await caller.execute("INSERT INTO orders VALUES (1)")
        await caller.enqueue(mail, 1)
    assert (await app.jobs(), await orders(url)) == ([], [])

    async with calling(way, url) as caller:
        await caller.execute("INSERT INTO orders VALUES (2)")
        admission = await caller.enqueue(mail, 2)
        await caller.commit()
    assert [job.id for job in await app.jobs()] == [admission.job.id]
    assert await orders(url) == [2]


@pytest.mark.parametrize("store", ["sqlite"])
@any_way
async def test_an_enqueue_alone_is_committed(app: App, mail: Task[[int], None], url: str, way: str) -> None:
    async with calling(way, url) as caller:
        await caller.enqueue(mail, 1)
        await caller.commit()

    assert len(await app.jobs()) == 1


@any_store
@any_way
async def test_a_duplicate_is_answered_truthfully(mail: Task[[int], None], url: str, way: str) -> None:
    committed = await mail.enqueue(1)

    async with calling(way, url) as caller:
        of_others = await caller.enqueue(mail, 1)
        first, second = await caller.enqueue(mail, 2), await caller.enqueue(mail, 2)

    assert of_others.job.id == committed.job.id
    assert (first.outcome, second.outcome) == (Outcome.CREATED, Outcome.KEPT)
    assert second.job.id == first.job.id
    assert (await mail.enqueue(2)).outcome is Outcome.CREATED  # the rollback has left nothing


@any_store
@any_way
async def test_another_database_is_refused(
    app: App, mail: Task[[int], None], tmp_path: Path, way: str
) -> None:
    async with calling(way, f"sqlite:///{tmp_path}/other.db") as caller:
        with pytest.raises(ForeignConnection, match="connection= "):
            await caller.enqueue(mail, 1)

    assert await app.jobs() == []


@any_store
async def test_an_engine_is_no_connection(mail: Task[[int], None], url: str) -> None:
    blocking = create_engine(with_driver(url, {"postgresql": "postgresql+psycopg"}))
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    for engine in (blocking, create_async_engine(with_driver(url, drivers))):
        with pytest.raises(ForeignConnection, match="Engine: pass a connection or a session"):
            await mail.options(connection=engine).enqueue(1)


@any_store
@pytest.mark.parametrize("way", ["AsyncConnection", "AsyncSession"])
async def test_blocking_code_cannot_use_an_async_session(
    app: App, mail: Task[[int], None], url: str, way: str
) -> None:
    async with calling(way, url) as caller:
        with pytest.raises(InvalidCall, match="await"):
            mail.options(connection=caller.connection).enqueue_sync(1)

    assert await app.jobs() == []


@any_store
@pytest.mark.parametrize("way", ["Session", "AsyncSession"])
async def test_a_handler_completes_its_job_in_its_session(app: App, url: str, way: str) -> None:
    @app.task
    async def order(number: int) -> int:
        async with calling(way, url) as caller:
            async with current().transaction(connection=caller.connection):
                await caller.execute("INSERT INTO orders VALUES (7)")
                current().returns(number)
            await caller.commit()
        return number

    admission = await order.enqueue(7)
    await drain(app)

    assert await admission.result(timeout=30) == 7
    assert await orders(url) == [7]
