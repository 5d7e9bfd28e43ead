"""The testing kit does on every store what its page says."""

from __future__ import annotations

import asyncio
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onejob import App, Duplicate, Retry, Snooze, Task, Unique, current
from onejob.core.decide import Outcome
from onejob.core.leasing import Lease
from onejob.engine.presence import WorkerStatus, report
from onejob.errors import InvalidCall, JobFailed
from onejob.testing import (
    Clock,
    MemoryStore,
    assert_deduplicated,
    assert_deduplicated_sync,
    assert_enqueued,
    assert_enqueued_sync,
    assert_not_enqueued,
    assert_not_enqueued_sync,
    assert_single_admission,
    assert_single_admission_sync,
    drain,
    drain_sync,
    empty,
    empty_sync,
    inline,
    moving_clock,
)
from onejob.testing.race import Answer, check

STORES = ("memory", "sqlite", "postgres", "redis")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'kit.db'}"
        case name:
            return str(request.getfixturevalue(f"{name}_url"))


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url) as app:
        yield app


@pytest.fixture
def blocking_app(url: str) -> Iterator[App]:
    app = App(url)
    yield app
    app.close_sync()


@pytest.fixture
async def memory() -> AsyncIterator[App]:
    async with App("memory://") as app:
        yield app


def database_of(app: App) -> str | None:
    """Return what confirms that an app's store may be emptied."""
    return None if app.url == "memory://" else app.url.partition("?")[0].rpartition("/")[2]


class Boom(Exception):
    """What the tasks here raise."""


def declare_mail(app: App, **policies: Any) -> Task[..., str]:
    @app.task(**{"unique": Unique(by="to"), **policies})
    async def mail(to: int, text: str = "") -> str:
        if text == "boom":
            raise Boom(to)
        return f"{to}: {text}"

    return mail


# ── inline ────────────────────────────────────────────────────────────────────────────────────────


async def test_inline_runs_a_job_when_it_is_enqueued(app: App) -> None:
    mail = declare_mail(app)
    with inline(app):
        admission = await mail.enqueue(7, "hello")
        assert admission.outcome is Outcome.CREATED
        assert (await app.job(admission.job.id)).state == "completed"
        assert await admission.result(timeout=30) == "7: hello"
    waiting = await mail.enqueue(8)
    assert (await app.job(waiting.job.id)).state == "available"


def test_inline_runs_a_job_of_blocking_code(blocking_app: App) -> None:
    app = blocking_app

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with inline(app):
        assert add.enqueue_sync(3, 4).result_sync(timeout=30) == 7
        assert [one.result_sync() for one in app.enqueue_many_sync([add.call(1, 1), add.call(2, 2)])] == [
            2,
            4,
        ]


async def test_inline_decides_about_duplicates_first(app: App) -> None:
    mail = declare_mail(app, unique=Unique.once())
    with inline(app):
        first = await mail.enqueue(7, "a")
        again = await mail.enqueue(7, "a")
    assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)
    assert await again.result() == "7: a"


async def test_inline_raises_what_the_task_raises(app: App) -> None:
    mail = declare_mail(app)
    with inline(app), pytest.raises(Boom, match="7") as raised:
        await mail.enqueue(7, "boom")
    [note] = raised.value.__notes__
    assert "(mail), attempt 1" in note
    assert raised.traceback[-1].name == "mail"
    assert [job.state for job in await app.jobs()] == ["retryable"]


def test_inline_raises_to_blocking_code(blocking_app: App) -> None:
    mail = declare_mail(blocking_app)
    with inline(blocking_app), pytest.raises(Boom):
        mail.enqueue_sync(7, "boom")


async def test_inline_can_leave_failures_to_the_store(memory: App) -> None:
    mail = declare_mail(memory, retry=Retry(attempts=1))
    with inline(memory, raises=False):
        admission = await mail.enqueue(7, "boom")
        with pytest.raises(JobFailed, match="Boom: 7"):
            await admission.result()


async def test_inline_reaches_into_a_task_that_enqueues(app: App) -> None:
    seen = []

    @app.task
    async def inner(n: int) -> int:
        seen.append("inner")
        return n + 1

    @app.task
    async def outer(n: int) -> int:
        seen.append("outer begins")
        result = await (await inner.enqueue(n)).result(timeout=30)
        seen.append("outer ends")
        return result * 10

    with inline(app):
        assert await (await outer.enqueue(1)).result() == 20
    assert seen == ["outer begins", "inner", "outer ends"]


async def test_a_task_may_catch_what_an_inline_task_raises(memory: App) -> None:
    mail = declare_mail(memory)

    @memory.task
    async def careful() -> str:
        try:
            await mail.enqueue(7, "boom")
        except Boom:
            return "caught"
        return "missed"

    with inline(memory):
        assert await (await careful.enqueue()).result() == "caught"


async def test_inline_continues_chains_and_runs_a_successor(app: App) -> None:
    runs: list[str] = []

    @app.task
    async def second() -> str:
        runs.append("second")
        return "done"

    @app.task(unique=Unique(by="n", on_conflict="update"))
    async def first(n: int, again: bool = False) -> None:  # noqa: FBT001, FBT002 - JSON
        runs.append(f"first {again}")
        if not again:
            await first.enqueue(n, again=True)
        else:
            current().continue_with(second.call())

    with inline(app):
        await first.enqueue(1)
    assert runs == ["first False", "first True", "second"]


async def test_inline_runs_tasks_for_processes_here(memory: App) -> None:
    @memory.task(process=True)
    def thread_name() -> str:
        return threading.current_thread().name

    with inline(memory):
        assert await (await thread_name.enqueue()).result()


async def test_inline_leaves_jobs_that_are_due_later(memory: App) -> None:
    mail = declare_mail(memory)
    with inline(memory):
        admission = await mail.options(delay="1h").enqueue(7)
    assert (await memory.job(admission.job.id)).state == "scheduled"


async def test_inline_leaves_jobs_of_an_open_transaction(tmp_path: Path) -> None:
    import sqlite3

    async with App(f"sqlite:///{tmp_path / 'kit.db'}") as app:
        mail = declare_mail(app)
        await app.stats()  # so that the tables exist
        with sqlite3.connect(tmp_path / "kit.db") as connection, inline(app):
            admission = await mail.options(connection=connection).enqueue(7)
            connection.commit()
            assert (await app.job(admission.job.id)).state == "available"
        connection.close()
        await drain(app)
        assert await admission.result() == "7: "


async def test_inline_blocks_nest_and_end(memory: App) -> None:
    mail = declare_mail(memory, retry=Retry(attempts=1))
    with inline(memory, raises=False):
        with pytest.raises(Boom), inline(memory):
            await mail.enqueue(1, "boom")
        await mail.enqueue(2, "boom")
    await mail.enqueue(3, "boom")
    assert [job.state for job in await memory.jobs()] == ["available", "discarded", "discarded"]


# ── drain ─────────────────────────────────────────────────────────────────────────────────────────


async def test_drain_raises_only_if_asked(app: App) -> None:
    mail = declare_mail(app)
    await mail.enqueue(1, "boom")
    await mail.enqueue(2)
    await drain(app)
    assert [job.state for job in await app.jobs()] == ["completed", "retryable"]

    await mail.enqueue(3, "boom")
    with pytest.raises(Boom, match="3"):
        await drain(app, raises=True)


def test_drain_in_blocking_code(blocking_app: App) -> None:
    mail = declare_mail(blocking_app)
    admission = mail.enqueue_sync(1)
    drain_sync(blocking_app)
    assert admission.result_sync() == "1: "
    mail.enqueue_sync(2, "boom")
    with pytest.raises(Boom):
        drain_sync(blocking_app, raises=True)


async def test_a_snooze_is_no_failure(memory: App) -> None:
    @memory.task
    async def nap() -> None:
        raise Snooze("1h")

    await nap.enqueue()
    await drain(memory, raises=True)
    assert [job.state for job in await memory.jobs()] == ["scheduled"]


def test_a_task_that_exits_does_not_end_the_event_loop_of_blocking_code() -> None:
    app = App("memory://")

    @app.task
    def leave() -> None:
        raise SystemExit(3)

    leave.enqueue_sync()
    with pytest.raises(SystemExit):
        drain_sync(app, raises=True)
    assert len(app.jobs_sync()) == 1
    app.close_sync()


# ── the clock ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_moving_clock_moves_windows_delays_retries_and_debounces(app: App) -> None:
    calls: list[str] = []

    @app.task(unique=Unique.throttle("1h"), retry=Retry(attempts=2, base="10m", jitter=0))
    async def digest() -> None:
        calls.append("digest")
        if len(calls) == 1:
            raise Boom

    @app.task(unique=Unique.debounce("5m"))
    async def save(text: str) -> None:
        calls.append(text)

    with moving_clock(app) as clock:
        assert (await digest.enqueue()).outcome is Outcome.CREATED
        await drain(app)
        clock.advance("20m")
        await drain(app)
        assert calls == ["digest", "digest"]
        assert (await digest.enqueue()).deduplicated
        clock.advance("41m")
        assert not (await digest.enqueue()).deduplicated

        await save.enqueue("draft")
        await drain(app)
        assert calls == ["digest"] * 3
        clock.advance("6m")
        await drain(app)
        assert calls[3:] == ["draft"]


async def test_a_moving_clock_makes_cron_ticks(app: App) -> None:
    ticks: list[str] = []

    @app.cron("0 * * * *")
    async def hourly() -> None:
        ticks.append("tick")

    with moving_clock(app, start=datetime(2030, 1, 1, 0, 30, tzinfo=UTC)) as clock:
        await drain(app)
        assert ticks == []
        clock.advance("31m")
        await drain(app)
        clock.advance("1h")
        await drain(app)
    assert ticks == ["tick", "tick"]


async def test_the_real_clock_returns_after_the_block(app: App) -> None:
    mail = declare_mail(app, unique=None)
    with moving_clock(app) as clock:
        clock.advance("365d")
        future = (await mail.enqueue(1)).job.created_at
        with moving_clock(app) as inner:
            inner.advance("365d")
        assert (await mail.enqueue(1)).job.created_at == future
    present = (await mail.enqueue(1)).job.created_at
    assert abs(datetime.now(UTC) - present) < timedelta(minutes=5) < future - present


async def test_a_store_without_a_clock_is_refused() -> None:
    class Fixed(MemoryStore):
        use_clock = None  # type: ignore[assignment]

    async with App(store=Fixed()) as app:
        with pytest.raises(InvalidCall, match="give it a Clock"), moving_clock(app):
            pass
    async with App("memory://") as app:
        with pytest.raises(InvalidCall, match="time zone"), moving_clock(app, start=datetime(2030, 1, 1)):  # noqa: DTZ001 - the mistake
            pass


# ── emptying ──────────────────────────────────────────────────────────────────────────────────────


async def test_empty_removes_everything_of_the_namespace_only(app: App) -> None:
    other = App(store=app._engine.store, namespace="other")
    for one in (app, other):
        await fill(one)
    kept = await read_all(other)

    await empty(app, database=database_of(app))

    assert await read_all(app) == {name: [] for name in kept}
    assert await read_all(other) == kept
    await fill(app)  # nothing is in the way: versions, ticks and rates begin anew
    assert {name: len(rows) for name, rows in (await read_all(app)).items()} == {
        name: len(rows) for name, rows in kept.items()
    }
    await other.close()


async def fill(app: App) -> None:
    """Leave jobs in all states, marks, counters, observations, settings and starts."""
    with moving_clock(app, start=datetime(2030, 1, 1, 0, 30, tzinfo=UTC)) as clock:
        if not app.tasks:
            app.queue("slow", rate="5/1h")
            app.cron("0 * * * *")(app.task(name="hourly")(nothing))
            app.task(name="mail", unique=Unique.latest(by="to", version="seq"), queue="slow")(versioned)
            app.task(name="boom", retry=Retry(attempts=1))(explode)
        mail, boom = app.tasks["mail"], app.tasks["boom"]
        assert (await mail.enqueue(1, seq=5)).outcome is Outcome.CREATED
        assert (await mail.enqueue(1, seq=5)).outcome is Outcome.STALE
        await drain(app)
        [active] = (await app.enqueue_many([mail.call(2, seq=1)]),)
        await drain(app)
        clock.advance("1h")
        await drain(app)
        await boom.enqueue()
        await drain(app)
        await mail.options(delay="1d").enqueue(3, seq=1)
        await mail.options(after=[(await mail.options(delay="1d").enqueue(4, seq=1)).chain]).enqueue(5, seq=1)
        await app.queues.pause("slow")
        await app.release(str(active[0].key), force=True, reason="test")
        await app.stats()
        app._engine.counters.flush()


def nothing() -> None:
    """Do nothing."""


def versioned(to: int, seq: int) -> None:
    """Do nothing with a version."""


def explode() -> None:
    """Fail."""
    raise Boom


async def read_all(app: App) -> dict[str, list[Any]]:
    """Return all that an app's store shows of its namespace."""
    store, name = app._engine.store, app.namespace
    from onejob.tasks.schedules import schedule_key

    keys = [schedule_key(app._engine, "hourly"), *filter(None, (job.key for job in await app.jobs()))]
    marks = [(await store.look(key)).mark for key in dict.fromkeys(keys)]
    return {
        "jobs": [job.id for job in await app.jobs()],
        "counts": sorted((*key, number) for key, number in (await store.counts(name)).jobs.items() if number),
        "marks": [mark for mark in marks if mark is not None],
        "tallies": await store.tallies(name),
        "absorbed": await store.observations(name, "absorbed"),
        "paused": list(await store.settings(name, "paused")),
        "starts": await store.starts(name, "slow", datetime(2000, 1, 1, tzinfo=UTC)),
        "blocked": [job.id for job in await app.jobs(state="pending")],
    }


async def test_empty_removes_what_a_killed_worker_has_left(app: App) -> None:
    work = app.task(name="work", unique=Unique(on_conflict="update"))(nothing)
    await work.enqueue()
    await app._engine.lease(
        Lease(
            namespace="",
            worker="killed",
            queues={"default": 1},
            total=1,
            duration=timedelta(seconds=15),
            tasks=["work"],
        )
    )
    assert (await work.enqueue()).outcome is Outcome.RERUN
    assert [job.state for job in await app.jobs()] == ["pending", "active"]
    await empty(app, database=database_of(app))
    assert await app.jobs() == []
    assert (await work.enqueue()).outcome is Outcome.CREATED


def test_empty_in_blocking_code(blocking_app: App) -> None:
    mail = declare_mail(blocking_app)
    mail.enqueue_sync(1)
    mail.enqueue_sync(1)
    empty_sync(blocking_app, database=database_of(blocking_app))
    assert blocking_app.jobs_sync() == []
    assert blocking_app.stats_sync().absorbed == {}


async def test_a_durable_store_must_be_named(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'kit.db'}") as app:
        mail = declare_mail(app)
        await mail.enqueue(1)
        with pytest.raises(InvalidCall, match=r'write empty\(app, database="kit\.db"\)'):
            await empty(app)
        with pytest.raises(InvalidCall, match=r"is 'kit\.db', not 'shop.db': nothing was removed"):
            await empty(app, database="shop.db")
        await report(app._engine, living_worker("bee"))
        with pytest.raises(InvalidCall, match="Worker bee runs on this store"):
            await empty(app, database="kit.db")
        assert len(await app.jobs()) == 1
        await report(app._engine, msgspec.structs.replace(living_worker("bee"), stopped=True))
        await empty(app, database="kit.db")
        assert await app.jobs() == []


def living_worker(name: str) -> WorkerStatus:
    """Return how a worker describes itself at a heartbeat."""
    now = datetime.now(UTC)
    return WorkerStatus(
        name=name,
        host="here",
        process=1,
        version="0",
        started_at=now,
        seen_at=now,
        queues={},
        tasks=[],
        running=[],
        concurrency=1,
    )


# ── assertions ────────────────────────────────────────────────────────────────────────────────────


async def test_assert_enqueued_compares_the_arguments_that_are_given(app: App) -> None:
    mail = declare_mail(app, queue="post")
    job = (await mail.enqueue(7, text="July")).job
    assert [one.id for one in await assert_enqueued(app, mail)] == [job.id]
    await assert_enqueued(app, mail, 7)
    await assert_enqueued(app, mail, to=7, times=1, queue="post", state="available")
    await assert_enqueued(app, mail.call(7, "July"))
    await assert_not_enqueued(app, mail, 8)
    await assert_not_enqueued(app, mail, queue="default")
    await assert_not_enqueued(app, mail.call(7))


async def test_a_failed_assertion_lists_what_was_enqueued(memory: App) -> None:
    mail = declare_mail(memory)
    with pytest.raises(AssertionError, match=r"^mail\(to=8\) was not enqueued.\nEnqueued: nothing.$"):
        await assert_enqueued(memory, mail, 8)
    job = (await mail.enqueue(7, text="July")).job
    with pytest.raises(AssertionError) as failed:
        await assert_enqueued(memory, mail, 8, queue="post")
    assert str(failed.value) == (
        "mail(to=8), queue='post' was not enqueued.\n"
        "Enqueued, newest first:\n"
        f"  mail(text='July', to=7), available, queue default, {job.id}"
    )
    with pytest.raises(AssertionError, match=r"mail\(…\) was enqueued once, not 2 times"):
        await assert_enqueued(memory, mail, times=2)
    with pytest.raises(AssertionError, match=r"mail\(to=7\) was enqueued once"):
        await assert_not_enqueued(memory, mail, 7)


async def test_a_long_list_is_cut(memory: App) -> None:
    mail = declare_mail(memory, unique=None)
    await memory.enqueue_many([mail.call(n) for n in range(25)])
    with pytest.raises(AssertionError, match=r"and 5 more$"):
        await assert_enqueued(memory, mail, 100)


async def test_arguments_are_compared_as_they_are_stored(memory: App) -> None:
    @memory.task
    async def visit(at: datetime, tags: tuple[str, ...], queue: str = "x") -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    await visit.enqueue(at, ("a", "b"))
    await assert_enqueued(memory, visit, at, tags=["a", "b"])
    await assert_enqueued(memory, visit.call(at, ("a", "b"), queue="x"))
    with pytest.raises(InvalidCall, match="color"):
        await assert_enqueued(memory, visit, color="red")
    with pytest.raises(InvalidCall, match="A call has its arguments"):
        await assert_enqueued(memory, visit.call(at, ()), 1)
    with pytest.raises(InvalidCall, match="is no task"):
        await assert_enqueued(memory, "visit")  # type: ignore[arg-type]


async def test_sealed_arguments_are_compared_in_clear_text() -> None:
    from onejob import AesGcmCodec

    async with App(
        "memory://", secret="0123456789abcdef", codec=AesGcmCodec(AesGcmCodec.generate_key())
    ) as app:
        mail = declare_mail(app)
        await mail.enqueue(7, "secret")
        await assert_enqueued(app, mail, text="secret")


async def test_assert_deduplicated_finds_absorbed_requests(app: App) -> None:
    mail = declare_mail(app)
    other = app.task(name="other", unique=True)(nothing)
    await mail.enqueue(7, "July")
    await mail.enqueue(7, "August")
    await mail.enqueue(7, "August")
    entries = await assert_deduplicated(app, mail, 7, "August", times=2, outcome="kept")
    assert {one.task for one in entries} == {"mail"}
    await assert_deduplicated(app, mail.call(7))
    await assert_deduplicated(app, mail, times=2)
    with pytest.raises(
        AssertionError, match=r"^mail\(to=8\) was not absorbed.\nAbsorbed, newest first:\n  mail: kept"
    ):
        await assert_deduplicated(app, mail, 8)
    with pytest.raises(AssertionError, match="outcome='updated' was not absorbed"):
        await assert_deduplicated(app, mail, outcome="updated")
    with pytest.raises(AssertionError, match=r"other\(…\) was absorbed 0 times, not once"):
        await assert_deduplicated(app, other, times=1)


async def test_a_task_that_is_not_unique_absorbs_nothing(memory: App) -> None:
    mail = declare_mail(memory, unique=None)
    with pytest.raises(InvalidCall, match="not unique"):
        await assert_deduplicated(memory, mail, 7)


def test_assertions_in_blocking_code(blocking_app: App) -> None:
    mail = declare_mail(blocking_app)
    mail.enqueue_sync(7)
    mail.enqueue_sync(7)
    assert len(assert_enqueued_sync(blocking_app, mail, 7, times=1)) == 1
    assert len(assert_deduplicated_sync(blocking_app, mail, 7, times=1)) == 1
    assert_not_enqueued_sync(blocking_app, mail, 8)


# ── races ─────────────────────────────────────────────────────────────────────────────────────────


async def test_one_of_many_requests_is_admitted(app: App) -> None:
    mail = declare_mail(app)
    job = await assert_single_admission(mail.call(7))
    assert [one.id for one in await app.jobs()] == [job.id]
    await assert_deduplicated(app, mail, 7, times=49)
    with pytest.raises(AssertionError, match=f"none of 10 requests was admitted, because job {job.id}"):
        await assert_single_admission(mail.call(7), 10)


async def test_a_policy_that_rejects_admits_one(app: App) -> None:
    mail = declare_mail(app, unique=Unique(on_conflict="reject"))
    await assert_single_admission(mail.call(7), 20)
    with pytest.raises(Duplicate):
        await mail.enqueue(7)


def test_a_race_in_blocking_code(blocking_app: App) -> None:
    mail = declare_mail(blocking_app)
    assert assert_single_admission_sync(mail.call(7), 20).task == "mail"


async def test_a_task_that_is_not_unique_loses_the_race(app: App) -> None:
    mail = declare_mail(app, unique=None)
    with pytest.raises(AssertionError, match="mail: 6 of 6 requests were admitted, not one: created "):
        await assert_single_admission(mail.call(7), 6)


def test_requests_that_name_another_job_lose_the_race() -> None:
    answers = [Answer("created", deduplicated=False, job="a"), Answer("kept", deduplicated=True, job="b")]
    with pytest.raises(AssertionError, match=r"job a was created, but requests name \['b'\]"):
        check(answers, name="mail")


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_processes_race_for_one_key(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    import importlib
    import sys

    sqlite = f"sqlite:///{tmp_path / 'kit.db'}"
    url = sqlite if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    name = f"raced_{store}"
    source = f"""
        from onejob import App

        app = App({url!r})

        @app.task(unique=True)
        def mail(to: int) -> None: ...
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        module = importlib.import_module(name)
        try:
            assert_single_admission_sync(module.mail.call(7), 6, processes=2)
            assert_deduplicated_sync(module.app, module.mail, 7, times=7)
            with pytest.raises(InvalidCall, match="without its options"):
                assert_single_admission_sync(module.mail.options(priority=1).call(8), 2, processes=1)
        finally:
            module.app.close_sync()
            del sys.modules[name]


async def test_the_memory_store_has_no_processes(memory: App) -> None:
    mail = declare_mail(memory)
    with pytest.raises(InvalidCall, match="belongs to one process"):
        await assert_single_admission(mail.call(7), 2, processes=1)


async def test_a_clock_of_its_own_still_works() -> None:
    clock = Clock()
    async with App(store=MemoryStore(clock=clock)) as app:
        mail = declare_mail(app)
        delayed = await mail.options(delay="10m").enqueue(1)
        clock.advance("10m")
        await drain(app)
        assert (await app.job(delayed.job.id)).state == "completed"


def test_what_is_no_app_no_call_and_no_filter_is_answered() -> None:
    app = App("memory://")
    mail = declare_mail(app)
    wrong: Any = mail
    for call in (
        lambda: drain_sync(wrong),
        lambda: asyncio.run(drain(wrong)),
        lambda: assert_enqueued_sync(wrong, mail),
        lambda: inline(wrong).__enter__(),
        lambda: moving_clock(wrong).__enter__(),
        lambda: empty_sync(wrong),
        lambda: assert_deduplicated_sync(wrong, mail),
    ):
        with pytest.raises(InvalidCall, match="<Task mail> is no app: the app comes first"):
            call()
    with pytest.raises(
        InvalidCall, match=r"<Task mail> is no call: write assert_single_admission\(task.call"
    ):
        assert_single_admission_sync(wrong)
    with pytest.raises(InvalidCall, match="n=0: at least one request"):
        assert_single_admission_sync(mail.call(7), n=0)
    with pytest.raises(InvalidCall, match="'waiting' is no state"):
        assert_not_enqueued_sync(app, mail, state="waiting")
    with pytest.raises(InvalidCall, match="'dupe' is no outcome: write one of created"):
        assert_deduplicated_sync(app, mail, outcome="dupe")
