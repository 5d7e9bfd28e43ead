"""Leases, fencing tokens, rescue, retries, snooze and hand-back (cases 34 to 37)."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest

from onejob import App, Job, Outcome, Retry, State, Unique
from onejob.core import runs
from onejob.core.leasing import Lease
from onejob.core.runs import Completed, Failed, HandedBack, Result, Snoozed, Stopped
from onejob.core.step import Step
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.steps import (
    BACKOFF,
    LEASE,
    complete,
    everything,
    fail,
    hand_back,
    lease,
    live,
    mailer,
    next_due,
    run,
    settle,
    settled,
    snooze,
    start,
    stop,
)


async def extend(app: App, job: Job) -> Job | None:
    [renewed] = await app._engine.store.apply(
        [Step(partial(runs.extend, token=job.token, lease=LEASE), job.id)]
    )
    assert renewed is None or isinstance(renewed, Job)
    return renewed


# ── leasing ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_lease_starts_a_job_for_one_worker(app: App, clock: Clock) -> None:
    admission = await mailer(app).enqueue(1)
    job = await start(app, worker="one")
    assert job.id == admission.job.id
    assert (job.state, job.attempt, job.token, job.worker) == (State.ACTIVE, 1, 1, "one")
    assert (job.started_at, job.lease_until) == (clock(), clock() + LEASE)
    assert await app.job(job.id) == job
    assert await lease(app, worker="two") == []


async def test_two_workers_never_lease_the_same_job(app: App) -> None:
    mail = mailer(app)
    await app.enqueue_many([mail.call(number) for number in range(100)])
    leases = await asyncio.gather(*(lease(app, total=7, worker=f"w{number}") for number in range(20)))
    ids = [job.id for jobs in leases for job in jobs]
    assert len(ids) == len(set(ids)) == 100
    assert max(len(jobs) for jobs in leases) == 7


async def test_the_highest_priority_goes_first_then_the_oldest(app: App, clock: Clock) -> None:
    mail = mailer(app)
    for text, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        await mail.options(priority=priority).enqueue(1, text)
    clock.advance("1s")
    await mail.enqueue(1, "later")
    texts = [job.arguments["text"] for job in await lease(app)]
    assert texts == ["high", "first", "second", "later", "low"]


async def test_a_lease_takes_the_best_over_all_queues(app: App) -> None:
    app.queue("slow")
    mail = mailer(app)
    await mail.enqueue(1, "default")
    await mail.options(queue="slow", priority=5).enqueue(1, "slow")
    assert [job.arguments["text"] for job in await lease(app, total=1)] == ["slow"]
    assert [job.arguments["text"] for job in await lease(app, total=1)] == ["default"]


async def test_a_worker_leases_only_its_queues_tasks_and_namespace(app: App, store: Store) -> None:
    app.queue("slow")
    mail, note = mailer(app), mailer(app, name="note")
    mine = await mail.enqueue(1)
    await mail.options(queue="slow").enqueue(1)
    await note.enqueue(1)
    await mailer(App(store=store, namespace="other")).enqueue(1)
    wanted = Lease(namespace="", worker="w", queues={"default": 9}, total=9, duration=LEASE, tasks=["mail"])
    assert [job.id for job in (await app._engine.store.lease(wanted)).jobs] == [mine.job.id]


async def test_a_worker_leases_no_more_from_a_queue_than_it_asks_for(app: App) -> None:
    app.queue("slow")
    mail = mailer(app)
    for _ in range(5):
        await mail.enqueue(1)
        await mail.options(queue="slow").enqueue(1)
    wanted = Lease(
        namespace="", worker="w", queues={"default": 3, "slow": 1}, total=9, duration=LEASE, tasks=["mail"]
    )
    leased = [job.queue for job in (await app._engine.store.lease(wanted)).jobs]
    assert (leased.count("default"), leased.count("slow")) == (3, 1)


async def test_a_queues_concurrency_counts_over_all_workers(app: App) -> None:
    app.queue("narrow", concurrency=3)
    mail = mailer(app, queue="narrow")
    for number in range(5):
        await mail.enqueue(number)
    first = await lease(app, total=2, worker="one")
    second = await lease(app, worker="two")
    assert (len(first), len(second)) == (2, 1)
    assert await lease(app, worker="three") == []
    await complete(app, first[0])
    assert len(await lease(app, worker="three")) == 1


async def test_a_worker_with_no_room_leases_nothing(app: App) -> None:
    await mailer(app).enqueue(1)
    assert await lease(app, total=0) == []


async def test_the_store_knows_when_the_next_job_is_due(app: App, clock: Clock) -> None:
    assert await next_due(app, "") is None
    mail = mailer(app)
    await mail.enqueue(1)
    assert await next_due(app, "") is None  # an available job has no time to wait for
    await mail.options(delay="1h").enqueue(2)
    await mail.options(delay="1m").enqueue(3)
    assert await next_due(app, "") == clock() + timedelta(minutes=1)
    assert await next_due(app, "other") is None


# ── settling ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_completed_job_keeps_its_result(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    clock.advance("2s")
    done = await complete(app, job, {"sent": True})
    assert (done.state, done.result, done.finished_at) == (State.COMPLETED, b'{"sent":true}', clock())
    assert (done.worker, done.lease_until) == ("worker", None)
    assert await app.job(job.id) == done


async def test_a_failed_attempt_is_retried_after_its_backoff(app: App, clock: Clock) -> None:
    await mailer(app, retry=Retry(attempts=4, base="1s", factor=3, cap="5s", jitter=0)).enqueue(1)
    delays = []
    for attempt in (1, 2, 3):
        job = await start(app)
        assert job.attempt == attempt
        retried = await fail(app, job)
        assert retried.state is State.RETRYABLE
        delays.append((retried.run_at - clock()).total_seconds())
        assert await lease(app) == []
        clock.advance(retried.run_at - clock())
    assert delays == [1, 3, 5]  # base · factor^(failures - 1), capped
    dead = await fail(app, await start(app))
    assert (dead.state, dead.reason) == (State.DISCARDED, "failed")
    assert [failure["attempt"] for failure in dead.failures] == [1, 2, 3, 4]
    assert {failure["type"] for failure in dead.failures} == {"ValueError"}


async def test_the_embedding_backoff(app: App, clock: Clock) -> None:
    await mailer(app, retry=Retry.embedding(attempts=8)).enqueue(1)
    delays = []
    for _ in range(7):
        retried = await fail(app, await start(app))
        delays.append((retried.run_at - clock()).total_seconds())
        clock.advance(retried.run_at - clock())
    assert delays == [2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 18), (0.5, 20), (1.0, 22)])
async def test_jitter_spreads_the_backoff(app: App, clock: Clock, chance: float, seconds: float) -> None:
    await mailer(app, retry=Retry(attempts=2, base=20, jitter=0.1)).enqueue(1)
    job = await start(app)
    retried = await settled(app, job, Failed({"type": "E", "message": "", "traceback": ""}, chance=chance))
    assert retried.run_at == clock() + timedelta(seconds=seconds)


async def test_a_failure_may_name_its_own_delay(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    error = {"type": "RetryLater", "message": "busy", "traceback": ""}
    retried = await settled(app, await start(app), Failed(error, after=timedelta(hours=1)))
    assert (retried.state, retried.run_at) == (State.RETRYABLE, clock() + timedelta(hours=1))


async def test_a_final_failure_is_a_dead_letter_at_once(app: App) -> None:
    await mailer(app).enqueue(1)
    assert (await fail(app, await start(app), final=True)).state is State.DISCARDED


async def test_snooze_spends_no_attempt_and_keeps_the_hold(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"), retry=Retry.never())
    first = await mail.enqueue(1)
    for _ in range(3):
        snoozed = await snooze(app, await start(app), 60)
        assert (snoozed.state, snoozed.attempt) == (State.SCHEDULED, 0)
        assert snoozed.run_at == clock() + timedelta(seconds=60)
        assert (await mail.enqueue(1)).job.id == first.job.id
        clock.advance("60s")
    again = await start(app)
    assert (again.attempt, again.token) == (1, 4)


ENDS: dict[str, Callable[[App, Job], Awaitable[Job]]] = {
    "completed": complete,
    "failed": fail,
    "failed for good": lambda app, job: fail(app, job, final=True),
    "snoozed": lambda app, job: snooze(app, job, 5),
    "handed back": hand_back,
    "stopped": stop,
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_job_keeps_the_worker_of_its_last_run(app: App, end: str) -> None:
    await mailer(app, Unique(by="to")).enqueue(1)
    job = await start(app, worker="web-1:7")
    ended = await ENDS[end](app, job)
    assert ended.lease_until is None
    assert ended.worker == (await app.job(job.id)).worker == "web-1:7"
    assert "Worker web-1:7 ran it last; that run started " in "".join((await app.why(job.id)).sentences)


async def test_a_job_that_was_taken_back_keeps_the_worker_that_lost_it(app: App, clock: Clock) -> None:
    await mailer(app, Unique(by="to")).enqueue(1)
    job = await start(app, worker="web-1:7")
    clock.advance("1h")
    await app.maintenance.sweep()
    rescued = await app.job(job.id)
    assert (rescued.state, rescued.worker) == (State.RETRYABLE, "web-1:7")


async def test_a_job_that_never_ran_has_no_worker(app: App) -> None:
    job = (await mailer(app).enqueue(1)).job
    cancelled = await app.cancel(job.id)
    assert cancelled.worker is None
    assert "ran it last" not in "".join((await app.why(job.id)).sentences)


async def test_hand_back_spends_no_attempt_and_keeps_the_place(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    second = await mail.enqueue(2)
    [job] = await lease(app, total=1)
    back = await hand_back(app, job)
    assert (back.state, back.attempt, back.worker) == (State.AVAILABLE, 0, "worker")
    assert (await mail.enqueue(1)).job.id == first.job.id
    assert [job.id for job in await lease(app)] == [first.job.id, second.job.id]


async def test_a_stopped_run_ends_cancelled(app: App) -> None:
    await mailer(app).enqueue(1)
    ended = await settled(app, await start(app), Stopped("not needed any more"))
    assert (ended.state, ended.reason) == (State.CANCELLED, "not needed any more")


# ── fences ────────────────────────────────────────────────────────────────────────────────────────

RESULTS: dict[str, Result] = {
    "completed": Completed(b'"late"'),
    "failed": Failed({"type": "E", "message": "late", "traceback": ""}),
    "snoozed": Snoozed(timedelta(seconds=1)),
    "handed back": HandedBack(),
    "stopped": Stopped("late"),
}


@pytest.mark.parametrize("late", RESULTS)
async def test_case_37_a_worker_past_its_lease_writes_nothing(app: App, clock: Clock, late: str) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    slow = await start(app, worker="slow")
    clock.advance(LEASE)
    assert await app.maintenance.sweep() == (1, 0)
    clock.advance(BACKOFF)
    quick = await start(app, worker="quick")
    assert (quick.id, quick.token) == (slow.id, slow.token + 1)
    await mail.enqueue(1, "b")

    before = await everything(app)
    assert await settle(app, slow, RESULTS[late]) is None
    assert await extend(app, slow) is None
    assert await everything(app) == before

    assert (await complete(app, quick)).state is State.COMPLETED
    assert await settle(app, slow, RESULTS[late]) is None
    assert (await run(app)).arguments["text"] == "b"  # the successor ran once


async def test_a_result_is_written_once(app: App) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    await complete(app, job, "first")
    assert await settle(app, job, Completed(b'"second"')) == await app.job(job.id)  # as if its reply was lost
    assert (await app.job(job.id)).result == b'"first"'


@pytest.mark.parametrize("late", RESULTS)
async def test_a_repeated_settle_answers_with_its_own_result(app: App, clock: Clock, late: str) -> None:
    async def repeat(job: Job) -> Job | None:
        return await settle(app, job, RESULTS[late])

    mail = mailer(app)
    await mail.enqueue(1)
    done = await complete(app, await start(app), "first")
    assert await repeat(done) == done == await app.job(done.id)

    await mail.enqueue(2)
    slow = await start(app)
    clock.advance(LEASE)
    await app.maintenance.sweep()
    clock.advance(BACKOFF)
    quick = await start(app)
    assert await repeat(slow) is None
    await complete(app, quick)
    assert await repeat(slow) is None  # completed, but with another token

    await mail.enqueue(3)
    running = await start(app)
    settled = await repeat(running)
    assert settled is not None
    assert settled.state is not State.ACTIVE


async def test_a_run_that_was_taken_back_has_no_result_although_its_attempts_were_reset(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", on_active="keep"))
    await mail.enqueue(1, "a")
    slow = await start(app)
    clock.advance(LEASE)
    await app.maintenance.sweep()
    updated = await mail.enqueue(1, "b")
    assert (updated.outcome, updated.job.attempt, updated.job.token) == (Outcome.UPDATED, 0, slow.token)
    assert await settle(app, slow, RESULTS["completed"]) is None
    clock.advance(BACKOFF)
    quick = await start(app)
    assert (quick.attempt, quick.token) == (slow.attempt, slow.token + 1)
    done = await complete(app, quick, "first")
    assert await settle(app, quick, RESULTS["completed"]) == done  # its own result, found again


async def test_a_renewed_lease_is_not_taken_back(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    clock.advance("10s")
    renewed = await extend(app, job)
    assert renewed is not None
    assert renewed.lease_until == clock() + LEASE
    clock.advance("14s")
    assert await app.maintenance.sweep() == (0, 0)
    clock.advance("1s")
    assert await app.maintenance.sweep() == (1, 0)
    assert await extend(app, job) is None


async def test_progress_is_fenced_like_every_write(app: App) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    report = partial(runs.report, progress=b'{"fraction":0.5}')
    [told] = await app._engine.store.apply([Step(partial(report, token=job.token), job.id)])
    [refused] = await app._engine.store.apply([Step(partial(report, token=job.token - 1), job.id)])
    assert isinstance(told, Job)
    assert told.progress == b'{"fraction":0.5}'
    assert refused is None


# ── rescue ────────────────────────────────────────────────────────────────────────────────────────


async def test_case_36_a_dead_workers_job_runs_again_and_keeps_its_hold(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    await start(app)
    assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance(LEASE)
    assert (await mail.enqueue(1)).job.id == first.job.id
    assert await app.maintenance.sweep() == (1, 0)
    rescued = await app.job(first.job.id)
    assert (rescued.state, rescued.attempt) == (State.RETRYABLE, 1)  # a crash counts as an attempt
    assert rescued.failures[-1]["type"] == "LeaseExpired"
    assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance(BACKOFF)
    again = await start(app)
    assert (again.id, again.attempt) == (first.job.id, 2)
    assert (await mail.enqueue(1)).job.id == first.job.id
    assert len(await everything(app)) == 1


async def test_a_job_that_kills_every_worker_becomes_a_dead_letter(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"), retry=Retry(attempts=2, base=10, jitter=0))
    await mail.enqueue(1)
    for _ in range(2):
        await start(app)
        clock.advance("1m")
        assert await app.maintenance.sweep() == (1, 0)
        clock.advance("1m")
    [dead] = await app.dead.list()
    assert len(dead.failures) == 2
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_rescued_job_that_was_asked_to_stop_ends_cancelled(app: App, clock: Clock) -> None:
    await mailer(app).enqueue(1)
    job = await start(app)
    await app.cancel(job.id)
    clock.advance(LEASE)
    assert await app.maintenance.sweep() == (1, 0)
    assert (await app.job(job.id)).state is State.CANCELLED


async def test_case_35_one_conflict_among_five_hundred_rescues_settles_alone(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.until_executing(by="to", on_conflict="update"))
    await app.enqueue_many([mail.call(number) for number in range(500)])
    running = await lease(app)
    assert len(running) == 500
    newer = await mail.enqueue(250, "newer")
    clock.advance(LEASE)
    assert await app.maintenance.sweep() == (500, 0)
    jobs = {job.arguments["to"]: job for job in await everything(app) if job.id != newer.job.id}
    overtaken = jobs.pop(250)
    assert overtaken.superseded_by == newer.job.id
    assert {job.state for job in jobs.values()} == {State.RETRYABLE}
    assert len(await live(app)) == 500


async def test_a_sweep_finds_more_than_one_batch(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await app.enqueue_many([mail.call(number) for number in range(1_200)])
    assert len(await lease(app, total=2_000)) == 1_200
    clock.advance(LEASE)
    rescued = 0
    while swept := (await app.maintenance.sweep())[0]:
        rescued += swept
    assert rescued == 1_200
