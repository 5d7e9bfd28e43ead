"""The worker as its user meets it: functions run, fail, are tried again, time out and are cancelled."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onejob
from onejob import (
    App,
    Cancel,
    Discard,
    Replay,
    Retry,
    RetryLater,
    Snooze,
    State,
    Task,
    Unique,
    current,
    group,
)
from onejob.core.leasing import Lease
from onejob.core.step import Step
from onejob.errors import InvalidCall, JobCancelled, JobFailed, NoCurrentJob, ResultError
from onejob.stores.contract import Leased
from onejob.tasks.results import warn_of_long_wait
from onejob.testing import drain
from onejob.testing.inside import engine_of, registry_of
from tests.system.live import PATIENCE, STORES, eventually, happens, open_store, reached

SOON = Retry(attempts=3, base="5ms", jitter=0)
NEVER_SOON = Retry(attempts=3, base="1h", cap="1h")


@pytest.fixture(params=STORES)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    async with App(store=open_store(request.param, tmp_path), retry=SOON) as app:
        yield app


async def failures(app: App, job_id: str) -> list[tuple[int, str, str]]:
    """Return a job's error history in short."""
    return [(each["attempt"], each["type"], each["message"]) for each in (await app.job(job_id)).failures]


# ── running ───────────────────────────────────────────────────────────────────────────────────────


async def test_async_functions_run_on_the_loop_and_plain_ones_in_threads(app: App) -> None:
    ran_in: dict[str, int] = {}

    @app.task
    async def waits(number: int) -> int:
        ran_in["async"] = threading.get_ident()
        return number + 1

    @app.task
    def blocks(number: int) -> int:
        ran_in["plain"] = threading.get_ident()
        return number + 2

    async with app.worker(name="w"):
        first, second = await waits.enqueue(1), await blocks.enqueue(1)
        assert await first.result(PATIENCE) == 2
        assert await second.result(PATIENCE) == 3
    assert ran_in["async"] == threading.get_ident()
    assert ran_in["plain"] != threading.get_ident()
    job = await app.job(first.job.id)
    assert (job.state, job.attempt, job.worker, job.lease_until) == ("completed", 1, "w", None)
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.created_at <= job.started_at <= job.finished_at


async def test_plain_functions_run_beside_each_other(app: App) -> None:
    meeting = threading.Barrier(3)

    @app.task
    def meet(place: int) -> int:
        meeting.wait(PATIENCE)
        return place

    async with app.worker(concurrency=3):
        all_three = [await meet.enqueue(place) for place in range(3)]
        assert [await each.result(PATIENCE) for each in all_three] == [0, 1, 2]


async def test_a_task_is_still_a_function(app: App) -> None:
    @app.task
    async def waits(number: int) -> int:
        return number + 1

    @app.task
    def blocks(number: int) -> int:
        return number + 2

    assert await waits(1) == 2
    assert blocks(1) == 3
    assert await app.jobs() == []


# ── the context ───────────────────────────────────────────────────────────────────────────────────


def look_around() -> dict[str, Any]:
    run = current()
    return {
        "job": run.job.id,
        "attempt": run.attempt,
        "deadline": run.deadline,
        "cancelled": run.cancelled,
        "thread": threading.get_ident(),
    }


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_handler_sees_its_run(app: App, plain: bool) -> None:  # noqa: FBT001 - a parameter
    seen: list[dict[str, Any]] = []

    def blocks() -> None:
        seen.append(look_around())
        if len(seen) == 1:
            raise ValueError("again")

    async def waits() -> None:
        blocks()

    work: Task[[], None] = app.task(name="work", timeout="1h")(blocks if plain else waits)
    before = app._engine.store.now()
    async with app.worker():
        asked = await work.enqueue()
        await asked.result(PATIENCE)
    assert [each["attempt"] for each in seen] == [1, 2]
    assert all(each["job"] == asked.job.id and each["cancelled"] is False for each in seen)
    for each in seen:
        assert before + timedelta(hours=1) <= each["deadline"] <= app._engine.store.now() + timedelta(hours=1)
        assert (each["thread"] != threading.get_ident()) is plain


async def test_a_run_without_timeout_has_no_deadline(app: App) -> None:
    @app.task
    async def work() -> bool:
        return current().deadline is None

    async with app.worker():
        assert await (await work.enqueue()).result(PATIENCE) is True


async def test_outside_of_a_run_there_is_no_context(app: App) -> None:
    @app.task
    async def work() -> str:
        return current().job.id

    with pytest.raises(NoCurrentJob, match="only inside a running job"):
        current()
    async with app.worker():
        asked = await work.enqueue()
        assert await asked.result(PATIENCE) == asked.job.id
        with pytest.raises(NoCurrentJob):
            current()
    with pytest.raises(NoCurrentJob):
        await work()


async def test_progress_can_be_watched(app: App) -> None:
    go = asyncio.Event()

    @app.task
    async def climb() -> None:
        current().progress(0.5, "half way")
        await go.wait()

    async def stored() -> bool:
        return (await app.job(asked.job.id)).progress is not None

    async with app.worker():
        asked = await climb.enqueue()
        await eventually(stored)
        job = await app.job(asked.job.id)
        assert job.state is State.ACTIVE
        assert msgspec.json.decode(job.progress or b"") == {"fraction": 0.5, "message": "half way"}
        go.set()
        await asked.result(PATIENCE)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_progress_is_kept_however_short_the_run(app: App, fails: bool) -> None:  # noqa: FBT001 - a parameter
    @app.task(retry=Retry.never())
    def climb() -> None:
        current().progress(0.9, "nearly")
        current().progress(7, "there")
        if fails:
            raise ValueError("slipped")

    async with app.worker():
        job = await reached(app, (await climb.enqueue()).job, State.COMPLETED, State.DISCARDED)
    assert msgspec.json.decode(job.progress or b"null") == {"fraction": 1.0, "message": "there"}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_run_can_ask_whether_it_is_the_latest(app: App, plain: bool) -> None:  # noqa: FBT001 - a parameter
    asked, told = threading.Event(), threading.Event()
    answers: list[tuple[int, bool, bool]] = []

    def blocks(number: int) -> None:
        before = current().is_latest_sync()
        asked.set()
        assert told.wait(PATIENCE)
        answers.append((number, before, current().is_latest_sync()))

    async def waits(number: int) -> None:
        before = await current().is_latest()
        asked.set()
        await happens(told)
        answers.append((number, before, await current().is_latest()))

    work: Task[[int], None] = app.task(name="work", unique=Unique.coalesce(by=[]))(blocks if plain else waits)
    async with app.worker():
        await work.enqueue(1)
        await happens(asked)
        newer = await work.enqueue(2)
        told.set()
        await newer.result(PATIENCE)
    assert answers == [(1, True, False), (2, True, True)]


# ── failing ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_failure_is_tried_again_after_a_growing_pause(app: App) -> None:
    @app.task(retry=Retry(attempts=3, base="50ms", factor=2, jitter=0))
    async def flaky(name: str) -> str:
        if current().attempt < 3:
            raise ConnectionError(f"no answer from {name}")
        return f"{name} at last"

    async with app.worker():
        asked = await flaky.enqueue("mars")
        assert await asked.result(PATIENCE) == "mars at last"
    job = await app.job(asked.job.id)
    assert (job.state, job.attempt) == (State.COMPLETED, 3)
    assert await failures(app, job.id) == [
        (1, "ConnectionError", "no answer from mars"),
        (2, "ConnectionError", "no answer from mars"),
    ]
    for failure in job.failures:
        assert "in flaky" in failure["traceback"]
        assert 'raise ConnectionError(f"no answer from {name}")' in failure["traceback"]
    first, second = (datetime.fromisoformat(failure["at"]) for failure in job.failures)
    assert job.started_at is not None
    assert second - first >= timedelta(milliseconds=50)
    assert job.started_at - second >= timedelta(milliseconds=100)


async def test_the_last_failure_makes_a_dead_letter_and_an_error_in_the_log(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(unique=Unique(by="to"))
    def send(to: str, text: str) -> None:
        raise OSError(f"no route for {len(text)} letters to {to}")

    async with app.worker():
        asked = await send.enqueue("mars", "a secret")
        with pytest.raises(JobFailed, match="OSError: no route for 8 letters to mars"):
            await asked.result(PATIENCE)
    [dead] = await app.dead.list()
    assert (dead.id, dead.attempt, len(dead.failures)) == (asked.job.id, 3, 3)
    assert dead.arguments == {"to": "mars", "text": "a secret"}
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.name == "onejob"
    assert asked.key is not None
    for fact in (asked.job.id, "send", asked.key, "3 attempts", "OSError: no route for 8 letters to mars"):
        assert fact in line.getMessage()
    assert "a secret" not in caplog.text


async def test_some_errors_are_not_worth_another_attempt(app: App) -> None:
    @app.task(give_up_on=(LookupError,), retry=NEVER_SOON)
    async def find(what: str) -> None:
        raise KeyError(what)

    async with app.worker():
        asked = await find.enqueue("treasure")
        with pytest.raises(JobFailed, match="KeyError: 'treasure'"):
            await asked.result(PATIENCE)
    assert (await app.job(asked.job.id)).attempt == 1


async def test_retry_later_overrules_the_backoff_and_spends_an_attempt(app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=NEVER_SOON)
    async def call() -> None:
        attempts.append(current().attempt)
        raise RetryLater("5ms", f"busy at {current().attempt}")

    async with app.worker():
        asked = await call.enqueue()
        with pytest.raises(JobFailed, match="RetryLater: busy at 3"):
            await asked.result(PATIENCE)
    assert attempts == [1, 2, 3]
    assert await failures(app, asked.job.id) == [(n, "RetryLater", f"busy at {n}") for n in (1, 2, 3)]


async def test_snooze_spends_no_attempt(app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry.never())
    def wait() -> int:
        attempts.append(current().attempt)
        if len(attempts) < 5:
            raise Snooze("5ms")
        return len(attempts)

    async with app.worker():
        asked = await wait.enqueue()
        assert await asked.result(PATIENCE) == 5
    assert attempts == [1] * 5
    job = await app.job(asked.job.id)
    assert (job.attempt, job.failures) == (1, [])


async def test_a_snoozed_job_waits_for_its_time(app: App) -> None:
    @app.task
    async def wait() -> None:
        raise Snooze("1h")

    before = app._engine.store.now()
    async with app.worker(name="w"):
        job = await reached(app, (await wait.enqueue()).job, State.SCHEDULED)
    assert job.run_at >= before + timedelta(hours=1)
    assert (job.attempt, job.worker) == (0, "w")  # the last one that ran it


async def test_a_handler_may_cancel_its_job(app: App) -> None:
    @app.task(unique=True)
    async def work() -> None:
        raise Cancel("nobody needs it")

    async with app.worker():
        asked = await work.enqueue()
        with pytest.raises(JobCancelled, match="nobody needs it"):
            await asked.result(PATIENCE)
    job = await app.job(asked.job.id)
    assert (job.state, job.reason, job.attempt, job.failures) == ("cancelled", "nobody needs it", 1, [])
    assert not await work.pending()


async def test_a_handler_may_discard_its_job(app: App) -> None:
    @app.task(retry=NEVER_SOON)
    def work() -> None:
        raise Discard("hopeless")

    async with app.worker():
        asked = await work.enqueue()
        with pytest.raises(JobFailed, match="Discard: hopeless"):
            await asked.result(PATIENCE)
    assert [job.id for job in await app.dead.list()] == [asked.job.id]
    assert await failures(app, asked.job.id) == [(1, "Discard", "hopeless")]


class Rude(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I say nothing")


def stop_iterating() -> None:
    next(iter([]))


def leave() -> None:
    sys.exit(3)


def be_rude() -> None:
    raise Rude("out of my way")


def be_mute() -> None:
    raise Mute


def name_a_strange_file() -> None:
    raise FileNotFoundError("caf\udce9.txt")


def cancel_itself() -> None:
    raise asyncio.CancelledError


def interrupt() -> None:
    raise KeyboardInterrupt


def exit_generator() -> None:
    raise GeneratorExit


HOSTILE: dict[str, tuple[Callable[[], None], str, str]] = {
    "StopIteration": (stop_iterating, "RuntimeError", "StopIteration"),
    "SystemExit": (leave, "SystemExit", "3"),
    "KeyboardInterrupt": (interrupt, "KeyboardInterrupt", ""),
    "GeneratorExit": (exit_generator, "GeneratorExit", ""),
    "a BaseException": (be_rude, "Rude", "out of my way"),
    "an error without words": (be_mute, "Mute", ""),
    "half of a surrogate pair": (name_a_strange_file, "FileNotFoundError", r"caf\udce9.txt"),
    "CancelledError": (cancel_itself, "CancelledError", ""),
}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("what", HOSTILE)
async def test_any_exception_of_a_handler_is_a_failure_and_the_worker_goes_on(
    app: App,
    what: str,
    plain: bool,  # noqa: FBT001 - a parameter
) -> None:
    function, kind, message = HOSTILE[what]

    async def waits() -> None:
        function()

    @app.task
    async def polite() -> str:
        return "good day"

    work: Task[[], None] = app.task(name="work", retry=Retry(attempts=2, base=0))(
        function if plain else waits
    )
    async with app.worker(concurrency=1) as worker:
        asked = await work.enqueue()
        with pytest.raises(JobFailed):
            await asked.result(PATIENCE)
        assert await (await polite.enqueue()).result(PATIENCE) == "good day"
        assert worker.running == 0
    found = await failures(app, asked.job.id)
    assert [(attempt, name) for attempt, name, _ in found] == [(1, kind), (2, kind)]
    assert all(message in text for _, _, text in found)


async def test_a_strange_reason_to_cancel_is_kept_readable(app: App) -> None:
    @app.task
    async def work() -> None:
        raise Cancel("caf\udce9.txt is gone")

    async with app.worker():
        with pytest.raises(JobCancelled, match=r"caf\\udce9.txt is gone"):
            await (await work.enqueue()).result(PATIENCE)


# ── timeouts ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_async_function_that_takes_too_long_is_cancelled_where_it_awaits(app: App) -> None:
    cancelled: list[bool] = []

    @app.task(timeout="20ms", retry=Retry(attempts=2, base=0))
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(current().attempt == len(cancelled) + 1)

    async with app.worker():
        asked = await wait.enqueue()
        with pytest.raises(JobFailed, match=r"TimeoutError: the run took longer than 0\.02 s"):
            await asked.result(PATIENCE)
    assert cancelled == [True, True]
    assert [kind for _, kind, _ in await failures(app, asked.job.id)] == ["TimeoutError"] * 2


async def test_a_plain_function_that_takes_too_long_is_asked_to_stop_and_its_result_dropped(app: App) -> None:
    noticed = threading.Event()
    give_up = threading.Event()

    @app.task(timeout="20ms", retry=Retry.never())
    def wait() -> str:
        while not current().cancelled and not give_up.wait(0.001):
            pass
        noticed.set()
        return "too late"

    async with app.worker():
        asked = await wait.enqueue()
        with pytest.raises(JobFailed, match=r"TimeoutError: the run took longer than 0\.02 s"):
            await asked.result(PATIENCE)
        try:
            await happens(noticed)
        finally:
            give_up.set()
    job = await app.job(asked.job.id)
    assert (job.state, job.result) == (State.DISCARDED, None)


async def test_a_plain_function_that_never_ends_takes_no_place_from_others(app: App) -> None:
    end = threading.Event()

    @app.task(timeout="20ms", retry=Retry.never())
    def hang() -> None:
        end.wait(PATIENCE)

    @app.task(timeout="10s", retry=Retry.never())
    def work() -> str:
        return "done"

    try:
        async with app.worker(concurrency=1):
            hung = await hang.enqueue()
            with pytest.raises(JobFailed):
                await hung.result(PATIENCE)
            assert await (await work.enqueue()).result(PATIENCE) == "done"
            assert not end.is_set()
    finally:
        end.set()


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_handlers_own_timeout_error_is_its_own(app: App, plain: bool) -> None:  # noqa: FBT001 - a parameter
    def blocks() -> None:
        raise TimeoutError("mars does not answer")

    async def waits() -> None:
        blocks()

    work: Task[[], None] = app.task(name="work", timeout="1h", retry=Retry.never())(
        blocks if plain else waits
    )
    async with app.worker():
        asked = await work.enqueue()
        with pytest.raises(JobFailed, match="mars does not answer"):
            await asked.result(PATIENCE)
    assert "in blocks" in (await app.job(asked.job.id)).failures[0]["traceback"]


async def test_a_call_may_have_its_own_timeout(app: App) -> None:
    @app.task(timeout="1h", retry=Retry.never())
    async def wait() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        asked = await wait.options(timeout="20ms").enqueue()
        with pytest.raises(JobFailed, match="longer than"):
            await asked.result(PATIENCE)


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────


async def test_a_running_async_function_is_cancelled_where_it_awaits(app: App) -> None:
    begun = asyncio.Event()
    ends: list[str] = []

    @app.task(unique=True)
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled" if current().cancelled else "out of the blue")
            raise

    async with app.worker():
        asked = await wait.enqueue()
        await happens(begun)
        told = await app.cancel(asked.job.id)
        assert told.state is State.ACTIVE
        with pytest.raises(JobCancelled):
            await asked.result(PATIENCE)
    assert ends == ["cancelled"]
    job = await app.job(asked.job.id)
    assert (job.state, job.attempt, job.failures) == (State.CANCELLED, 1, [])
    assert not await wait.pending()


async def test_a_running_plain_function_sees_that_it_is_cancelled_and_may_stop(app: App) -> None:
    begun, give_up = threading.Event(), threading.Event()

    @app.task
    def count() -> None:
        begun.set()
        while not give_up.wait(0.001):
            if current().cancelled:
                raise Cancel("told to stop")

    async with app.worker():
        asked = await count.enqueue()
        await happens(begun)
        await app.cancel(asked.job.id)
        try:
            with pytest.raises(JobCancelled, match="told to stop"):
                await asked.result(PATIENCE)
        finally:
            give_up.set()


async def test_a_function_that_fails_after_it_was_cancelled_is_not_tried_again(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cleaning up went wrong")

    async with app.worker():
        asked = await wait.enqueue()
        await happens(begun)
        await app.cancel(asked.job.id)
        with pytest.raises(JobCancelled):
            await asked.result(PATIENCE)
    assert await failures(app, asked.job.id) == [(1, "OSError", "cleaning up went wrong")]


async def test_a_waiting_job_is_cancelled_without_running(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    first, second = await work.enqueue(1), await work.enqueue(2)
    await app.cancel(first.job.id, reason="changed my mind")
    async with app.worker():
        await second.result(PATIENCE)
        with pytest.raises(JobCancelled, match="changed my mind"):
            await first.result(PATIENCE)
    assert ran == [2]


# ── results ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_that_cannot_be_written_fails_the_job_and_says_so(app: App) -> None:
    @app.task(retry=Retry.never())
    async def make() -> Any:
        return object()

    async with app.worker():
        asked = await make.enqueue()
        with pytest.raises(JobFailed, match="The result of make cannot be written as JSON: object has no"):
            await asked.result(PATIENCE)
    assert [kind for _, kind, _ in await failures(app, asked.job.id)] == ["UnencodableArgument"]


async def test_a_result_that_is_too_large_fails_the_job_and_says_so(tmp_path: Path) -> None:
    async with App(store=open_store("sqlite", tmp_path), max_args=100, retry=Retry.never()) as app:

        @app.task
        async def make(size: int) -> str:
            return "x" * size

        async with app.worker():
            assert await (await make.enqueue(98)).result(PATIENCE) == "x" * 98
            with pytest.raises(JobFailed, match="The result of make would take 101 bytes; the limit is 100"):
                await (await make.enqueue(99)).result(PATIENCE)


async def test_a_result_that_the_annotation_does_not_allow_is_reported(app: App) -> None:
    @app.task
    async def count() -> int:
        return "seven"  # type: ignore[return-value]

    async with app.worker():
        asked = await count.enqueue()
        with pytest.raises(ResultError, match="Expected `int`, got `str`"):
            await asked.result(PATIENCE)
    assert (await app.job(asked.job.id)).state is State.COMPLETED


async def test_waiting_for_a_result_has_an_end(app: App) -> None:
    @app.task
    async def work() -> None: ...

    asked = await work.enqueue()
    with pytest.raises(TimeoutError, match=r"\(work\) is still available after 10ms\. It is due, but no"):
        await asked.result(timeout=0.01)
    with pytest.raises(TimeoutError, match="is still available after 10ms"):
        await asked.result(timeout="10ms")
    with pytest.raises(TimeoutError, match="is still available after 10ms"):
        await asked.covered(timeout="10ms")
    with pytest.raises(TimeoutError, match="is still available after 10ms"):
        await asked.chain.result(timeout="10ms")
    with pytest.raises(InvalidCall, match=r"write await Admission\.result"):
        asked.result_sync(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(asked.result_sync, 0.01)
    async with app.worker():
        await asked.result(PATIENCE)


async def test_a_timeout_says_what_the_job_waits_for(app: App) -> None:
    app.queue("mail")

    @app.task
    async def work() -> None: ...

    @app.task(unique=Unique.coalesce())
    async def refresh(number: int) -> None: ...

    later = await work.options(delay="1h").enqueue()
    blocked = await work.options(after=later).enqueue()
    paused = await work.options(queue="mail").enqueue()
    await app.queues.pause("mail")
    members = await group(work.call(), work.call()).enqueue()
    replaced = await refresh.enqueue(1)
    newer = await refresh.options(unique=Unique(on_conflict="replace")).enqueue(1)
    assert newer.outcome == "replaced"

    expected = {
        later.result: r"is still scheduled after 10ms\. It is scheduled for",
        blocked.result: rf"is still pending .* It waits for chain {later.job.id}, which is scheduled",
        paused.result: r"It is due, but queue 'mail' is paused: onejob resume APP mail$",
        members.results: rf"Job {members.admissions[0].job.id} \(work\) is still available after 10ms",
        replaced.result: rf"Job {newer.job.id} \(refresh\) is still available after 10ms",
    }
    for wait, sentence in expected.items():
        with pytest.raises(TimeoutError, match=sentence):
            await wait(timeout="10ms")


async def test_a_long_wait_without_a_timeout_says_once_what_it_waits_for(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onejob.tasks.results.LONG_WAIT", timedelta(milliseconds=10))
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        began.set()
        await may_end.wait()
        return "done"

    async def warned() -> bool:
        return "is still" in caplog.text

    asked = await work.enqueue()
    waiting = asyncio.create_task(asked.result())
    await eventually(warned)
    [line] = [record.getMessage() for record in caplog.records if "is still" in record.getMessage()]
    said = f"Job {asked.job.id} (work) is still available after 10ms. It is due, but no worker is alive: "
    assert line.startswith(said)

    caplog.clear()
    async with app.worker():
        await began.wait()
        await warn_of_long_wait(engine_of(app), registry_of(app), [asked.job.id])
        may_end.set()
        assert await waiting == "done"
    assert not await warned()  # of a job that runs


async def test_every_caller_gets_the_one_result(app: App) -> None:
    runs: list[int] = []

    @app.task(unique=Unique(by="customer_id"))
    async def bill(customer_id: int) -> str:
        runs.append(customer_id)
        return f"bill of {customer_id}"

    asked = [await bill.enqueue(7) for _ in range(5)]
    waiting = [asyncio.create_task(each.result(PATIENCE)) for each in asked]
    async with app.worker():
        assert await asyncio.gather(*waiting) == ["bill of 7"] * 5
    assert runs == [7]


# ── workers ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_draining_worker_runs_what_is_due_and_what_that_makes_due(app: App) -> None:
    ran: list[int] = []

    @app.task(retry=Retry(attempts=2, base="1h", cap="1h"))
    async def count(number: int) -> None:
        ran.append(number)
        if number > 0:
            await count.enqueue(number - 1)
        if number == 0:
            raise ValueError("the end")

    await count.enqueue(3)
    later = await count.options(delay="1h").enqueue(9)
    worker = app.worker(drain=True)
    await asyncio.wait_for(worker.run(), PATIENCE)
    assert ran == [3, 2, 1, 0]
    assert worker.ended == {"completed": 3, "retryable": 1}
    assert (await app.job(later.job.id)).state is State.SCHEDULED


async def test_a_draining_worker_with_nothing_to_do_ends(app: App) -> None:
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)


async def test_a_worker_needs_a_place(app: App) -> None:
    with pytest.raises(onejob.OnejobError, match="at least one place"):
        app.worker(concurrency=0)


# ── chores ────────────────────────────────────────────────────────────────────────────────────────


async def test_workers_bring_dead_letters_back_by_themselves(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.worker.chores.SWEEP_EVERY", 0.01)
    tries: list[int] = []

    @app.task(retry=Retry.never(), replay=Replay(times=2, after="1ms"))
    async def stubborn() -> str:
        tries.append(current().job.replays)
        if len(tries) < 3:
            raise ConnectionError("away")
        return "at last"

    asked = await stubborn.enqueue()
    async with app.worker(), app.worker():
        await reached(app, asked.job, State.COMPLETED)
    assert tries == [0, 1, 2]
    assert await asked.result() == "at last"


async def test_what_the_handler_gave_up_on_does_not_come_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.worker.chores.SWEEP_EVERY", 0.01)

    @app.task(replay=Replay(times=9, after="0s"), give_up_on=(ValueError,))
    async def hopeless(error: str) -> None:
        raise Discard("no") if error == "discard" else ValueError("no")

    asked = [await hopeless.enqueue(error) for error in ("discard", "value")]
    async with app.worker():
        letters = [await reached(app, each.job, State.DISCARDED) for each in asked]
        assert [letter.returns_at for letter in letters] == [None, None]
    assert [letter.replays for letter in await app.dead.list()] == [0, 0]


async def test_a_worker_forgets_what_is_old_enough(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(retention={"completed": "0s"})
    async def heartbeat() -> None: ...

    @app.task
    async def keepsake() -> None: ...

    kept = await keepsake.enqueue()
    await heartbeat.enqueue()
    await drain(app)
    # Only now: one pass per minute is allowed, and one while the jobs still run would forget nothing.
    monkeypatch.setattr("onejob.worker.chores.PRUNE_EVERY", 0.01)
    async with app.worker():
        await eventually(lambda: is_alone(app, kept.job.id))


async def is_alone(app: App, job_id: str) -> bool:
    return [job.id for job in await app.jobs()] == [job_id]


async def test_a_lease_under_way_is_handed_back_by_a_worker_that_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App("memory://")
    app.queue("narrow", concurrency=1)

    @app.task(queue="narrow")
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    await work.enqueue(0)
    endless = await work.enqueue(3600)
    worker = app.worker(concurrency=1, grace=0.05)
    lease = app._engine.store.lease

    async def stop_and_lease(wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        if after:
            worker.stop()
            for _ in range(20):  # everything else stops meanwhile
                await asyncio.sleep(0)
        return await lease(wanted, after)

    monkeypatch.setattr(app._engine.store, "lease", stop_and_lease)
    async with asyncio.timeout(30):
        await worker.run()
    job = await app.job(endless.job.id)
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)
