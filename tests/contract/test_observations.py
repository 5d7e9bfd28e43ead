"""Observations are written once, read newest first, limited per subject, and forgotten by age and number."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from onejob import App
from onejob.stores.contract import FullStore, Observation

START = datetime(2026, 1, 1, tzinfo=UTC)


def observed(number: int, subject: str = "a", *, kind: str = "absorbed", namespace: str = "") -> Observation:
    at = START + timedelta(seconds=number)
    return Observation(namespace, kind, f"{number:04}", subject, at, f'{{"n": {number}, "text": "\\u0000é"}}')


def store_of(app: App) -> FullStore:
    return app._engine.store


async def test_observations_are_read_newest_first(app: App) -> None:
    written = [observed(number, subject=str(number % 2)) for number in range(5)]
    await store_of(app).observe(written, 10)
    assert await store_of(app).observations("", "absorbed") == written[::-1]
    assert await store_of(app).observations("", "absorbed", limit=2) == [written[4], written[3]]
    assert await store_of(app).observations("", "absorbed", subject="1") == [written[3], written[1]]
    assert await store_of(app).observations("", "absorbed", subject="none") == []


async def test_kinds_and_namespaces_are_apart(app: App) -> None:
    mine, other, tenant = observed(1), observed(1, kind="worker"), observed(1, namespace="tenant")
    await store_of(app).observe([mine, other, tenant], 10)
    assert await store_of(app).observations("", "absorbed") == [mine]
    assert await store_of(app).observations("", "worker", subject="a") == [other]
    assert await store_of(app).observations("tenant", "absorbed") == [tenant]


async def test_an_observation_with_a_known_id_replaces_it(app: App) -> None:
    first, second = observed(1), observed(2)
    await store_of(app).observe([first, first], 10)  # the same id twice in one call
    later = Observation("", "absorbed", first.id, "a", second.at, "{}")
    await store_of(app).observe([later], 10)
    assert await store_of(app).observations("", "absorbed") == [later]


async def test_a_subject_keeps_its_newest(app: App) -> None:
    await store_of(app).observe([observed(0, "rare")], 3)
    for number in range(1, 8):
        await store_of(app).observe([observed(number, "frequent")], 3)
    found = await store_of(app).observations("", "absorbed")
    assert [one.id for one in found] == ["0007", "0006", "0005", "0000"]
    about = await store_of(app).observations("", "absorbed", subject="frequent")
    assert [one.id for one in about] == ["0007", "0006", "0005"]


async def test_old_observations_and_those_beyond_the_newest_are_forgotten(app: App) -> None:
    store = store_of(app)
    await store.observe([observed(number, str(number % 3)) for number in range(10)], 10)
    assert await store.forget("", "absorbed", before=START + timedelta(seconds=4), most=100) == 4
    assert [one.id[-1] for one in await store.observations("", "absorbed")] == list("987654")
    assert await store.forget("", "absorbed", before=START, most=2) == 4
    assert [one.id[-1] for one in await store.observations("", "absorbed")] == ["9", "8"]
    assert await store.observations("", "absorbed", subject="1") == []
    assert await store.forget("", "absorbed", before=START, most=2) == 0


async def test_concurrent_writers_lose_nothing_and_keep_the_limit(app: App) -> None:
    store = store_of(app)

    def write(writer: int) -> None:
        for number in range(20):
            store.observe_sync([observed(writer * 100 + number, f"subject {number % 4}")], 5)

    await asyncio.gather(*(asyncio.to_thread(write, writer) for writer in range(4)))
    await store.observe([observed(900 + number, f"subject {number}") for number in range(4)], 5)
    found = await store.observations("", "absorbed", limit=1000)
    assert len(found) == 20
    assert {one.subject for one in found} == {f"subject {number}" for number in range(4)}
