"""A row that cannot be read is set aside, and every other job is found and runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onejob import App, Job, State
from onejob.stores.contract import FullStore
from onejob.testing import Clock
from tests.contract.steps import LEASE, lease, mailer

SET = "UPDATE onejob_jobs SET {} = {} WHERE id = {}"


def damage_sqlite(store: Any, column: str, job_id: str) -> None:
    """Write what no version of onejob writes into a column."""
    with sqlite3.connect(store.path) as connection:
        connection.execute(SET.format(column, "?", "?"), (SQLITE[column], job_id))


SQLITE: dict[str, Any] = {
    "policy": "{",
    "more": '{"errors": {"type": 1}, "blockers": 5, "arrived": 7, "holds_until": "soon"}',
}
POSTGRES = {
    "policy": '{"retry": "often"}',
    "more": '{"holds_until": "soon"}',
}


def damage_postgres(url: str, column: str, job_id: str) -> None:
    """Write what no version of onejob writes into a column."""
    with psycopg.connect(url) as connection:
        connection.execute(SET.format(column, "%s", "%s").encode(), (POSTGRES[column], job_id))


@pytest.fixture(
    params=[("sqlite", "policy"), ("sqlite", "more"), ("postgres", "policy"), ("postgres", "more")],
    ids=" ".join,
)
def damaged(request: pytest.FixtureRequest, clock: Clock) -> tuple[FullStore, Callable[[str], None]]:
    """Open a store, and return how to damage one of its rows."""
    from tests.contract.conftest import STORES

    name, column = request.param
    store = STORES[name](request, clock)
    if name == "sqlite":
        return store, lambda job_id: damage_sqlite(store, column, job_id)
    url: str = request.getfixturevalue("postgres_url")
    return store, lambda job_id: damage_postgres(url, column, job_id)


async def test_a_lease_sets_it_aside_and_starts_the_others(
    damaged: tuple[FullStore, Callable[[str], None]],
) -> None:
    store, damage = damaged
    async with App(store=store) as app:
        mail = mailer(app)
        jobs = [(await mail.enqueue(n)).job for n in range(5)]
        await asyncio.to_thread(damage, jobs[2].id)
        started = {job.id for job in await lease(app)} | {job.id for job in await lease(app)}
        assert started == {job.id for job in jobs} - {jobs[2].id}
        await assert_set_aside(app, jobs[2])


async def test_a_sweep_sets_it_aside_and_takes_the_others_back(
    damaged: tuple[FullStore, Callable[[str], None]], clock: Clock
) -> None:
    store, damage = damaged
    async with App(store=store) as app:
        mail = mailer(app)
        jobs = [(await mail.enqueue(n)).job for n in range(3)]
        assert len(await lease(app)) == 3
        await asyncio.to_thread(damage, jobs[1].id)
        clock.advance(LEASE)
        await app.maintenance.sweep()
        await app.maintenance.sweep()
        assert (await app.job(jobs[0].id)).state is State.RETRYABLE
        assert (await app.job(jobs[2].id)).state is State.RETRYABLE
        await assert_set_aside(app, jobs[1])


async def test_a_list_shows_it_as_discarded(damaged: tuple[FullStore, Callable[[str], None]]) -> None:
    store, damage = damaged
    async with App(store=store) as app:
        mail = mailer(app)
        jobs = [(await mail.enqueue(n)).job for n in range(3)]
        await asyncio.to_thread(damage, jobs[1].id)
        listed = {job.id for job in await app.jobs()} | {job.id for job in await app.jobs()}
        assert listed >= {jobs[0].id, jobs[2].id}
        await assert_set_aside(app, jobs[1])
        assert (await start_other(app)).id in {jobs[0].id, jobs[2].id}


async def start_other(app: App) -> Job:
    """Start one job."""
    [job] = await lease(app, total=1)
    return job


async def assert_set_aside(app: App, job: Job) -> None:
    """See that a job is a dead letter that says why."""
    aside = await app.job(job.id)
    assert (aside.state, aside.reason) == (State.DISCARDED, "unreadable")
    assert aside.failures
    assert "cannot be read" in aside.failures[-1]["message"]
