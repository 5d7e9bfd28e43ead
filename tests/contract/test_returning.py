"""Dead letters that come back by themselves: by their task's Replay, judged like any replay."""

import asyncio
from collections import Counter

import pytest

from onejob import App, Outcome, Replay, Retry, State, Task, Unique
from onejob.errors import InvalidCall
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.steps import absorbed, complete, discard, fail, lease, mailer, run, start

HOURLY = Replay(times=3, after="1h", factor=2, cap="3h")
NONE_REPLAYED: Counter[Outcome] = Counter()


def hopeful(app: App, unique: Unique | None = None, replay: Replay = HOURLY) -> Task[..., str]:
    """Register a task whose jobs are tried once and replayed by themselves."""
    return mailer(app, unique, retry=Retry.never(), replay=replay)


async def die(app: App) -> str:
    """Let the one job that is due fail, which is its last attempt."""
    return (await fail(app, await start(app))).id


async def test_a_letter_comes_back_after_its_delay(app: App, clock: Clock) -> None:
    await hopeful(app, Unique(by="to")).enqueue(1, "a")
    letter = await die(app)
    dead = await app.job(letter)
    assert (dead.state, dead.run_at - clock()) == (State.DISCARDED, clock().resolution * 3_600_000_000)
    clock.advance("59m")
    assert await app.maintenance.replay_due() == NONE_REPLAYED
    clock.advance("1m")
    assert await app.maintenance.replay_due() == {Outcome.CREATED: 1}
    alive = await app.job(letter)
    assert (alive.state, alive.attempt, alive.replays) == (State.AVAILABLE, 0, 1)
    assert await app.maintenance.replay_due() == NONE_REPLAYED
    assert (await run(app)).id == letter


async def test_the_delay_grows_up_to_its_cap_and_the_replays_end(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    letter = await die(app)
    for hours in (1, 2, 3):  # and not 4
        clock.advance(f"{hours}h")
        assert await app.maintenance.replay_due() == {Outcome.CREATED: 1}
        await die(app)
        assert await app.maintenance.replay_due() == NONE_REPLAYED
    clock.advance("100d")
    assert await app.maintenance.replay_due() == NONE_REPLAYED
    dead = await app.job(letter)
    assert (dead.state, dead.replays) == (State.DISCARDED, 3)
    assert (await app.dead.replay(letter)).job.replays == 4  # by hand it may come back as often as one likes


async def test_a_manual_replay_counts(app: App, clock: Clock) -> None:
    await hopeful(app, replay=Replay(times=1, after="1h")).enqueue(1)
    letter = await die(app)
    await app.dead.replay(letter)
    await die(app)
    clock.advance("10d")
    assert await app.maintenance.replay_due() == NONE_REPLAYED


async def test_a_manual_replay_precedes_the_automatic_one(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    letter = await die(app)
    await app.dead.replay(letter)
    clock.advance("10h")
    assert await app.maintenance.replay_due() == NONE_REPLAYED  # it is alive
    assert (await run(app)).id == letter


async def test_a_letter_whose_key_is_held_spends_a_replay_and_waits_on(app: App, clock: Clock) -> None:
    mail = hopeful(app, Unique(by="to"))
    await mail.enqueue(1, "dead")
    letter = await die(app)
    await mail.options(delay="30d").enqueue(1, "alive")
    for replays in (1, 2, 3):
        clock.advance("3h")
        assert await app.maintenance.replay_due() == {Outcome.KEPT: 1}
        assert await app.maintenance.replay_due() == NONE_REPLAYED  # not again in every sweep
        assert (await app.job(letter)).replays == replays
    clock.advance("3h")
    assert await app.maintenance.replay_due() == NONE_REPLAYED  # nor for ever
    assert (await app.job(letter)).state is State.DISCARDED
    assert await absorbed(app) == {"kept": 3}


async def test_a_letter_comes_back_when_its_key_is_free_again(app: App, clock: Clock) -> None:
    mail = hopeful(app, Unique(by="to"))
    await mail.enqueue(1, "dead")
    letter = await die(app)
    newer = await mail.options(delay="30d").enqueue(1, "alive")
    clock.advance("1h")
    assert await app.maintenance.replay_due() == {Outcome.KEPT: 1}
    await app.cancel(newer.job.id)
    clock.advance("2h")
    assert await app.maintenance.replay_due() == {Outcome.CREATED: 1}
    assert (await app.job(letter)).replays == 2


async def test_a_letter_of_an_older_version_is_stale(app: App, clock: Clock) -> None:
    mail = hopeful(app, Unique.latest(by="to", version="text"))
    await mail.enqueue(1, 5)
    letter = await die(app)
    await mail.enqueue(1, 6)
    await run(app)
    clock.advance("1h")
    assert await app.maintenance.replay_due() == {Outcome.STALE: 1}
    assert await app.maintenance.replay_due() == NONE_REPLAYED
    assert (await app.job(letter)).replays == 1
    assert await absorbed(app) == {"stale": 1}


async def test_what_was_given_up_on_stays_dead(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    await discard(app)
    clock.advance("10d")
    assert await app.maintenance.replay_due() == NONE_REPLAYED


async def test_a_job_of_a_worker_that_died_comes_back_too(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    job = await start(app)
    clock.advance("1m")
    assert await app.maintenance.sweep() == (1, 0)
    assert (await app.job(job.id)).state is State.DISCARDED
    clock.advance("1h")
    assert await app.maintenance.replay_due() == {Outcome.CREATED: 1}


async def test_a_task_without_a_policy_has_letters_that_stay(app: App, clock: Clock) -> None:
    await mailer(app, retry=Retry.never()).enqueue(1)
    await die(app)
    clock.advance("100d")
    assert await app.maintenance.replay_due() == NONE_REPLAYED


async def test_any_app_of_the_namespace_replays_what_is_due(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    await die(app)
    clock.advance("1h")
    other = App(store=app._engine.store, namespace="other")
    hopeful(other)
    assert await other.maintenance.replay_due() == NONE_REPLAYED
    assert await App(store=app._engine.store).maintenance.replay_due() == {Outcome.CREATED: 1}


async def test_a_dead_letter_keeps_the_policy_with_which_it_was_enqueued(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    letter = await die(app)
    clock.advance("1h")
    await app.maintenance.replay_due()
    await die(app)
    later = App(store=app._engine.store)
    hopeful(later, replay=Replay(times=1, after="1h"))
    clock.advance("2h")
    assert await later.maintenance.replay_due() == {Outcome.CREATED: 1}
    assert (await app.job(letter)).state is State.AVAILABLE


async def test_a_restart_forgets_nothing(store: Store, clock: Clock) -> None:
    async with App(store=store) as app:
        await hopeful(app).enqueue(1)
        await die(app)
    clock.advance("1h")
    async with App(store=store) as again:
        hopeful(again)
        if store.guarantees.store != "memory":
            await again._engine.store.close()  # and opened anew
        assert await again.maintenance.replay_due() == {Outcome.CREATED: 1}


async def test_a_deleted_letter_does_not_come_back(app: App, clock: Clock) -> None:
    await hopeful(app).enqueue(1)
    await app.delete(await die(app))
    clock.advance("1h")
    assert await app.maintenance.replay_due() == NONE_REPLAYED


async def test_several_workers_that_sweep_at_once_bring_each_letter_back_once(app: App, clock: Clock) -> None:
    mail = hopeful(app)
    await app.enqueue_many([mail.call(number) for number in range(300)])
    for job in await lease(app):
        await fail(app, job)
    clock.advance("1h")
    came = await asyncio.gather(*(app.maintenance.replay_due() for _ in range(4)))
    assert sum(came, Counter()) == {Outcome.CREATED: 300}
    jobs = await lease(app)
    assert {job.replays for job in jobs} == {1}
    assert len(jobs) == 300


async def test_a_sweep_brings_back_so_many_at_most_and_the_earliest_first(
    app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.engine.sweep.AT_ONCE", 2)
    mail = hopeful(app)
    for number in range(3):
        await mail.enqueue(number)
        await die(app)
        clock.advance("1s")
    clock.advance("1h")
    assert await app.maintenance.replay_due() == {Outcome.CREATED: 2}
    assert sorted(job.arguments["to"] for job in await lease(app)) == [0, 1]
    assert await app.maintenance.replay_due() == {Outcome.CREATED: 1}


async def test_a_tombstone_does_not_come_back(app: App, clock: Clock) -> None:
    mail = mailer(
        app,
        Unique(by="to", until="forever"),
        retry=Retry.never(),
        replay=Replay(times=9, after="1h"),
        retention={"discarded": "2d"},
    )
    await mail.enqueue(1)
    letter = await die(app)
    clock.advance("3d")
    assert await app.maintenance.prune() == 0
    assert (await app.job(letter)).is_tombstone
    assert await app.maintenance.replay_due() == NONE_REPLAYED
    with pytest.raises(InvalidCall):
        await app.dead.replay(letter)


async def test_a_letter_that_came_back_and_succeeds_is_done(app: App, clock: Clock) -> None:
    mail = hopeful(app, Unique.once(by="to"))
    first = await mail.enqueue(1)
    await die(app)
    clock.advance("1h")
    await app.maintenance.replay_due()
    await complete(app, await start(app), "sent")
    assert await first.result() == "sent"
    clock.advance("10d")
    assert await app.maintenance.replay_due() == NONE_REPLAYED
