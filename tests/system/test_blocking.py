"""Blocking code: everything works without `await`, on every store; what cannot work says what to write."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Retry, State, Unique, batch, chain, group
from onejob.errors import InvalidCall, UnknownJob

PATIENCE = 30


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}
    made = App(urls.get(request.param) or request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.close_sync()


def test_a_script_enqueues_looks_and_decides_without_await(app: App) -> None:
    @app.task(unique=Unique(by="number"))
    def double(number: int) -> int:
        return number * 2

    first = double.enqueue_sync(1)
    assert double.pending_sync(1)
    assert double.explain_sync(1).outcome == "kept"
    assert double.enqueue_quietly_sync(1) is not None
    assert [one.outcome for one in app.enqueue_many_sync([double.call(1), double.call(2)])] == [
        "kept",
        "created",
    ]
    assert app.job_sync(first.job.id).id == first.job.id
    assert {job.id for job in app.holds_sync()} == {job.id for job in app.jobs_sync(state="available")}
    assert app.absorbed_sync() == {first.job.id: 2}
    assert [chain.id for chain in app.chains_sync(state="available")][-1] == first.job.id

    assert first.key is not None
    released = app.release_sync(first.key)
    assert released is not None
    assert app.cancel_sync(first.job.id).state == "cancelled"
    assert app.delete_sync(first.job.id).id == first.job.id
    with pytest.raises(UnknownJob):
        app.job_sync(first.job.id)

    app.run_worker(drain=True)
    assert app.stats_sync().by_state[State.COMPLETED] == 1
    assert app.doctor_sync() or app.guarantees().store == "memory"


def test_dead_letters_without_await(app: App) -> None:
    @app.task(retry=Retry.never())
    def fail(number: int) -> None:
        raise ValueError(f"no {number}")

    app.enqueue_many_sync([fail.call(number) for number in range(4)])
    app.run_worker(drain=True)

    assert len(app.dead.list_sync(task="fail", limit=3)) == 3
    assert [(one.error, one.count) for one in app.dead.groups_sync()] == [("ValueError", 4)]
    ids = app.dead.ids_sync()
    assert app.dead.replay_sync(ids[0]).outcome == "created"
    assert len([one for one in app.dead.replay_many_sync(ids[:2]) if one is not None]) == 1
    assert len(app.dead.replay_all_sync(error="ValueError")) == 2


def test_queues_schedules_and_maintenance_without_await(app: App) -> None:
    app.queue("mail", rate="1/1h")

    @app.task(queue="mail")
    def send() -> None: ...

    app.queues.pause_sync("mail")
    assert app.queues.paused_sync() == {"mail"}
    assert [one.paused for one in app.queues.list_sync() if one.queue.name == "mail"] == [True]
    app.queues.resume_sync("mail")
    assert app.queues.next_start_sync("mail") is None

    assert app.schedules.add_sync("hourly", send.call(), every="1h").name == "hourly"
    assert app.schedules.pause_sync("hourly").paused
    assert not app.schedules.resume_sync("hourly").paused
    assert app.schedules.get_sync("hourly") == app.schedules.all_sync()[0]
    assert [one.schedule.name for one in app.schedules.list_sync()] == ["hourly"]
    assert app.schedules.remove_sync("hourly").name == "hourly"
    assert app.schedules.all_sync() == []

    assert app.maintenance.sweep_sync() == (0, 0)
    assert app.maintenance.prune_sync(dry_run=True) == 0
    assert not app.maintenance.replay_due_sync()
    other = App("memory://")
    send.options(delay="1h").enqueue_sync()
    assert app.maintenance.move_to_sync(other).moved == 1
    assert len(other.jobs_sync()) == 1
    other.close_sync()


def test_chains_and_groups_without_await(app: App) -> None:
    @app.task
    def add(number: int, to: int = 1) -> int:
        return number + to

    first = chain(add.call(1), add.step()).enqueue_sync()
    members = group(add.call(5), add.call(6)).enqueue_sync()
    waiting = batch(add.call(8), on_success=add.call(9)).enqueue_sync()
    assert first.chain.status_sync() == "available"
    assert [job.id for job in waiting.admissions[0].chain.dependants_sync()] == [
        waiting.callbacks["on_success"].job.id
    ]
    gone = add.options(delay="1h").enqueue_sync(1)
    assert gone.chain.cancel_sync().state == "cancelled"
    assert gone.chain.delete_sync() == 1

    app.run_worker(drain=True)

    assert first.chain.result_sync(PATIENCE) == 3
    assert [job.state for job in first.chain.jobs_sync()] == ["completed", "completed"]
    assert first.chain.last_sync().chain_index == 1
    assert members.results_sync(PATIENCE) == [6, 7]


# ── on a running event loop ───────────────────────────────────────────────────────────────────────


async def test_a_blocking_call_on_a_running_loop_is_refused() -> None:
    app = App("memory://")

    @app.task
    def work() -> None: ...

    asked = await work.enqueue()
    calls: dict[str, Callable[[], object]] = {
        "Task.enqueue": work.enqueue_sync,
        "App.enqueue_many": lambda: app.enqueue_many_sync([work.call()]),
        "App.job": lambda: app.job_sync(asked.job.id),
        "App.reschedule": lambda: app.run_now_sync(asked),
        "Admission.result": asked.result_sync,
        "app.queues.pause": lambda: app.queues.pause_sync("default"),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidCall, match=rf"^{name}_sync would block .* write await {name}\("):
            call()
    assert len(await app.jobs()) == 1
    await asyncio.to_thread(work.enqueue_sync)  # as plain handlers run
    assert len(await app.jobs()) == 2
    await app.close()


async def test_a_blocking_call_in_the_callers_transaction_is_allowed_on_a_loop(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:

        @app.task
        def work() -> None: ...

        app.maintenance.migrate()
        with sqlite3.connect(tmp_path / "jobs.db") as connection:
            work.options(connection=connection).enqueue_sync()
        connection.close()
        assert len(await app.jobs()) == 1


# ── a call that is never awaited ──────────────────────────────────────────────────────────────────


def test_a_dropped_enqueue_is_an_error_that_names_task_and_line(caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory://")

    @app.task
    def send_invoice(number: int) -> None: ...

    @app.task
    def archive(number: int) -> None: ...

    def drop(call: Callable[[], Any]) -> str:
        caplog.clear()
        with warnings.catch_warnings(record=True):  # Python's own, which names no task
            warnings.simplefilter("always")
            call()
            gc.collect()
        [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
        return record.getMessage()

    def view() -> None:
        send_invoice.enqueue(7)  # type: ignore[unused-coroutine]

    line = view.__code__.co_firstlineno + 1
    assert drop(view) == (
        f"nothing was enqueued: enqueue of send_invoice at {__file__}, line {line} was never awaited: "
        "await it, or write enqueue_sync"
    )
    assert "enqueue_quietly of send_invoice" in drop(lambda: send_invoice.enqueue_quietly(7))
    assert "write enqueue_quietly_sync" in drop(lambda: send_invoice.enqueue_quietly(7))
    assert "enqueue of send_invoice" in drop(lambda: send_invoice.call(7).enqueue())
    both = [send_invoice.call(1), archive.call(2), archive.call(3)]
    assert "enqueue_many of send_invoice, archive" in drop(lambda: app.enqueue_many(both))
    assert "enqueue of send_invoice, archive" in drop(lambda: group(*both).enqueue())
    assert "enqueue of send_invoice, archive" in drop(lambda: chain(*both).enqueue())
    assert app.jobs_sync() == []
    app.close_sync()


async def test_an_awaited_enqueue_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with App("memory://") as app:

        @app.task
        def send(number: int) -> None: ...

        await send.enqueue(1)
        await asyncio.gather(send.enqueue(2), asyncio.create_task(send.call(3).enqueue()))
        await app.enqueue_many([send.call(4)])
        with pytest.raises(InvalidCall):
            await send.enqueue(1, 2, 3)  # type: ignore[call-arg]
        gc.collect()
        assert len(await app.jobs()) == 4
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
