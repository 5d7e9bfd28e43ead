"""Admission: what happens to a request, for every policy."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from onejob.app.app import App
from onejob.core.decide import Outcome
from onejob.core.job import State
from onejob.core.policy import Unique
from onejob.errors import Duplicate, OnejobError, PayloadMismatch, QueueFull
from onejob.tasks.task import Task
from onejob.testing.contract.acts import (
    absorbed,
    complete,
    discard,
    everything,
    fail,
    inside,
    lease,
    mailer,
    run,
    start,
)
from onejob.testing.contract.suite import Given, case


async def refusal(task: Task[..., str], *args: object) -> OnejobError:
    """Return the error that an enqueue raises; fail if it raises none."""
    try:
        await task.enqueue(*args)
    except OnejobError as error:
        return error
    raise AssertionError(f"{task.name} was admitted, but had to be refused")


@case
async def a_request_creates_a_job_that_holds_its_key(given: Given) -> None:
    admission = await mailer(given.app, Unique(by="to")).enqueue(1, "hello")
    assert admission.outcome is Outcome.CREATED
    job = await given.app.job(admission.job.id)
    assert job == admission.job
    assert (job.state, job.arguments, job.created_at) == (
        State.AVAILABLE,
        {"to": 1, "text": "hello"},
        given.clock(),
    )
    assert job.key is not None
    view = await given.store.look(job.key)
    assert (view.holder, view.successor) == (job, None)


@case
async def requests_without_a_key_are_all_created(given: Given) -> None:
    mail = mailer(given.app)
    assert [(await mail.enqueue(1)).outcome for _ in range(3)] == [Outcome.CREATED] * 3
    assert len(await everything(given.app)) == 3


@case
async def keep_answers_with_the_holder_and_writes_no_job(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to"))
    first, again = await mail.enqueue(1, "a"), await mail.enqueue(1, "b")
    assert (again.outcome, again.job.id, again.payload_differs) == (Outcome.KEPT, first.job.id, True)
    assert [job.arguments["text"] for job in await everything(given.app)] == ["a"]
    assert await absorbed(given.app) == {"kept": 1}


@case
async def keep_refuses_another_payload_if_it_must_be_the_same(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_mismatch="error"))
    await mail.enqueue(1, "a")
    assert isinstance(await refusal(mail, 1, "b"), PayloadMismatch)


@case
async def reject_raises_and_names_the_holder(given: Given) -> None:
    mail = mailer(given.app, Unique(on_conflict="reject"))
    first = await mail.enqueue(1)
    error = await refusal(mail, 1)
    assert isinstance(error, Duplicate)
    assert error.job.id == first.job.id


@case
async def update_overwrites_the_waiting_job_in_place(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="update"))
    first, again = await mail.enqueue(1, "a"), await mail.enqueue(1, "b")
    assert (again.outcome, again.job.id) == (Outcome.UPDATED, first.job.id)
    [job] = await everything(given.app)
    assert (job.arguments["text"], job.place) == ("b", first.job.place)
    assert (await mail.enqueue(1, "b")).outcome is Outcome.KEPT


@case
async def update_of_a_retryable_job_resets_its_attempts(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="update"))
    await mail.enqueue(1, "a")
    await fail(given.app, await start(given.app))
    assert (await mail.enqueue(1, "b")).outcome is Outcome.UPDATED
    [job] = await everything(given.app)
    assert (job.attempt, job.arguments["text"]) == (0, "b")


@case
async def replace_cancels_the_waiting_job_and_takes_its_key(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="replace"))
    first, again = await mail.enqueue(1, "a"), await mail.enqueue(1, "b")
    assert again.outcome is Outcome.REPLACED
    old, new = await everything(given.app)
    assert (old.state, old.superseded_by, old.is_holder) == (State.CANCELLED, again.job.id, False)
    assert (new.id, new.state, new.is_holder) == (again.job.id, State.AVAILABLE, True)
    assert first.job.id == old.id


@case
async def requests_during_a_run_become_one_successor(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="update"))
    await mail.enqueue(1, "a")
    running = await start(given.app)
    outcomes = [(await mail.enqueue(1, text)).outcome for text in ("b", "c", "d")]
    assert outcomes == [Outcome.RERUN, Outcome.UPDATED, Outcome.UPDATED]
    assert await lease(given.app) == []  # it does not overlap the run
    await complete(given.app, running)
    successor = await start(given.app)
    assert (successor.arguments["text"], successor.is_holder) == ("d", True)


@case
async def a_successor_starts_when_the_retry_of_a_failed_run_would_have(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="update"))
    await mail.enqueue(1, "a")
    running = await start(given.app)
    successor = (await mail.enqueue(1, "b")).job
    ended = await fail(given.app, running)
    assert (ended.state, ended.superseded_by) == (State.CANCELLED, successor.id)
    assert await lease(given.app) == []
    given.clock.advance("1h")
    assert (await start(given.app)).id == successor.id


@case
async def older_and_equal_versions_are_stale(given: Given) -> None:
    mail = mailer(given.app, Unique.latest(by="to", version="text"))
    await mail.enqueue(1, 5)
    assert [(await mail.enqueue(1, version)).outcome for version in (4, 5, 6)] == [
        Outcome.STALE,
        Outcome.STALE,
        Outcome.UPDATED,
    ]
    await run(given.app)
    assert (await mail.enqueue(1, 6)).outcome is Outcome.STALE  # also after its job has ended
    assert (await mail.enqueue(1, 7)).outcome is Outcome.CREATED


@case
async def a_version_that_was_discarded_may_come_again(given: Given) -> None:
    mail = mailer(given.app, Unique.latest(by="to", version="text"))
    await mail.enqueue(1, 5)
    await discard(given.app)
    assert (await mail.enqueue(1, 4)).outcome is Outcome.STALE
    assert (await mail.enqueue(1, 5)).outcome is Outcome.CREATED


@case
async def force_admits_and_takes_the_key(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to"))
    first, forced = await mail.enqueue(1), await mail.options(force=True).enqueue(1)
    assert forced.outcome is Outcome.FORCED
    old, new = await everything(given.app)
    assert [(old.id, old.is_holder), (new.id, new.is_holder)] == [
        (first.job.id, False),
        (forced.job.id, True),
    ]
    assert len(await lease(given.app)) == 2


@case
async def until_start_releases_the_key_at_the_lease(given: Given) -> None:
    mail = mailer(given.app, Unique(until="start"))
    await mail.enqueue(1)
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT
    await start(given.app)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@case
async def until_finish_holds_through_retries_and_releases_at_the_end(given: Given) -> None:
    mail = mailer(given.app, Unique())
    first = await mail.enqueue(1)
    await fail(given.app, await start(given.app))
    assert (await mail.enqueue(1)).job.id == first.job.id
    given.clock.advance("1h")
    await complete(given.app, await start(given.app))
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@case
async def until_failure_holds_after_success_and_releases_a_discarded_job(given: Given) -> None:
    mail = mailer(given.app, Unique.once())
    await mail.enqueue(1)
    await run(given.app)
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT
    await mail.enqueue(2)
    await discard(given.app)
    assert (await mail.enqueue(2)).outcome is Outcome.CREATED


@case
async def until_forever_is_released_by_no_state(given: Given) -> None:
    mail = mailer(given.app, Unique(until="forever"))
    await mail.enqueue(1)
    await discard(given.app)
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT


@case
async def a_window_ends_by_the_clock_of_the_store(given: Given) -> None:
    mail = mailer(given.app, Unique(until="forever", within="1h"))
    await mail.enqueue(1)
    given.clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT
    given.clock.advance(timedelta(microseconds=1))
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@case
async def throttle_with_both_edges_runs_once_more_at_the_end(given: Given) -> None:
    mail = mailer(given.app, Unique.throttle("1h", by="to", edges="first+last"))
    await mail.enqueue(1, "a")
    await run(given.app)
    last = [(await mail.enqueue(1, text)) for text in ("b", "c")][-1]
    assert await lease(given.app) == []
    given.clock.advance("1h")
    job = await start(given.app)
    assert (job.id, job.arguments["text"]) == (last.job.id, "c")


@case
async def debounce_postpones_the_run_up_to_a_limit(given: Given) -> None:
    mail = mailer(given.app, Unique.debounce("10s", by="to", max_wait="15s"))
    first = await mail.enqueue(1, "a")
    begun = given.clock()
    given.clock.advance("9s")
    again = await mail.enqueue(1, "b")
    assert (again.outcome, again.job.id) == (Outcome.UPDATED, first.job.id)
    assert again.job.run_at == begun + timedelta(seconds=15)
    given.clock.advance("5s")
    assert await lease(given.app) == []
    given.clock.advance("1s")
    assert (await start(given.app)).arguments["text"] == "b"


@case
async def merge_joins_the_payloads(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="update", merge={"text": "union"}))
    await mail.enqueue(1, ["a"])
    await mail.enqueue(1, ["b", "a"])
    [job] = await everything(given.app)
    assert job.arguments["text"] == ["a", "b"]


@case
async def a_shadow_policy_admits_and_counts(given: Given) -> None:
    mail = mailer(given.app, Unique(shadow=True))
    await mail.enqueue(1)
    again = await mail.enqueue(1)
    assert (again.outcome, again.shadow) == (Outcome.CREATED, Outcome.KEPT)
    assert await absorbed(given.app) == {"shadow:kept": 1}


@case
async def a_request_inside_a_run_of_its_key_becomes_the_successor(given: Given) -> None:
    mail = mailer(given.app, Unique())
    await mail.enqueue(1)
    running = await start(given.app)
    own = await inside(given.app, running, lambda: mail.enqueue(1))
    assert (own.outcome, own.job.state) == (Outcome.RERUN, State.PENDING)
    await complete(given.app, running)
    assert (await start(given.app)).id == own.job.id


@case
async def a_batch_is_decided_in_order(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to"))
    admissions = await given.app.enqueue_many([mail.call(number % 3) for number in range(9)])
    assert [one.outcome for one in admissions] == [Outcome.CREATED] * 3 + [Outcome.KEPT] * 6
    assert [one.job.id for one in admissions[3:6]] == [one.job.id for one in admissions[:3]]


@case
async def a_full_queue_refuses(given: Given) -> None:
    given.app.queue("narrow", max_depth=2)
    mail = mailer(given.app, queue="narrow")
    await mail.enqueue(1)
    await mail.enqueue(2)
    assert isinstance(await refusal(mail, 3), QueueFull)
    await run_one(given.app)
    assert (await mail.enqueue(3)).outcome is Outcome.CREATED


async def run_one(app: App) -> None:
    """Start and complete the best job."""
    [job] = await lease(app, total=1)
    await complete(app, job)


@case
async def namespaces_share_nothing(given: Given) -> None:
    other = App(store=given.store, namespace="other")
    first = await mailer(given.app, Unique()).enqueue(1)
    second = await mailer(other, Unique()).enqueue(1)
    assert second.outcome is Outcome.CREATED
    assert [job.id for job in await lease(other)] == [second.job.id]
    assert [job.id for job in await given.app.jobs()] == [first.job.id]


@case
async def blocking_requests_get_the_same_answers(given: Given) -> None:
    mail = mailer(given.app, Unique())
    first = await asyncio.to_thread(mail.enqueue_sync, 1)
    again = await asyncio.to_thread(mail.enqueue_sync, 1)
    assert [first.outcome, again.outcome] == [Outcome.CREATED, Outcome.KEPT]
    assert (await mail.enqueue(1)).job.id == first.job.id
