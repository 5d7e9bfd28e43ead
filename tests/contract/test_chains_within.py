"""Chains and blockers inside the caller's transaction: on SQLite here, on PostgreSQL beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onejob import App, Outcome, State, Unique, batch, chain, current
from tests.contract.steps import everything


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def app(place: str) -> AsyncIterator[App]:
    async with App(place) as app:
        app.maintenance.migrate()
        yield app


@contextmanager
def transaction(place: str) -> Iterator[Any]:
    """Open a transaction of the caller's; it is committed at the end, or rolled back."""
    connection: Any
    if place.startswith("sqlite"):
        connection = sqlite3.connect(place.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
    else:
        connection = psycopg.connect(place)
    with closing(connection):
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


def tasks(app: App) -> tuple[Any, Any]:
    """Register a task that returns what it is given, and one that adds up what it waited for."""

    @app.task(unique=Unique(by="n", on_conflict="replace"))
    async def number(n: int, value: int = 0) -> int:
        return n + value

    @app.task
    async def add(more: int = 0) -> int:
        results: list[int] = [one.result for one in current().blockers]
        return more + sum(results)

    return number, add


async def work(app: App) -> None:
    worker = app.worker(drain=True)
    await worker.run()
    assert worker.repaired == 0


async def test_a_blocker_and_its_dependant_may_come_in_one_transaction(app: App, place: str) -> None:
    number, add = tasks(app)
    with transaction(place) as connection:
        one = await number.options(connection=connection).enqueue(1)
        total = await add.options(connection=connection, after=[one]).enqueue(10)
    assert total.job.state is State.PENDING
    await work(app)
    assert await total.result(30) == 11


async def test_a_dependant_of_a_committed_chain_is_noted_with_the_commit(app: App, place: str) -> None:
    number, add = tasks(app)
    one = await number.enqueue(1)
    with transaction(place) as connection:
        total = await add.options(connection=connection, after=one).enqueue()
    await work(app)
    assert await total.result(30) == 1


async def test_a_dependant_of_a_chain_that_has_ended_is_free_with_the_commit(app: App, place: str) -> None:
    number, add = tasks(app)
    one = await number.enqueue(1)
    await work(app)
    with transaction(place) as connection:
        total = await add.options(connection=connection, after=one).enqueue()
    assert total.job.state is State.AVAILABLE
    await work(app)
    assert await total.result(30) == 1


async def test_a_rollback_takes_all_of_it_back(app: App, place: str) -> None:
    number, add = tasks(app)
    one = await number.enqueue(1)

    async def change_ones_mind() -> None:
        with transaction(place) as connection:
            await add.options(connection=connection, after=one).enqueue()
            await chain(number.call(5), add.call()).enqueue(connection=connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await change_ones_mind()
    assert [job.id for job in await everything(app)] == [one.job.id]
    assert (await app.job(one.job.id)).traits == one.job.traits
    await work(app)


async def test_a_replaced_blocker_is_re_pointed_with_the_commit(app: App, place: str) -> None:
    number, add = tasks(app)
    one = await number.enqueue(1)
    total = await add.options(after=one).enqueue()
    with transaction(place) as connection:
        newer = await number.options(connection=connection).enqueue(1, 5)
    assert newer.outcome is Outcome.REPLACED
    assert (await app.job(total.job.id)).awaits == [newer.job.id]
    await work(app)
    assert await total.result(30) == 6


async def test_a_batch_and_what_follows_it_are_one_act(app: App, place: str) -> None:
    number, add = tasks(app)
    with transaction(place) as connection:
        members = await batch(*(number.call(n) for n in range(20)), on_success=add.call()).enqueue(
            connection=connection
        )
    await work(app)
    assert await members.callbacks["on_success"].result(30) == 190


def test_the_same_from_blocking_code(place: str) -> None:
    app = App(place)
    app.maintenance.migrate()
    number, add = tasks(app)
    with transaction(place) as connection:
        one = number.options(connection=connection).enqueue_sync(1)
        total = add.options(connection=connection, after=[one]).enqueue_sync(10)
    app._engine.portal.run(work(app))
    assert total.result_sync(30) == 11
    app.close_sync()
