"""Recent events are read from the rows: each is reported once, and a look costs the same with many jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from onejob import App, Job, Recent, Unique
from onejob.observe import recent
from onejob.stores.queries import Query
from onejob.testing import Clock
from tests.contract.steps import BACKOFF, complete, discard, fail, lease, mailer, run, snooze, start


def kinds(look: Recent) -> list[str]:
    return [event.kind for event in look.events]


async def test_the_first_look_has_the_last_events(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    clock.advance("1s")
    again = await mail.enqueue(1, "other")
    look = await app.activity.recent()

    created, duplicate = look.events
    assert (created.kind, created.job, created.task, created.queue) == (
        "created", first.job.id, "mail", "default",
    )  # fmt: skip
    assert (created.outcome, created.key) == ("created", again.key)
    assert (duplicate.kind, duplicate.job, duplicate.queue) == ("deduplicated", first.job.id, "default")
    assert (duplicate.outcome, duplicate.reason, duplicate.times) == ("kept", again.reason, 1)
    assert duplicate.payload_differs
    assert duplicate.line.startswith(f"{__file__}:")
    assert duplicate.at - created.at == timedelta(seconds=1)
    assert look.is_complete
    assert (await app.activity.recent(limit=1)).events == [duplicate]
    assert (await app.activity.recent(limit=0)).events == []


async def test_every_event_is_reported_once(app: App, clock: Clock) -> None:
    mail = mailer(app)
    look = await app.activity.recent()
    seen: list[list[str]] = []

    async def watch(job: Job) -> Job:
        """Look twice: what happened is reported the first time."""
        nonlocal look
        for _ in range(2):
            look = await app.activity.recent(since=look)
            seen.append(kinds(look))
        clock.advance(BACKOFF)
        return job

    await watch((await mail.enqueue(1)).job)
    await watch(await fail(app, await watch(await start(app))))
    started = await watch(await start(app))
    assert seen == [["created"], [], ["started"], [], ["retryable"], [], ["started"], []]

    await complete(app, started)
    look = await app.activity.recent(since=look)
    [end] = look.events
    assert (end.kind, end.attempt, end.attempts) == ("completed", 2, 3)
    assert end.started_at == started.started_at
    assert (await app.activity.recent(since=look)).events == []


async def test_a_run_between_two_looks_is_shown_by_its_end(app: App, clock: Clock) -> None:
    mail = mailer(app)
    look = await app.activity.recent()
    await mail.enqueue(1)
    job = await start(app)
    clock.advance("2s")
    await complete(app, job)
    look = await app.activity.recent(since=look)

    assert kinds(look) == ["created", "completed"]
    assert look.events[1].at - look.events[1].started_at == timedelta(seconds=2)  # type: ignore[operator]


async def test_a_failure_between_two_looks_is_reported(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    look = await app.activity.recent()
    await fail(app, await start(app))
    look = await app.activity.recent(since=look)

    [event] = look.events
    assert (event.kind, event.attempt, event.error) == ("retryable", 1, "ValueError: no luck")
    assert event.next_at == clock() + timedelta(seconds=10)

    clock.advance(BACKOFF)
    await discard(app)
    look = await app.activity.recent(since=look)
    assert [(one.kind, one.error, one.reason) for one in look.events] == [
        ("discarded", "ValueError: no luck", "failed")
    ]
    assert kinds(await app.activity.recent()) == ["created", "retryable", "discarded"]


async def test_a_replayed_dead_letter_is_created_again(app: App, clock: Clock) -> None:
    job = (await mailer(app).enqueue(1)).job
    await discard(app)
    look = await app.activity.recent()
    clock.advance("1s")
    await app.dead.replay(job.id)
    look = await app.activity.recent(since=look)
    assert [(one.kind, one.at, one.reason) for one in look.events] == [
        ("created", clock(), "It was replayed.")
    ]
    await run(app)
    look = await app.activity.recent(since=look)
    assert kinds(look) == ["completed"]


async def test_cancelled_and_superseded_jobs_are_reported(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    old = (await mail.enqueue(1)).job
    look = await app.activity.recent()
    new = (await mail.enqueue(1, "newer")).job
    await app.cancel(new.id)
    look = await app.activity.recent(since=look)

    found = {(one.kind, one.job): one for one in look.events}
    assert found.keys() == {("cancelled", old.id), ("created", new.id), ("cancelled", new.id)}
    assert found["cancelled", old.id].superseded_by == new.id


async def test_a_snoozed_run_is_no_event_but_its_next_start_is(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    look = await app.activity.recent()
    await snooze(app, job, 10)
    look = await app.activity.recent(since=look)
    assert kinds(look) == []
    clock.advance("10s")
    await start(app)
    assert kinds(await app.activity.recent(since=look)) == ["started"]


async def test_filters_choose_events(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    sms = mailer(app, Unique(by="to"), name="sms", queue="phone")
    for task in (mail, sms):
        for to in (1, 1, 2):
            answer = await task.enqueue(to)
    await lease(app, total=1)

    async def find(**filters: Any) -> set[tuple[str, str]]:
        look = await app.activity.recent(**filters)
        return {(one.kind, one.task) for one in look.events}

    assert await find(task="sms") == {("created", "sms"), ("deduplicated", "sms")}
    assert await find(queue="phone") == {("created", "sms"), ("deduplicated", "sms")}
    assert await find(outcome="kept") == {("deduplicated", "mail"), ("deduplicated", "sms")}
    assert await find(key=answer.key) == {("created", "sms")}
    assert await find(queue="phone", outcome="rejected") == set()
    assert len(await find()) == 5


async def test_an_app_sees_only_its_namespace(app: App) -> None:
    other = App(store=app._engine.store, namespace="other")
    await mailer(app, Unique(by="to")).enqueue(1)
    look = await other.activity.recent()
    await mailer(app, name="sms").enqueue(1)
    assert look.events == (await other.activity.recent(since=look)).events == []


async def test_a_wait_ends_when_something_happens(app: App) -> None:
    mail = mailer(app)
    look = await app.activity.recent()
    producing = asyncio.create_task(mail.enqueue(1))
    async with asyncio.timeout(30):
        while not look.events:  # a wait may also end without a change
            look = await app.activity.recent(since=look, wait="60s")
    assert kinds(look) == ["created"]
    await producing


async def test_no_event_of_many_is_lost_or_repeated(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "PAGE", 5)
    mail = mailer(app)
    look = await app.activity.recent()
    found: list[tuple[str, str]] = []
    for _ in range(3):
        await app.enqueue_many([mail.call(number) for number in range(23)])
        for job in await lease(app):
            await complete(app, job)
        look = await app.activity.recent(since=look, limit=1000)
        assert look.is_complete
        found += [(one.kind, one.job) for one in look.events]
    assert len(found) == len(set(found)) == 2 * 3 * 23


async def test_a_look_says_that_more_has_happened_than_it_reads(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "PAGE", 5)
    monkeypatch.setattr(recent, "MOST", 10)
    mail = mailer(app)
    look = await app.activity.recent()
    await app.enqueue_many([mail.call(number) for number in range(30)])
    look = await app.activity.recent(since=look)
    assert len(look.events) == 10
    assert not look.is_complete

    [oldest] = await lease(app, total=1)  # a job that was left out is reported when it starts or ends
    await complete(app, oldest)
    look = await app.activity.recent(since=look)
    assert [(one.kind, one.job) for one in look.events] == [("created", oldest.id), ("completed", oldest.id)]
    assert look.is_complete


async def test_what_is_forgotten_is_not_reported_again(
    app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("PAGE", 2), ("MOST", 4), ("REMEMBERED", 5)):
        monkeypatch.setattr(recent, name, number)
    mail = mailer(app, Unique(by="to"))
    look = await app.activity.recent()
    found: list[tuple[str, str]] = []
    for to in range(20):
        clock.advance("1m")
        await mail.enqueue(to)
        await mail.enqueue(to)
        look = await app.activity.recent(since=look)
        found += [(one.kind, one.job) for one in look.events]
    assert len(found) == len(set(found)) == 40


async def test_a_look_reads_no_more_rows_with_many_jobs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "PAGE", 5)
    mail = mailer(app)
    await app.enqueue_many([mail.call(number) for number in range(200)])
    for job in await lease(app, total=100):
        await complete(app, job)
    look = await app.activity.recent()
    asked: list[tuple[Query, int]] = []
    find = app._engine.store.find

    async def count(query: Query) -> Sequence[Any]:
        jobs = await find(query)
        asked.append((query, len(jobs)))
        return jobs

    monkeypatch.setattr(app._engine.store, "find", count)
    assert (await app.activity.recent(since=look)).events == []
    assert len(asked) == 5
    assert sum(rows for _, rows in asked) == 10  # the newest five, and the five that completed last
