"""Code that changes while jobs wait: a removed argument fails the attempt, an unknown task is left alone."""

from __future__ import annotations

import logging

import pytest

from onejob import App, Outcome, Retry, State, Unique
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock, drain
from onejob.worker.upkeep import UNKNOWN_EVERY, Upkeep
from tests.contract.steps import RETRY, fail, mailer, start

ONCE = Retry.never()
GONE = "send no longer has the stored argument 'note' (it has: to, text)"


def declare_old(app: App) -> None:
    @app.task(retry=ONCE)
    async def send(to: str, note: str = "") -> str:
        return f"{to}: {note}"


def declare_new(app: App) -> None:
    @app.task(retry=ONCE, unique=Unique(by="to"))
    async def send(to: str, text: str = "(default)") -> str:
        return f"{to}: {text}"


async def test_a_stored_argument_that_the_code_no_longer_has_fails_the_attempt(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        declare_old(old)
        job = (await old.tasks["send"].enqueue("Ada", "IMPORTANT")).job
        declare_new(new)
        await drain(new)
        failed = await new.job(job.id)
        assert failed.state is State.DISCARDED
        assert failed.failures[0]["type"] == "InvalidCall"
        assert GONE in failed.failures[0]["message"]
        assert failed.arguments == {"to": "Ada", "note": "IMPORTANT"}  # nothing is dropped


async def test_such_a_dead_letter_is_replayed_by_code_that_has_the_argument(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        declare_old(old)
        admission = await old.tasks["send"].enqueue("Ada", "IMPORTANT")
        declare_new(new)
        await drain(new)
        await old.dead.replay(admission.job.id)
        await drain(old)
        assert await admission.result(timeout=30) == "Ada: IMPORTANT"


async def test_such_a_dead_letter_is_replayed_with_other_arguments(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        declare_old(old)
        admission = await old.tasks["send"].enqueue("Ada", "IMPORTANT")
        declare_new(new)
        await drain(new)
        replayed = await new.dead.replay(admission.job.id, args={"text": "IMPORTANT"})
        assert replayed.outcome is Outcome.CREATED
        await drain(new)
        assert await admission.result(timeout=30) == "Ada: IMPORTANT"


async def test_a_job_of_an_unknown_task_is_left_alone_and_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(store=store) as old, App(store=store) as new:
        mail = mailer(old)
        jobs = [(await mail.enqueue(number)).job for number in range(2)]
        mailer(new, name="other")
        with caplog.at_level(logging.WARNING, "onejob"):
            await drain(new)
        assert [await new.job(job.id) for job in jobs] == jobs
        [record] = [record for record in caplog.records if "leaves due jobs alone" in record.message]
        assert "mail: 2" in record.message


async def test_jobs_of_unknown_tasks_are_logged_once_a_minute_at_most(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1000.0]
    monkeypatch.setattr("onejob.worker.upkeep.time.monotonic", lambda: seconds[0])
    async with App(store=store) as old, App(store=store) as new:
        await mailer(old).enqueue(1)
        worker = new.worker()
        upkeep: Upkeep = worker._upkeep
        for _ in range(3):
            await upkeep.sweep()
            seconds[0] += UNKNOWN_EVERY - 1
            await upkeep.sweep()
            seconds[0] += 1
    assert len([record for record in caplog.records if "leaves due jobs alone" in record.message]) == 3


async def test_a_queue_that_the_worker_does_not_serve_is_not_its_business(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(store=store) as old, App(store=store) as new:
        await mailer(old, queue="elsewhere").enqueue(1)
        mailer(new, name="other")
        await drain(new)
    assert not [record for record in caplog.records if "leaves due jobs alone" in record.message]


async def test_a_worker_without_tasks_says_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async with App(store=store) as app:
        await drain(app)
    assert "has no tasks to run: import the modules" in caplog.text


# ── a signature ───────────────────────────────────────────────────────────────────────────────────


async def test_a_new_argument_with_a_default_is_filled_in(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:

        @old.task(name="send", unique=Unique(by="to"))
        async def send_before(to: str) -> str:
            return to

        admission = await send_before.enqueue("Ada")

        @new.task(name="send", unique=Unique(by="to"))
        async def send(to: str, language: str = "en") -> str:
            return f"{to} {language}"

        assert (await send.enqueue("Ada", "fr")).job.id == admission.job.id  # `to` alone is the key
        await drain(new)
        assert await admission.result(timeout=30) == "Ada en"


async def test_a_new_argument_without_a_default_fails_the_attempt(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:

        @old.task(name="send", retry=ONCE)
        async def send_before(to: str) -> None: ...

        job = (await send_before.enqueue("Ada")).job

        @new.task(name="send", retry=ONCE)
        async def send(to: str, language: str) -> str:
            return f"{to} {language}"

        await drain(new)
        failed = await new.job(job.id)
        assert failed.failures[0]["type"] == "InvalidCall"
        assert (
            "send needs the argument 'language', which this job does not have: give it a default"
            in (failed.failures[0]["message"])
        )
        await new.dead.replay(job.id, args={"language": "en"})
        await drain(new)
        assert (await new.job(job.id)).state is State.COMPLETED


async def test_a_new_argument_gives_a_key_of_all_arguments_another_value(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:

        @old.task(name="send", unique=True)
        async def send_before(to: str) -> None: ...

        waiting = (await send_before.enqueue("Ada")).job

        @new.task(name="send", unique=True)
        async def send(to: str, language: str = "en") -> str:
            return f"{to} {language}"

        created = await send.enqueue("Ada")
        assert created.outcome is Outcome.CREATED
        assert created.job.key != waiting.key


async def test_a_renamed_argument_is_accepted_under_both_names(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:

        @old.task(name="send")
        async def send_before(to: str) -> str:
            return to

        before = await send_before.enqueue("Ada")

        @new.task
        async def send(recipient: str = "", to: str = "") -> str:
            return recipient or to

        after = await send.enqueue("Bob")
        await drain(new)
        assert [await one.result(timeout=30) for one in (before, after)] == ["Ada", "Bob"]


# ── a policy ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_waiting_job_keeps_the_retries_it_was_enqueued_with(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        await mailer(old, retry=ONCE).enqueue(1)
        mailer(new, retry=RETRY)
        assert (await fail(new, await start(new))).state is State.DISCARDED
        await new.tasks["mail"].enqueue(2)
        assert (await fail(new, await start(new))).state is State.RETRYABLE


async def test_the_request_decides_what_a_duplicate_does(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        waiting = (await mailer(old, Unique(by="to")).enqueue(1, "old")).job
        mail = mailer(new, Unique(by="to", on_conflict="update"))
        assert (await mail.enqueue(1, "new")).outcome is Outcome.UPDATED
        assert (await new.job(waiting.id)).arguments["text"] == "new"


async def test_the_holder_decides_how_long_its_key_is_held(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        await mailer(old, Unique.until_executing(by="to")).enqueue(1)
        mail = mailer(new, Unique.until_executed(by="to"))
        await start(new)
        assert (await mail.enqueue(1)).outcome is Outcome.CREATED  # the job that runs gave its key back
        assert (await mail.enqueue(1)).deduplicated


async def test_another_key_does_not_meet_the_jobs_that_wait(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        waiting = (await mailer(old, Unique(by="to")).enqueue(1, "a")).job
        mail = mailer(new, Unique(by=("to", "text")))
        created = await mail.enqueue(1, "a")
        assert created.outcome is Outcome.CREATED
        assert created.job.key != waiting.key
        assert await old.tasks["mail"].pending(1)


# ── a queue ───────────────────────────────────────────────────────────────────────────────────────


async def test_jobs_stay_in_the_queue_they_were_enqueued_in(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        waiting = (await mailer(old, Unique(by="to"), queue="slow").enqueue(1)).job
        mail = mailer(new, Unique(by="to"), queue="fast")
        assert (await mail.enqueue(1)).job.id == waiting.id  # a queue is no part of the key
        await drain(new)
        assert (await new.job(waiting.id)).state is State.AVAILABLE

        new.queue("slow")
        await drain(new)
        assert (await new.job(waiting.id)).state is State.COMPLETED


# ── a schedule ────────────────────────────────────────────────────────────────────────────────────


def hourly(app: App, minute: int, name: str = "report") -> None:
    @app.cron(f"{minute} * * * *", name=name)
    @app.task(name="report")
    async def report() -> str:
        return "done"


async def test_a_changed_expression_ticks_by_the_new_one_and_misses_nothing(
    store: Store, clock: Clock
) -> None:
    async with App(store=store) as old, App(store=store) as new:
        hourly(old, 15)
        await drain(old)
        clock.advance("1h")
        await drain(old)
        hourly(new, 45)
        clock.advance("1h")
        await drain(new)
        await drain(new)
        ticks = [job.metadata["tick"][14:16] for job in await new.jobs(task="report")]
        assert ticks == ["45", "15"]


async def test_old_and_new_workers_side_by_side_make_no_tick_twice(store: Store, clock: Clock) -> None:
    async with App(store=store) as old, App(store=store) as new:
        hourly(old, 15)
        hourly(new, 15)
        await drain(old)
        for _ in range(3):
            clock.advance("1h")
            await drain(new)
            await drain(old)
        ticks = [job.metadata["tick"] for job in await new.jobs(task="report")]
        assert len(ticks) == len(set(ticks)) == 3


async def test_old_and_new_expressions_side_by_side_both_tick(store: Store, clock: Clock) -> None:
    async with App(store=store) as old, App(store=store) as new:
        hourly(old, 15)
        hourly(new, 45)
        await drain(old)
        await drain(new)
        for _ in range(8):
            clock.advance("15m")
            await drain(new)
            await drain(old)
        ticks = [job.metadata["tick"][14:16] for job in await new.jobs(task="report")]
        assert sorted(ticks) == ["15", "15", "45", "45"]


async def test_a_removed_schedule_leaves_the_job_of_its_last_tick(store: Store, clock: Clock) -> None:
    async with App(store=store) as old, App(store=store) as new:
        hourly(old, 15)
        await drain(old)
        clock.advance("1h")
        await old.worker()._ticker.tick()
        [waiting] = await old.jobs(task="report")

        @new.task
        async def report() -> str:
            return "done"

        clock.advance("3h")
        await drain(new)
        assert [job.id for job in await new.jobs(task="report")] == [waiting.id]
        assert (await new.job(waiting.id)).state is State.COMPLETED


# ── a name ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_function_can_be_renamed_while_the_task_keeps_its_name(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        admission = await mailer(old, Unique(by="to")).enqueue(1)

        @new.task(name="mail", unique=Unique(by="to"))
        async def send_letter(to: int, text: str = "") -> str:
            return f"letter to {to}{text}"

        assert (await send_letter.enqueue(1)).job.id == admission.job.id
        await drain(new)
        assert await admission.result(timeout=30) == "letter to 1"


async def test_a_task_under_its_old_and_its_new_name_runs_all_jobs(store: Store) -> None:
    async with App(store=store) as old, App(store=store) as new:
        before = await mailer(old).enqueue(1)

        async def letter(to: int, text: str = "") -> str:
            return f"letter to {to}{text}"

        new.task(name="mail")(letter)
        after = await new.task(letter).enqueue(2)
        await drain(new)
        assert [await one.result(timeout=30) for one in (before, after)] == ["letter to 1", "letter to 2"]


async def test_a_job_of_an_unknown_task_is_found_behind_older_jobs_of_another_queue(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.worker.upkeep.LOOKED_AT", 1)
    async with App(store=store) as old, App(store=store) as new:
        known = mailer(new, name="known", queue="slow")
        await known.enqueue(1)
        await known.enqueue(2)
        await mailer(old).enqueue(3)
        await new.worker()._upkeep.warn_of_unknown_tasks()
    [record] = [record for record in caplog.records if "leaves due jobs alone" in record.message]
    assert "(mail: 1)" in record.message
