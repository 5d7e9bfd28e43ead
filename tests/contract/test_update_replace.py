"""update and replace against a holder that has not started, or waits for its retry (case 47)."""

from datetime import timedelta
from typing import Any

import pytest

from onejob import App, Outcome, Retry, State, Unique
from onejob.testing import Clock
from tests.contract.steps import BACKOFF, complete, everything, fail, lease, live, mailer, run, start, states


async def test_update_overwrites_the_payload_in_place(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    first = await mail.options(meta={"by": "one"}).enqueue(1, "a")
    behind = await mail.enqueue(2, "b")
    updated = await mail.options(meta={"by": "two"}).enqueue(1, "c")
    assert updated.outcome is Outcome.UPDATED
    assert updated.deduplicated
    assert updated.payload_differs
    assert updated.job.id == first.job.id
    assert updated.holder == first.job
    assert updated.job.arguments == {"to": 1, "text": "c"}
    assert updated.job.metadata == {"by": "two"}
    assert await app.job(first.job.id) == updated.job
    assert [job.id for job in await lease(app)] == [first.job.id, behind.job.id]  # the same place in line


async def test_update_with_an_equal_payload_writes_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    await mail.enqueue(1, "a")
    before = await everything(app)
    kept = await mail.enqueue(1, "a")
    assert (kept.outcome, kept.payload_differs) == (Outcome.KEPT, False)
    assert await everything(app) == before


async def test_update_takes_the_newer_metadata_alone(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    await mail.options(meta={"trace": 1}).enqueue(1, "a")
    updated = await mail.options(meta={"trace": 2}).enqueue(1, "a")
    assert updated.outcome is Outcome.UPDATED
    assert updated.job.metadata == {"trace": 2}


async def test_case_47_update_leaves_queue_priority_time_and_place_alone(app: App, clock: Clock) -> None:
    app.queue("slow")
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    first = (await mail.options(priority=3, delay="1h").enqueue(1, "a")).job
    clock.advance("1s")
    updated = (await mail.options(priority=9, queue="slow").enqueue(1, "b")).job
    assert updated.arguments["text"] == "b"
    same = ("id", "queue", "priority", "run_at", "place", "state", "created_at", "task", "key", "held_at")
    assert {name: getattr(updated, name) for name in same} == {name: getattr(first, name) for name in same}


async def test_case_47_update_takes_queue_and_priority_if_they_are_named(app: App) -> None:
    app.queue("slow")
    mail = mailer(app, Unique(by="to", on_conflict="update", fields=["queue", "priority"]))
    first = (await mail.enqueue(1, "a")).job
    updated = (await mail.options(priority=9, queue="slow", delay="1h").enqueue(1, "b")).job
    assert (updated.id, updated.queue, updated.priority) == (first.id, "slow", 9)
    assert (updated.run_at, updated.place, updated.state) == (first.run_at, first.place, State.AVAILABLE)


async def test_update_takes_retry_and_timeout_if_they_are_named(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", fields=["retry", "timeout"]))
    await mail.enqueue(1, "a")
    again = mail.options(retry=Retry(attempts=9), timeout="30s", priority=3)
    updated = (await again.enqueue(1, "b")).job
    assert (updated.retry.attempts, updated.timeout, updated.priority) == (9, 30, 0)
    assert await app.job(updated.id) == updated


async def test_update_leaves_retry_and_timeout_alone_otherwise(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    first = (await mail.enqueue(1, "a")).job
    updated = (await mail.options(retry=Retry(attempts=9), timeout="30s").enqueue(1, "b")).job
    assert (updated.retry, updated.timeout) == (first.retry, first.timeout)


async def test_case_47_update_that_names_the_place_goes_to_the_end_of_the_line(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", fields=["place"]))
    first = await mail.enqueue(1, "a")
    second = await mail.enqueue(2, "b")
    await mail.enqueue(1, "c")
    assert [job.id for job in await lease(app)] == [second.job.id, first.job.id]


async def test_case_47_update_that_names_the_time_may_postpone(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", fields=["time"]))
    await mail.enqueue(1, "a")
    updated = await mail.options(delay="1h").enqueue(1, "b")
    assert (updated.job.state, updated.job.run_at) == (State.SCHEDULED, clock() + timedelta(hours=1))
    assert await lease(app) == []
    clock.advance("1h")
    assert (await start(app)).arguments["text"] == "b"


async def test_case_47_update_that_names_the_time_may_bring_it_forward(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", fields=["time"]))
    await mail.options(delay="1h").enqueue(1, "a")
    updated = await mail.enqueue(1, "b")
    assert updated.job.state is State.AVAILABLE
    assert (await start(app)).arguments["text"] == "b"


async def test_case_47_update_resets_the_attempt_budget_of_a_retryable_job(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    first = await mail.enqueue(1, "a")
    failed = await fail(app, await start(app))
    updated = await mail.enqueue(1, "b")
    assert updated.job.id == first.job.id
    assert (updated.job.state, updated.job.attempt) == (State.RETRYABLE, 0)
    assert updated.job.run_at == failed.run_at  # the backoff stands

    clock.advance(BACKOFF)
    again = await start(app)
    assert (again.arguments["text"], again.attempt) == ("b", 1)
    assert [failure["attempt"] for failure in again.failures] == [1]  # the history stays


async def test_replace_cancels_the_holder_and_inserts_the_newcomer(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    first = await mail.enqueue(1, "a")
    replaced = await mail.enqueue(1, "b")
    assert replaced.outcome is Outcome.REPLACED
    assert not replaced.deduplicated
    assert replaced.payload_differs
    assert replaced.holder == first.job
    assert replaced.job.id != first.job.id

    old = await app.job(first.job.id)
    assert (old.state, old.reason, old.superseded_by) == (State.CANCELLED, "superseded", replaced.job.id)
    assert [job.id for job in await app.holds()] == [replaced.job.id]
    assert (await run(app)).arguments["text"] == "b"


async def test_case_47_replace_takes_everything_from_the_newcomer(app: App, clock: Clock) -> None:
    app.queue("slow")
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    await mail.options(priority=3, delay="1h").enqueue(1, "a")
    job = (await mail.options(priority=9, queue="slow", delay="2h").enqueue(1, "b")).job
    assert (job.priority, job.queue, job.run_at) == (9, "slow", clock() + timedelta(hours=2))


async def test_case_47_replace_with_keep_schedule_keeps_time_and_place(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace", keep_schedule=True))
    first = (await mail.options(delay="1h", priority=3).enqueue(1, "a")).job
    job = (await mail.options(priority=9).enqueue(1, "b")).job
    assert (job.state, job.run_at, job.place) == (State.SCHEDULED, first.run_at, first.place)
    assert (job.priority, job.arguments["text"]) == (9, "b")
    clock.advance("1h")
    assert (await start(app)).id == job.id


async def test_replace_with_keep_schedule_keeps_a_retrys_time(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace", keep_schedule=True))
    await mail.enqueue(1, "a")
    failed = await fail(app, await start(app))
    job = (await mail.enqueue(1, "b")).job
    assert (job.state, job.run_at) == (State.SCHEDULED, failed.run_at)
    assert await lease(app) == []
    clock.advance(BACKOFF)
    assert (await start(app)).arguments["text"] == "b"


async def test_replace_meets_a_retryable_job_and_starts_afresh(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    await mail.enqueue(1, "a")
    await fail(app, await start(app))
    replaced = await mail.enqueue(1, "b")
    assert replaced.outcome is Outcome.REPLACED
    assert (replaced.job.attempt, replaced.job.state) == (0, State.AVAILABLE)
    assert await states(app) == [State.CANCELLED, State.AVAILABLE]


async def test_replace_with_an_equal_payload_still_replaces(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    first = await mail.enqueue(1, "a")
    replaced = await mail.enqueue(1, "a")
    assert (replaced.outcome, replaced.payload_differs) == (Outcome.REPLACED, False)
    assert replaced.job.id != first.job.id


async def test_replace_of_a_successor_makes_the_newcomer_the_successor(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    await mail.enqueue(1, "a")
    running = await start(app)
    second = await mail.enqueue(1, "b")
    third = await mail.enqueue(1, "c")
    assert (second.outcome, third.outcome) == (Outcome.RERUN, Outcome.REPLACED)
    assert third.job.state is State.PENDING
    assert (await app.job(second.job.id)).superseded_by == third.job.id
    assert await lease(app) == []
    await complete(app, running)
    assert (await run(app)).arguments["text"] == "c"


@pytest.mark.parametrize("policy", ["update", "replace"])
async def test_the_terminal_holder_of_a_living_hold_gives_its_key_to_the_newcomer(
    app: App, policy: Any
) -> None:
    mail = mailer(app, Unique.once(by="to", on_conflict=policy))
    first = await mail.enqueue(1, "a")
    await run(app)
    second = await mail.enqueue(1, "b")
    assert second.outcome is Outcome.CREATED
    assert second.holder is not None
    assert second.holder.id == first.job.id
    assert [job.id for job in await app.holds()] == [second.job.id]
    assert (await app.job(first.job.id)).state is State.COMPLETED  # and it stays as it ended
    assert [job.id for job in await live(app)] == [second.job.id]
