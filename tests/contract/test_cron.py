"""A schedule ticks once for each of its times, whoever ticks, and remembers where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from onejob import App, Job, State, Task, Unique
from onejob.app.schedules import ScheduleStatus
from onejob.core.job import EPOCH
from onejob.core.runs import Completed, Failed
from onejob.core.step import Step
from onejob.core.ticks import Missed, Tick, tick
from onejob.errors import InvalidSchedule, UnknownSchedule
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.tasks.schedules import schedule_key, tick_request
from onejob.testing import Clock
from onejob.worker.ticker import Ticker
from tests.contract.conftest import STORES
from tests.contract.steps import absorbed, everything, live, notify, settled, start

FIVE = "*/5 * * * *"
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)  # where the clock begins
MANY = 8


def reporter(app: App, line: str = FIVE, **policies: object) -> Task[..., None]:
    """Register a task with a schedule."""

    @app.cron(line, **policies)  # type: ignore[arg-type]
    @app.task
    async def report() -> None:
        """Do nothing."""

    return report


async def pass_time(app: App, clock: Clock, by: str) -> list[Job]:
    """Let time pass while nobody ticks, then tick; tell all jobs."""
    clock.advance(by)
    await Ticker(app._engine, app._registry).tick()
    return await everything(app)


def tick_times(jobs: list[Job]) -> list[str]:
    """Return the ticks for which jobs were made."""
    return [job.metadata["tick"][11:16] for job in jobs]


async def standing(app: App) -> ScheduleStatus:
    """Return the status of the one schedule."""
    [one] = await app.schedules.list()
    return one


@pytest.fixture
async def apps(request: pytest.FixtureRequest, store: Store, clock: Clock) -> AsyncIterator[list[App]]:
    """Open the same store many times, as many processes do."""
    name = request.node.callspec.params["store"]
    stores = [store, *(store if name == "memory" else STORES[name](request, clock) for _ in range(MANY - 1))]
    opened = [App(store=one) for one in stores]
    yield opened
    for app in opened:
        await app.close()


async def test_a_schedule_that_begins_has_missed_nothing(app: App, clock: Clock) -> None:
    reporter(app)
    assert await pass_time(app, clock, "3h") == []
    assert (await standing(app)).since == clock()
    assert tick_times(await pass_time(app, clock, "5m")) == ["03:05"]


async def test_a_tick_makes_a_job_that_knows_its_tick(app: App, clock: Clock) -> None:
    reporter(app)
    await pass_time(app, clock, "0s")
    [job] = await pass_time(app, clock, "5m")
    assert job.metadata == {"cron": "report", "tick": "2026-01-01T00:05:00+00:00"}
    assert (job.task, job.state, job.run_at) == ("report", State.AVAILABLE, clock())
    assert (job.is_holder, job.key) == (True, schedule_key(app._engine, "report"))


async def test_of_many_workers_that_tick_at_once_one_wins(apps: list[App], clock: Clock) -> None:
    for app in apps:
        reporter(app, overlap=None)
    tickers = [Ticker(app._engine, app._registry) for app in apps]
    await asyncio.gather(*(ticker.tick() for ticker in tickers))
    for round_number in range(1, 6):
        clock.advance("5m")
        await asyncio.gather(*(ticker.tick() for ticker in tickers))
        assert len(await everything(apps[0])) == round_number
    assert tick_times(await everything(apps[0])) == ["00:05", "00:10", "00:15", "00:20", "00:25"]


async def test_of_many_workers_that_make_missed_ticks_each_tick_is_made_once(
    apps: list[App], clock: Clock
) -> None:
    for app in apps:
        reporter(app, overlap=None, missed="all")
    await Ticker(apps[0]._engine, apps[0]._registry).tick()
    clock.advance("1h")
    await asyncio.gather(*(Ticker(app._engine, app._registry).tick() for app in apps))
    times = tick_times(await everything(apps[0]))
    assert sorted(times) == [f"00:{minute:02}" for minute in range(5, 60, 5)] + ["01:00"]


async def test_who_died_before_its_step_has_lost_and_doubled_nothing(app: App, clock: Clock) -> None:
    reporter(app, overlap=None)
    await pass_time(app, clock, "0s")
    clock.advance("5m")
    schedule = await app.schedules.get("report")
    key = schedule_key(app._engine, "report")
    one = Tick(clock(), MIDNIGHT, runs=True)
    act = partial(tick, key=key, one=one, request=tick_request(app._engine, app._registry, schedule, one.at))
    await Ticker(app._engine, app._registry).tick()  # another worker ticks; then the first comes back to life
    assert await app._engine.store.apply([Step(act, key=key)]) == [None]
    assert tick_times(await everything(app)) == ["00:05"]


class TestOverlap:
    async def test_keep_skips_a_tick_while_a_run_is_unfinished(self, app: App, clock: Clock) -> None:
        reporter(app)
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "5m")
        running = await start(app)
        assert len(await pass_time(app, clock, "5m")) == 1
        assert (await standing(app)).absorbed == {"kept": 1}
        await settled(app, running, Completed())
        assert tick_times(await pass_time(app, clock, "5m")) == ["00:05", "00:15"]

    async def test_coalesce_lets_one_run_follow(self, app: App, clock: Clock) -> None:
        reporter(app, overlap=Unique.coalesce())
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "5m")
        running = await start(app)
        await pass_time(app, clock, "5m")
        [_, successor] = await pass_time(app, clock, "5m")
        assert (successor.state, successor.metadata["tick"][11:16]) == (State.PENDING, "00:10")
        assert (await standing(app)).absorbed == {"rerun": 1, "kept": 1}
        await settled(app, running, Completed())
        assert (await start(app)).id == successor.id

    async def test_replace_puts_the_newer_tick_in_the_place_of_one_that_waits(
        self, app: App, clock: Clock
    ) -> None:
        reporter(app, overlap=Unique(on_conflict="replace"))
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "5m")
        first, second = await pass_time(app, clock, "5m")
        assert (first.state, first.superseded_by, second.state) == (
            State.CANCELLED,
            second.id,
            State.AVAILABLE,
        )

    async def test_who_waits_for_a_job_that_a_tick_replaces_waits_for_the_new_one(
        self, app: App, clock: Clock
    ) -> None:
        report = reporter(app, overlap=Unique(on_conflict="replace"))
        await pass_time(app, clock, "0s")
        [first] = await pass_time(app, clock, "5m")
        after = await report.options(after=[first.id]).enqueue()
        await pass_time(app, clock, "5m")
        second = await start(app)
        assert second.id != first.id
        assert (await app.job(after.job.id)).state is State.PENDING
        settled_job = await settled(app, second, Completed())
        await notify(app, [settled_job])
        assert (await start(app)).id == after.job.id

    async def test_without_a_policy_runs_overlap(self, app: App, clock: Clock) -> None:
        reporter(app, overlap=None)
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "5m")
        await start(app)
        assert [job.state for job in await pass_time(app, clock, "5m")] == [State.ACTIVE, State.AVAILABLE]
        assert await absorbed(app) == {}

    async def test_the_tasks_own_policy_has_no_say(self, app: App, clock: Clock) -> None:
        @app.cron(FIVE)
        @app.task(unique=True)
        async def report() -> None:
            """Do nothing."""

        await report.enqueue()
        await pass_time(app, clock, "0s")
        assert len(await pass_time(app, clock, "5m")) == 2


class TestMissed:
    @pytest.mark.parametrize(
        ("missed", "made", "counted"),
        [
            ("skip", [], {"missed": 12}),
            ("one", ["01:00"], {"missed": 11}),
            ("all", [*(f"00:{minute:02}" for minute in range(5, 60, 5)), "01:00"], {}),
        ],
    )
    async def test_ticks_of_an_outage(
        self, app: App, clock: Clock, missed: Missed, made: list[str], counted: dict[str, int]
    ) -> None:
        reporter(app, overlap=None, missed=missed)
        await pass_time(app, clock, "0s")
        assert sorted(tick_times(await pass_time(app, clock, "64m"))) == made
        assert (await standing(app)).absorbed == counted
        assert (await app.stats()).absorbed == ({"report": counted} if counted else {})

    async def test_what_was_skipped_is_settled(self, app: App, clock: Clock) -> None:
        reporter(app, missed="skip")
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "62m")
        assert (await standing(app)).since == MIDNIGHT + timedelta(hours=1)
        assert tick_times(await pass_time(app, clock, "3m")) == ["01:05"]


class TestTheMemoryOfTicks:
    async def test_it_outlives_pruned_jobs(self, app: App, clock: Clock) -> None:
        reporter(app, "@yearly")
        await pass_time(app, clock, "364d")
        [job] = await pass_time(app, clock, "1d")
        await pass_time(app, clock, "365d")
        await settled(app, await start(app), Completed())
        clock.advance("200d")
        assert await app.maintenance.prune() == 1
        assert await everything(app) == []
        assert (await standing(app)).absorbed == {"kept": 1}
        await Ticker(app._engine, app._registry).tick()
        assert await everything(app) == []
        [late] = await pass_time(app, clock, "170d")
        assert (job.metadata["tick"][:4], late.metadata["tick"][:4]) == ("2027", "2029")

    async def test_a_tick_whose_job_was_deleted_does_not_come_again(self, app: App, clock: Clock) -> None:
        reporter(app)
        await pass_time(app, clock, "0s")
        [job] = await pass_time(app, clock, "5m")
        await app.delete(job.id)
        await Ticker(app._engine, app._registry).tick()
        assert await everything(app) == []

    @pytest.mark.parametrize("overlap", [Unique(), Unique(until="start", on_conflict="update"), None])
    async def test_a_tick_whose_job_failed_does_not_come_again_but_by_replay(
        self, app: App, clock: Clock, overlap: Unique | None
    ) -> None:
        reporter(app, overlap=overlap)
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "5m")
        error = {"type": "Boom", "message": "boom", "traceback": ""}
        job = await settled(app, await start(app), Failed(error, final=True))
        await Ticker(app._engine, app._registry).tick()
        assert await live(app) == []
        await app.dead.replay(job.id)
        await Ticker(app._engine, app._registry).tick()
        assert [one.id for one in await live(app)] == [job.id]
        assert (await standing(app)).since == clock()

    async def test_a_clock_that_goes_back_repeats_nothing(self, app: App, clock: Clock) -> None:
        reporter(app, overlap=None)
        await pass_time(app, clock, "0s")
        await pass_time(app, clock, "5m")
        clock._now -= timedelta(minutes=3)
        await Ticker(app._engine, app._registry).tick()
        assert tick_times(await pass_time(app, clock, "8m")) == ["00:05", "00:10"]

    async def test_tenants_tick_apart(self, store: Store, clock: Clock) -> None:
        tenants = [App(store=store, namespace=name) for name in ("", "tenant")]
        for app in tenants:
            reporter(app)
            await pass_time(app, clock, "0s")
        clock.advance("5m")
        for app in tenants:
            await Ticker(app._engine, app._registry).tick()
        assert sorted(job.namespace for job in await everything(tenants[0])) == ["", "tenant"]
        await tenants[0].close()


class TestRunTime:
    async def test_a_schedule_is_added_changed_and_removed(self, app: App, clock: Clock) -> None:
        @app.task
        async def mail(to: str, copies: int = 1) -> None:
            """Do nothing."""

        await app.schedules.add("nightly", mail.call("ada", copies=2), "0 2 * * *", timezone="Europe/Berlin")
        clock.advance("1d")
        await Ticker(app._engine, app._registry).tick()
        [job] = await everything(app)
        assert (job.arguments, job.metadata["cron"]) == ({"to": "ada", "copies": 2}, "nightly")
        await app.schedules.add("nightly", mail.call("bob"), every="1h")
        assert (await app.schedules.get("nightly")).line == "@every 1h"
        assert len(await pass_time(app, clock, "30m")) == 1
        await app.schedules.remove("nightly")
        assert await app.schedules.all() == []
        assert len(await pass_time(app, clock, "2d")) == 1

    @pytest.mark.parametrize(
        "overlap",
        [
            None,
            Unique(),
            Unique.coalesce(),
            Unique.throttle("5m", "first+last"),
            Unique(on_conflict="update", fields=["time", "priority"], wait="3s"),
            Unique(states={State.ACTIVE, State.AVAILABLE}, within=1.5),
        ],
    )
    async def test_what_was_added_is_read_back_whole(self, app: App, overlap: Unique | None) -> None:
        report = reporter(app)
        added = await app.schedules.add(
            "other", report.call(), "0 9 * * MON", timezone="Asia/Tokyo", overlap=overlap, missed="all"
        )
        assert await app.schedules.get("other") == added

    async def test_a_pause_makes_nothing_and_misses_nothing(self, app: App, clock: Clock) -> None:
        reporter(app, missed="all")
        await pass_time(app, clock, "0s")
        await app.schedules.pause("report")
        assert (await standing(app)).next == []
        assert await pass_time(app, clock, "1h") == []
        await app.schedules.resume("report")
        assert await pass_time(app, clock, "1m") == []
        assert tick_times(await pass_time(app, clock, "4m")) == ["01:05"]
        assert await absorbed(app) == {}

    async def test_a_pause_outlives_the_process(self, apps: list[App], clock: Clock) -> None:
        for app in apps[:2]:
            reporter(app)
        await apps[0].schedules.pause("report")
        assert await pass_time(apps[1], clock, "1d") == []
        assert (await apps[1].schedules.get("report")).paused

    async def test_the_code_has_the_last_word(self, app: App) -> None:
        report = reporter(app)
        with pytest.raises(InvalidSchedule, match="declared in code: change it there"):
            await app.schedules.add("report", report.call(), "0 0 * * *")
        with pytest.raises(InvalidSchedule, match="declared in code: remove it there, or pause it"):
            await app.schedules.remove("report")
        with pytest.raises(UnknownSchedule, match="No schedule is named 'other'; there are: report"):
            await app.schedules.pause("other")

    async def test_a_schedule_of_a_task_that_is_not_here_waits_for_a_worker_that_has_it(
        self, apps: list[App], clock: Clock
    ) -> None:
        report = reporter(apps[0])
        await apps[0].schedules.add("other", report.call(), "0 * * * *")
        await Ticker(apps[1]._engine, apps[1]._registry).tick()
        clock.advance("1h")
        await Ticker(apps[1]._engine, apps[1]._registry).tick()
        assert await everything(apps[1]) == []
        await Ticker(apps[0]._engine, apps[0]._registry).tick()
        assert [job.metadata["cron"] for job in await everything(apps[0])] == ["other"]

    async def test_one_schedule_that_cannot_tick_delays_no_other(
        self, app: App, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        reporter(app)
        await app._engine.store.put_setting("", "cron", "newer", b'{"line": "* * * * *", "hue": 7}')
        broken = b'{"task": "report", "line": "99 * * * *", "overlap": null}'
        await app._engine.store.put_setting("", "cron", "broken", broken)
        await pass_time(app, clock, "0s")
        assert len(await pass_time(app, clock, "5m")) == 1
        assert "schedule newer cannot be read" in caplog.text
        assert "schedule broken cannot tick" in caplog.text


async def test_the_mark_is_of_the_schedule_alone(app: App, clock: Clock) -> None:
    reporter(app)
    await pass_time(app, clock, "0s")
    await pass_time(app, clock, "5m")
    mark = (await app._engine.store.look(schedule_key(app._engine, "report"))).mark
    assert mark is not None
    assert (mark.job, mark.void, mark.version) == (
        "cron",
        True,
        (clock() - EPOCH) // timedelta(microseconds=1),
    )


async def test_a_move_takes_schedules_along(app: App, clock: Clock) -> None:
    report = reporter(app)
    await pass_time(app, clock, "5m")
    await app.schedules.add("other", report.call(), "0 * * * *")
    await app.schedules.pause("other")
    there = App(store=MemoryStore(clock=clock))
    reporter(there)
    await app.maintenance.move_to(there)
    await app.maintenance.move_to(there)
    assert await there.schedules.list() == await app.schedules.list()
    assert tick_times(await pass_time(there, clock, "7m")) == ["00:10"]
