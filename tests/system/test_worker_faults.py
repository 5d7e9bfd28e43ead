"""Leases, stopping, and stores that do not answer: what a worker does when things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from onejob import App, Job, Retry, State, Unique, current
from onejob.core.job import alter
from onejob.core.leasing import Lease
from onejob.core.runs import Completed
from onejob.core.step import Step
from onejob.errors import AdmissionBusy, JobFailed
from onejob.stores.contract import FullStore as Store
from onejob.stores.contract import Leased
from tests.system.live import PATIENCE, STORES, Act, Disturbed, eventually, happens, open_store, reached

LEASE = "1s"


@pytest.fixture
def act() -> Act:
    return Act()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Disturbed:
    return Disturbed(open_store(request.param, tmp_path))


@pytest.fixture
async def app(store: Disturbed) -> AsyncIterator[App]:
    """Use the store through the disturbance."""
    async with App(store=cast("Store", store)) as app:
        yield app


def beside(app: App, store: Disturbed) -> App:
    """Make an app that uses the same store undisturbed, with the same tasks."""
    other = App(store=store._store)
    for name, task in app._registry.tasks.items():
        other.task(name=name, unique=task.unique, retry=task.retry)(task.function)
    return other


async def expired(app: App, job: Job) -> None:
    """Wait until a job's lease has run out, and take the job back as any worker would."""

    async def taken_back() -> bool:
        await app.maintenance.sweep()
        return (await app.job(job.id)).state is not State.ACTIVE

    await eventually(taken_back)


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_longer_than_its_lease_is_not_run_twice(app: App, act: Act) -> None:
    @app.task
    async def work() -> str:
        return cast("str", await act.play("work"))

    async with app.worker(lease=LEASE), app.worker(lease=LEASE):
        asked = await work.enqueue()
        await act.begins(1)
        first = (await app.job(asked.job.id)).lease_until
        assert first is not None

        async def outlived() -> bool:
            assert await app.maintenance.sweep() == (0, 0)
            return app._engine.store.now() > first + timedelta(seconds=1)

        await eventually(outlived)
        act.let_end()
        assert await asked.result(PATIENCE) == "work"
    job = await app.job(asked.job.id)
    assert (act.begun, job.token, job.attempt, job.failures) == (["work"], 1, 1, [])


async def test_a_run_that_lost_its_lease_is_stopped_and_its_result_dropped(
    app: App, store: Disturbed, act: Act, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[bool] = []

    @app.task(retry=Retry(attempts=2, base="1ms"))
    async def work() -> str:
        if current().attempt > 1:
            return "the other's"
        try:
            await act.play("work")
        finally:
            stopped.append(current().cancelled)
        return "mine"

    other = beside(app, store)
    async with app.worker(lease=LEASE) as worker:
        asked = await work.enqueue()
        await act.begins(1)
        store.down = True
        await expired(other, asked.job)
        async with other.worker():
            job = await reached(other, asked.job, State.COMPLETED)
        store.down = False
        await eventually_idle(worker)
    assert stopped == [True]
    assert (job.result, job.attempt) == (b'"the other\'s"', 2)
    assert await app.job(asked.job.id) == job
    assert [failure["type"] for failure in job.failures] == ["LeaseExpired"]
    assert "its result is dropped" in caplog.text


async def eventually_idle(worker: Any) -> None:
    """Wait until a worker runs nothing."""

    async def idle() -> bool:
        return bool(worker.running == 0)

    await eventually(idle)


async def test_a_result_that_comes_after_the_lease_was_lost_is_dropped(
    app: App, store: Disturbed, act: Act, caplog: pytest.LogCaptureFixture
) -> None:
    """The fence: the job runs again at this moment, so only the token says that it is another's."""

    @app.task(unique=Unique.coalesce(), retry=Retry(attempts=2, base="1ms"))
    async def work() -> str:
        if current().attempt > 1:
            await act.play("again")
        return f"attempt {current().attempt}"

    other = beside(app, store)
    worker = app.worker(lease=LEASE)
    running = asyncio.create_task(worker.run())
    store.may_settle.clear()
    asked = await work.enqueue()
    await happens(store.settling)
    worker.stop()  # so that the other gets the job
    store.down = True  # so that the lease of the waiting result is not renewed
    await expired(other, asked.job)
    async with other.worker():
        await act.begins(1)
        store.down = False
        store.may_settle.set()
        await asyncio.wait_for(running, PATIENCE)
        assert (await app.job(asked.job.id)).state is State.ACTIVE
        act.let_end()
        assert await asked.result(PATIENCE) == "attempt 2"
    job = await app.job(asked.job.id)
    assert (job.state, job.result, job.token) == (State.COMPLETED, b'"attempt 2"', 2)
    assert f"job {asked.job.id} was taken over; its result is dropped" in caplog.text
    assert worker.ended == {"lost": 1}


async def test_a_late_lease_takes_no_slot(
    app: App, store: Disturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stopped before its first step: nothing of it is executed, not even its end."""
    monkeypatch.setattr("onejob.worker.chores.WATCH_EVERY", 0)  # so that it looks before the run has begun
    other = beside(app, store)
    looked, late = asyncio.Event(), asyncio.Event()

    async def lease(wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        looked.set()
        leased = await other._engine.store.lease(wanted, after)
        if late.is_set() or not leased.jobs:
            return leased
        late.set()
        return leased._replace(jobs=[alter(job, lease_until=store.now()) for job in leased.jobs])

    monkeypatch.setattr(store, "lease", lease)

    @app.task(retry=Retry(attempts=2, base="1ms"))
    async def work() -> int:
        return current().attempt

    async with app.worker(lease="50ms", concurrency=1):
        await happens(looked)
        asked = await work.enqueue()
        await happens(late)
        await expired(other, asked.job)
        assert await asked.result(PATIENCE) == 2


async def test_the_job_of_a_dead_worker_is_taken_back_and_the_crash_counts(app: App) -> None:
    @app.task(retry=Retry(attempts=2, base="1ms"))
    async def work() -> int:
        return current().attempt

    asked = await work.enqueue()
    dead = Lease(
        namespace="",
        worker="the dead",
        queues={"default": 1},
        total=1,
        duration=timedelta(milliseconds=1),
        tasks=["work"],
    )
    assert [job.id for job in (await app._engine.store.lease(dead)).jobs] == [asked.job.id]
    async with app.worker():  # sweeps by itself
        assert await asked.result(PATIENCE) == 2
    [failure] = (await app.job(asked.job.id)).failures
    assert (failure["attempt"], failure["type"]) == (1, "LeaseExpired")
    assert "the dead" in failure["message"]


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────


async def test_stopping_lets_runs_end_and_takes_no_new_ones(app: App, act: Act) -> None:
    @app.task
    async def work(number: int) -> None:
        await act.play(number)

    worker = app.worker(concurrency=2)
    running = asyncio.create_task(worker.run())
    asked = [await work.enqueue(number) for number in range(4)]
    await act.begins(2)
    worker.stop()
    act.let_end(4)
    await asyncio.wait_for(running, PATIENCE)
    assert act.ended == [0, 1]
    assert worker.ended == {"completed": 2}
    states = [(await app.job(each.job.id)).state for each in asked]
    assert states == [State.COMPLETED] * 2 + [State.AVAILABLE] * 2


@pytest.mark.parametrize("how", ["grace", "at once", "cancel"])
async def test_what_does_not_end_is_handed_back_without_spending_an_attempt(
    app: App, act: Act, how: str
) -> None:
    @app.task(unique=True, retry=Retry.never())
    async def work() -> int:
        return cast("int", await act.play(current().attempt))

    worker = app.worker(grace="20ms" if how == "grace" else "1h", name="w")
    running = asyncio.create_task(worker.run())
    asked = await work.enqueue()
    await act.begins(1)
    if how == "cancel":
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, PATIENCE)
    else:
        worker.stop(at_once=how == "at once")
        await asyncio.wait_for(running, PATIENCE)
    job = await app.job(asked.job.id)
    assert (job.state, job.attempt, job.failures, job.worker) == (State.AVAILABLE, 0, [], "w")
    assert worker.ended == {"handed back": 1}
    assert (await work.enqueue()).job.id == job.id, "the key is still held"
    act.let_end()
    async with app.worker():
        assert await asked.result(PATIENCE) == 1
    assert act.begun == [1, 1]


async def test_a_plain_function_that_does_not_end_is_handed_back_and_logged(app: App) -> None:
    begun, told, give_up = threading.Event(), threading.Event(), threading.Event()

    @app.task(retry=Retry.never())
    def work() -> str:
        begun.set()
        while not give_up.wait(0.001):
            if current().cancelled:
                told.set()
                break
        return "too late"

    try:
        async with app.worker(grace="20ms"):
            asked = await work.enqueue()
            await happens(begun)
        job = await app.job(asked.job.id)
        assert (job.state, job.attempt, job.result) == (State.AVAILABLE, 0, None)
        await happens(told)
    finally:
        give_up.set()


async def test_a_worker_for_the_length_of_a_block_ends_with_it(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async def use() -> None:
        async with app.worker():
            assert await (await work.enqueue()).result(PATIENCE) == "done"
            raise LookupError("the block's own")

    with pytest.raises(LookupError, match="the block's own"):
        await use()
    asked = await work.enqueue()
    assert asked.job.state is State.AVAILABLE
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert tasks == []
    assert (await app.job(asked.job.id)).state is State.AVAILABLE


async def test_a_run_may_save_its_result_while_the_worker_stops(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return "never"

    async with app.worker(grace="1ms"):
        asked = await work.enqueue()
        await happens(begun)
    assert await asked.result(PATIENCE) == "saved"


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onejob.worker.worker.HAND_BACK_AFTER", 0.2)
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        begun.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    worker = app.worker(grace="10ms")
    running = asyncio.create_task(worker.run())
    asked = await stubborn.enqueue()
    await happens(begun)
    worker.stop()
    await asyncio.wait_for(running, 5)
    may_end.set()
    job = await app.job(asked.job.id)
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)
    assert "ignores its cancellation and is handed back" in caplog.text


async def test_a_store_that_is_silent_does_not_keep_the_worker(
    app: App, store: Disturbed, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.worker.worker.GIVE_UP_AFTER", 0.2)

    @app.task
    async def work() -> None:
        await act.play("work")

    worker = app.worker(grace="10ms")
    running = asyncio.create_task(worker.run())
    await work.enqueue()
    await act.begins(1)
    store.may_settle.clear()
    worker.stop()
    await asyncio.wait_for(running, 5)
    store.may_settle.set()
    assert worker.ended == {}


# ── transactions of others ────────────────────────────────────────────────────────────────────────


async def test_a_result_that_another_transaction_delays_is_written_again(
    app: App, store: Disturbed, act: Act
) -> None:
    delayed: list[str | None] = []
    lease, is_delayed = store.lease, True

    async def delaying(wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        if not after or not is_delayed:
            return await lease(wanted, after)
        delayed.extend(step.job_id for step in after)
        _, jobs, next_due = await lease(wanted)
        return Leased([AdmissionBusy("another transaction keeps the job") for _ in after], jobs, next_due)

    store.lease = delaying  # type: ignore[method-assign]

    @app.task
    async def work(number: int) -> int:
        return cast("int", await act.play(number))

    async with app.worker(concurrency=2) as worker:
        first = await work.enqueue(1)
        act.let_end()
        await eventually(lambda: has_length(delayed, 3))
        second = await work.enqueue(2)
        await act.begins(2)  # other jobs run meanwhile
        assert (await app.job(first.job.id)).state is State.ACTIVE
        is_delayed = False
        act.let_end()
        assert (await first.result(PATIENCE), await second.result(PATIENCE)) == (1, 2)
    assert worker.ended == {"completed": 2}
    assert len(act.begun) == 2


async def has_length(things: list[Any], length: int) -> bool:
    return len(things) >= length


# ── outages ───────────────────────────────────────────────────────────────────────────────────────


async def outage(store: Disturbed, refusals: int) -> None:
    """Switch the store off until it has refused so often."""

    async def often() -> bool:
        return store.refused >= refusals

    store.refused = 0
    store.down = True
    try:
        await eventually(often)
    finally:
        store.down = False


async def test_an_idle_worker_survives_an_outage(
    app: App, store: Disturbed, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    async def backed_off() -> bool:
        return "trying again in 0.4 s" in caplog.text

    async with app.worker():
        assert await (await work.enqueue(1)).result(PATIENCE) == 1
        store.down = True
        unseen = await beside(app, store).tasks["work"].enqueue(0)
        await eventually(backed_off)
        store.down = False
        assert await unseen.result(PATIENCE) == 0
        assert await (await work.enqueue(2)).result(PATIENCE) == 2
    assert "the store does not answer, trying again in 0.1 s: the disk is on holiday" in caplog.text
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_run_that_ends_in_an_outage_is_settled_after_it(app: App, store: Disturbed, act: Act) -> None:
    @app.task(unique=Unique.coalesce())
    async def work() -> str:
        current().progress(0.5)
        return cast("str", await act.play("work"))

    async with app.worker(lease="10s") as worker:
        asked = await work.enqueue()
        await act.begins(1)
        store.down = True
        act.let_end()
        await outage(store, 5)
        assert await asked.result(PATIENCE) == "work"
    assert worker.ended == {"completed": 1}
    assert act.begun == ["work"]
    assert (await app.job(asked.job.id)).progress is not None


async def test_an_outage_does_not_flood_the_log(
    app: App, store: Disturbed, act: Act, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work() -> None:
        await act.play("work")

    async with app.worker(lease="60s"):
        asked = await work.enqueue()
        await act.begins(1)
        caplog.clear()
        await outage(store, 9)
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        act.let_end()
        await asked.result(PATIENCE)
    assert 1 <= len(lines) <= 7, "each part of the worker backs off, or tells it once"
    assert all(record.exc_info is None for record in lines)


async def test_progress_reported_in_an_outage_is_stored_after_it(
    app: App, store: Disturbed, act: Act
) -> None:
    @app.task
    async def work() -> None:
        current().progress(0.5, "half way")
        await act.play("work")

    async def tried_to_write() -> bool:
        return store.refused_writes > 0

    async def stored() -> bool:
        return b"half way" in ((await app.job(asked.job.id)).progress or b"")

    async with app.worker(lease="60s"):
        asked = await work.enqueue()
        await act.begins(1)
        store.down = True
        await eventually(tried_to_write)
        store.down = False
        await eventually(stored)
        act.let_end()
        await asked.result(PATIENCE)


async def test_a_worker_can_be_stopped_in_an_outage(app: App, store: Disturbed, act: Act) -> None:
    @app.task
    async def work() -> None:
        await act.play("work")

    worker = app.worker(lease="60s")
    running = asyncio.create_task(worker.run())
    asked = await work.enqueue()
    await act.begins(1)
    store.down = True
    worker.stop(at_once=True)
    await asyncio.wait_for(running, PATIENCE)
    store.down = False
    assert (await app.job(asked.job.id)).state is State.ACTIVE  # until its lease runs out


async def test_a_worker_that_cannot_write_results_does_not_go_on(app: App, store: Disturbed) -> None:
    """Whatever is not an outage is a bug, and ends the worker instead of running jobs for nothing."""
    ran: list[int] = []

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    store.broken = ZeroDivisionError("a bug")
    worker = app.worker(concurrency=1)
    running = asyncio.create_task(worker.run())
    await work.enqueue(1)
    await asyncio.wait([running], timeout=PATIENCE)
    assert running.done(), "it ends by itself"
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await running
    assert ran == [1]


async def test_a_result_that_cannot_be_written_ends_its_own_job_and_no_other(
    app: App, store: Disturbed
) -> None:
    """One poisonous result must not keep the others from being written."""
    poison: set[str] = set()
    apply, lease = store.apply, store.lease

    def refuse(steps: Sequence[Step[Any]]) -> None:
        for step in steps:
            result = step.act.keywords.get("result") if isinstance(step.act, partial) else None
            if step.job_id in poison and isinstance(result, Completed):
                raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no such letter")

    async def refusing_apply(steps: Sequence[Step[Any]]) -> list[Any]:
        refuse(steps)
        return await apply(steps)

    async def refusing_lease(wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        refuse(after)
        return await lease(wanted, after)

    store.apply = refusing_apply  # type: ignore[method-assign]
    store.lease = refusing_lease  # type: ignore[method-assign]

    @app.task
    async def work(number: int) -> int:
        return number

    store.may_settle.clear()  # so that all three results are written together
    admissions = [await work.enqueue(number) for number in range(3)]
    poison.add(admissions[1].job.id)
    async with app.worker():
        await happens(store.settling)
        store.may_settle.set()
        assert [await admissions[number].result(PATIENCE) for number in (0, 2)] == [0, 2]
        with pytest.raises(JobFailed, match="no such letter"):
            await admissions[1].result(PATIENCE)
    assert (await app.job(admissions[1].job.id)).state is State.DISCARDED


async def test_an_idle_worker_writes_nothing(app: App, store: Disturbed) -> None:
    applied: list[int] = []
    apply = store.apply

    async def counting(steps: Any) -> list[Any]:
        applied.append(len(steps))
        return await apply(steps)

    store.apply = counting  # type: ignore[method-assign]

    async def looked_often() -> bool:
        return app._engine.store.now() > began + timedelta(seconds=1.2)

    began = app._engine.store.now()
    async with app.worker(lease="30ms"):
        await eventually(looked_often)
    assert sum(applied) == 0
    assert len(applied) <= 1, "the settling of nothing, when it stops"


class Opaque(type):
    """A class of classes that do not say what their instances are."""

    def __instancecheck__(cls, instance: object) -> bool:
        """Raise."""
        raise RuntimeError("instances of this class cannot be told")


class Unclear(Exception, metaclass=Opaque):
    """An exception of a careless library."""


async def test_one_class_to_give_up_on_needs_no_tuple(app: App) -> None:
    @app.task(give_up_on=ValueError)
    async def fail() -> None:
        raise ValueError("never again")

    failed = await fail.enqueue()
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)
    job = await app.job(failed.job.id)
    assert (job.state, job.attempt) == (State.DISCARDED, 1)


async def test_an_error_that_cannot_be_examined_is_a_failure(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """The run would never end otherwise, and keep its place in the worker."""

    @app.task(give_up_on=(Unclear,), retry=Retry(attempts=1))
    async def fail() -> None:
        raise ValueError("boom")

    failed = await fail.enqueue()
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)
    job = await app.job(failed.job.id)
    assert job.state is State.DISCARDED
    assert job.failures[-1]["type"] == "RuntimeError"
    assert "cannot be examined" in caplog.text
