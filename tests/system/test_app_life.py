"""One app in many places: closed and used again, on several event loops, from many threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Outcome, State, Unique
from onejob.errors import StoreUnavailable
from tests.system.live import PATIENCE, STORES, Act, open_store, wait_for_hints_only


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    return App(store=open_store(request.param, tmp_path))


@pytest.mark.parametrize(
    "url", ["postgresql://127.0.0.1:1/shop", "redis://127.0.0.1:1/0", "sqlite:////nowhere/jobs.db"]
)
def test_a_module_is_imported_although_the_store_is_down(url: str) -> None:
    app = App(url)
    app.queue("mail", concurrency=1)

    @app.cron("0 3 * * *", overlap=Unique())
    @app.task(queue="mail", unique=Unique(by="number"))
    def work(number: int = 1) -> None: ...

    work.options(unique=Unique.singleton(), delay="5s").call(2)
    with pytest.raises(StoreUnavailable):
        work.enqueue_sync(3)


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
            assert await asyncio.to_thread(lambda: work.enqueue_sync().result_sync(PATIENCE)) == "done"

    asyncio.run(use())
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(PATIENCE)
    assert not [thread.name for thread in left if thread.is_alive()]


def test_closing_ends_the_waits_of_blocking_code(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work() -> None: ...

    asked = work.enqueue_sync()
    waiting = threading.Event()
    ends: list[BaseException] = []
    wait_for_news = app._engine.store.wait

    async def note_and_wait(*given: Any) -> None:
        waiting.set()
        await wait_for_news(*given)

    monkeypatch.setattr(app._engine.store, "wait", note_and_wait)

    def wait() -> None:
        try:
            asked.result_sync()
        except BaseException as error:  # noqa: BLE001 - which one is the question
            ends.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(PATIENCE)
    app.close_sync()
    thread.join(PATIENCE)
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


async def test_a_worker_is_woken_by_requests_of_other_threads(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    wait_for_hints_only(app._engine.store, monkeypatch)
    async with app, app.worker():
        for number in range(5):
            asked = await asyncio.to_thread(work.enqueue_sync, number)
            assert await asked.result(PATIENCE) == number


# ── waiting and dropping ──────────────────────────────────────────────────────────────────────────


async def test_a_thousand_idle_waiters_cost_little(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:

        @app.task
        async def later(number: int) -> None: ...

        asked = await app.enqueue_many([later.options(delay="1h").call(n) for n in range(1000)])
        waiting = [asyncio.create_task(each.result()) for each in asked]
        await asyncio.sleep(8)  # until the looks have become rare
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(9)  # longer than the longest pause between two looks
        share = (time.process_time() - used) / (time.monotonic() - began)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert share < 0.1


DROPPED = """
import asyncio, gc, sys, threading, time
from pathlib import Path

from onejob import App


def use():
    app = App(sys.argv[1])

    @app.task(unique=True)
    async def work(number: int) -> int:
        return number

    async def run():
        async with app.worker():
            await (await work.enqueue(1)).result(30)

    asyncio.run(run())
    work.enqueue_sync(2)
    app.stats_sync()
    app.cancel_sync(work.enqueue_sync(2).job.id)


def settled(most):
    ends = time.monotonic() + 30
    while True:
        gc.collect()
        closing = any(thread.name == "onejob closes a store" for thread in threading.enumerate())
        used = threading.active_count() + len(list(Path("/proc/self/fd").iterdir()))
        if (not closing and used <= most) or time.monotonic() > ends:
            return used
        time.sleep(0.05)


use()
first = settled(10**6)
for _ in range(5):
    use()
print(settled(first) - first)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_apps_that_are_dropped_without_close_leave_no_threads_or_files(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    url = file if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", DROPPED, url]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (int(run.stdout) <= 0, run.stderr) == (True, "")
