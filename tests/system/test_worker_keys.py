"""Deduplication with a live worker: nothing runs twice for nothing, and the newest request is never lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from onejob import App, Outcome, Retry, State, Unique, current
from onejob.errors import NotCovered, StoreUnavailable, WouldDeadlock
from onejob.stores.contract import FullStore as Store
from tests.system.live import PATIENCE, STORES, Act, Disturbed, happens, open_store

SOON = Retry(attempts=3, base="5ms", jitter=0)


@pytest.fixture
def act() -> Act:
    return Act()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Disturbed:
    return Disturbed(open_store(request.param, tmp_path))


@pytest.fixture
async def app(store: Disturbed) -> AsyncIterator[App]:
    async with App(store=cast("Store", store), retry=SOON) as app:
        yield app


# ── coalescing ────────────────────────────────────────────────────────────────────────────────────


async def test_requests_during_a_run_become_one_more_with_the_newest_payload(app: App, act: Act) -> None:
    @app.task(unique=Unique.coalesce(by=[]))
    async def index(text: str) -> str:
        return cast("str", await act.play(text))

    async with app.worker():
        first = await index.enqueue("first")
        await act.begins(1)
        later = [await index.enqueue(f"change {number}") for number in range(20)]
        assert {each.outcome for each in later} == {Outcome.RERUN, Outcome.UPDATED}
        assert {each.job.id for each in later} != {first.job.id}
        assert act.begun == ["first"]
        act.let_end(2)
        assert await first.result(PATIENCE) == "first"
        assert [await each.result(PATIENCE) for each in later] == ["change 19"] * 20
    assert act.begun == ["first", "change 19"]
    assert act.most_at_once == 1
    assert len(await app.jobs()) == 2


async def test_a_request_between_the_return_and_the_commit_is_not_lost(
    app: App, store: Disturbed, act: Act
) -> None:
    @app.task(unique=Unique.coalesce(by=[]))
    async def index(text: str) -> str:
        return cast("str", await act.play(text))

    act.let_end(2)
    async with app.worker():
        store.may_settle.clear()
        first = await index.enqueue("first")
        await happens(store.settling)
        assert act.ended == ["first"]
        late = await index.enqueue("late")
        assert (late.outcome, late.job.id == first.job.id) == (Outcome.RERUN, False)
        assert act.begun == ["first"]
        store.may_settle.set()
        assert await late.result(PATIENCE) == "late"
        assert await first.result(PATIENCE) == "first"
    assert act.begun == ["first", "late"]
    assert act.most_at_once == 1


async def test_a_request_after_the_commit_is_a_new_job(app: App, act: Act) -> None:
    @app.task(unique=Unique.coalesce(by=[]))
    async def index(text: str) -> str:
        return cast("str", await act.play(text))

    act.let_end(2)
    async with app.worker():
        first = await index.enqueue("first")
        await first.result(PATIENCE)
        second = await index.enqueue("second")
        assert second.outcome is Outcome.CREATED
        assert await second.result(PATIENCE) == "second"


async def test_a_storm_of_requests_never_overlaps_and_ends_with_the_newest(app: App) -> None:
    running: list[int] = []
    overlaps: list[int] = []
    runs: list[int] = []
    guard = threading.Lock()

    @app.task(unique=Unique.coalesce(by=[]))
    def index(number: int) -> int:
        with guard:
            overlaps.extend(running)
            running.append(number)
            runs.append(number)
        with guard:
            running.remove(number)
        return number

    async with app.worker(concurrency=4), app.worker(concurrency=4):
        for number in range(300):
            last = await index.enqueue(number)
        assert await last.result(PATIENCE) == 299
    assert overlaps == []
    assert runs[-1] == 299
    assert runs == sorted(set(runs))


async def test_a_failed_run_gives_way_to_the_request_that_came_meanwhile(app: App, act: Act) -> None:
    @app.task(unique=Unique.coalesce(by=[]), retry=Retry(attempts=5, base="1ms", jitter=0))
    async def index(text: str) -> str:
        await act.play(text)
        if text == "bad":
            raise ValueError(text)
        return text

    async with app.worker():
        bad = await index.enqueue("bad")
        await act.begins(1)
        good = await index.enqueue("good")
        act.let_end(2)
        assert await good.result(PATIENCE) == "good"
        assert await bad.result(PATIENCE) == "good", "a superseded request follows its successor"
    assert act.begun == ["bad", "good"]
    job = await app.job(bad.job.id)
    assert (job.state, job.reason, job.superseded_by) == ("cancelled", "superseded", good.job.id)


async def test_a_request_may_ask_the_run_to_stop(app: App, act: Act) -> None:
    ends: list[str] = []

    @app.task(unique=Unique(by=[], on_conflict="update", on_active="cancel"))
    async def index(text: str) -> str:
        try:
            return cast("str", await act.play(text))
        except asyncio.CancelledError:
            ends.append(text)
            raise

    async with app.worker():
        old = await index.enqueue("old")
        await act.begins(1)
        new = await index.enqueue("new")
        await act.begins(2)
        act.let_end()
        assert await new.result(PATIENCE) == "new"
    assert (ends, act.ended, act.most_at_once) == (["old"], ["new"], 1)
    assert (await app.job(old.job.id)).state is State.CANCELLED


# ── covered ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_before_the_run_is_covered_by_it(app: App, act: Act) -> None:
    @app.task(unique=True)
    async def tidy() -> None:
        await act.play("tidy")

    first, second = await tidy.enqueue(), await tidy.enqueue()
    assert second.deduplicated
    covered = [asyncio.create_task(each.covered(PATIENCE)) for each in (first, second)]
    async with app.worker():
        await act.begins(1)
        assert not any(task.done() for task in covered)
        act.let_end()
        await asyncio.gather(*covered)
    assert act.ended == ["tidy"]


async def test_a_request_during_the_run_is_not_covered_by_it(app: App, act: Act) -> None:
    @app.task(unique=True)
    async def tidy() -> None:
        await act.play("tidy")

    async with app.worker():
        first = await tidy.enqueue()
        await act.begins(1)
        second = await tidy.enqueue()
        assert second.outcome is Outcome.KEPT
        with pytest.raises(NotCovered, match="no later run of its key is due"):
            await second.covered(PATIENCE)
        act.let_end()
        await first.covered(PATIENCE)


async def test_a_request_during_the_run_is_covered_by_the_next(app: App, act: Act) -> None:
    @app.task(unique=Unique(on_active="rerun"))
    async def tidy() -> None:
        await act.play("tidy")

    async with app.worker():
        first = await tidy.enqueue()
        await act.begins(1)
        second = await tidy.enqueue()
        covered = asyncio.create_task(second.covered(PATIENCE))
        act.let_end()
        await first.covered(PATIENCE)
        await act.begins(2)
        assert not covered.done()
        act.let_end()
        await covered
    assert act.ended == ["tidy", "tidy"]


async def test_a_kept_request_is_covered_by_a_successor_that_came_after_it(app: App, act: Act) -> None:
    @app.task(unique=True)
    async def tidy() -> None:
        await act.play("tidy")

    async with app.worker():
        await tidy.enqueue()
        await act.begins(1)
        kept = await tidy.enqueue()
        await tidy.options(unique=Unique(on_active="rerun")).enqueue()
        covered = asyncio.create_task(kept.covered(PATIENCE))
        act.let_end()
        await act.begins(2)
        assert not covered.done()
        act.let_end()
        await covered


async def test_a_run_that_failed_has_run(app: App) -> None:
    @app.task(unique=True, retry=Retry.never())
    async def tidy() -> None:
        raise OSError("no broom")

    async with app.worker():
        await (await tidy.enqueue()).covered(PATIENCE)


async def test_waiting_to_be_covered_has_an_end(app: App) -> None:
    @app.task(unique=True)
    async def tidy() -> None: ...

    asked = await tidy.enqueue()
    with pytest.raises(TimeoutError):
        await asked.covered("10ms")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(asked.covered_sync, 0.01)


async def test_a_job_that_was_cancelled_before_it_ran_covers_no_request(app: App) -> None:
    @app.task(unique=True)
    async def tidy() -> None: ...

    asked = await tidy.enqueue()
    await app.cancel(asked.job.id)
    with pytest.raises(NotCovered):
        await asked.covered(PATIENCE)


# ── inside a run ──────────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_asks_for_its_own_key_gets_a_successor(app: App) -> None:
    runs: list[int] = []
    outcomes: list[Outcome] = []

    @app.task(unique=Unique(by=[]))
    async def step(number: int) -> int:
        runs.append(number)
        if number < 3:
            outcomes.append((await step.enqueue(number + 1)).outcome)
        return number

    async with app.worker():
        await step.enqueue(1)
        await drained(app)
    assert runs == [1, 2, 3]
    assert outcomes == [Outcome.RERUN, Outcome.RERUN]


async def drained(app: App) -> None:
    """Wait until nothing is left to do."""
    async with asyncio.timeout(PATIENCE):
        while (stats := await app.stats()).waiting or stats.running:
            await app._engine.store.wait(0.02)


async def test_a_plain_run_that_asks_for_its_own_key_gets_a_successor(app: App) -> None:
    runs: list[int] = []
    outcomes: list[Outcome] = []

    @app.task(unique=Unique(by=[]))
    def step(number: int) -> None:
        runs.append(number)
        if number == 1:
            outcomes.append(step.enqueue_sync(2).outcome)

    async with app.worker():
        await step.enqueue(1)
        await drained(app)
    assert (runs, outcomes) == ([1, 2], [Outcome.RERUN])


async def test_awaiting_ones_own_successor_is_refused(app: App) -> None:
    caught: list[str] = []

    @app.task(unique=Unique(by=[]))
    async def step(number: int) -> None:
        if number == 1:
            asked = await step.enqueue(2)
            for waiting in (asked.result(PATIENCE), asked.covered(PATIENCE)):
                with pytest.raises(WouldDeadlock) as error:
                    await waiting
                caught.append(str(error.value))

    @app.task(unique=Unique(by=[]))
    def plain_step(number: int) -> None:
        if number == 1:
            with pytest.raises(WouldDeadlock) as error:
                plain_step.enqueue_sync(2).result_sync(PATIENCE)
            caught.append(str(error.value))

    async with app.worker():
        first, second = await step.enqueue(1), await plain_step.enqueue(1)
        await first.result(PATIENCE)
        await second.result(PATIENCE)
        await drained(app)
    assert len(caught) == 3
    assert len(await app.jobs(state=State.COMPLETED)) == 4


async def test_awaiting_another_job_inside_a_run_is_fine(app: App) -> None:
    @app.task(unique=True)
    async def child(number: int) -> int:
        return number + 1

    @app.task(unique=True)
    async def parent() -> int:
        return await (await child.enqueue(1)).result(PATIENCE)

    @app.task(unique=True)
    def plain_parent() -> int:
        return child.enqueue_sync(2).result_sync(PATIENCE)

    async with app.worker():
        asked, plainly = await parent.enqueue(), await plain_parent.enqueue()
        assert await asked.result(PATIENCE) == 2
        assert await plainly.result(PATIENCE) == 3
    [job] = await app.jobs(task="child", state=State.COMPLETED, limit=1)
    assert job.parent_id in {asked.job.id, plainly.job.id}


async def test_a_quiet_enqueue_cannot_fail_its_handler(
    app: App, store: Disturbed, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = []

    @app.task
    async def child(value: Any) -> None: ...

    @app.task
    async def parent() -> str:
        answers.append(await child.enqueue_quietly(object()))
        store.down = True
        try:
            answers.append(await child.enqueue_quietly(1))
        finally:
            store.down = False
        answers.append((await child.enqueue_quietly(2)) is not None)
        return f"attempt {current().attempt}"

    @app.task
    def plain_parent() -> str:
        answers.append(child.enqueue_quietly_sync(object()))
        return f"attempt {current().attempt}"

    async with app.worker():
        assert await (await parent.enqueue()).result(PATIENCE) == "attempt 1"
        assert await (await plain_parent.enqueue()).result(PATIENCE) == "attempt 1"
    assert answers == [None, None, True, None]
    lines = [record for record in caplog.records if "quiet enqueue of child failed" in record.getMessage()]
    assert len(lines) == 3
    assert [record.exc_info is not None for record in lines] == [True] * 3
    assert any(isinstance((record.exc_info or (0, 0))[1], StoreUnavailable) for record in lines)
