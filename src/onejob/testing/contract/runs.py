"""Runs: leases, limits, results, retries, chains, blockers, and manual changes."""

from __future__ import annotations

from datetime import timedelta

from onejob.app.app import App
from onejob.core.decide import Outcome
from onejob.core.job import State
from onejob.core.policy import Unique
from onejob.core.runs import Completed
from onejob.testing.contract.acts import (
    LEASE,
    complete,
    everything,
    fail,
    hand_back,
    lease,
    mailer,
    next_due,
    notify,
    run,
    settle,
    settle_with,
    snooze,
    start,
    stop,
    turn,
)
from onejob.testing.contract.suite import Given, case
from onejob.testing.draining import drain

# ── leasing ───────────────────────────────────────────────────────────────────────────────────────


@case
async def a_lease_starts_a_job_for_one_worker(given: Given) -> None:
    await mailer(given.app).enqueue(1)
    job = await start(given.app, worker="one")
    assert (job.state, job.attempt, job.worker) == (State.ACTIVE, 1, "one")
    assert (job.started_at, job.lease_until) == (given.clock(), given.clock() + LEASE)
    assert await given.app.job(job.id) == job
    assert await lease(given.app, worker="two") == []


@case
async def priority_goes_first_then_time_then_order(given: Given) -> None:
    mail = mailer(given.app)
    for text, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        await mail.options(priority=priority).enqueue(1, text)
    assert [job.arguments["text"] for job in await lease(given.app)] == ["high", "first", "second", "low"]


@case
async def a_scheduled_job_starts_when_its_time_has_come(given: Given) -> None:
    later = await mailer(given.app).options(delay="1m").enqueue(1)
    assert (later.job.state, await lease(given.app)) == (State.SCHEDULED, [])
    assert await next_due(given.app) == given.clock() + timedelta(minutes=1)
    given.clock.advance("1m")
    assert (await start(given.app)).id == later.job.id


@case
async def a_limit_of_a_queue_holds_over_all_workers(given: Given) -> None:
    given.app.queue("narrow", concurrency=2)
    mail = mailer(given.app, queue="narrow")
    await given.app.enqueue_many([mail.call(number) for number in range(4)])
    one, two = await lease(given.app, total=1, worker="one"), await lease(given.app, worker="two")
    assert (len(one), len(two)) == (1, 1)
    assert await lease(given.app, worker="three") == []
    answers, jobs = await turn(given.app, one)  # write a result and take the place that it frees
    assert [answer.job.state for answer in answers] == [State.COMPLETED]
    assert len(jobs) == 1


@case
async def a_rate_limits_how_many_jobs_start_in_a_span(given: Given) -> None:
    given.app.queue("slow", rate="2/1m")
    mail = mailer(given.app, queue="slow")
    await given.app.enqueue_many([mail.call(number) for number in range(5)])
    assert [len(await lease(given.app)), len(await lease(given.app))] == [2, 0]
    assert len(await given.store.starts("", "slow", given.clock() - timedelta(minutes=1))) == 2
    given.clock.advance("1m")
    assert len(await lease(given.app)) == 2


@case
async def a_partition_takes_no_more_than_its_share(given: Given) -> None:
    given.app.queue("fair", partition_concurrency=1)
    mail = mailer(given.app, queue="fair", partition="to")
    for to in ("a", "a", "b"):
        await mail.enqueue(to)
    assert [job.arguments["to"] for job in await lease(given.app)] == ["a", "b"]


@case
async def a_paused_queue_starts_nothing(given: Given) -> None:
    mail = mailer(given.app)
    await given.app.queues.pause("default")
    await mail.enqueue(1)
    assert await lease(given.app) == []
    await given.app.queues.resume("default")
    assert len(await lease(given.app)) == 1


@case
async def a_job_that_has_expired_ends_instead_of_starting(given: Given) -> None:
    late = await mailer(given.app).options(expires_in="1m").enqueue(1)
    given.clock.advance("2m")
    assert await lease(given.app) == []
    await given.app.maintenance.sweep()
    assert (await given.app.job(late.job.id)).state is State.DISCARDED


# ── results ───────────────────────────────────────────────────────────────────────────────────────


@case
async def a_result_is_stored(given: Given) -> None:
    admission = await mailer(given.app).enqueue(1)
    job = await run(given.app, "sent")
    assert (job.state, job.finished_at, job.lease_until) == (State.COMPLETED, given.clock(), None)
    assert await admission.result(timeout=1) == "sent"


@case
async def a_failed_run_is_retried_later_and_then_discarded(given: Given) -> None:
    await mailer(given.app).enqueue(1)
    job = await fail(given.app, await start(given.app))
    assert (job.state, job.run_at) == (State.RETRYABLE, given.clock() + timedelta(seconds=10))
    assert await lease(given.app) == []
    for _ in range(2):
        given.clock.advance("1h")
        job = await fail(given.app, await start(given.app))
    assert (job.state, job.attempt, len(job.failures)) == (State.DISCARDED, 3, 3)


@case
async def a_snooze_costs_no_attempt_and_a_hand_back_neither(given: Given) -> None:
    await mailer(given.app, Unique()).enqueue(1)
    job = await snooze(given.app, await start(given.app), 60)
    assert (job.state, job.attempt, job.is_holder) == (State.SCHEDULED, 0, True)
    given.clock.advance("1m")
    job = await hand_back(given.app, await start(given.app))
    assert (job.state, job.attempt, job.is_holder) == (State.AVAILABLE, 0, True)


@case
async def a_settle_that_is_repeated_finds_its_own_result(given: Given) -> None:
    await mailer(given.app).enqueue(1)
    job = await start(given.app)
    first = await settle(given.app, job, Completed(b"1"))
    assert await settle(given.app, job, Completed(b"1")) == first


@case
async def a_lost_lease_cannot_settle(given: Given) -> None:
    await mailer(given.app, Unique()).enqueue(1)
    lost = await start(given.app, worker="lost")
    given.clock.advance(LEASE)
    rescued, _ = await given.app.maintenance.sweep()
    assert rescued == 1
    given.clock.advance("1h")
    again = await start(given.app, worker="other")
    assert (again.id, again.attempt) == (lost.id, 2)
    assert again.token > lost.token
    assert await settle(given.app, lost, Completed(b"1")) is None
    assert (await complete(given.app, again)).state is State.COMPLETED


@case
async def a_lease_that_has_not_ended_is_not_rescued(given: Given) -> None:
    await mailer(given.app).enqueue(1)
    await start(given.app)
    given.clock.advance(LEASE - timedelta(microseconds=1))
    assert (await given.app.maintenance.sweep())[0] == 0


# ── chains and blockers ───────────────────────────────────────────────────────────────────────────


@case
async def a_continuation_takes_over_the_key(given: Given) -> None:
    mail, note = mailer(given.app, Unique(by="to")), mailer(given.app, name="note")
    first = await mail.enqueue(1)
    await settle_with(given.app, await start(given.app), note.call(1))
    assert (await mail.enqueue(1)).deduplicated  # the chain goes on
    following = await start(given.app)
    assert (following.task, following.chain_id, following.chain_index) == ("note", first.job.id, 1)
    assert [job.id for job in await given.app.chain(first.job.id).jobs()] == [first.job.id, following.id]
    assert (await given.store.tails([first.job.id, "unknown"])) == [following, None]
    await complete(given.app, following)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@case
async def a_job_waits_until_its_blockers_have_ended(given: Given) -> None:
    mail = mailer(given.app)
    first, second = await mail.enqueue(1), await mail.enqueue(2)
    waiting = await mail.options(after=[first, second]).enqueue(3)
    assert waiting.job.state is State.PENDING
    for job in await lease(given.app):
        await notify(given.app, [await complete(given.app, job)])
    assert (await start(given.app)).id == waiting.job.id


@case
async def a_dead_blocker_keeps_its_dependants_or_fails_them(given: Given) -> None:
    mail = mailer(given.app)
    blocker = await mail.enqueue(1)
    patient = await mail.options(after=[blocker]).enqueue(2)
    strict = await mail.options(after=[blocker], on_blocker_failure="fail").enqueue(3)
    await notify(given.app, [await fail(given.app, await start(given.app), final=True)])
    states = [(await given.app.job(one.job.id)).state for one in (patient, strict)]
    assert states == [State.PENDING, State.DISCARDED]


# ── manual changes ────────────────────────────────────────────────────────────────────────────────


@case
async def cancel_ends_a_waiting_job_and_asks_a_running_one_to_stop(given: Given) -> None:
    mail = mailer(given.app, Unique())
    waiting = await mail.enqueue(1)
    assert (await given.app.cancel(waiting.job.id)).state is State.CANCELLED
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED
    running = await start(given.app)
    assert (await given.app.cancel(running.id)).cancel_requested
    assert (await stop(given.app, running)).state is State.CANCELLED


@case
async def delete_removes_a_job_and_releases_its_key(given: Given) -> None:
    mail = mailer(given.app, Unique(until="forever"))
    first = await mail.enqueue(1)
    await given.app.delete(first.job.id)
    assert await everything(given.app) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@case
async def release_frees_the_key_and_promotes_the_successor(given: Given) -> None:
    mail = mailer(given.app, Unique(on_conflict="update"))
    first = await mail.enqueue(1)
    await start(given.app)
    successor = await mail.enqueue(1)
    assert first.key is not None
    released = await given.app.release(first.key, force=True)
    assert released is not None
    assert released.id == first.job.id
    assert (await start(given.app)).id == successor.job.id


@case
async def a_dead_letter_is_replayed(given: Given) -> None:
    await mailer(given.app, Unique()).enqueue(1)
    dead = await fail(given.app, await start(given.app), final=True)
    assert [job.id for job in await given.app.dead.list()] == [dead.id]
    await given.app.dead.replay(dead.id)
    again = await start(given.app)
    assert (again.id, again.is_holder) == (dead.id, True)


@case
async def a_job_can_be_moved_to_another_time(given: Given) -> None:
    later = await mailer(given.app).options(delay="1h").enqueue(1)
    await given.app.run_now(later.job.id)
    assert (await start(given.app)).id == later.job.id


@case
async def ended_jobs_are_pruned_but_a_hold_stays(given: Given) -> None:
    kept, gone = mailer(given.app, Unique(until="forever")), mailer(given.app, name="note")
    await kept.enqueue(1)
    await gone.enqueue(1)
    for job in await lease(given.app):
        await complete(given.app, job)
    given.clock.advance("365d")
    await given.app.maintenance.prune()
    assert [(job.task, job.is_tombstone) for job in await everything(given.app)] == [("mail", True)]
    assert (await kept.enqueue(1)).outcome is Outcome.KEPT


@case
async def a_tick_of_a_schedule_is_made_once(given: Given) -> None:
    app = App(store=given.store)
    ticks: list[str] = []

    async def hourly() -> None:
        ticks.append("tick")

    app.cron("0 * * * *")(app.task(name="hourly")(hourly))
    for _ in range(2):
        await drain(app)
        given.clock.advance("1h")
        await drain(app)
        await drain(app)
    assert len(ticks) == 2
