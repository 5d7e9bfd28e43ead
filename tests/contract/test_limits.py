"""Queues that pause, jobs that expire, shares of a queue's places, and how often jobs may start."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onejob import App, Job, Outcome, Retry, State, Task, Unique
from onejob.core.leasing import Rate
from onejob.engine.sweep import discard_late
from onejob.errors import InvalidCall, InvalidPolicy, QueueFull, UnknownQueue
from onejob.stores.contract import FullStore as Store
from onejob.stores.queries import Late
from onejob.testing import Clock
from tests.contract.conftest import STORES
from tests.contract.steps import (
    complete,
    everything,
    fail,
    hand_back,
    lease,
    mailer,
    next_due,
    run,
    snooze,
    start,
    states,
    turn,
)


@pytest.fixture(params=[*STORES, "redis in buckets"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Store:
    if request.param in STORES:
        return STORES[request.param](request, clock)
    from onejob.stores.redis.store import RedisStore

    return RedisStore(f"{request.getfixturevalue('redis_url')}?buckets=16", clock=clock)


def tenants(app: App, *, queue: str = "default", name: str = "serve") -> Task[..., None]:
    """Register a task that takes the share of a tenant."""

    async def serve(tenant: str | int | None, text: str = "") -> None:
        """Stand for work on a tenant's behalf."""

    return app.task(name=name, queue=queue, partition="tenant")(serve)


def whose(jobs: list[Job]) -> list[str | None]:
    return [job.partition for job in jobs]


# ── pause and resume ──────────────────────────────────────────────────────────────────────────────


async def test_a_paused_queue_admits_but_gives_nothing_until_it_is_resumed(app: App) -> None:
    app.queue("emails")
    mail, other = mailer(app, queue="emails"), mailer(app, name="other")
    waiting = await mail.enqueue(1)
    await app.queues.pause("emails")
    assert await app.queues.paused() == {"emails"}
    more = await mail.enqueue(2)
    assert more.outcome is Outcome.CREATED
    running = await other.enqueue(3)
    assert [job.id for job in await lease(app)] == [running.job.id]
    assert await lease(app) == []
    await app.queues.resume("emails")
    assert await app.queues.paused() == frozenset()
    assert [job.id for job in await lease(app)] == [waiting.job.id, more.job.id]


async def test_what_runs_in_a_paused_queue_finishes(app: App) -> None:
    mail = mailer(app)
    await mail.enqueue(1)
    job = await start(app)
    await app.queues.pause("default")
    assert (await complete(app, job)).state is State.COMPLETED


async def test_a_queue_is_paused_for_its_namespace_only(app: App, store: Store) -> None:
    other = App(store=store, namespace="other")
    await mailer(app).enqueue(1)
    await mailer(other).enqueue(1)
    await app.queues.pause("default")
    assert await lease(app) == []
    assert len(await lease(other)) == 1


async def test_a_paused_queue_does_not_use_up_what_others_may_give(app: App) -> None:
    app.queue("emails")
    mail, other = mailer(app, queue="emails"), mailer(app, name="other")
    for number in range(5):
        await mail.options(priority=9).enqueue(number)
    await other.enqueue(1)
    await app.queues.pause("emails")
    assert [job.task for job in await lease(app, total=2)] == ["other"]


async def test_a_limited_queue_can_be_paused_too(app: App) -> None:
    app.queue("narrow", concurrency=2, partition_concurrency=1, rate="5/1m")
    serve = tenants(app, queue="narrow")
    await serve.enqueue("a")
    await app.queues.pause("narrow")
    assert await lease(app) == []
    await app.queues.resume("narrow")
    assert len(await lease(app)) == 1


async def test_two_jobs_of_a_key_that_another_job_holds_start_together_in_a_limited_queue(app: App) -> None:
    app.queue("later", concurrency=1)
    app.queue("narrow", concurrency=2)
    mail = mailer(app, unique=Unique(until="start", shadow=True))
    holder = await mail.options(queue="later").enqueue(1)
    others = await app.enqueue_many([mail.options(queue="narrow").call(1) for _ in range(2)])
    assert {one.outcome for one in others} == {Outcome.CREATED}
    await app.queues.pause("later")
    assert [job.id for job in await lease(app)] == [one.job.id for one in others]
    assert (await app.job(holder.job.id)).is_holder
    await app.queues.resume("later")
    assert [job.id for job in await lease(app)] == [holder.job.id]


async def test_pausing_and_resuming_twice_is_once(app: App) -> None:
    mailer(app)
    await app.queues.resume("default")
    for _ in range(2):
        await app.queues.pause("default")
    assert await app.queues.paused() == {"default"}
    for _ in range(2):
        await app.queues.resume("default")
    assert await app.queues.paused() == frozenset()


async def test_an_undeclared_queue_cannot_be_paused(app: App) -> None:
    mailer(app)
    with pytest.raises(UnknownQueue, match="emials"):
        await app.queues.pause("emials")


# ── expiry ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_is_too_late_never_starts(app: App, clock: Clock) -> None:
    mail = mailer(app)
    late = await mail.options(expires_in="1m").enqueue(1)
    timely = await mail.options(expires_at=clock() + timedelta(minutes=2)).enqueue(2)
    endless = await mail.enqueue(3)
    assert late.job.expires_at == clock() + timedelta(minutes=1)
    clock.advance("1m")
    assert [job.id for job in await lease(app)] == [timely.job.id, endless.job.id]
    ended = await app.job(late.job.id)
    assert (ended.state, ended.reason, ended.finished_at) == (State.DISCARDED, "expired", clock())
    assert ended.attempt == 0
    assert [job.id for job in await app.dead.list()] == [late.job.id]


async def test_a_job_starts_up_to_the_last_moment(app: App, clock: Clock) -> None:
    late = await mailer(app).options(expires_in="1m").enqueue(1)
    clock.advance("59.999999s")
    assert (await start(app)).id == late.job.id


async def test_a_run_that_has_begun_is_not_ended_by_its_expiry(app: App, clock: Clock) -> None:
    await mailer(app).options(expires_in="10s").enqueue(1)
    job = await start(app)
    clock.advance("12s")
    assert await discard_late(app._engine) == 0
    assert (await complete(app, job)).state is State.COMPLETED


async def test_a_task_says_how_long_its_jobs_are_worth_running(app: App, clock: Clock) -> None:
    @app.task(expires_in="1h")
    async def report() -> None:
        """Stand for work that nobody wants later."""

    assert (await report.enqueue()).job.expires_at == clock() + timedelta(hours=1)
    assert (await report.options(expires_in="5m").enqueue()).job.expires_at == clock() + timedelta(minutes=5)
    at = clock() + timedelta(days=1)
    assert (await report.options(expires_at=at).enqueue()).job.expires_at == at


@pytest.mark.parametrize("state", ["available", "scheduled", "retryable", "pending"])
async def test_the_sweep_ends_jobs_that_wait_in_vain(app: App, clock: Clock, state: str) -> None:
    mail = mailer(app, Unique.coalesce(by="to"), retry=Retry(attempts=3, base=20, jitter=0))
    match state:
        case "available":
            wanted = (await mail.options(expires_in="30s").enqueue(1)).job
        case "scheduled":
            wanted = (await mail.options(expires_in="30s", delay="20s").enqueue(1)).job
        case "retryable":
            await mail.options(expires_in="41s").enqueue(1)
            wanted = await fail(app, await start(app))
            clock.advance("11s")
        case _:
            await mail.enqueue(1)
            await start(app)
            wanted = (await mail.options(expires_in="30s").enqueue(1, "again")).job
    assert wanted.state == state
    clock.advance("29s")
    assert await discard_late(app._engine) == 0
    clock.advance("1s")
    found = await app._engine.store.find(Late(namespace="", by=clock(), limit=10))
    assert [job.id for job in found] == [wanted.id]
    assert await discard_late(app._engine) == 1
    ended = await app.job(wanted.id)
    assert (ended.state, ended.reason) == (State.DISCARDED, "expired")
    assert await discard_late(app._engine) == 0


async def test_the_sweep_ends_more_than_one_batch(app: App, clock: Clock) -> None:
    mail = mailer(app).options(expires_in="1s")
    await app.enqueue_many([mail.call(number) for number in range(1_100)])
    clock.advance("1s")
    await app.maintenance.sweep()
    assert {job.state for job in await everything(app)} == {State.DISCARDED}


async def test_a_worker_is_not_held_up_by_many_that_are_too_late(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    await app.enqueue_many([mail.options(expires_in="1s").call(number) for number in range(300)])
    timely = await mail.enqueue("timely")
    clock.advance("1s")
    assert [job.id for job in await lease(app, total=3)] == [timely.job.id]


async def test_an_expired_job_frees_its_key_and_lets_its_successor_in(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.options(expires_in="10s").enqueue(1, "first")
    job = await start(app)
    behind = await mail.enqueue(1, "second")
    await hand_back(app, job)
    clock.advance("10s")
    assert [job.id for job in await lease(app)] == [behind.job.id]
    assert (await app.job(job.id)).reason == "expired"
    await app.cancel(behind.job.id)


async def test_an_expired_holder_found_by_the_sweep_does_the_same(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.options(expires_in="10s").enqueue(1, "first")
    job = await start(app)
    behind = await mail.enqueue(1, "second")
    await snooze(app, job, 60)
    clock.advance("10s")
    assert await app.maintenance.sweep() == (0, 0)
    promoted = await app.job(behind.job.id)
    assert (promoted.state, promoted.is_holder) == (State.AVAILABLE, True)


async def test_after_expiry_the_same_work_may_be_asked_for_again(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.options(expires_in="10s").enqueue(1)
    assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance("10s")
    await app.maintenance.sweep()
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_retry_that_would_come_too_late_is_not_made(app: App, clock: Clock) -> None:
    mail = mailer(app, retry=Retry(attempts=5, base=20, factor=1, jitter=0))
    await mail.options(expires_in="30s").enqueue(1)
    retried = await fail(app, await start(app))
    assert (retried.state, retried.run_at) == (State.RETRYABLE, clock() + timedelta(seconds=20))
    clock.advance("20s")
    ended = await fail(app, await start(app))
    assert (ended.state, ended.reason, len(ended.failures)) == (State.DISCARDED, "expired", 2)


async def test_an_update_brings_its_own_expiry(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    await mail.options(expires_in="10s").enqueue(1, "old")
    clock.advance("9s")
    newer = await mail.options(expires_in="10s").enqueue(1, "new")
    assert newer.outcome is Outcome.UPDATED
    clock.advance("9s")
    assert (await start(app)).arguments["text"] == "new"


async def test_a_replayed_letter_that_expired_runs(app: App, clock: Clock) -> None:
    late = await mailer(app).options(expires_in="1s").enqueue(1)
    clock.advance("1s")
    await app.maintenance.sweep()
    await app.dead.replay(late.job.id)
    assert (await run(app)).id == late.job.id


async def test_an_expiry_must_be_clear(app: App) -> None:
    mail = mailer(app)
    with pytest.raises(InvalidCall, match="both"):
        mail.options(expires_in="1s", expires_at=datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidCall, match="time zone"):
        mail.options(expires_at=datetime(2030, 1, 1))  # noqa: DTZ001 - it is refused


# ── partitions ────────────────────────────────────────────────────────────────────────────────────


async def test_a_partition_runs_no_more_than_its_share_over_all_workers(app: App) -> None:
    app.queue("shared", partition_concurrency=2)
    serve = tenants(app, queue="shared")
    for tenant in ("a", "a", "a", "b", "a"):
        await serve.enqueue(tenant)
    first = await lease(app, total=2, worker="one")
    assert whose(first) == ["a", "a"]
    assert whose(await lease(app, worker="two")) == ["b"]
    assert await lease(app, worker="three") == []
    await complete(app, first[0])
    assert whose(await lease(app, worker="three")) == ["a"]
    await hand_back(app, first[1])
    assert whose(await lease(app)) == ["a"]


async def test_one_lease_takes_no_more_than_a_share(app: App) -> None:
    app.queue("shared", partition_concurrency=2)
    serve = tenants(app, queue="shared")
    await app.enqueue_many([serve.call(tenant) for tenant in "aaaaabbbbbcc"])
    assert whose(await lease(app, total=5)) == ["a", "a", "b", "b", "c"]
    assert whose(await lease(app, total=5)) == ["c"]


async def test_a_tenant_with_many_jobs_delays_no_other(app: App) -> None:
    app.queue("shared", partition_concurrency=1)
    serve = tenants(app, queue="shared")
    await app.enqueue_many([serve.call("a", str(number)) for number in range(2_000)])
    await app.enqueue_many([serve.call(tenant) for tenant in "bcb"])
    assert whose(await lease(app, total=5)) == ["a", "b", "c"]
    assert await lease(app, total=5) == []
    free = await serve.enqueue(None)
    assert [job.id for job in await lease(app, total=5)] == [free.job.id]


async def test_a_tenant_with_many_jobs_of_several_tasks_delays_no_other(app: App) -> None:
    app.queue("shared", partition_concurrency=2)
    serve, wash = tenants(app, queue="shared"), tenants(app, queue="shared", name="wash")
    await app.enqueue_many([serve.call("a", str(number)) for number in range(500)])
    await app.enqueue_many([wash.call("a"), wash.call("b"), serve.call("c"), wash.call("d")])
    urgent = await wash.options(priority=1).enqueue("a", "urgent")
    leased = await lease(app, total=4)
    assert (leased[0].id, whose(leased)) == (urgent.job.id, ["a", "a", "b", "c"])
    assert whose(await lease(app, total=4)) == ["d"]


async def test_partitions_go_in_order_of_rank(app: App, clock: Clock) -> None:
    app.queue("shared", partition_concurrency=1)
    serve = tenants(app, queue="shared")
    await app.enqueue_many([serve.call("a") for _ in range(200)])
    await serve.enqueue("z")
    clock.advance("1s")
    await serve.enqueue("b")
    await serve.options(priority=5).enqueue("c")
    assert whose(await lease(app, total=3)) == ["c", "a", "z"]
    assert whose(await lease(app, total=3)) == ["b"]


async def test_jobs_without_a_partition_are_not_limited_by_shares(app: App) -> None:
    app.queue("shared", partition_concurrency=1)
    serve, mail = tenants(app, queue="shared"), mailer(app, queue="shared")
    await app.enqueue_many([serve.call("a") for _ in range(300)])
    await app.enqueue_many([mail.call(number) for number in range(4)])
    await app.enqueue_many([serve.call(None) for _ in range(2)])
    leased = await lease(app)
    assert Counter(job.partition for job in leased) == {"a": 1, "": 6}


async def test_a_full_partition_does_not_hide_jobs_from_before_the_queue_had_shares(app: App) -> None:
    serve, mail = tenants(app, queue="shared"), mailer(app, queue="shared")
    await app.enqueue_many([serve.call("a", str(number)) for number in range(100)])
    early = await mail.enqueue(1)
    app.queue("shared", partition_concurrency=1)
    assert early.job.partition is None
    assert whose(await lease(app, total=1)) == ["a"]
    assert [job.id for job in await lease(app, total=1)] == [early.job.id]
    assert await lease(app, total=1) == []


@pytest.mark.parametrize("limits", [{"concurrency": 2}, {"concurrency": 2, "rate": "100/1m"}])
async def test_the_end_of_a_run_and_the_start_of_the_next_are_one_turn(app: App, limits: Any) -> None:
    app.queue("narrow", **limits)
    mail = mailer(app, queue="narrow")
    jobs = [(await mail.enqueue(n)).job.id for n in range(5)]
    running = await lease(app)
    assert [job.id for job in running] == jobs[:2]
    [ended], begun = await turn(app, running[:1])
    assert ended.job.state is State.COMPLETED
    assert [job.id for job in begun] == jobs[2:3]
    assert await turn(app, running[:1]) == ([ended], [])  # it has ended, and there is no capacity
    answers, begun = await turn(app, [running[1], *begun])
    assert [one.job.state for one in answers] == [State.COMPLETED] * 2
    assert [job.id for job in begun] == jobs[3:]
    assert await states(app) == [State.COMPLETED] * 3 + [State.ACTIVE] * 2


async def test_a_turn_starts_the_successor_of_what_it_ends(app: App) -> None:
    app.queue("narrow", concurrency=1)
    mail = mailer(app, Unique.coalesce(by="to"), queue="narrow")
    await mail.enqueue(1, "first")
    running = await lease(app)
    assert (await mail.enqueue(1, "second")).outcome is Outcome.RERUN
    _, begun = await turn(app, running)
    assert [job.arguments["text"] for job in begun] == ["second"]


async def test_shares_and_the_queues_own_limit_hold_together(app: App) -> None:
    app.queue("shared", concurrency=3, partition_concurrency=2)
    serve = tenants(app, queue="shared")
    await app.enqueue_many([serve.call(tenant) for tenant in "aaabbbccc"])
    assert whose(await lease(app)) == ["a", "a", "b"]


async def test_the_same_partition_of_another_queue_or_namespace_counts_apart(app: App, store: Store) -> None:
    app.queue("shared", partition_concurrency=1)
    app.queue("apart", partition_concurrency=1)
    serve = tenants(app, queue="shared")
    other = App(store=store, namespace="other")
    other.queue("shared", partition_concurrency=1)
    await serve.enqueue("a")
    await serve.options(queue="apart").enqueue("a")
    await tenants(other, queue="shared").enqueue("a")
    assert len(await lease(app)) == 2
    assert len(await lease(other)) == 1


async def test_a_partition_comes_from_an_argument_a_path_or_a_function(app: App) -> None:
    @app.task(partition="order.customer")
    async def ship(order: dict[str, object]) -> None:
        """Stand for work on a part of an argument."""

    @app.task(partition=lambda url: url.split("/")[2])
    async def fetch(url: str) -> None:
        """Stand for work whose partition must be found out."""

    assert (await ship.enqueue({"customer": 7})).job.partition == "7"
    assert (await ship.enqueue({"customer": None})).job.partition is None
    assert (await fetch.enqueue("https://example.org/a")).job.partition == "example.org"


async def test_a_partition_that_the_task_does_not_have_is_refused(app: App) -> None:
    with pytest.raises(InvalidPolicy, match="tenant_id"):
        app.task(name="one", partition="tenant_id")(lambda tenant: tenant)
    with pytest.raises(InvalidPolicy, match="partition function asks for 'tenant_id'"):
        app.task(name="two", partition=lambda tenant_id: tenant_id)(lambda tenant: tenant)


async def test_no_share_is_exceeded_by_workers_that_lease_at_the_same_time(app: App) -> None:
    app.queue("shared", partition_concurrency=2)
    serve = tenants(app, queue="shared")
    await app.enqueue_many([serve.call(tenant) for tenant in "abc" * 30])
    leases = await asyncio.gather(*(lease(app, total=4, worker=f"w{number}") for number in range(8)))
    leases.append(await lease(app))  # whoever comes in another's turn may have got nothing
    assert Counter(job.partition for jobs in leases for job in jobs) == {"a": 2, "b": 2, "c": 2}


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_queue_starts_no_more_than_its_rate_in_any_span(app: App, clock: Clock) -> None:
    app.queue("api", rate="3/1m")
    rates = {"api": Rate(3, timedelta(minutes=1))}
    mail = mailer(app, queue="api")
    await app.enqueue_many([mail.call(number) for number in range(10)])
    assert await next_due(app, "", rates) is None
    assert len(await lease(app, total=2)) == 2
    begun = clock()
    clock.advance("20s")
    assert len(await lease(app)) == 1
    assert await lease(app) == []
    assert await next_due(app, "", rates) == begun + timedelta(minutes=1)
    clock.advance("39.999999s")
    assert await lease(app) == []
    clock.advance("0.000001s")
    assert len(await lease(app)) == 2
    assert await lease(app) == []
    assert await next_due(app, "", rates) == begun + timedelta(seconds=80)
    clock.advance("20s")
    assert len(await lease(app)) == 1


async def test_a_start_counts_however_its_run_ends(app: App, clock: Clock) -> None:
    app.queue("api", rate="2/10s")
    mail = mailer(app, queue="api")
    await app.enqueue_many([mail.call(number) for number in range(3)])
    for job in await lease(app):
        await hand_back(app, job)
    assert await lease(app) == []
    clock.advance("10s")
    assert len(await lease(app)) == 2


async def test_a_job_that_ends_instead_of_starting_does_not_count(app: App, clock: Clock) -> None:
    app.queue("api", rate="1/1m")
    mail = mailer(app, queue="api")
    await mail.options(expires_in="1s").enqueue(1)
    timely = await mail.enqueue(2)
    clock.advance("1s")
    assert [job.id for job in await lease(app)] == [timely.job.id]


async def test_a_rate_is_kept_by_workers_that_lease_at_the_same_time(app: App) -> None:
    app.queue("api", rate="5/1m")
    mail = mailer(app, queue="api")
    await app.enqueue_many([mail.call(number) for number in range(50)])
    leases = await asyncio.gather(*(lease(app, total=4, worker=f"w{number}") for number in range(8)))
    leases.append(await lease(app))  # whoever comes in another's turn may have got nothing
    assert sum(len(jobs) for jobs in leases) == 5


async def test_a_rate_leaves_other_queues_alone(app: App) -> None:
    app.queue("api", rate="1/1m")
    mail = mailer(app, queue="api")
    await app.enqueue_many([mail.options(priority=5).call(number) for number in range(5)])
    await mail.options(queue="default").enqueue(1)
    assert Counter(job.queue for job in await lease(app)) == {"api": 1, "default": 1}


async def test_a_rate_counts_no_start_of_the_same_key_in_another_queue(app: App) -> None:
    app.queue("api", rate="2/1m")
    mail = mailer(app, Unique(), queue="api")
    await mail.enqueue(1)
    await mail.options(queue="default", force=True).enqueue(1)
    assert len(await lease(app)) == 2
    assert await next_due(app, "", {"api": Rate(2, timedelta(minutes=1))}) is None


async def test_the_time_of_a_scheduled_job_may_come_before_a_rate_allows(app: App, clock: Clock) -> None:
    app.queue("api", rate="1/1m")
    await mailer(app, queue="api").enqueue(1)
    await lease(app)
    await mailer(app, name="soon").options(delay="5s").enqueue(2)
    rates = {"api": Rate(1, timedelta(minutes=1))}
    assert await next_due(app, "", rates) == clock() + timedelta(seconds=5)


# ── backpressure ──────────────────────────────────────────────────────────────────────────────────


async def test_a_full_queue_refuses_what_would_add_a_job(app: App) -> None:
    app.queue("small", max_depth=3)
    mail = mailer(app, queue="small")
    await mail.enqueue(1)
    await mail.options(delay="1h").enqueue(2)
    await mail.enqueue(3)
    with pytest.raises(QueueFull, match="max_depth=3") as refused:
        await mail.enqueue(4)
    assert (refused.value.queue, refused.value.depth, refused.value.limit) == ("small", 3, 3)
    with pytest.raises(QueueFull):
        await asyncio.to_thread(mail.enqueue_sync, 4)
    assert (await mail.options(queue="default").enqueue(4)).outcome is Outcome.CREATED
    assert len(await everything(app)) == 4


async def test_a_request_is_not_in_its_own_way(app: App) -> None:
    """A store that first hopes for a free key must not count what it hoped for."""
    app.queue("small", max_depth=2)
    mail = mailer(app, Unique(by="to"), queue="small")
    await mail.enqueue(1)
    assert (await mail.options(force=True).enqueue(1)).outcome is Outcome.FORCED
    with pytest.raises(QueueFull):
        await mail.options(force=True).enqueue(1)


async def test_a_duplicate_takes_no_place_from_others_of_its_batch(app: App) -> None:
    app.queue("small", max_depth=3)
    mail, note = mailer(app, Unique(by="to"), queue="small"), mailer(app, name="note", queue="small")
    await mail.enqueue(1)
    calls = [note.call(1), mail.call(1), mail.call(1), note.call(2), note.call(3)]
    outcomes = [one.outcome for one in await app.enqueue_many(calls)]
    assert outcomes == ["created", "kept", "kept", "created", "rejected"]


async def test_the_first_request_of_a_batch_gets_the_last_place(app: App) -> None:
    app.queue("small", max_depth=3)
    mail = mailer(app, Unique(by="to"), queue="small")
    calls = [mail.call(1), mail.call(2), mail.options(force=True).call(2), mail.options(force=True).call(1)]
    outcomes = [one.outcome for one in await app.enqueue_many(calls)]
    assert outcomes == ["created", "created", "forced", "rejected"]


async def test_what_runs_or_has_ended_does_not_count(app: App) -> None:
    app.queue("small", max_depth=1)
    mail = mailer(app, queue="small")
    await mail.enqueue(1)
    job = await start(app)
    assert (await mail.enqueue(2)).outcome is Outcome.CREATED
    await complete(app, job)
    with pytest.raises(QueueFull):
        await mail.enqueue(3)
    await run(app)
    assert (await mail.enqueue(3)).outcome is Outcome.CREATED


async def test_every_kind_of_waiting_counts(app: App) -> None:
    app.queue("small", max_depth=3)
    mail = mailer(app, Unique.coalesce(by="to"), queue="small")
    await mail.enqueue(1)
    await fail(app, await start(app))  # retryable
    await mail.enqueue(2)
    await start(app)
    await mail.enqueue(2, "again")  # pending
    await mail.options(delay="1h").enqueue(3)  # scheduled
    with pytest.raises(QueueFull) as refused:
        await mail.enqueue(4)
    assert refused.value.depth == 3


async def test_a_full_queue_answers_duplicates_truly(app: App) -> None:
    app.queue("small", max_depth=1)
    kept = mailer(app, Unique(by="to"), queue="small")
    updated = mailer(app, Unique(by="to", on_conflict="update"), name="updated", queue="small")
    replaced = mailer(app, Unique(by="to", on_conflict="replace"), name="replaced", queue="small")
    for task, outcome in (
        (kept, Outcome.KEPT),
        (updated, Outcome.UPDATED),
        (replaced, Outcome.REPLACED),
    ):
        first = await task.enqueue(1, "first")
        second = await task.enqueue(1, "second")
        assert second.outcome is outcome
        with pytest.raises(QueueFull):
            await task.enqueue(2)
        await app.cancel(second.job.id)
        assert (outcome is Outcome.REPLACED) == (first.job.id != second.job.id)


async def test_a_batch_is_answered_one_by_one(app: App) -> None:
    app.queue("small", max_depth=3)
    mail = mailer(app, Unique(by="to"), queue="small")
    answers = await app.enqueue_many([mail.call(to) for to in (1, 2, 1, 3, 4, 2, 5)])
    assert [answer.outcome for answer in answers] == [
        Outcome.CREATED,
        Outcome.CREATED,
        Outcome.KEPT,
        Outcome.CREATED,
        Outcome.REJECTED,
        Outcome.KEPT,
        Outcome.REJECTED,
    ]
    full = answers[4]
    assert (full.refusal, full.deduplicated, full.depth) == ("full", False, 3)
    assert [job.arguments["to"] for job in await everything(app)] == [1, 2, 3]
    assert (await app.stats()).absorbed == {"mail": {"kept": 2}}


async def test_a_replayed_letter_and_a_retry_need_no_room(app: App) -> None:
    app.queue("small", max_depth=1)
    mail = mailer(app, queue="small", retry=Retry.never())
    await mail.enqueue(1)
    dead = await fail(app, await start(app))
    await mail.enqueue(2)
    assert (await app.dead.replay(dead.id)).outcome is Outcome.CREATED


@pytest.mark.parametrize(
    "limit",
    [
        {"concurrency": 0},
        {"partition_concurrency": -1},
        {"max_depth": 1.5},
        {"rate": "100"},
        {"rate": "0/1m"},
        {"rate": "100/0s"},
        {"rate": "many/1m"},
    ],
)
async def test_a_limit_that_cannot_be_meant_is_refused(app: App, limit: dict[str, object]) -> None:
    with pytest.raises(InvalidPolicy):
        app.queue("emails", **limit)  # type: ignore[arg-type]
