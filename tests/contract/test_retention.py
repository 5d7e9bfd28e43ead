"""Retention by state, age and task, in bounded batches, in turns; counters go with their jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onejob import App, Outcome, Replay, State, Task, Unique
from onejob.engine.retention import AT_ONCE, Pruned, prune_in_turn
from onejob.errors import InvalidPolicy, ResultGone
from onejob.stores.contract import FullStore as Store
from onejob.stores.contract import Tally
from onejob.testing import Clock
from tests.contract.steps import absorbed, complete, discard, everything, lease, mailer, run


async def finish(app: App, task: Task[..., Any], number: int = 1) -> list[str]:
    """Let jobs of a task be completed."""
    await app.enqueue_many([task.call(to) for to in range(number)])
    return [(await complete(app, job)).id for job in await lease(app)]


async def tasks_left(app: App) -> list[str]:
    return sorted(job.task for job in await everything(app))


# ── by task ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_may_keep_its_jobs_for_shorter_or_for_longer(app: App, clock: Clock) -> None:
    brief = mailer(app, name="brief", retention={"completed": "1h"})
    long = mailer(app, name="long", retention={State.COMPLETED: "30d"})
    usual = mailer(app, name="usual")
    for task in (brief, long, usual):
        await finish(app, task)
    clock.advance("61m")
    assert await app.maintenance.prune() == 1
    assert await tasks_left(app) == ["long", "usual"]
    clock.advance("8d")
    assert await app.maintenance.prune() == 1
    assert await tasks_left(app) == ["long"]
    clock.advance("23d")
    assert await app.maintenance.prune() == 1


async def test_a_task_that_says_nothing_of_a_state_keeps_it_as_the_app_does(app: App, clock: Clock) -> None:
    brief = mailer(app, name="brief", retention={"completed": "1h"})
    await brief.enqueue(1)
    await discard(app)
    clock.advance("179d")
    assert await app.maintenance.prune() == 0
    clock.advance("2d")
    assert await app.maintenance.prune() == 1


async def test_zero_means_the_next_pass_and_not_the_end_of_the_run(app: App, clock: Clock) -> None:
    brief = mailer(app, name="brief", retention={"completed": "0s"})
    admission = await brief.enqueue(1)
    await run(app, "done")
    assert await admission.result() == "done"  # whoever waits can still read it
    clock.advance("1ms")
    assert await app.maintenance.prune() == 1
    with pytest.raises(ResultGone):
        await admission.result()


async def test_a_hold_outlives_a_retention_of_zero(app: App, clock: Clock) -> None:
    once = mailer(app, Unique.once(by="to"), retention={"completed": "0s"})
    first = await once.enqueue(1, "secret")
    await run(app)
    clock.advance("1ms")
    assert await app.maintenance.prune() == 0
    kept = await once.enqueue(1)
    assert (kept.outcome, kept.job.id, kept.job.is_tombstone) == (Outcome.KEPT, first.job.id, True)


async def test_jobs_of_tasks_that_are_no_longer_declared_are_pruned_too(app: App, clock: Clock) -> None:
    await finish(app, mailer(app, name="old"))
    clock.advance("8d")
    later = App(store=app._engine.store)
    mailer(later, name="new", retention={"completed": "1h"})
    assert await later.maintenance.prune() == 1


async def test_each_namespace_forgets_its_own(app: App, clock: Clock) -> None:
    brief = App(store=app._engine.store, namespace="brief", retention={"completed": "1h"})
    await finish(app, mailer(app))
    await finish(brief, mailer(brief))
    clock.advance("2h")
    assert await brief.maintenance.prune() == 1
    assert [job.namespace for job in await everything(app)] == [""]


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ({"retention": {"active": "1h"}}, "only cancelled, completed, discarded"),
        ({"retention": {"completed": -1}}, "negative"),
        ({"replay": 3}, r"write Replay\(times"),
        ({"replay": Replay(after="2d", cap="2d"), "retention": {"discarded": "1d"}}, "forgotten after"),
        ({"replay": Replay(times=9, after="100d", cap="200d")}, "forgotten after"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_the_task_is_declared(
    app: App, policies: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidPolicy, match=says):
        mailer(app, **policies)


# ── passes ────────────────────────────────────────────────────────────────────────────────────────


async def test_pruning_deletes_in_batches_and_reports_progress(app: App, clock: Clock) -> None:
    await finish(app, mailer(app), 2 * AT_ONCE + 1)  # all at the same instant
    clock.advance("8d")
    told: list[Pruned] = []
    assert await app.maintenance.prune(report=told.append) == 2 * AT_ONCE + 1
    assert [one.deleted for one in told] == [AT_ONCE, 2 * AT_ONCE, 2 * AT_ONCE + 1]


async def test_a_dry_run_counts_what_would_be_deleted_and_changes_nothing(app: App, clock: Clock) -> None:
    mail, once = mailer(app), mailer(app, Unique.once(by="to"), name="once")
    latest = mailer(app, Unique.latest(by="to", version="text"), name="latest")
    await finish(app, mail, 3)
    await finish(app, once, 2)
    await latest.enqueue(1, 5)
    await run(app)
    clock.advance("8d")
    before = await everything(app)
    told: list[Pruned] = []
    assert await app.maintenance.prune(dry_run=True, report=told.append) == 3
    assert told[-1] == Pruned(looked_at=6, deleted=3, emptied=3)
    assert await everything(app) == before
    again: list[Pruned] = []
    assert await app.maintenance.prune(report=again.append) == 3
    assert again[-1] == told[-1]


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────


async def test_of_many_workers_one_does_the_pass(app: App, clock: Clock) -> None:
    await finish(app, mailer(app))
    clock.advance("8d")
    assert await prune_in_turn(app._engine) == Pruned(1, 1, 0)
    assert await prune_in_turn(app._engine) is None
    clock.advance("59s")
    assert await prune_in_turn(App(store=app._engine.store)._engine) is None
    clock.advance("1s")
    assert await prune_in_turn(App(store=app._engine.store)._engine) == Pruned()


async def test_workers_that_start_at_once_do_no_harm(app: App, clock: Clock) -> None:
    await finish(app, mailer(app), 250)
    clock.advance("8d")
    done = await asyncio.gather(*(prune_in_turn(app._engine) for _ in range(4)))
    assert sum(one.deleted for one in done if one is not None) == 250
    assert await everything(app) == []


async def test_a_tombstone_is_looked_at_again_when_its_hold_has_ended(app: App, clock: Clock) -> None:
    weekly = mailer(app, Unique.throttle("8d12h", by="to"), name="weekly")
    mail = mailer(app)
    await finish(app, weekly, 3)
    clock.advance("7d1s")
    await finish(app, mail, 2)
    assert await prune_in_turn(app._engine) == Pruned(3, 0, 3)  # they hold their keys: tombstones
    clock.advance("1m")
    assert await prune_in_turn(app._engine) == Pruned()  # which are not looked at again
    clock.advance("1d11h58m")
    assert await prune_in_turn(app._engine) == Pruned()  # nor while they hold
    clock.advance("1m")
    assert await prune_in_turn(app._engine) == Pruned(3, 3, 0)
    clock.advance("1d")
    assert await prune_in_turn(app._engine) == Pruned()
    clock.advance("5d")
    assert await prune_in_turn(app._engine) == Pruned(2, 2, 0)


async def test_a_tombstone_that_holds_for_ever_is_not_read_again(app: App, clock: Clock) -> None:
    await finish(app, mailer(app, Unique.once(by="to")), 3)
    clock.advance("8d")
    await app.maintenance.prune()
    before = await everything(app)
    told: list[Pruned] = []
    assert await app.maintenance.prune(report=told.append) == 0
    assert told == []
    assert await everything(app) == before


# ── counters ──────────────────────────────────────────────────────────────────────────────────────


async def test_counters_go_with_their_jobs_and_the_sums_stay(app: App, clock: Clock) -> None:
    mail, note = mailer(app, Unique(by="to")), mailer(app, Unique(by="to"), name="note")
    for task, number in ((mail, 3), (note, 2)):
        for to in range(number):
            await task.enqueue(to)
            for _ in range(to + 1):
                await task.enqueue(to)
    for job in await lease(app):
        await complete(app, job)
    live = await mail.enqueue("live")
    await mail.enqueue("live")
    before = (await app.stats()).absorbed
    assert before == {"mail": {"kept": 7}, "note": {"kept": 3}}
    assert len(await app._engine.store.tallies("")) == 6

    clock.advance("8d")
    assert await app.maintenance.prune() == 5
    assert (await app.stats()).absorbed == before
    left = {(tally.task, tally.job_id): tally.count for tally in await app._engine.store.tallies("")}
    assert left == {("mail", ""): 6, ("note", ""): 3, ("mail", live.job.id): 1}
    assert (await app.absorbed())[live.job.id] == 1

    await app.delete(live.job.id)
    assert await app._engine.store.fold("") == 1
    assert await app._engine.store.fold("") == 0
    assert (await app.stats()).absorbed == before
    assert {tally.job_id for tally in await app._engine.store.tallies("")} == {""}


async def test_a_count_that_comes_after_its_job_has_gone_is_folded_in_the_next_time(app: App) -> None:
    app._engine.store.count([Tally("", "mail", "kept", "gone", 2), Tally("", "mail", "stale", "gone", 1)])
    app._engine.store.count([Tally("other", "mail", "kept", "gone", 5)])
    assert await app._engine.store.fold("") == 2
    app._engine.store.count([Tally("", "mail", "kept", "gone", 3)])
    assert await app._engine.store.fold("") == 1
    assert await absorbed(app) == {"kept": 5, "stale": 1}
    assert [tally.job_id for tally in await app._engine.store.tallies("other")] == ["gone"]


async def test_folders_that_come_at_once_count_nothing_twice(app: App) -> None:
    app._engine.store.count([Tally("", "mail", "kept", f"gone {number}", 1) for number in range(1500)])
    await asyncio.gather(*(app._engine.store.fold("") for _ in range(4)))
    [left] = await app._engine.store.tallies("")
    assert (left.job_id, left.count) == ("", 1500)


async def test_a_workers_turn_folds_once_an_hour(store: Store, clock: Clock) -> None:
    async with App(store=store) as app:
        await prune_in_turn(app._engine)
        store.count([Tally("", "mail", "kept", "gone", 2)])
        clock.advance("59m")
        await prune_in_turn(app._engine)
        assert [tally.job_id for tally in await store.tallies("")] == ["gone"]
        clock.advance("1m")
        await prune_in_turn(app._engine)
        assert [tally.job_id for tally in await store.tallies("")] == [""]
