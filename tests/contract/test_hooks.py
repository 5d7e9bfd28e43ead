"""Hooks hear of everything that happens to a job, once, after the commit; on every store."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from onejob import App, Event, Outcome, Retry, Unique, current
from onejob.engine.events import ENDS
from onejob.engine.hooks import KINDS
from onejob.errors import StoreUnavailable
from onejob.testing import Clock, drain
from onejob.testing.contract.acts import wanted
from onejob.testing.inside import engine_of
from tests.contract.steps import mailer

JOB_KINDS = [kind for kind in KINDS if not kind.startswith("worker")]


class Heard(list[Event]):
    """The events that hooks of every kind have been called with."""

    def __init__(self, app: App) -> None:
        super().__init__()
        for kind in JOB_KINDS:
            app.on(kind)(self.append)  # type: ignore[arg-type]

    def take(self) -> list[tuple[str, str]]:
        """Return kind and job of the events since the last call."""
        taken: list[tuple[str, str]] = [(event.kind, event.job.id) for event in self]
        self.clear()
        return taken


@pytest.fixture
def heard(app: App) -> Heard:
    return Heard(app)


async def test_a_request_is_created_and_its_duplicate_is_deduplicated(app: App, heard: Heard) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1, "a")
    again = await asyncio.to_thread(mail.enqueue_sync, 1, "b")
    created, deduplicated = heard
    assert (created.kind, created.outcome, created.holder) == ("created", Outcome.CREATED, None)
    assert (created.job, created.task, created.queue, created.key) == (
        first.job,
        "mail",
        "default",
        first.key,
    )
    assert (deduplicated.kind, deduplicated.outcome) == ("deduplicated", Outcome.KEPT)
    assert (deduplicated.job.id, deduplicated.holder) == (first.job.id, first.job.id)
    assert deduplicated.reason == again.reason
    assert (created.error, created.duration, created.exception) == (None, None, None)


async def test_many_requests_have_one_event_each_in_order(app: App, heard: Heard) -> None:
    mail = mailer(app, Unique(by="to"))
    admissions = await app.enqueue_many([mail.call(number % 3) for number in range(6)])
    kinds = ["created"] * 3 + ["deduplicated"] * 3
    assert heard.take() == [
        (kind, admission.job.id) for kind, admission in zip(kinds, admissions, strict=True)
    ]


async def test_a_replaced_job_is_cancelled(app: App, heard: Heard) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    old, new = await mail.enqueue(1, "a"), await mail.enqueue(1, "b")
    cancelled = heard[1]
    assert cancelled.job == await app.job(old.job.id)  # as it was written
    assert cancelled.reason == "superseded"
    assert heard.take() == [("created", old.job.id), ("cancelled", old.job.id), ("created", new.job.id)]
    assert new.outcome is Outcome.REPLACED


async def test_a_run_is_started_and_completed(app: App, clock: Clock, heard: Heard) -> None:
    mail = mailer(app)
    job = (await mail.enqueue(1)).job
    clock.advance("3s")
    await drain(app)
    _, started, completed = heard
    assert (started.kind, started.attempt, started.waited) == ("started", 1, 3.0)
    assert (completed.kind, completed.job) == ("completed", await app.job(job.id))
    assert completed.duration is not None
    assert (completed.error, completed.exception, completed.waited) == (None, None, None)


async def test_a_failed_run_is_retryable_then_discarded(app: App, clock: Clock, heard: Heard) -> None:
    error = ValueError("no luck")

    @app.task(retry=Retry(attempts=2, base=1, jitter=0))
    async def fail() -> None:
        raise error

    await fail.enqueue()
    await drain(app)
    clock.advance("1m")
    await drain(app)
    assert [event.kind for event in heard] == ["created", "started", "retryable", "started", "discarded"]
    for event, attempt in (heard[2], 1), (heard[4], 2):
        assert event.exception is error
        assert event.error is not None
        assert (event.error["type"], event.error["message"], event.attempt) == (
            "ValueError",
            "no luck",
            attempt,
        )
    assert heard[4].reason == "failed"


async def test_a_continuation_is_created_when_the_job_before_it_completes(app: App, heard: Heard) -> None:
    second = mailer(app)

    @app.task(unique=Unique.singleton())
    async def first() -> None:
        current().continue_with(second.call(1))

    await first.enqueue()
    await drain(app)
    names = [(event.kind, event.task) for event in heard]
    ends = [("completed", "first"), ("created", "mail"), ("started", "mail"), ("completed", "mail")]
    assert names == [("created", "first"), ("started", "first"), *ends]
    assert heard[3].key == heard[0].key  # the hold belongs to the chain


async def test_a_cancelled_job_is_reported_once(app: App, heard: Heard) -> None:
    job = (await mailer(app).enqueue(1)).job
    await app.cancel(job.id, reason="not needed")
    await app.cancel(job.id)
    assert heard[-1].reason == "not needed"
    assert heard.take() == [("created", job.id), ("cancelled", job.id)]


async def test_what_ends_no_job_is_not_reported(app: App, heard: Heard) -> None:
    mail = mailer(app, Unique(by="to", until="forever"))
    job = (await mail.enqueue(1)).job
    await drain(app)
    heard.clear()
    await app.reschedule([job.id], delay=5)
    assert job.key is not None
    await app.release(job.key)
    await app.delete(job.id)
    await app.maintenance.sweep()
    assert heard.take() == []


async def test_a_store_that_fails_after_a_lease_takes_no_leased_job_with_it(
    app: App, clock: Clock, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = (await mailer(app).options(expires_in="1m", priority=9).enqueue(1)).job
    clock.advance("2m")
    due = (await app.tasks["mail"].enqueue(2)).job

    async def fail(_ids: object) -> None:
        raise StoreUnavailable("it is gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine_of(app).store, "get", fail)
        leased = await engine_of(app).lease(wanted(app))
    assert [job.id for job in leased.jobs] == [due.id]
    assert (await app.job(late.id)).reason == "expired"
    assert ("started", due.id) in heard.take()


@pytest.mark.parametrize("by", ["sweep", "worker"])
async def test_an_expired_job_is_discarded(app: App, clock: Clock, heard: Heard, by: str) -> None:
    job = (await mailer(app).options(expires_in="1m").enqueue(1)).job
    clock.advance("2m")
    await (app.maintenance.sweep() if by == "sweep" else drain(app))
    assert heard[-1].reason == "expired"
    assert heard.take() == [("created", job.id), ("discarded", job.id)]


async def test_a_job_that_gives_way_when_it_would_start_is_cancelled(app: App, heard: Heard) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    old = (await mail.enqueue(1, 1)).job
    assert old.key is not None
    await app.release(old.key)
    new = (await mail.enqueue(1, 2)).job
    heard.clear()
    await drain(app)
    assert sorted(heard.take()) == sorted([("cancelled", old.id), ("started", new.id), ("completed", new.id)])


async def test_a_job_of_a_dead_worker_is_retryable(app: App, clock: Clock, heard: Heard) -> None:
    from tests.contract.steps import start

    job = (await mailer(app).enqueue(1)).job
    await start(app)
    clock.advance("1m")
    await app.maintenance.sweep()
    event = heard[-1]
    assert (event.kind, event.job.id, event.error and event.error["type"]) == (
        "retryable",
        job.id,
        "LeaseExpired",
    )


async def test_a_job_whose_blocker_failed_is_discarded(app: App, heard: Heard) -> None:
    mail = mailer(app)
    first = await mail.enqueue(1)
    behind = await mail.options(after=[first], on_blocker_failure="fail").enqueue(2)
    heard.clear()
    await app.cancel(first.job.id)
    assert sorted(heard.take()) == sorted([("cancelled", first.job.id), ("discarded", behind.job.id)])


async def test_a_replayed_dead_letter_is_created_again(app: App, heard: Heard) -> None:
    mail = mailer(app, Unique(by="to"), retry=Retry.never())
    first = await mail.enqueue(1)
    await app.cancel(first.job.id)
    again = await mail.enqueue(1)
    heard.clear()
    await app.dead.replay(first.job.id)
    assert heard.take() == [("deduplicated", again.job.id)]
    await app.cancel(again.job.id)
    heard.clear()
    await app.dead.replay(first.job.id)
    assert heard.take() == [("created", first.job.id)]


async def test_a_full_queue_reports_nothing(app: App, heard: Heard) -> None:
    app.queue("small", max_depth=1)
    mail = mailer(app, queue="small")
    admissions = await app.enqueue_many([mail.call(1), mail.call(2)])
    assert [admission.outcome for admission in admissions] == [Outcome.CREATED, Outcome.REJECTED]
    assert heard.take() == [("created", admissions[0].job.id)]


async def test_every_change_of_state_is_reported(app: App, clock: Clock, chance: Any, heard: Heard) -> None:
    """Do random things; the last event of each job says what the store says."""
    mail = mailer(app, Unique(by="to", on_conflict="replace", on_active="rerun"), retry=Retry(2, base=1))
    acts: list[Callable[[], Any]] = [
        lambda: mail.enqueue(chance.randrange(3), chance.random()),
        lambda: mail.options(force=True).enqueue(chance.randrange(3)),
        lambda: drain(app),
        app.maintenance.sweep,
        app.maintenance.replay_due,
    ]
    for _ in range(40):
        await chance.choice(acts)()
        clock.advance(chance.randrange(5))
        jobs = await app.jobs(limit=1000)
        if jobs and chance.random() < 0.3:
            await app.cancel(chance.choice(jobs).id, successors=True)
    last = {event.job.id: event.job.state for event in heard if event.kind != "deduplicated"}
    ended = {job.id: job.state for job in await app.jobs(limit=1000) if job.state in ENDS}
    assert ended
    assert {name: last[name] for name in ended} == ended
    created = {event.job.id for event in heard if event.kind == "created"}
    assert created <= {job.id for job in await app.jobs(limit=1000)}


# ── hooks that misbehave ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_in_a_hook_is_logged_and_breaks_nothing(
    app: App, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    def broken(event: Event) -> None:
        raise LookupError(event.kind)

    async def broken_later(event: Event) -> None:
        await asyncio.sleep(0)
        broken(event)

    for kind in JOB_KINDS:
        app.on(kind)(broken_later if is_async else broken)  # type: ignore[arg-type]
    mail = mailer(app)
    admission = await mail.enqueue(1)
    await asyncio.to_thread(mail.enqueue_sync, 2)
    await drain(app)
    assert await admission.result(timeout=30) == "1: "
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failures) == 6
    name = "broken_later" if is_async else "broken"
    assert all(f"{name} failed at" in record.message for record in failures)
    assert {vars(record)["job"] for record in failures} == {job.id for job in await app.jobs()}
