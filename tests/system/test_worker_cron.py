"""Workers tick by themselves: on time, once, through outages, and without looking every second."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onejob import App, Unique, current
from onejob.errors import InvalidSchedule, StoreUnavailable
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock, drain
from onejob.worker.ticker import Ticker


async def test_workers_tick_once_each_and_on_time(tmp_path: Path) -> None:
    ticks: Counter[str] = Counter()
    late: list[float] = []
    enough = asyncio.Event()

    def make() -> App:
        app = App(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL")

        @app.cron(every="1s", overlap=None)
        @app.task
        async def beat() -> None:
            at = current().job.metadata["tick"]
            ticks[at] += 1
            late.append((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())
            if len(ticks) == 4:
                enough.set()

        return app

    apps = [make() for _ in range(3)]
    async with apps[0], apps[1], apps[2], apps[0].worker(), apps[1].worker(), apps[2].worker():
        await asyncio.wait_for(enough.wait(), 60)
    assert set(ticks.values()) == {1}
    assert min(late) >= 0


async def test_a_draining_worker_ticks_what_is_due() -> None:
    clock = Clock()
    app = App("memory://", store=MemoryStore(clock=clock))
    runs: list[str] = []

    @app.cron("0 * * * *")
    def hourly() -> None:  # without @app.task it becomes one
        runs.append(current().job.metadata["tick"])

    await drain(app)
    clock.advance("2h")
    await drain(app)
    await drain(app)
    assert runs == ["2026-01-01T02:00:00+00:00"]
    assert (await app.stats()).absorbed == {"hourly": {"missed": 1}}


async def test_a_ticker_rests_until_the_next_tick_or_until_it_looks_again() -> None:
    clock = Clock()
    app = App("memory://", store=MemoryStore(clock=clock))
    ticker = Ticker(app._engine, app._registry)
    await ticker.tick()
    assert ticker.sleep == 5

    @app.cron("* * * * *")
    def often() -> None: ...

    await ticker.tick()
    assert ticker.sleep == 5
    clock.advance("57s")
    await ticker.tick()
    assert ticker.sleep == 3
    clock.advance("3s")
    await ticker.tick()
    assert ticker.sleep == 5
    assert len(await app.jobs()) == 1


async def test_a_ticker_survives_an_outage() -> None:
    clock = Clock()

    class Flaky(MemoryStore):
        down = False

        async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
            if self.down:
                raise StoreUnavailable("no store")
            return await super().settings(namespace, kind)

    store = Flaky(clock=clock)
    app = App("memory://", store=store)
    done = asyncio.Event()

    @app.cron("* * * * *")
    async def often() -> None:
        done.set()

    await Ticker(app._engine, app._registry).tick()
    store.down = True
    clock.advance("1m")
    with pytest.raises(StoreUnavailable):
        await Ticker(app._engine, app._registry).tick()
    store.down = False
    async with app.worker():
        await asyncio.wait_for(done.wait(), 30)


class TestDeclaring:
    def test_what_cannot_be_meant_is_refused_when_it_is_declared(self) -> None:
        app = App("memory://")

        @app.task
        def report(to: str) -> None: ...

        with pytest.raises(InvalidSchedule, match="The hour '25' cannot be read"):
            app.cron("0 25 * * *", kwargs={"to": "ada"})(report)
        with pytest.raises(InvalidSchedule, match="timezone='Mars' is not known"):
            app.cron("0 5 * * *", timezone="Mars", args=["ada"])(report)
        with pytest.raises(InvalidSchedule, match="needs a line or an interval"):
            app.cron(args=["ada"])(report)
        with pytest.raises(InvalidSchedule, match="needs a line or an interval"):
            app.cron("0 5 * * *", every="5m", args=["ada"])(report)
        with pytest.raises(InvalidSchedule, match="counts from 1970 in UTC: leave timezone= out"):
            app.cron(every="5m", timezone="Asia/Tokyo", args=["ada"])(report)
        with pytest.raises(InvalidSchedule, match="leave version out"):
            app.cron("0 5 * * *", overlap=Unique(version="to"), args=["ada"])(report)
        with pytest.raises(InvalidSchedule, match="a schedule's name is printable text"):
            app.cron("0 5 * * *", name=5, args=["ada"])(report)  # type: ignore[arg-type]
        with pytest.raises(InvalidSchedule, match="needs the task as the app has it"):
            app.cron("0 5 * * *", args=["ada"])(report.options(priority=5))
        with pytest.raises(ValueError, match="to"):
            app.cron("0 5 * * *")(report)

    def test_a_task_may_have_several_schedules_of_different_names(self) -> None:
        app = App("memory://")

        @app.cron("0 18 * * FRI", name="weekly", args=["bob"])
        @app.cron("0 9 * * *", args=["ada"])
        @app.task
        def report(to: str) -> str:
            return to

        assert report("eve") == "eve"
        with pytest.raises(InvalidSchedule, match="Two schedules are named 'report'"):
            app.cron("@daily", args=["eve"])(report)

    async def test_a_schedule_says_itself_in_english(self) -> None:
        app = App("memory://")

        @app.cron("30 7 * * MON,FRI", timezone="Europe/Berlin")
        def report() -> None: ...

        schedule = await app.schedules.get("report")
        assert schedule.description == "at 07:30 on Monday and Friday, Europe/Berlin time"
        [first, second] = schedule.upcoming(datetime(2026, 3, 27, 12, tzinfo=UTC), 2)
        assert [str(first), str(second)] == ["2026-03-30 07:30:00+02:00", "2026-04-03 07:30:00+02:00"]
