"""rerun, cancel-and-rerun, requests from inside a run: one successor, never beside its run (51 to 54, 61)."""

import asyncio

import pytest

from onejob import App, Job, Outcome, State, Unique
from onejob.core.job import Stand
from onejob.core.policy import Until
from onejob.testing import Clock
from tests.contract.steps import (
    BACKOFF,
    LEASE,
    complete,
    everything,
    fail,
    hand_back,
    inside,
    lease,
    live,
    mailer,
    run,
    snooze,
    start,
    stop,
)


async def test_case_51_ten_duplicates_during_a_run_make_one_successor_with_the_tenth_payload(
    app: App,
) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "zero")
    running = await start(app)
    admissions = [await mail.enqueue(1, number) for number in range(1, 11)]
    assert [admission.outcome for admission in admissions] == [Outcome.RERUN] + [Outcome.UPDATED] * 9
    assert len({admission.job.id for admission in admissions}) == 1
    assert all(admission.deduplicated for admission in admissions)
    assert admissions[0].holder is not None
    assert admissions[0].holder.id == running.id
    assert running.arguments["text"] == "zero"

    assert await lease(app) == []  # never parallel to the first
    await complete(app, running)
    assert (await run(app)).arguments["text"] == 10
    assert await live(app) == []


async def test_rerun_under_keep_lets_the_first_of_the_waiting_requests_stand(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_active="rerun"))
    await mail.enqueue(1, "zero")
    running = await start(app)
    outcomes = [(await mail.enqueue(1, text)).outcome for text in ("one", "two", "three")]
    assert outcomes == [Outcome.RERUN, Outcome.KEPT, Outcome.KEPT]
    await complete(app, running)
    assert (await run(app)).arguments["text"] == "one"


async def test_a_successor_waits_as_pending_and_becomes_the_holder(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = (await mail.enqueue(1, "b")).job
    assert (successor.state, successor.key, successor.stand) == (
        State.PENDING,
        running.key,
        Stand.SUCCESSOR,
    )
    await complete(app, running)
    promoted = await app.job(successor.id)
    assert (promoted.state, promoted.stand) == (State.AVAILABLE, Stand.HOLDER)
    assert (await mail.enqueue(1, "c")).job.id == successor.id


async def test_case_52_a_request_just_before_the_completion_is_not_lost(app: App) -> None:
    """The classic lost wake-up: whatever the order, the request runs after it was made."""
    mail = mailer(app, Unique.coalesce(by="to"))
    for number in range(30):
        await mail.enqueue(number, "old")
        running = await start(app)
        request, _ = await asyncio.gather(mail.enqueue(number, "new"), complete(app, running))
        assert request.outcome in {Outcome.RERUN, Outcome.CREATED}
        assert (await run(app)).arguments == {"to": number, "text": "new"}
    assert await live(app) == []


async def test_case_53_a_successor_runs_after_a_final_failure(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    await mail.enqueue(1, "b")
    assert (await fail(app, running, final=True)).state is State.DISCARDED
    assert (await run(app)).arguments["text"] == "b"


async def test_case_53_a_successor_runs_after_its_predecessor_was_cancelled(app: App) -> None:
    """DESIGN: cancelling a holder leaves its successor."""
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    await mail.enqueue(1, "b")
    await app.cancel(running.id)
    assert await lease(app) == []
    assert (await stop(app, running)).state is State.CANCELLED
    assert (await run(app)).arguments["text"] == "b"


async def test_case_54_a_hot_key_has_one_successor_at_any_time(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, 0)
    other = await mail.enqueue(2, "another key")
    running, another = await lease(app)
    assert another.id == other.job.id
    for number in range(1, 20):
        await mail.enqueue(1, number)
        await mail.enqueue(1, number + 1000)
        assert len([job for job in await live(app) if job.arguments["to"] == 1]) == 2
        await complete(app, running)
        running = await start(app)
        assert running.arguments["text"] == number + 1000
    await complete(app, another)


async def test_rule_2a_every_newcomer_is_judged_against_the_successor(app: App) -> None:
    """Also one whose policy says what to do about an active holder."""
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    await start(app)
    successor = await mail.enqueue(1, "b")
    keeper = mail.options(unique=Unique(by="to"))
    kept = await keeper.enqueue(1, "c")
    assert (kept.outcome, kept.job.id) == (Outcome.KEPT, successor.job.id)
    assert kept.payload_differs


async def test_rule_2b_a_failed_attempt_yields_to_the_successor_when_the_retry_would_have_run(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    ended = await fail(app, running)
    assert (ended.state, ended.reason, ended.superseded_by) == (
        State.CANCELLED,
        "superseded",
        successor.job.id,
    )
    assert [failure["message"] for failure in ended.failures] == ["no luck"]

    waiting = await app.job(successor.job.id)
    assert waiting.state is State.SCHEDULED
    assert await lease(app) == []
    clock.advance(BACKOFF)
    assert (await run(app)).arguments["text"] == "b"


async def test_rule_2b_a_lost_lease_yields_to_the_successor(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    clock.advance(LEASE)
    assert await app.maintenance.sweep() == (1, 0)
    assert (await app.job(running.id)).superseded_by == successor.job.id
    clock.advance(BACKOFF)
    assert (await start(app)).id == successor.job.id


@pytest.mark.parametrize("put_back", ["snooze", "hand back"])
async def test_rule_2b_snooze_and_hand_back_leave_both_as_they_are(
    app: App, clock: Clock, put_back: str
) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    if put_back == "snooze":
        await snooze(app, running, 60)
        clock.advance("60s")
    else:
        await hand_back(app, running)

    assert (await mail.enqueue(1, "c")).job.id == successor.job.id  # still the newest request
    again = await start(app)
    assert (again.id, again.arguments["text"]) == (running.id, "a")
    await complete(app, again)
    assert (await run(app)).arguments["text"] == "c"


async def test_on_active_cancel_asks_the_run_to_stop_and_follows_it(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", on_active="cancel"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    assert successor.outcome is Outcome.RERUN
    assert (await app.job(running.id)).cancel_requested
    assert await lease(app) == []
    assert (await stop(app, running)).state is State.CANCELLED
    assert (await run(app)).arguments["text"] == "b"


async def test_on_active_cancel_does_not_retry_a_run_that_failed_after_it_was_asked_to_stop(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", on_active="cancel"))
    await mail.enqueue(1, "a")
    running = await start(app)
    await mail.enqueue(1, "b")
    assert (await fail(app, running)).state is State.CANCELLED
    assert (await run(app)).arguments["text"] == "b"


@pytest.mark.parametrize("policy", ["keep", "reject", "update", "replace"])
@pytest.mark.parametrize("until", ["finish", "failure", "forever"])
async def test_case_61_a_task_may_enqueue_itself_whatever_its_policy(
    app: App, policy: str, until: Until
) -> None:
    """Rule 6: allowed as the successor, not swallowed."""
    mail = mailer(app, Unique(by="to", until=until, on_conflict=policy))  # type: ignore[arg-type]
    await mail.enqueue(1, "a")
    running = await start(app)
    first = await inside(app, running, lambda: mail.enqueue(1, "b"))
    second = await inside(app, running, lambda: mail.enqueue(1, "c"))
    assert (first.outcome, second.outcome) == (Outcome.RERUN, Outcome.UPDATED)
    assert first.job.parent_id == running.id
    assert await lease(app) == []
    await complete(app, running)
    assert (await run(app)).arguments["text"] == "c"


async def test_case_61_a_request_from_another_jobs_run_is_no_special_case(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    held = await mail.enqueue(1, "a")
    await mail.enqueue(2, "b")
    running = {job.arguments["to"]: job for job in await lease(app)}
    kept = await inside(app, running[2], lambda: mail.enqueue(1, "c"))
    assert (kept.outcome, kept.job.id) == (Outcome.KEPT, held.job.id)


async def test_case_61_a_task_that_releases_its_key_at_its_start_enqueues_itself_as_new_work(
    app: App,
) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    again = await inside(app, running, lambda: mail.enqueue(1, "b"))
    assert again.outcome is Outcome.CREATED


async def test_the_successor_does_not_need_a_sweep(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    await mail.enqueue(1, "b")
    assert await app.maintenance.sweep() == (0, 0)
    await complete(app, running)
    assert await app.maintenance.sweep() == (0, 0)


async def only(app: App, state: State) -> Job:
    [job] = [job for job in await everything(app) if job.state is state]
    return job


async def test_a_successor_may_itself_be_followed(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    first = await start(app)
    await mail.enqueue(1, "b")
    await complete(app, first)
    second = await start(app)
    assert (await mail.enqueue(1, "c")).outcome is Outcome.RERUN
    assert (await only(app, State.PENDING)).arguments["text"] == "c"
    await complete(app, second)
    assert (await run(app)).arguments["text"] == "c"
