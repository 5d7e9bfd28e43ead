"""A request of another task of the family is never written into an existing job (rule 10)."""

import pytest

from onejob import App, Outcome, State, Task, Unique
from onejob.errors import InvalidPolicy, PayloadMismatch
from onejob.testing import Clock
from tests.contract.steps import complete, fail, inside, lease, live, mailer, run, start

Pair = tuple[Task[..., str], Task[..., str]]


def pair(app: App, unique: Unique) -> Pair:
    one, two = (mailer(app, unique, name=name) for name in ("one", "two"))
    return one, two


async def test_where_the_policy_would_update_another_task_replaces(app: App) -> None:
    one, two = pair(app, Unique(by="to", family="mails", on_conflict="update"))
    first = await one.enqueue(1, "a")
    behind = await one.enqueue(2, "b")
    replaced = await two.enqueue(1, "c")
    assert (replaced.outcome, replaced.payload_differs) == (Outcome.REPLACED, True)
    assert (replaced.job.task, replaced.job.arguments["text"]) == ("two", "c")
    assert (replaced.job.run_at, replaced.job.place) == (first.job.run_at, first.job.place)
    old = await app.job(first.job.id)
    assert (old.state, old.superseded_by) == (State.CANCELLED, replaced.job.id)
    assert [job.id for job in await lease(app)] == [replaced.job.id, behind.job.id]


async def test_another_task_with_equal_arguments_is_not_a_duplicate_of_the_payload(app: App) -> None:
    one, two = pair(app, Unique(by="to", family="mails", on_conflict="update"))
    await one.enqueue(1, "a")
    replaced = await two.enqueue(1, "a")
    assert (replaced.outcome, replaced.job.task) == (Outcome.REPLACED, "two")
    assert replaced.payload_differs


async def test_the_same_task_of_a_family_updates_in_place(app: App) -> None:
    one, _ = pair(app, Unique(by="to", family="mails", on_conflict="update"))
    first = await one.enqueue(1, "a")
    updated = await one.enqueue(1, "b")
    assert (updated.outcome, updated.job.id) == (Outcome.UPDATED, first.job.id)


async def test_the_newest_version_of_a_family_runs_as_its_own_task(app: App) -> None:
    index, remove = pair(app, Unique.latest(by="to", version="text", family="entry"))
    await index.enqueue(1, 1)
    assert (await remove.enqueue(1, 2)).outcome is Outcome.REPLACED
    assert (await index.enqueue(1, 1)).outcome is Outcome.STALE
    done = await run(app)
    assert (done.task, done.arguments["text"]) == ("two", 2)
    assert await live(app) == []


async def test_a_successor_of_another_task_is_replaced(app: App) -> None:
    compact, back_up = pair(app, Unique.coalesce(by="to", family="disk"))
    await compact.enqueue(1, "a")
    running = await start(app)
    successor = await back_up.enqueue(1, "b")
    assert successor.outcome is Outcome.RERUN
    replaced = await compact.enqueue(1, "c")
    assert (replaced.outcome, replaced.job.task, replaced.job.state) == (
        Outcome.REPLACED,
        "one",
        State.PENDING,
    )
    assert (await app.job(successor.job.id)).superseded_by == replaced.job.id
    await complete(app, running)
    done = await run(app)
    assert (done.task, done.arguments["text"]) == ("one", "c")


async def test_inside_a_run_the_successor_of_another_task_is_replaced_whatever_the_policy(app: App) -> None:
    one, two = pair(app, Unique(by="to", family="mails"))
    await one.enqueue(1, "a")
    running = await start(app)
    assert (await inside(app, running, lambda: two.enqueue(1, "b"))).outcome is Outcome.RERUN
    replaced = await inside(app, running, lambda: one.enqueue(1, "c"))
    assert (replaced.outcome, replaced.job.task) == (Outcome.REPLACED, "one")
    await complete(app, running)
    done = await run(app)
    assert (done.task, done.arguments["text"]) == ("one", "c")


async def test_a_debounced_job_of_another_task_keeps_the_cap_of_the_first_request(
    app: App, clock: Clock
) -> None:
    one, two = pair(app, Unique.debounce("10s", "15s", by="to", family="mails"))
    first = await one.enqueue(1, "a")
    clock.advance("9s")
    replaced = await two.enqueue(1, "b")
    assert replaced.outcome is Outcome.REPLACED
    assert (replaced.job.run_at - first.job.created_at).total_seconds() == 15
    clock.advance("6s")
    assert (await run(app)).task == "two"


async def test_a_throttles_last_job_of_another_task_runs_at_the_end_of_the_window(
    app: App, clock: Clock
) -> None:
    one, two = pair(app, Unique.throttle("10s", "first+last", by="to", family="mails"))
    await one.enqueue(1, "a")
    await run(app)
    last = await one.enqueue(1, "b")
    assert last.outcome is Outcome.RERUN
    replaced = await two.enqueue(1, "c")
    assert (replaced.outcome, replaced.job.run_at) == (Outcome.REPLACED, last.job.run_at)
    assert replaced.job.holds_until == last.job.holds_until
    clock.advance("10s")
    assert (await run(app)).task == "two"


async def test_a_job_that_waits_for_its_retry_is_replaced_and_its_time_is_kept(app: App) -> None:
    one, two = pair(app, Unique(by="to", family="mails", on_conflict="update"))
    await one.enqueue(1, "a")
    failed = await fail(app, await start(app))
    replaced = await two.enqueue(1, "b")
    assert (replaced.job.state, replaced.job.run_at) == (State.SCHEDULED, failed.run_at)
    assert replaced.job.attempt == 0


async def test_another_task_with_equal_arguments_is_a_mismatch(app: App) -> None:
    one, two = pair(app, Unique(by="to", family="mails", on_mismatch="error"))
    await one.enqueue(1, "a")
    with pytest.raises(PayloadMismatch):
        await two.enqueue(1, "a")


async def test_the_result_has_the_type_of_the_task_that_ran(app: App) -> None:
    policy = Unique(by="to", family="mails")
    one = mailer(app, policy, name="one")

    @app.task(name="two", unique=policy)
    async def two(to: int) -> list[int]:
        return [to]

    await one.enqueue(1, "a")
    kept = await two.enqueue(1)
    await run(app, "sent")
    result: object = await kept.result(timeout=30)
    assert (kept.outcome, result) == (Outcome.KEPT, "sent")


def test_payloads_of_a_family_are_not_merged() -> None:
    with pytest.raises(InvalidPolicy, match="leave merge= or family= out"):
        Unique.coalesce(by="to", family="mails", merge={"text": "append"})
