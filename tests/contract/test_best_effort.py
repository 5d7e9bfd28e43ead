"""What a weaker store costs, in duplicates, and that it says so; the strong stores cost none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onejob import Admission, App, Job, Outcome, Task, Unique
from onejob.errors import WeakStore
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.stores.queries import Listed
from onejob.stores.redis.store import RedisStore
from onejob.stores.sqlite.store import SQLiteStore
from tests.contract.best_effort import BestEffortStore

CROWDS = (2, 8, 32)
STRONG = ("memory", "sqlite", "redis")


@pytest.fixture
def strong_store(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match name:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SQLiteStore(tmp_path / "jobs.db", synchronous="NORMAL")
        case _:
            return RedisStore(request.getfixturevalue("redis_url"))


def unique_task(app: App) -> Task[[int], None]:
    @app.task(unique=Unique(by="customer_id"))
    async def invoice(customer_id: int) -> None: ...

    return invoice


def in_threads(invoice: Task[[int], None], callers: int) -> list[Admission[None]]:
    """Enqueue one key from many threads that set out together."""
    together = threading.Barrier(callers)

    def enqueue() -> Admission[None]:
        together.wait()
        return invoice.enqueue_sync(7)

    with ThreadPoolExecutor(callers) as threads:
        futures = [threads.submit(enqueue) for _ in range(callers)]
        return [future.result() for future in futures]


async def in_tasks(invoice: Task[[int], None], callers: int) -> list[Admission[None]]:
    """Enqueue one key from many tasks that set out together."""
    return await asyncio.gather(*(invoice.enqueue(7) for _ in range(callers)))


def created(answers: Sequence[Admission[None]]) -> int:
    return sum(answer.outcome is Outcome.CREATED for answer in answers)


async def holders(app: App) -> list[Job]:
    return await app._engine.store.find(Listed(namespace=None, held=True, limit=1000))


# ── what is declared ──────────────────────────────────────────────────────────────────────────────


def test_a_best_effort_store_says_so() -> None:
    app = App(store=BestEffortStore(callers=1))
    assert app.guarantees().strength == "best-effort"
    assert "one key has one holder" in app.guarantees().not_promised


@pytest.mark.parametrize("name", STRONG)
def test_a_strong_store_says_so(strong_store: Store) -> None:
    assert App(store=strong_store).guarantees().strength == "strong"


def test_a_task_that_demands_strong_is_refused_when_it_is_registered() -> None:
    app = App(store=BestEffortStore(callers=1))
    with pytest.raises(WeakStore, match=r"invoice demands strength='strong'.*declares 'best-effort'"):

        @app.task(unique=Unique(strength="strong"))
        async def invoice() -> None: ...

    assert app.tasks == {}


def test_a_call_that_demands_strong_is_refused_before_it_is_enqueued() -> None:
    app = App(store=BestEffortStore(callers=1))
    invoice = unique_task(app)
    with pytest.raises(WeakStore):
        invoice.options(unique=Unique(strength="strong"))


@pytest.mark.parametrize("name", STRONG)
def test_a_strong_store_takes_a_task_that_demands_it(strong_store: Store) -> None:
    app = App(store=strong_store)

    @app.task(unique=Unique(strength="strong"))
    async def invoice() -> None: ...

    assert app.tasks.keys() == {"invoice"}


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("callers", CROWDS)
async def test_threads_on_a_best_effort_store_all_get_in(callers: int) -> None:
    async with App(store=BestEffortStore(callers)) as app:
        answers = await asyncio.to_thread(in_threads, unique_task(app), callers)
        assert created(answers) - 1 == callers - 1
        assert len(await holders(app)) == callers


@pytest.mark.parametrize("callers", CROWDS)
async def test_tasks_on_a_best_effort_store_all_get_in(callers: int) -> None:
    async with App(store=BestEffortStore(callers)) as app:
        answers = await in_tasks(unique_task(app), callers)
        assert created(answers) - 1 == callers - 1
        assert len(await holders(app)) == callers


@pytest.mark.parametrize("callers", CROWDS)
@pytest.mark.parametrize("name", STRONG)
async def test_threads_on_a_strong_store_make_one_job(callers: int, strong_store: Store) -> None:
    async with App(store=strong_store) as app:
        answers = await asyncio.to_thread(in_threads, unique_task(app), callers)
        assert created(answers) - 1 == 0
        [holder] = await holders(app)
        assert {answer.job.id for answer in answers} == {holder.id}


@pytest.mark.parametrize("callers", CROWDS)
@pytest.mark.parametrize("name", STRONG)
async def test_tasks_on_a_strong_store_make_one_job(callers: int, strong_store: Store) -> None:
    async with App(store=strong_store) as app:
        answers = await in_tasks(unique_task(app), callers)
        assert created(answers) - 1 == 0
        [holder] = await holders(app)
        assert {answer.job.id for answer in answers} == {holder.id}
