"""Chains as a handler and a caller see them: continuing, awaiting, listing, ending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onejob import App, Outcome, Retry, State, Unique, chain, current
from onejob.errors import (
    InvalidCall,
    JobCancelled,
    JobFailed,
    ResultGone,
    UnknownJob,
    WouldDeadlock,
)
from onejob.testing import Clock
from tests.contract.steps import everything, fail, inside, lease, mailer, settle_with, start


async def work(app: App) -> int:
    """Run all that is due, and tell how many successors had to be repaired."""
    worker = app.worker(drain=True)
    await worker.run()
    return worker.repaired


def counter(app: App, unique: Unique | None = None, **options: Any) -> Any:
    """Register a task that counts down, one job after the other, and returns where it is."""

    @app.task(name="count", unique=unique, **options)
    async def count(name: str, left: int) -> int:
        if left:
            current().continue_with(app.tasks["count"].call(name, left - 1))
        return left

    return count


# ── continuing ────────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_continues_its_chain(app: App) -> None:
    count = counter(app)
    first = await count.enqueue("a", 3)
    assert await work(app) == 0
    jobs = await first.chain.jobs()
    assert [(job.chain_id, job.chain_index, job.arguments["left"]) for job in jobs] == [
        (first.job.id, index, 3 - index) for index in range(4)
    ]
    assert [job.parent_id for job in jobs[1:]] == [job.id for job in jobs[:-1]]
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert await first.chain.result(30) == 0
    assert await first.result(30) == 3


async def test_a_chain_branches_by_its_results(app: App) -> None:
    @app.task
    async def small(n: int) -> str:
        return f"small {n}"

    @app.task
    async def large(n: int) -> str:
        return f"large {n}"

    @app.task
    def choose(n: int) -> None:
        current().continue_with((large if n > 10 else small).call(n))

    first, second = await choose.enqueue(5), await choose.enqueue(50)
    await work(app)
    assert [await one.chain.result(30) for one in (first, second)] == ["small 5", "large 50"]


async def test_a_second_continuation_is_refused(app: App) -> None:
    @app.task(retry=Retry.never())
    async def twice() -> None:
        current().continue_with(twice.call())
        current().continue_with(twice.call())

    one = await twice.enqueue()
    await work(app)
    [job] = await one.chain.jobs()
    assert (job.state, job.failures[0]["type"]) == (State.DISCARDED, "ContinuationError")
    assert job.failures[0]["message"] == "continue_with can only be called once"


async def test_a_run_that_fails_after_continuing_leaves_nothing_and_its_retry_continues_once(
    app: App, clock: Clock
) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(attempts=3, base=10, jitter=0))
    async def shaky() -> None:
        attempts.append(current().attempt)
        current().continue_with(steady.call())
        if len(attempts) == 1:
            raise RuntimeError("once")

    @app.task
    async def steady() -> str:
        return "done"

    one = await shaky.enqueue()
    await work(app)
    assert len(await one.chain.jobs()) == 1
    clock.advance("1m")
    await work(app)
    assert attempts == [1, 2]
    assert [job.task for job in await one.chain.jobs()] == ["shaky", "steady"]
    assert await one.chain.result(30) == "done"


async def test_a_continuation_takes_options(app: App, clock: Clock) -> None:
    app.queue("slow")

    @app.task
    async def first() -> None:
        current().continue_with(second.options(delay="1h", priority=7, queue="slow", meta={"a": 1}).call())

    @app.task
    async def second() -> str:
        return "later"

    one = await first.enqueue()
    await work(app)
    waiting = await one.chain.last()
    assert (waiting.state, waiting.priority, waiting.queue) == (State.SCHEDULED, 7, "slow")
    assert waiting.metadata == {"a": 1}
    clock.advance("2h")
    await work(app)
    assert await one.chain.result(30) == "later"


@pytest.mark.parametrize(
    "wrong", [lambda task: task, lambda task: task.call, lambda _: "x"], ids=["task", "method", "text"]
)
async def test_what_is_no_call_cannot_continue(app: App, wrong: Callable[[Any], Any]) -> None:
    @app.task(retry=Retry.never())
    async def first() -> None:
        current().continue_with(wrong(first))

    await first.enqueue()
    await work(app)
    [job] = await everything(app)
    assert job.failures[0]["type"] == "InvalidCall"
    assert "task.call(" in job.failures[0]["message"]


async def test_a_continuation_with_wrong_arguments_fails_the_run_that_asks(app: App) -> None:
    count = counter(app, retry=Retry.never())

    @app.task(retry=Retry.never())
    async def first() -> None:
        current().continue_with(count.step("too", "many", "arguments"))

    one = await first.enqueue()
    await work(app)
    assert (await one.chain.last()).failures[0]["type"] == "InvalidCall"


async def test_a_job_enqueued_in_a_run_is_no_part_of_its_chain(app: App) -> None:
    mail = mailer(app)

    @app.task
    async def first() -> None:
        await mail.enqueue(1)

    one = await first.enqueue()
    await work(app)
    [other] = [job for job in await everything(app) if job.task == "mail"]
    assert (other.chain_id, other.chain_index, other.parent_id) == (other.id, 0, one.job.id)
    assert len(await one.chain.jobs()) == 1


# ── written down beforehand ───────────────────────────────────────────────────────────────────────


async def test_a_chain_that_is_written_down_passes_results_on(app: App) -> None:
    @app.task
    async def fetch(url: str) -> list[str]:
        return [url, "x"]

    @app.task
    def join(parts: list[str], between: str = "-") -> str:
        return between.join(parts)

    @app.task
    async def shout(mark: str, text: str) -> str:
        return text.upper() + mark

    one = await chain(fetch.call("a"), join.step(between="+"), shout.step("!")).enqueue()
    assert one.outcome is Outcome.CREATED
    await work(app)
    assert await one.chain.result(30) == "A+X!"
    assert [job.task for job in await one.chain.jobs()] == ["fetch", "join", "shout"]


async def test_a_call_that_lacks_nothing_takes_no_result(app: App) -> None:
    @app.task
    async def answer() -> int:
        return 42

    one = await chain(answer.call(), answer.call()).enqueue()
    await work(app)
    assert await one.chain.result(30) == 42


async def test_a_handler_may_add_to_a_chain_that_is_written_down(app: App) -> None:
    @app.task
    async def first() -> int:
        current().continue_with(extra.call(5))
        return 1

    @app.task
    async def extra(n: int) -> int:
        return n

    @app.task
    async def last(n: int) -> int:
        return n * 10

    one = await chain(first.call(), last.step()).enqueue()
    await work(app)
    assert [job.task for job in await one.chain.jobs()] == ["first", "extra", "last"]
    assert await one.chain.result(30) == 50


async def test_a_chain_that_is_written_down_keeps_its_calls_options(app: App, clock: Clock) -> None:
    count = counter(app)

    @app.task(retry=Retry(attempts=2, base=3, jitter=0), timeout=9)
    async def last(n: int) -> int:
        return n

    one = await chain(
        count.call("a", 0), last.options(delay="1h", priority=3, meta={"why": "x"}).step()
    ).enqueue()
    await work(app)
    waiting = await one.chain.last()
    assert (waiting.task, waiting.state, waiting.priority) == ("last", State.SCHEDULED, 3)
    assert (waiting.retry.attempts, waiting.timeout, waiting.metadata) == (2, 9, {"why": "x"})
    clock.advance("2h")
    await work(app)
    assert await one.chain.result(30) == 0


async def test_a_failure_ends_a_chain_that_is_written_down(app: App) -> None:
    @app.task(retry=Retry.never())
    async def bad() -> int:
        raise ValueError("no")

    count = counter(app)
    one = await chain(bad.call(), count.step("a")).enqueue()
    await work(app)
    assert [job.task for job in await one.chain.jobs()] == ["bad"]
    with pytest.raises(JobFailed, match="no"):
        await one.chain.result(30)


async def test_a_chain_needs_calls_that_fit(app: App) -> None:
    @app.task
    async def two(a: int, b: int) -> int:
        return a + b

    with pytest.raises(InvalidCall, match="no calls"):
        chain()
    with pytest.raises(InvalidCall, match="one argument may be left open"):
        await chain(two.call(1, 2), two.step()).enqueue()
    with pytest.raises(InvalidCall, match="does not fit"):
        await chain(two.call(1, 2), two.step(c=3)).enqueue()
    with pytest.raises(InvalidCall, match="first call of a chain"):
        await chain(two.call(1, 2), two.options(after=["x" * 36]).step(1)).enqueue()
    assert await everything(app) == []


# ── the key is the chain's ────────────────────────────────────────────────────────────────────────


async def test_a_duplicate_shows_how_the_chain_stands(app: App) -> None:
    count = counter(app, Unique(by="name"))
    first = await count.enqueue("a", 2)
    assert await first.chain.status() is State.AVAILABLE
    [running] = await lease(app)
    again = await count.enqueue("a", 2)
    assert (again.outcome, await again.chain.status()) == (Outcome.KEPT, State.ACTIVE)
    await settle_with(app, running, count.call("a", 1))
    between = await count.enqueue("a", 2)
    assert (between.outcome, between.job.chain_index) == (Outcome.KEPT, 1)
    assert (between.job.state, await between.chain.status()) == (State.AVAILABLE, State.ACTIVE)
    await work(app)
    assert await first.chain.status() is State.COMPLETED
    assert [await one.chain.result(30) for one in (first, again, between)] == [0, 0, 0]
    assert (await count.enqueue("a", 2)).outcome is Outcome.CREATED


async def test_a_chain_that_starts_itself_again_is_not_swallowed(app: App, clock: Clock) -> None:
    rounds: list[int] = []

    @app.task(unique=Unique.singleton())
    async def cleanup() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            await cleanup.options(delay="1h").enqueue()

    await cleanup.enqueue()
    for _ in range(4):
        await work(app)
        clock.advance("2h")
    assert rounds == [0, 1, 2]
    jobs = await everything(app)
    assert len({job.chain_id for job in jobs}) == 3
    assert {job.state for job in jobs} == {State.COMPLETED}


async def test_a_chain_that_is_excluded_is_not_in_the_way(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT
    other = await mail.options(exclude=[first]).enqueue(1)
    assert (other.outcome, other.reason) == (Outcome.CREATED, "The request excludes the holder's chain.")
    assert (await mail.options(exclude=[first.job.id]).enqueue(1)).job.id == other.job.id
    assert (await mail.options(exclude=other.chain).enqueue(1)).outcome is Outcome.CREATED


# ── looking and ending ────────────────────────────────────────────────────────────────────────────


async def test_chains_are_listed_by_where_they_stand(app: App) -> None:
    count = counter(app)
    done, begun = await count.enqueue("a", 2), None
    await work(app)
    begun = await count.enqueue("b", 2)
    [running] = await lease(app)
    await settle_with(app, running, count.options(delay="1h").call("b", 1))
    waiting = await count.options(delay="1h").enqueue("c", 0)
    listed = await app.chains()
    assert [job.chain_id for job in listed] == [waiting.job.id, begun.job.id, done.job.id]
    assert [job.chain_index for job in listed] == [0, 1, 2]
    assert [job.chain_id for job in await app.chains(state="active")] == [begun.job.id]
    assert [job.chain_id for job in await app.chains(state=State.COMPLETED)] == [done.job.id]
    assert len(await app.chains(limit=1)) == 1


async def test_a_chain_is_cancelled_where_it_stands(app: App) -> None:
    count = counter(app, Unique(by="name"))
    one = await count.enqueue("a", 5)
    [running] = await lease(app)
    await settle_with(app, running, count.call("a", 4))
    cancelled = await one.chain.cancel(reason="not needed")
    assert (cancelled.state, cancelled.chain_index) == (State.CANCELLED, 1)
    await work(app)
    assert len(await one.chain.jobs()) == 2
    assert await one.chain.status() is State.CANCELLED
    with pytest.raises(JobCancelled, match="not needed"):
        await one.chain.result(30)
    assert (await count.enqueue("a", 1)).outcome is Outcome.CREATED


async def test_a_running_job_of_a_cancelled_chain_does_not_continue_it(app: App) -> None:
    count = counter(app)
    one = await count.enqueue("a", 5)
    running = await start(app)
    asked = await one.chain.cancel()
    assert (asked.state, asked.cancel_requested) == (State.ACTIVE, True)
    await settle_with(app, running, count.call("a", 4))
    assert len(await one.chain.jobs()) == 1
    assert await one.chain.status() is State.CANCELLED


async def test_a_chain_is_deleted_whole(app: App) -> None:
    count = counter(app)
    one = await count.enqueue("a", 3)
    with pytest.raises(InvalidCall, match="cancel it first"):
        await one.chain.delete()
    await work(app)
    other = await count.enqueue("b", 0)
    assert await one.chain.delete() == 4
    assert [job.id for job in await everything(app)] == [other.job.id]
    with pytest.raises(UnknownJob):
        await one.chain.last()
    with pytest.raises(ResultGone):
        await one.chain.result(30)


async def test_a_chain_cannot_be_awaited_by_itself(app: App) -> None:
    @app.task(retry=Retry.never())
    async def first() -> None:
        context = current()
        with pytest.raises(WouldDeadlock):
            await app.chain(context.job.chain_id).result()
        raise RuntimeError("seen")

    one = await first.enqueue()
    await work(app)
    assert (await one.chain.last()).failures[0]["message"] == "seen"


async def test_a_chain_that_runs_only_after_this_one_cannot_be_awaited_in_it(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    behind = await inside(app, running, lambda: mail.enqueue(1, "again"))
    assert behind.outcome is Outcome.RERUN
    with pytest.raises(WouldDeadlock):
        await inside(app, running, lambda: behind.chain.result(30))


async def test_a_chain_is_awaited_while_it_runs(app: App) -> None:
    count = counter(app)
    one = await count.enqueue("a", 20)
    async with app.worker():
        assert await one.chain.result(30) == 0


async def test_a_chains_failure_is_its_last_jobs(app: App) -> None:
    count = counter(app, Unique(by="name"))
    one = await count.enqueue("a", 2)
    await settle_with(app, await start(app), count.call("a", 1))
    second = await start(app)
    await fail(app, second, final=True)
    assert await one.chain.status() is State.DISCARDED
    with pytest.raises(JobFailed):
        await one.chain.result(30)
    assert (await app.dead.replay(second.id)).outcome is Outcome.CREATED
    await work(app)
    assert await one.chain.result(30) == 0


def test_blocking_code_awaits_chains(app: App) -> None:
    count = counter(app)
    one = chain(count.call("a", 2), count.step("b")).enqueue_sync()
    app._engine.portal.run(work(app))
    assert one.chain.result_sync(30) == 0
    assert one.chain.status_sync() is State.COMPLETED


async def test_tails_of_chains_in_input_order(app: App) -> None:
    count = counter(app)
    long, short = await count.enqueue("a", 12), await count.enqueue("b", 0)
    await work(app)
    tails = await app._engine.store.tails([short.job.id, "not there", long.job.id])
    assert [tail and (tail.chain_id, tail.chain_index) for tail in tails] == [
        (short.job.id, 0),
        None,
        (long.job.id, 12),
    ]
    assert await app._engine.store.tails([]) == []
