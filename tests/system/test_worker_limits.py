"""In which order jobs run, when, and how many at once; and what a worker leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Retry, State, current
from onejob.errors import JobFailed, UnknownQueue
from onejob.stores.contract import FullStore as Store
from onejob.worker.worker import LOOK_AGAIN
from tests.system.live import PATIENCE, STORES, Act, eventually, open_store, reached, wait_for_hints_only


@pytest.fixture
def act() -> Act:
    return Act()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, tmp_path)


@pytest.fixture
async def app(store: Store) -> AsyncIterator[App]:
    async with App(store=store) as app:
        yield app


# ── order and time ────────────────────────────────────────────────────────────────────────────────


async def test_higher_priorities_run_first_and_equal_ones_in_order(app: App) -> None:
    ran: list[Any] = []

    @app.task
    async def work(what: Any) -> None:
        ran.append(what)

    @app.task(priority=5)
    async def urgent(what: Any) -> None:
        ran.append(what)

    asked = [await work.enqueue(number) for number in range(5)]
    asked.append(await urgent.enqueue("urgent"))
    asked.append(await work.options(priority=-1).enqueue("last"))
    asked.append(await work.options(priority=9).enqueue("first"))
    asked.append(await urgent.options(priority=0).enqueue("not so urgent"))
    async with app.worker(concurrency=1):
        for each in asked:
            await each.result(PATIENCE)
    assert ran == ["first", "urgent", 0, 1, 2, 3, 4, "not so urgent", "last"]


async def test_many_at_once_run_in_the_order_of_the_batch(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    asked = await app.enqueue_many([work.call(number) for number in range(200)])
    async with app.worker(concurrency=1):
        await asked[-1].result(PATIENCE)
    assert ran == list(range(200))


async def test_a_delayed_job_waits_for_its_time(app: App) -> None:
    ran: dict[str, datetime] = {}

    @app.task
    async def work(what: str) -> None:
        ran[what] = datetime.now(UTC)

    due = datetime.now(UTC) + timedelta(milliseconds=400)
    async with app.worker():
        later = await work.options(run_at=due).enqueue("at a time")
        delayed = await work.options(delay="200ms").enqueue("after a while")
        assert delayed.job.state is State.SCHEDULED
        soon = await work.enqueue("at once")
        for each in (soon, delayed, later):
            await each.result(PATIENCE)
    by_time = sorted((later, delayed, soon), key=lambda asked: asked.job.run_at)
    assert list(ran) == [asked.job.arguments["what"] for asked in by_time]
    assert ran["at a time"] >= due
    assert ran["after a while"] >= delayed.job.created_at + timedelta(milliseconds=200)


async def test_a_time_in_the_past_is_now(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with app.worker():
        asked = await work.options(run_at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue()
        assert await asked.result(PATIENCE) == "done"


async def test_a_job_that_is_far_away_does_not_run(app: App) -> None:
    ran: list[str] = []

    @app.task
    async def work(what: str) -> None:
        ran.append(what)

    far = await work.options(delay="1h").enqueue("far")
    await work.enqueue("near")
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)
    assert ran == ["near"]
    assert (await app.job(far.job.id)).state is State.SCHEDULED


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_runs_as_many_as_it_has_places(app: App, act: Act) -> None:
    @app.task
    async def work(number: int) -> None:
        await act.play(number)

    asked = await app.enqueue_many([work.call(number) for number in range(9)])
    async with app.worker(concurrency=3) as worker:
        for number in range(9):
            await act.begins(min(number + 3, 9))  # whoever ends is followed at once
            assert worker.running <= 3
            act.let_end()
        for each in asked:
            await each.result(PATIENCE)
    assert act.most_at_once == 3


async def test_a_worker_has_so_many_places_for_each_queue(app: App) -> None:
    one, two = Act(), Act()
    app.queue("a")
    app.queue("b")

    @app.task(queue="a")
    async def first(number: int) -> None:
        await one.play(number)

    @app.task(queue="b")
    async def second(number: int) -> None:
        await two.play(number)

    calls = [call for number in range(6) for call in (first.call(number), second.call(number))]
    asked = await app.enqueue_many(calls)
    async with app.worker(concurrency=8, queues={"a": 2, "b": 3}) as worker:
        await one.begins(2)
        await two.begins(3)
        assert worker.running == 5
        one.let_end(6)
        await one.begins(6)
        two.let_end(6)
        for each in asked:
            await each.result(PATIENCE)
    assert (one.most_at_once, two.most_at_once) == (2, 3)


async def test_a_worker_serves_only_the_queues_that_it_is_given(app: App) -> None:
    app.queue("mail")

    @app.task
    async def work(what: str) -> str:
        return what

    other = await work.options(queue="mail").enqueue("mail")
    async with app.worker(queues=["default"]):
        assert await (await work.enqueue("default")).result(PATIENCE) == "default"
        assert (await app.job(other.job.id)).state is State.AVAILABLE
    async with app.worker(queues={"mail": 1}):
        assert await other.result(PATIENCE) == "mail"


async def test_a_queues_limit_holds_over_all_workers_and_is_used_up(app: App, act: Act) -> None:
    app.queue("a", concurrency=2)

    @app.task(queue="a")
    async def work(number: int) -> None:
        await act.play(number)

    asked = await app.enqueue_many([work.call(number) for number in range(10)])
    async with app.worker(concurrency=4) as one, app.worker(concurrency=4) as two:
        for number in range(10):
            await act.begins(min(number + 2, 10))  # kept busy: whoever ends is followed, here or there
            assert one.running + two.running <= 2
            act.let_end()
        for each in asked:
            await each.result(PATIENCE)
    assert act.most_at_once == 2
    assert sorted(act.ended) == list(range(10))


async def test_a_full_queue_does_not_hold_up_the_others(app: App, act: Act) -> None:
    app.queue("slow", concurrency=1)

    @app.task(queue="slow", priority=9)
    async def slow(number: int) -> None:
        await act.play(number)

    @app.task
    async def quick() -> str:
        return "done"

    async with app.worker(concurrency=2):
        waiting = [await slow.enqueue(number) for number in range(3)]
        await act.begins(1)
        assert await (await quick.enqueue()).result(PATIENCE) == "done"
        act.let_end(3)
        for each in waiting:
            await each.result(PATIENCE)
    assert act.most_at_once == 1


async def test_a_retry_leaves_its_place_to_others_meanwhile(app: App) -> None:
    @app.task(retry=Retry(attempts=2, base="1h", cap="1h"))
    async def fails() -> None:
        raise ValueError("later")

    @app.task
    async def works() -> str:
        return "done"

    async with app.worker(concurrency=1):
        failing = await fails.enqueue()
        assert await (await works.enqueue()).result(PATIENCE) == "done"
        await reached(app, failing.job, State.RETRYABLE)


async def test_a_pause_takes_effect_at_once_and_so_does_its_end(
    app: App, store: Store, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("a")
    console = App(store=store)

    @app.task(queue="a")
    async def work(number: int) -> None:
        await act.play(number)

    @app.task
    async def other() -> str:
        return "done"

    asked = await app.enqueue_many([work.call(number) for number in range(6)])
    wait_for_hints_only(store, monkeypatch)
    async with app.worker(concurrency=4):
        await act.begins(4)
        await console.queues.pause("a")
        act.let_end(4)  # what runs finishes, and nothing follows it
        for each in asked[:4]:
            await each.result(PATIENCE)
        assert await (await other.enqueue()).result(PATIENCE) == "done"
        assert await (await other.enqueue()).result(PATIENCE) == "done"
        assert len(act.begun) == 4
        await console.queues.resume("a")
        await act.begins(6)
        act.let_end(2)
        for each in asked[4:]:
            await each.result(PATIENCE)


async def test_a_worker_that_begins_while_a_queue_is_paused_waits_for_its_end(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    await app.queues.pause("default")
    asked = await work.enqueue()
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)
    assert (await app.job(asked.job.id)).state is State.AVAILABLE
    async with app.worker():
        await app.queues.resume("default")
        assert await asked.result(PATIENCE) == "done"


async def test_a_rate_is_kept_over_all_workers_and_used_up(app: App) -> None:
    app.queue("api", rate="5/400ms")
    began: list[datetime] = []

    @app.task(queue="api")
    async def work() -> None:
        began.append(current().job.started_at or datetime.now(UTC))

    asked = await app.enqueue_many([work.call() for _ in range(23)])
    async with app.worker(concurrency=4), app.worker(concurrency=4):
        for each in asked:
            await each.result(PATIENCE)
    began.sort()
    spans = [later - first for first, later in pairwise_at(began, 5)]
    assert min(spans) >= timedelta(milliseconds=400)
    assert began[-1] - began[0] < timedelta(seconds=LOOK_AGAIN)  # nobody slept through the end of a span


def pairwise_at(times: list[datetime], distance: int) -> Iterator[tuple[datetime, datetime]]:
    """Pair each time with the one that comes so many later."""
    return zip(times, times[distance:], strict=False)


async def test_a_partition_keeps_its_share_and_delays_no_other(app: App) -> None:
    app.queue("shared", partition_concurrency=1)
    crowd, others = Act(), Act()

    @app.task(queue="shared", partition="tenant")
    async def work(tenant: str) -> None:
        await (crowd if tenant == "a" else others).play(tenant)

    asked = await app.enqueue_many([work.call("a") for _ in range(50)])
    asked += await app.enqueue_many([work.call(tenant) for tenant in "bcb"])
    async with app.worker(concurrency=4), app.worker(concurrency=4):
        await others.begins(2)
        await crowd.begins(1)
        others.let_end(3)
        crowd.let_end(50)
        for each in asked:
            await each.result(PATIENCE)
    assert crowd.most_at_once == 1
    assert sorted(others.ended) == ["b", "b", "c"]


async def test_an_expired_job_is_never_run(app: App) -> None:
    ran: list[str] = []

    @app.task
    async def work(what: str) -> None:
        ran.append(what)

    app.queue("unserved")
    late = await work.options(expires_in="1ms").enqueue("late")
    later = await work.options(expires_in="1ms", queue="unserved").enqueue("later")
    await asyncio.sleep(0.002)
    async with app.worker(queues=["default"]):
        await (await work.enqueue("timely")).result(PATIENCE)
        with pytest.raises(JobFailed, match="expired"):
            await late.result(PATIENCE)
    await app.maintenance.sweep()
    assert (await app.job(later.job.id)).reason == "expired"
    assert ran == ["timely"]


# ── what is left alone ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("queues", [["mail"], {"mail": 2}, ["default", "mail"]])
async def test_a_worker_for_an_unknown_queue_is_refused(app: App, queues: Any) -> None:
    with pytest.raises(UnknownQueue, match="No queue is named 'mail'"):
        app.worker(queues=queues)


async def test_a_call_to_an_unknown_queue_is_refused(app: App) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(UnknownQueue, match="No queue is named 'mail'"):
        await work.options(queue="mail").enqueue()
    assert await app.jobs() == []
    app.queue("mail")
    assert (await work.options(queue="mail").enqueue()).job.queue == "mail"


@pytest.mark.parametrize("delay", [None, "1ms"], ids=["due", "soon due"])
async def test_a_job_of_an_unknown_task_is_left_alone(app: App, store: Store, delay: str | None) -> None:
    newer = App(store=store)

    @newer.task
    async def new() -> str:
        return "done by the new worker"

    @app.task
    async def old(number: int) -> int:
        return number

    unknown = await new.options(delay=delay).enqueue()
    async with app.worker():
        for number in range(3):
            assert await (await old.enqueue(number)).result(PATIENCE) == number
        await eventually_due(app, unknown.job.id)
        assert await (await old.enqueue(3)).result(PATIENCE) == 3
    job = await app.job(unknown.job.id)
    assert (job.attempt, job.token, job.failures, job.worker) == (0, 0, [], None)
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)  # it is due, but nothing for this one
    async with newer.worker():
        assert await unknown.result(PATIENCE) == "done by the new worker"


async def eventually_due(app: App, job_id: str) -> None:
    """Wait until a job's time has come and a worker has seen it."""

    async def is_available() -> bool:
        return (await app.job(job_id)).state is State.AVAILABLE

    await eventually(is_available)


async def test_namespaces_do_not_mix(app: App, store: Store) -> None:
    ran: list[str] = []
    other = App(store=store, namespace="tenant")

    @app.task(name="work", unique=True)
    async def ours() -> None:
        ran.append("ours")

    @other.task(name="work", unique=True)
    async def theirs() -> None:
        ran.append("theirs")

    one, two = await ours.enqueue(), await theirs.enqueue()
    assert (one.deduplicated, two.deduplicated) == (False, False)
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)
    assert ran == ["ours"]
    await asyncio.wait_for(other.worker(drain=True).run(), PATIENCE)
    assert ran == ["ours", "theirs"]
