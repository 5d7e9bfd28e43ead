"""Pruning forgets ended jobs and never shortens a hold (rule 4; case 40)."""

import pytest

from onejob import App, Outcome, State, Unique
from onejob.errors import InvalidCall, ResultGone, UnknownJob
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.steps import complete, discard, everything, fail, lease, mailer, run, start


async def test_ended_jobs_are_forgotten_after_their_retention(store: Store, clock: Clock) -> None:
    async with App(store=store, retention={"completed": "1h", "discarded": "3h", "cancelled": "2h"}) as app:
        mail = mailer(app)
        await mail.enqueue(1)
        await run(app)
        await mail.enqueue(2)
        await discard(app)
        await app.cancel((await mail.enqueue(3)).job.id)
        clock.advance("59m59s")
        assert await app.maintenance.prune() == 0  # not before they are as old as that
        clock.advance("1s")
        assert await app.maintenance.prune() == 1
        assert {job.state for job in await everything(app)} == {State.DISCARDED, State.CANCELLED}
        clock.advance("1h")
        assert await app.maintenance.prune() == 1
        clock.advance("1h")
        assert await app.maintenance.prune() == 1
        assert await everything(app) == []


async def test_dead_letters_are_kept_longer_than_successes(app: App, clock: Clock) -> None:
    mail = mailer(app)
    done = await mail.enqueue(1)
    await run(app)
    await mail.enqueue(2)
    await discard(app)
    clock.advance("8d")
    assert await app.maintenance.prune() == 1
    assert len(await app.dead.list()) == 1
    with pytest.raises(UnknownJob):
        await app.job(done.job.id)
    with pytest.raises(ResultGone):
        await done.result()


async def test_jobs_that_have_not_ended_are_never_pruned(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1)
    await start(app)
    await mail.enqueue(1, "successor")
    await mail.enqueue(2)
    await fail(app, await start(app))
    await mail.options(delay="1000d").enqueue(3)
    before = await everything(app)
    clock.advance("900d")
    assert await app.maintenance.prune() == 0
    assert await everything(app) == before


async def test_case_40_a_record_that_still_holds_stays_as_a_tombstone(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.once(by="to"))
    first = await mail.options(meta={"private": "yes"}).enqueue(1, "secret")
    await run(app, "result")
    clock.advance("8d")
    assert await app.maintenance.prune() == 0
    tombstone = await app.job(first.job.id)
    assert tombstone.is_tombstone
    assert (tombstone.arguments, tombstone.metadata, tombstone.result) == ({}, {}, None)
    assert tombstone.state is State.COMPLETED

    kept = await mail.enqueue(1, "secret")
    assert (kept.outcome, kept.job.id, kept.payload_differs) == (Outcome.KEPT, first.job.id, True)
    with pytest.raises(ResultGone):
        await kept.result()
    assert await app.maintenance.prune() == 0  # and it stays for as long as it holds


async def test_case_40_a_window_longer_than_the_retention_is_still_enforced(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("30d", by="to"))
    first = await mail.enqueue(1)
    await run(app)
    clock.advance("29d")
    assert await app.maintenance.prune() == 0
    assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance("1d")
    assert await app.maintenance.prune() == 1
    assert await everything(app) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_case_40_a_window_shorter_than_the_retention_frees_although_the_row_is_kept(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique.throttle("1h", by="to"))
    first = await mail.enqueue(1)
    await run(app)
    clock.advance("1h")
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED
    assert (await app.job(first.job.id)).state is State.COMPLETED


async def test_a_tombstone_is_replaced_like_any_terminal_holder(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.once(by="to", on_conflict="update", merge={"text": "append"}))
    await mail.enqueue(1, ["a"])
    await run(app)
    clock.advance("8d")
    await app.maintenance.prune()
    second = await mail.enqueue(1, ["b"])
    assert second.outcome is Outcome.CREATED
    assert second.job.arguments["text"] == ["b"]
    assert await app.maintenance.prune() == 1


async def test_a_tombstone_cannot_be_replayed(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", until="forever"))
    first = await mail.enqueue(1)
    await discard(app)
    clock.advance("181d")
    assert await app.maintenance.prune() == 0
    with pytest.raises(InvalidCall):
        await app.dead.replay(first.job.id)
    await app.delete(first.job.id)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_version_stays_known_for_thirty_days_after_its_job(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    await mail.enqueue(1, 5)
    await run(app)
    clock.advance("8d")
    assert await app.maintenance.prune() == 0
    assert (await mail.enqueue(1, 4)).outcome is Outcome.STALE
    clock.advance("21d23h")
    assert await app.maintenance.prune() == 0
    assert (await mail.enqueue(1, 4)).outcome is Outcome.STALE
    clock.advance("1h")
    assert await app.maintenance.prune() == 1
    assert await everything(app) == []
    assert (await mail.enqueue(1, 4)).outcome is Outcome.CREATED


async def test_pruning_passes_tombstones_by_and_forgets_the_rest(app: App, clock: Clock) -> None:
    mail, once = mailer(app), mailer(app, Unique.once(by="to"), name="once")
    calls = [(once if number % 3 == 0 else mail).call(number) for number in range(1_200)]
    admissions = await app.enqueue_many(calls)
    for admission in admissions:
        if admission.job.task == "mail":
            await app.cancel(admission.job.id)
    held = [await run_one(app) for _ in range(3)]
    clock.advance("8d")
    assert await app.maintenance.prune() == 800
    tombstones = [job for job in await everything(app) if job.is_tombstone]
    assert {job.id for job in tombstones} == set(held)
    assert await app.maintenance.prune() == 0


async def run_one(app: App) -> str:
    """Lease the best job alone and complete it."""
    [job] = await lease(app, total=1)
    return (await complete(app, job)).id
