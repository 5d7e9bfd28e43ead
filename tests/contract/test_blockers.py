"""Jobs that wait for chains: until all have come, whatever comes between."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from onejob import App, Job, Outcome, Retry, State, Unique, batch, chain, current, group
from onejob.core.decide import Request
from onejob.core.job import Trait
from onejob.core.runs import Failed, Result
from onejob.engine import engine
from onejob.engine.engine import with_reach
from onejob.engine.steps import admission_step
from onejob.errors import BlockerCycle, InvalidCall, JobCancelled, JobFailed, UnknownJob
from onejob.stores.contract import Clocked
from onejob.stores.flow import Flow
from onejob.stores.queries import Awaiting, Blocked
from onejob.tasks.task import builder_of
from onejob.testing import Clock
from onejob.worker.attempt import Attempt, run_attempt
from tests.contract.steps import (
    complete,
    everything,
    expect_blockers,
    fail,
    inside,
    lease,
    notify,
    run,
    settle_with,
    settled,
    start,
)


async def work(app: App) -> None:
    """Run all that is due; nothing may need repair, because no process died."""
    worker = app.worker(drain=True)
    await worker.run()
    assert worker.repaired == 0
    assert (await app.maintenance.sweep())[1] == 0


def adder(app: App, **options: Any) -> Any:
    """Register a task that adds up the results of what it has waited for."""

    @app.task(name="add", **options)
    async def add(more: int = 0) -> int:
        results: list[int] = [one.result for one in current().blockers]
        return more + sum(results)

    return add


def number(app: App, **options: Any) -> Any:
    """Register a task that returns what it is given."""

    @app.task(name="number", **options)
    async def number(n: int) -> int:
        return n

    return number


def failing(app: App) -> Any:
    """Register a task that fails for good until it is told otherwise."""

    @app.task(name="failing", retry=Retry.never())
    async def failing() -> int:
        if getattr(app, "well", False):
            return 100
        raise ValueError("no luck")

    return failing


async def state_of(app: App, admission: Any) -> State:
    return (await app.job(admission.job.id)).state


# ── waiting and running ───────────────────────────────────────────────────────────────────────────


async def test_a_job_waits_until_all_its_blockers_have_completed(app: App) -> None:
    add, give = adder(app), number(app)
    ones = [await give.enqueue(n) for n in (1, 2, 4)]
    total = await add.options(after=ones).enqueue(10)
    assert (total.job.state, total.job.awaits) == (State.PENDING, [one.job.id for one in ones])
    first, second, third = await lease(app)
    for job in (third, first):
        await notify(app, [await complete(app, job, job.arguments["n"])])
        assert await state_of(app, total) is State.PENDING
    await notify(app, [await complete(app, second, 2)])
    assert await state_of(app, total) is State.AVAILABLE
    await work(app)
    assert await total.result(30) == 17


async def test_times_agree_although_clients_estimate_the_clock_differently(
    app: App, store: Clocked, clock: Clock
) -> None:
    add, give = adder(app), number(app)
    ones = [await give.enqueue(n) for n in (1, 2)]
    total = await add.options(after=ones).enqueue(10)
    first, second = await lease(app)
    store.use_clock(lambda: clock() + timedelta(milliseconds=9))  # a client that is ahead
    ends = [await complete(app, first, 1)]
    store.use_clock(clock)
    await notify(app, ends)
    store.use_clock(lambda: clock() + timedelta(milliseconds=5))
    ends.append(await complete(app, second, 2))
    store.use_clock(lambda: clock() + timedelta(milliseconds=10))
    await notify(app, ends[1:])
    assert await state_of(app, total) is State.AVAILABLE
    store.use_clock(clock)
    await work(app)
    job = await app.job(total.job.id)
    times = [*(one.finished_at for one in ends), job.run_at, job.started_at, job.finished_at]
    known = [time for time in times if time is not None]
    assert known[-3:] == times[-3:] == sorted(known)[-3:]


async def test_results_are_typed_and_in_order(app: App) -> None:
    @app.task
    async def pair(a: int) -> tuple[int, str]:
        return a, str(a)

    @app.task
    async def gather() -> list[str]:
        return [f"{type(one.result).__name__} {one.result[1]}" for one in current().blockers]

    ones = [await pair.enqueue(n) for n in (3, 1, 2)]
    last = await gather.options(after=[ones[2], ones[0].chain, ones[1].job.id]).enqueue()
    await work(app)
    assert await last.result(30) == ["tuple 2", "tuple 3", "tuple 1"]


async def test_blockers_that_have_completed_block_no_job(app: App) -> None:
    add, give = adder(app), number(app)
    one = await give.enqueue(1)
    await work(app)
    total = await add.options(after=one).enqueue()
    assert total.job.state is State.AVAILABLE
    await work(app)
    assert await total.result(30) == 1


async def test_a_chain_is_awaited_to_its_last_job(app: App) -> None:
    add, give = adder(app), number(app)

    @app.task
    async def steps(left: int) -> int:
        if left:
            current().continue_with(steps.call(left - 1))
        return 1000 + left

    long = await steps.enqueue(4)
    total = await add.options(after=[long]).enqueue()
    early = await start(app)
    assert early.traits & Trait.AWAITED
    await app.cancel(total.job.id)
    total = await add.options(after=[long, await give.enqueue(5)]).enqueue()
    await settle_with(app, early, steps.call(3))
    await work(app)
    assert await total.result(30) == 1005


async def test_a_blocker_that_is_a_duplicate_means_its_holder(app: App) -> None:
    add, give = adder(app), number(app, unique=Unique(by="n"))
    first = await give.enqueue(1)
    again = await give.enqueue(1)
    total = await add.options(after=[again]).enqueue()
    assert again.outcome is Outcome.KEPT
    assert total.job.awaits == [first.job.id]
    await work(app)
    assert await total.result(30) == 1


async def test_one_chain_may_block_many_and_many_may_share(app: App) -> None:
    add, give = adder(app), number(app)
    shared, other = await give.enqueue(1), await give.enqueue(2)
    totals = [await add.options(after=[shared, other]).enqueue(n) for n in range(20)]
    assert len(await app.chain(shared.job.id).dependants()) == 20
    await work(app)
    assert [await one.result(30) for one in totals] == [n + 3 for n in range(20)]
    assert await app.chain(shared.job.id).dependants() == []


async def test_a_job_that_waits_may_be_waited_for(app: App) -> None:
    add, give = adder(app), number(app)
    below = [await give.enqueue(1)]
    for _ in range(10):
        below.append(await add.options(after=below[-1]).enqueue(1))
    await work(app)
    assert await below[-1].result(30) == 11


async def test_what_is_freed_keeps_a_later_time_but_does_not_jump_the_queue(app: App, clock: Clock) -> None:
    add, give = adder(app), number(app)
    one = await give.enqueue(1)
    later = await add.options(after=one, delay="1h").enqueue()
    soon = await add.options(after=one).enqueue()
    clock.advance("1m")
    before = await give.enqueue(2)
    clock.advance("1m")
    job, *_ = await lease(app, total=1)
    await notify(app, [await complete(app, job, 1)])
    freed = await app.job(soon.job.id)
    assert (freed.state, freed.run_at) == (State.AVAILABLE, clock())
    assert await state_of(app, later) is State.SCHEDULED
    assert [job.id for job in await lease(app)] == [before.job.id, soon.job.id]


async def test_unknown_chains_and_wrong_words_are_refused_before_anything_is_stored(app: App) -> None:
    add = adder(app)
    with pytest.raises(UnknownJob, match="No job has the id 'gone'"):
        await add.options(after=["gone"]).enqueue()
    with pytest.raises(InvalidCall, match="after= names 7"):
        await add.options(after=[7]).enqueue()
    with pytest.raises(InvalidCall, match="wait, fail or ignore"):
        add.options(after=["x"], on_blocker_failure="explode")
    assert await everything(app) == []


async def test_waiting_jobs_are_counted_and_cancelled_as_any(app: App) -> None:
    add, give = adder(app), number(app)
    one = await give.enqueue(1)
    total = await add.options(after=one).enqueue()
    assert (await app.stats()).by_state[State.PENDING] == 1
    await app.cancel(total.job.id)
    await work(app)
    assert await state_of(app, total) is State.CANCELLED


async def test_bulk_may_wait(app: App) -> None:
    add, give = adder(app), number(app)
    ones = await app.enqueue_many([give.call(n) for n in range(3)])
    totals = await app.enqueue_many([add.options(after=ones).call(10), give.call(5), add.call(7)])
    assert [one.job.state for one in totals] == [State.PENDING, State.AVAILABLE, State.AVAILABLE]
    await work(app)
    assert [await one.result(30) for one in totals] == [13, 5, 7]


def test_blocking_code_may_wait(app: App) -> None:
    add, give = adder(app), number(app)
    one = give.enqueue_sync(1)
    total = add.options(after=one).enqueue_sync()
    [other] = app.enqueue_many_sync([add.options(after=[one, total]).call()])
    assert {total.job.state, other.job.state} == {State.PENDING}
    app._engine.portal.run(work(app))
    assert (total.result_sync(30), other.result_sync(30)) == (1, 2)
    done = add.options(after=[total]).enqueue_sync()
    assert done.job.state is State.AVAILABLE


# ── blockers that fail ────────────────────────────────────────────────────────────────────────────


async def test_a_dead_blocker_leaves_its_dependants_waiting_and_a_replay_resumes_them(app: App) -> None:
    add, bad = adder(app), failing(app)
    one = await bad.enqueue()
    total = await add.options(after=one).enqueue()
    await work(app)
    assert await state_of(app, total) is State.PENDING
    app.well = True  # type: ignore[attr-defined]
    await app.dead.replay(one.job.id)
    await work(app)
    assert await total.result(30) == 100


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
async def test_a_dead_blocker_fails_dependants_that_say_so(app: App, end: str) -> None:
    add, bad = adder(app, unique=Unique.singleton()), failing(app)
    one = await bad.enqueue()
    total = await add.options(after=one, on_blocker_failure="fail").enqueue()
    beyond = await add.options(key="beyond", after=total, on_blocker_failure="fail").enqueue()
    if end == "is cancelled":
        await app.cancel(one.job.id)
    await work(app)
    for waited in (total, beyond):
        job = await app.job(waited.job.id)
        assert (job.state, job.reason, job.stand) == (State.DISCARDED, "blocker failed", None)
        assert job.failures[-1]["type"] == "BlockerFailed"
    with pytest.raises(JobFailed, match=one.job.id):
        await total.result(30)
    assert (await add.enqueue()).outcome is Outcome.CREATED


async def test_a_replayed_dependant_waits_again(app: App) -> None:
    add, bad = adder(app), failing(app)
    one = await bad.enqueue()
    total = await add.options(after=one, on_blocker_failure="fail").enqueue()
    await work(app)
    app.well = True  # type: ignore[attr-defined]
    await app.dead.replay(one.job.id)
    again = await app.dead.replay(total.job.id)
    assert again.job.state is State.PENDING
    await work(app)
    assert await total.result(30) == 100


async def test_a_dependant_that_ignores_failures_runs_when_all_have_ended(app: App) -> None:
    give, bad = number(app), failing(app)
    seen: list[Any] = []

    @app.task
    async def look() -> None:
        for one in current().blockers:
            try:
                seen.append(one.result)
            except (JobFailed, JobCancelled) as error:
                seen.append(type(error).__name__)

    dead, stopped, fine = await bad.enqueue(), await give.enqueue(8), await give.enqueue(9)
    await look.options(after=[dead, stopped, fine], on_blocker_failure="ignore").enqueue()
    await app.cancel(stopped.job.id)
    await work(app)
    assert seen == ["JobFailed", "JobCancelled", 9]


# ── blockers that are replaced ────────────────────────────────────────────────────────────────────


async def test_replacing_a_blocker_points_its_dependants_to_the_new_one(app: App) -> None:
    add, give = adder(app), number(app, unique=Unique(key="one", on_conflict="replace"))
    first = await give.enqueue(1)
    total = await add.options(after=first).enqueue()
    second = await give.enqueue(2)
    assert second.outcome is Outcome.REPLACED
    assert (await app.job(total.job.id)).awaits == [second.job.id]
    third = await give.enqueue(3)
    assert (await app.job(total.job.id)).awaits == [third.job.id]
    await work(app)
    assert await total.result(30) == 3


async def test_forcing_past_a_blocker_that_is_a_successor_points_its_dependants_on(app: App) -> None:
    add, give = adder(app), number(app, unique=Unique.coalesce(key="one"))
    await give.enqueue(1)
    running = await start(app)
    behind = await give.enqueue(2)
    total = await add.options(after=behind).enqueue()
    forced = await give.options(force=True).enqueue(3)
    assert (behind.outcome, forced.outcome) == (Outcome.RERUN, Outcome.FORCED)
    assert (await app.job(total.job.id)).awaits == [forced.job.id]
    await complete(app, running, 1)
    await work(app)
    assert await total.result(30) == 3


async def test_a_blocker_that_fails_and_yields_hands_its_dependants_on(app: App, clock: Clock) -> None:
    add = adder(app)
    give = number(app, unique=Unique.coalesce(key="one"), retry=Retry(attempts=3, base=10, jitter=0))
    first = await give.enqueue(1)
    total = await add.options(after=first).enqueue()
    running = await start(app)
    behind = await give.enqueue(2)
    await notify(app, [await fail(app, running)])
    assert (await app.job(total.job.id)).awaits == [behind.job.id]
    clock.advance("1m")
    await work(app)
    assert await total.result(30) == 2


async def test_a_blocker_that_was_replaced_before_means_its_heir(app: App) -> None:
    add, give = adder(app), number(app, unique=Unique(key="one", on_conflict="replace"))
    first = await give.enqueue(1)
    second = await give.enqueue(2)
    total = await add.options(after=first).enqueue()
    assert (await app.job(total.job.id)).awaits == [second.job.id]
    await work(app)
    assert await total.result(30) == 2


# ── keys and blockers ─────────────────────────────────────────────────────────────────────────────


async def test_a_waiting_holder_absorbs_duplicates_and_keeps_its_blockers(app: App) -> None:
    add, give = adder(app, unique=Unique(key="sum", on_conflict="update")), number(app)
    one, other = await give.enqueue(1), await give.enqueue(2)
    total = await add.options(after=one).enqueue(10)
    again = await add.options(after=other).enqueue(20)
    assert (again.outcome, again.job.id, again.job.awaits) == (Outcome.UPDATED, total.job.id, [one.job.id])
    assert again.job.state is State.PENDING
    await work(app)
    assert await total.result(30) == 21


async def test_a_replacement_brings_its_own_blockers(app: App) -> None:
    add, give = adder(app, unique=Unique(key="sum", on_conflict="replace")), number(app)
    one, other = await give.enqueue(1), await give.enqueue(2)
    await add.options(after=one).enqueue(10)
    replaced = await add.options(after=other).enqueue(20)
    assert (replaced.outcome, replaced.job.awaits) == (Outcome.REPLACED, [other.job.id])
    plain = await add.enqueue(30)
    assert (plain.outcome, plain.job.state) == (Outcome.REPLACED, State.AVAILABLE)
    await work(app)
    assert await plain.result(30) == 30


async def test_a_successor_waits_for_its_predecessor_and_for_its_blockers(app: App) -> None:
    add, give = adder(app, unique=Unique.coalesce(key="sum")), number(app)
    await add.enqueue(1)
    running = await start(app)
    one, other = await give.enqueue(1), await give.enqueue(2)
    behind = await add.options(after=[one, other]).enqueue(2)
    assert (behind.outcome, behind.job.state) == (Outcome.RERUN, State.PENDING)
    jobs = await lease(app)
    await notify(app, [await complete(app, jobs[0], 1)])
    await complete(app, running)
    promoted = await app.job(behind.job.id)
    assert (promoted.state, promoted.is_holder) == (State.PENDING, True)
    await notify(app, [await complete(app, jobs[1], 2)])
    await work(app)
    assert await behind.result(30) == 5


async def test_a_successor_whose_blockers_come_first_still_waits_its_turn(app: App) -> None:
    add, give = adder(app, unique=Unique.coalesce(key="sum")), number(app)
    await add.enqueue(1)
    running = await start(app)
    one = await give.enqueue(1)
    behind = await add.options(after=one).enqueue(2)
    await notify(app, [await complete(app, await start(app), 1)])
    assert await state_of(app, behind) is State.PENDING
    await complete(app, running)
    assert await state_of(app, behind) is State.AVAILABLE


async def test_a_job_may_not_wait_for_one_whose_place_it_takes(app: App) -> None:
    add, give = adder(app), number(app, unique=Unique(key="one", on_conflict="replace"))
    first = await give.enqueue(1)
    total = await add.options(after=first).enqueue()
    before = await everything(app)
    for blockers in ([first], [total]):  # itself, or one that waits for it
        with pytest.raises(BlockerCycle, match="whose place it takes"):
            await give.options(after=blockers).enqueue(2)
    assert await everything(app) == before
    await work(app)
    assert await total.result(30) == 1


async def test_a_successor_may_not_wait_for_what_waits_for_its_predecessor(app: App) -> None:
    add, give = adder(app), number(app, unique=Unique.coalesce(key="one"))
    first = await give.enqueue(1)
    total = await add.options(after=first).enqueue()
    running = await start(app)
    with pytest.raises(BlockerCycle):
        await give.options(after=total).enqueue(2)
    await notify(app, [await complete(app, running, 1)])
    await work(app)
    assert await total.result(30) == 1


async def test_a_continuation_may_not_wait_for_its_own_successor(app: App) -> None:
    add = adder(app)

    @app.task(unique=Unique.singleton())
    async def loop() -> None:
        pass

    one = await loop.enqueue()
    running = await start(app)
    attempt = Attempt(app._engine, app._registry, running)
    behind = await inside(app, running, loop.enqueue)
    assert (behind.outcome, one.job.id) == (Outcome.RERUN, running.id)

    async def handler(attempt: Attempt) -> Result:
        attempt.context.continue_with(add.options(after=behind).call())
        return attempt.complete(None)

    result = await run_attempt(attempt, handler)
    assert isinstance(result, Failed)
    assert (result.error["type"], "its own chain" in result.error["message"]) == ("BlockerCycle", True)


async def test_a_circle_that_two_requests_close_at_the_same_moment_is_broken(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, give = adder(app), number(app, unique=Unique(by="n", on_conflict="replace"))
    first, second = await give.enqueue(1), await give.enqueue(2)
    one = await add.options(after=first).enqueue()
    two = await add.options(after=second, on_blocker_failure="fail").enqueue()
    newer = await give.options(after=two).enqueue(1)
    assert newer.outcome is Outcome.REPLACED

    def look_too_early(request: Request, _own: Mapping[str, Job]) -> Flow[Request]:
        yield from ()  # it asks nothing
        return request

    monkeypatch.setattr(engine, "with_reach", look_too_early)
    last = await give.options(after=one).enqueue(2)
    ended = await app.job(last.job.id)
    assert (last.outcome, ended) == (Outcome.REPLACED, last.job)
    assert (ended.state, ended.reason) == (State.DISCARDED, "blocker cycle")
    assert [error["type"] for error in ended.failures] == ["BlockerCycle"]
    assert await state_of(app, two) is State.DISCARDED  # it said that it would fail with its blocker
    assert [await state_of(app, job) for job in (newer, one)] == [State.PENDING] * 2  # these said: wait
    assert (await app.maintenance.sweep())[1] == 0


async def test_a_continuation_that_came_to_wait_for_its_own_chain_ends_it(app: App) -> None:
    """What it waits for is replaced between the handler's choice and the end of its run."""
    add, give = adder(app), number(app, unique=Unique(key="one", on_conflict="replace"))
    blocker = await give.options(delay="1h").enqueue(1)
    root = await add.enqueue()
    behind = await add.options(after=root, on_blocker_failure="fail").enqueue()
    [running] = [job for job in await lease(app) if job.id == root.job.id]
    attempt = Attempt(app._engine, app._registry, running)
    attempt.context.continue_with(add.options(after=blocker).call(1))
    newer = await give.options(after=behind).enqueue(2)
    assert newer.outcome is Outcome.REPLACED
    done = attempt.complete(0)
    await settled(app, running, done)
    assert done.continuation is not None
    await expect_blockers(app, done.continuation)
    tail = await app.job(done.continuation.id)
    assert (tail.chain_id, tail.state, tail.reason) == (root.job.id, State.DISCARDED, "blocker cycle")
    assert await state_of(app, behind) is State.DISCARDED
    assert await state_of(app, newer) is State.PENDING


# ── continuing and waiting ────────────────────────────────────────────────────────────────────────


async def test_a_continuation_may_wait(app: App) -> None:
    add, give = adder(app), number(app)

    @app.task
    async def fan_out() -> None:
        ones = await app.enqueue_many([give.call(n) for n in range(5)])
        current().continue_with(add.options(after=ones).call(100))

    one = await fan_out.enqueue()
    await work(app)
    assert await one.chain.result(30) == 110
    assert [job.task for job in await one.chain.jobs()] == ["fan_out", "add"]


# ── groups and batches ────────────────────────────────────────────────────────────────────────────


async def test_a_group_is_awaited_together(app: App) -> None:
    add, give = adder(app), number(app)
    members = await group(*(give.call(n) for n in range(5))).enqueue()
    total = await add.options(after=members).enqueue()
    nested = await chain(add.options(after=[members, total]).call(), add.call(1)).enqueue()
    await work(app)
    assert await members.results(5) == [0, 1, 2, 3, 4]
    assert await total.result(30) == 10
    assert await nested.result(30) == 20


@pytest.mark.parametrize(
    ("dead", "ran"),
    [(False, ["success", "complete"]), (True, ["failure", "complete"])],
    ids=["well", "badly"],
)
async def test_a_batch_is_followed_by_what_it_came_to(app: App, dead: bool, ran: list[str]) -> None:  # noqa: FBT001 - a case
    give, bad = number(app), failing(app)
    told: list[str] = []

    @app.task
    async def note(what: str) -> None:
        told.append(what)

    calls = [give.call(1), give.call(2), *([bad.call()] if dead else [])]
    members = await batch(
        *calls,
        on_success=note.call("success"),
        on_failure=note.call("failure"),
        on_complete=note.call("complete"),
    ).enqueue()
    await work(app)
    assert sorted(told) == sorted(ran)
    left = {name: await state_of(app, one) for name, one in members.callbacks.items()}
    assert left["on_complete"] is State.COMPLETED
    assert left["on_failure"] is (State.COMPLETED if dead else State.CANCELLED)
    assert left["on_success"] is (State.PENDING if dead else State.COMPLETED)


async def test_what_follows_a_batch_keeps_its_own_options(app: App) -> None:
    add, give, bad = adder(app), number(app), failing(app)
    other = await give.enqueue(5)
    follower = add.options(after=other, on_blocker_failure="fail")
    members = await batch(give.call(1), on_success=follower.call(10)).enqueue()
    doomed = await batch(bad.call(), on_success=follower.call()).enqueue()
    await work(app)
    assert await members.callbacks["on_success"].result(30) == 16
    assert await state_of(app, doomed.callbacks["on_success"]) is State.DISCARDED


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(InvalidCall, match="at least one call"):
        group()


async def test_a_thousand_wide_fan_in(app: App) -> None:
    add, give = adder(app), number(app)
    members = await batch(*(give.call(n) for n in range(1000)), on_success=add.call()).enqueue()
    total = members.callbacks["on_success"]
    assert len(total.job.awaits) == 1000
    worker = app.worker(drain=True, concurrency=100)
    await worker.run()
    assert worker.repaired == 0
    assert await total.result(30) == 499_500


# ── what dies in between, and what goes ───────────────────────────────────────────────────────────


async def test_the_sweep_notifies_dependants_that_a_dying_worker_did_not(app: App) -> None:
    add, give = adder(app), number(app)
    one = await give.enqueue(1)
    total = await add.options(after=one).enqueue()
    await run(app, 1)  # and nobody is told
    assert await state_of(app, total) is State.PENDING
    assert await app.maintenance.sweep() == (0, 1)
    assert await state_of(app, total) is State.AVAILABLE
    assert await app.maintenance.sweep() == (0, 0)


async def test_the_sweep_notes_what_a_dying_client_did_not(app: App) -> None:
    add, give = adder(app), number(app)
    one = await give.enqueue(1)
    request = builder_of(add.options(after=one)).request((), {})
    request = await app._engine.run_flow(with_reach(request, {}))  # and then it dies
    await app._engine.store.apply([admission_step(request)])
    assert not (await app.job(one.job.id)).traits & Trait.AWAITED
    assert await app.maintenance.sweep() == (0, 0)
    assert (await app.job(one.job.id)).traits & Trait.AWAITED
    await work(app)
    assert (await app.job(request.job.id)).state is State.COMPLETED


async def test_a_chain_that_has_dependants_is_not_deleted_or_pruned(app: App, clock: Clock) -> None:
    add, give = adder(app), number(app)
    one, other = await give.enqueue(1), await give.options(delay="30d").enqueue(2)
    total = await add.options(after=[one, other]).enqueue()
    (job,) = await lease(app)
    await notify(app, [await complete(app, job, 1)])
    with pytest.raises(InvalidCall, match=f"Job {total.job.id} waits for job {one.job.id}: cancel that"):
        await app.delete(one.job.id)
    with pytest.raises(InvalidCall, match="waits for job"):
        await one.chain.delete()
    clock.advance("31d")
    assert await app.maintenance.prune() == 0
    await notify(app, [await complete(app, await start(app), 2)])
    clock.advance("31d")
    assert await app.maintenance.prune() == 0  # it may run now, and will read what it has waited for
    await work(app)
    assert await total.result(30) == 3
    clock.advance("31d")
    assert await app.maintenance.prune() == 3


async def test_a_chain_may_be_deleted_by_force(app: App) -> None:
    add, give = adder(app), number(app)
    one = await give.enqueue(1)
    total = await add.options(after=one).enqueue()
    await app.delete(one.job.id, force=True)
    await app.maintenance.sweep()
    assert await state_of(app, total) is State.PENDING


async def test_who_waits_is_found_by_what_it_waits_for(app: App) -> None:
    add, give = adder(app), number(app)
    ones = [await give.enqueue(n) for n in range(3)]
    first = await add.options(after=ones[:2]).enqueue(1)
    second = await add.options(after=ones[1:]).enqueue(2)

    async def awaiting(chains: list[str], **page: int) -> list[str]:
        found = await app._engine.store.find(Awaiting(namespace=app.namespace, chains=chains, **page))
        return [job.id for job in found]

    async def blocked() -> list[str]:
        return [job.id for job in await app._engine.store.find(Blocked(namespace=app.namespace))]

    chains = [one.job.id for one in ones]
    assert await awaiting(chains[:1]) == [first.job.id]
    assert await awaiting(chains) == [first.job.id, second.job.id]
    assert await awaiting(chains, limit=1) == [first.job.id]
    assert await awaiting(chains, limit=1, offset=1) == [second.job.id]
    assert await blocked() == [first.job.id, second.job.id]
    await app.delete(first.job.id)
    assert await awaiting(chains) == [second.job.id]
    await work(app)
    assert await awaiting(chains) == await blocked() == []
