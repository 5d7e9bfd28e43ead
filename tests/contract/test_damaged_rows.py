"""A row that cannot be read is set aside, and every other job is found and runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import psycopg
import pytest
from redis import Redis

from onejob import App, Job, State
from onejob.stores.columns import INDEX
from onejob.stores.contract import FullStore
from onejob.stores.redis.store import RedisStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock, drain
from tests.contract.steps import LEASE, lease, mailer

SET = "UPDATE onejob_jobs SET {} = {} WHERE id = {}"
POLICIES = {
    "no retry": '{"timeout": 5}',
    "retry": '{"retry": "often"}',
    "timeout": '{"retry": [5, 1.0, 2.0, 300.0, 0.1], "timeout": "soon"}',
    "retention": '{"retry": [5, 1.0, 2.0, 300.0, 0.1], "retention": ["a", "b", "c"]}',
    "holds": '{"retry": [5, 1.0, 2.0, 300.0, 0.1], "holds": ["active"]}',
}
RARE = {
    "holds_until": '{"holds_until": "soon"}',
    "errors": '{"errors": 5}',
    "an error": '{"errors": [5]}',
    "replays": '{"replays": "x"}',
    "blockers": '{"blockers": [5]}',
}
FAR = 10**18  # microseconds: no year has so many digits
TYPED = {"created_at": FAR, "run_at": -FAR, "held_at": FAR}
UNTYPED = {
    "no JSON": ("policy", "{"),
    "of many kinds": ("more", '{"errors": {"type": 1}, "blockers": 5, "arrived": 7, "holds_until": "soon"}'),
    "time of text": ("created_at", "junk"),
    "traits": ("traits", 1.5),
    "stand": ("stand", "junk"),
    "digest": ("payload_digest", "junk"),
    "chain_index": ("chain_index", "junk"),
    "parent_id": ("parent_id", b"\xff"),
}
DAMAGES: dict[str, tuple[str, Any]] = {
    **{name: ("policy", value) for name, value in POLICIES.items()},
    **{name: ("more", value) for name, value in RARE.items()},
    **{name: (name, value) for name, value in TYPED.items()},
}
OF_STORE: dict[str, dict[str, tuple[str, Any]]] = {
    "sqlite": DAMAGES | UNTYPED | {"key": ("key", "junk"), "queue": ("queue", b"default")},
    "postgres": DAMAGES,
    "redis": DAMAGES
    | UNTYPED
    | {"no record": ("", None), "no time": ("run_at", None), "stand": ("stand", [1])},
}


def damage_sqlite(url: str, column: str, value: Any, job_id: str) -> None:
    """Write what no version of onejob writes into a column."""
    with sqlite3.connect(url) as connection:
        connection.execute(SET.format(column, "?", "?"), (value, job_id))


def damage_postgres(url: str, column: str, value: Any, job_id: str) -> None:
    """Write what no version of onejob writes into a column."""
    with psycopg.connect(url) as connection:
        connection.execute(SET.format(column, "%s", "%s").encode(), (value, job_id))


def damage_redis(url: str, column: str, value: Any, job_id: str) -> None:
    """Write what no version of onejob writes into a record."""
    with Redis.from_url(url) as connection:
        head, _, packed = cast("bytes", connection.hget("{onejob:0}:jobs", job_id)).partition(b":")
        row = msgspec.msgpack.decode(packed)
        if column:
            row[INDEX[column]] = value
        connection.hset(
            "{onejob:0}:jobs", job_id, head + b":" + (msgspec.msgpack.encode(row) if column else b"x")
        )


@pytest.fixture(
    params=[(name, damage) for name, damages in OF_STORE.items() for damage in damages], ids=" ".join
)
def damaged(request: pytest.FixtureRequest, clock: Clock) -> tuple[FullStore, Callable[[str], None]]:
    """Open a store, and return how to damage one of its rows."""
    from tests.contract.conftest import STORES

    name, damage = request.param
    store: Any = STORES[name](request, clock)
    url = str(store.path) if name == "sqlite" else request.getfixturevalue(f"{name}_url")
    write = {"sqlite": damage_sqlite, "postgres": damage_postgres, "redis": damage_redis}[name]
    return store, partial(write, url, *OF_STORE[name][damage])


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


@pytest.mark.parametrize("column", ["args", "meta"])
async def test_a_payload_that_is_no_text_fails_its_own_job(tmp_path: Path, clock: Clock, column: str) -> None:
    store = SQLiteStore(tmp_path / "jobs.db", clock=clock)
    async with App(store=store) as app:
        mail = mailer(app)
        jobs = [(await mail.enqueue(n)).job for n in range(3)]
        await asyncio.to_thread(damage_sqlite, str(store.path), column, b"\xff", jobs[1].id)
        await drain(app)
        states = [(await app.job(job.id)).state for job in jobs]
        assert states[0] is states[2] is State.COMPLETED
        assert states[1] is (State.RETRYABLE if column == "args" else State.COMPLETED)


async def test_the_revision_of_a_redis_record_is_what_scripts_compare(redis_url: str, clock: Clock) -> None:
    async with App(store=RedisStore(redis_url, clock=clock)) as app:
        job = (await mailer(app).enqueue(1)).job
        await asyncio.to_thread(damage_redis, redis_url, "revision", 10**12, job.id)
        assert [started.id for started in await lease(app)] == [job.id]


async def test_a_redis_record_of_another_task_than_its_list_is_set_aside(
    redis_url: str, clock: Clock
) -> None:
    async with App(store=RedisStore(redis_url, clock=clock)) as app:
        mail = mailer(app)
        jobs = [(await mail.enqueue(n)).job for n in range(3)]
        await asyncio.to_thread(damage_redis, redis_url, "task", "other", jobs[1].id)
        assert {job.id for job in await lease(app)} == {jobs[0].id, jobs[2].id}
        await assert_set_aside(app, jobs[1])


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
