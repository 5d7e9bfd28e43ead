"""One app in many places: closed and used again, on several event loops, from many threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Outcome, State, Unique
from tests.system.live import PATIENCE, STORES, Act, open_store


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    return App(store=open_store(request.param, tmp_path))


def test_blocking_code_needs_no_event_loop(app: App) -> None:
    @app.task(unique=True)
    def double(number: int) -> int:
        return number * 2

    done = threading.Event()

    def work() -> None:
        async def run() -> None:
            async with app.worker():
                await asyncio.to_thread(done.wait, PATIENCE)

        asyncio.run(run())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        first = double.enqueue_sync(4)
        assert first.result_sync(PATIENCE) == 8
        first.covered_sync(PATIENCE)
        asked = app.enqueue_many_sync([double.call(number) for number in (1, 2, 1)])
        assert [each.outcome for each in asked[:2]] == [Outcome.CREATED] * 2
        assert [each.result_sync(PATIENCE) for each in asked] == [2, 4, 2]
    finally:
        done.set()
        thread.join(PATIENCE)
    app.close_sync()
    assert not thread.is_alive()


def test_a_closed_app_can_be_used_again(app: App) -> None:
    @app.task(unique=True)
    async def double(number: int) -> int:
        return number * 2

    async def use() -> None:
        async with app, app.worker():
            assert await (await double.enqueue(4)).result(PATIENCE) == 8
        async with app.worker():
            assert await (await double.enqueue(5)).result(PATIENCE) == 10
        await app.close()
        await app.close()

    for _ in range(2):
        asyncio.run(use())
    asked = double.enqueue_sync(6)
    app.close_sync()
    app.close_sync()
    assert not double.enqueue_sync(7).deduplicated
    assert double.enqueue_sync(6).job.id == asked.job.id
    app.close_sync()


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    app = App(store=open_store("sqlite", tmp_path))

    @app.task(unique=True)
    def work() -> str:
        return "done"

    async def use() -> None:
        async with app, app.worker():
            assert await (await work.enqueue()).result(PATIENCE) == "done"
            await work.enqueue()
            assert await asyncio.to_thread(work.enqueue_sync().result_sync, PATIENCE) == "done"

    asyncio.run(use())
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(PATIENCE)
    assert not [thread.name for thread in left if thread.is_alive()]


def test_closing_ends_the_waits_of_blocking_code(app: App) -> None:
    @app.task
    def work() -> None: ...

    asked = work.enqueue_sync()
    waiting = threading.Event()
    ends: list[BaseException] = []

    def wait() -> None:
        waiting.set()
        try:
            asked.result_sync()
        except BaseException as error:  # noqa: BLE001 - which one is the question
            ends.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(PATIENCE)
    with pytest.raises(TimeoutError):
        asked.result_sync(0.2)  # by now the other waits on the same loop
    app.close_sync()
    thread.join(5)
    assert not thread.is_alive(), "a wait that nobody will end"
    assert len(ends) == 1


async def test_closing_under_a_worker_does_not_stop_it(app: App) -> None:
    """Whoever uses a closed app reopens it, and so does a worker."""
    act = Act()

    @app.task
    async def work(number: int) -> Any:
        return await act.play(number)

    async with app.worker():
        for number in range(20):
            asked = await work.enqueue(number)
            closing = asyncio.create_task(app.close())
            act.let_end()
            assert await asked.result(PATIENCE) == number
            await closing
    await app.close()
    assert act.ended == list(range(20))


def test_two_event_loops_and_many_threads_use_one_app(app: App) -> None:
    ran: Counter[int] = Counter()
    guard = threading.Lock()

    @app.task(unique=Unique(by="number", until="forever"))
    def work(number: int, asker: str) -> str:  # noqa: ARG001 - outside of the key
        with guard:
            ran[number] += 1
        return f"{number} is done"

    async def ask_all(asker: str) -> list[Outcome]:
        asked = [await work.enqueue(number, asker) for number in range(20)]
        assert [await each.result(PATIENCE) for each in asked] == [f"{n} is done" for n in range(20)]
        return [each.outcome for each in asked]

    async def work_and_ask(asker: str) -> list[Outcome]:
        async with app.worker(concurrency=3):
            return await ask_all(asker)

    def ask_blocking(asker: str) -> list[Outcome]:
        asked = [work.enqueue_sync(number, asker) for number in range(20)]
        assert [each.result_sync(PATIENCE) for each in asked] == [f"{n} is done" for n in range(20)]
        return [each.outcome for each in asked]

    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(asyncio.run, work_and_ask(f"loop {number}")) for number in range(2)]
        threads = [pool.submit(ask_blocking, f"thread {number}") for number in range(2)]
        outcomes = Counter(outcome for each in (*loops, *threads) for outcome in each.result(PATIENCE))
    assert outcomes == {Outcome.CREATED: 20, Outcome.KEPT: 60}
    assert ran == Counter(dict.fromkeys(range(20), 1))

    async def count() -> None:
        async with app:
            assert (await app.stats()).by_state[State.COMPLETED] == 20
            assert (await app.stats()).absorbed == {"work": {"kept": 60}}

    asyncio.run(count())


async def test_a_worker_is_woken_by_requests_of_other_threads(app: App) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    async with app, app.worker():
        for number in range(5):  # each would take up to five seconds if the worker only looked now and then
            asked = await asyncio.to_thread(work.enqueue_sync, number)
            assert await asked.result("4s") == number
