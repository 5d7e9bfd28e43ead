"""Moving: what is still needed goes to the other store once, however often the move is interrupted."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onejob import App, Job, Outcome, Retry, State, Task, Unique
from onejob.app.move import PROBE, move_batch, write
from onejob.errors import InvalidCall
from onejob.stores.contract import FullStore
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock
from tests.contract.steps import complete, everything, fail, lease, mailer, notify, run, start

COALESCE = Unique.coalesce(by="to")
LATEST = Unique.latest(by="to", version="text")


@pytest.fixture(params=["out of memory", "into memory"])
async def apps(request: pytest.FixtureRequest, app: App, clock: Clock) -> AsyncIterator[tuple[App, App]]:
    """Give an old app and a new one, of which one is in the store under test."""
    async with App(store=MemoryStore(clock=clock)) as other:
        yield (other, app) if request.param == "out of memory" else (app, other)


def both(
    apps: tuple[App, App], unique: Unique | None, name: str = "mail"
) -> tuple[Task[..., str], Task[..., str]]:
    old, new = (mailer(app, unique, name=name) for app in apps)
    return old, new


async def ids(app: App) -> set[str]:
    return {job.id for job in await everything(app)}


async def test_a_waiting_job_runs_in_its_new_home_and_holds_its_key_there(apps: tuple[App, App]) -> None:
    old, new = apps
    there, here = both(apps, Unique(by="to"))
    admission = await there.enqueue(1, "a")
    assert (await old.maintenance.move_to(new)).moved == 1
    assert await everything(old) == []
    assert await everything(new) == [admission.job]
    again = await here.enqueue(1, "b")
    assert (again.outcome, again.job.id) == (Outcome.KEPT, admission.job.id)
    assert (await run(new)).arguments["text"] == "a"


async def test_every_field_of_a_job_is_carried(apps: tuple[App, App], clock: Clock) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to", within="1h"))
    options = there.options(priority=7, delay="10m", meta={"trace": "x"}, retry=Retry(attempts=9), timeout=30)
    await options.enqueue({"é": [1, None]}, "text")
    clock.advance("5m")
    before = await everything(old)
    await old.maintenance.move_to(new)
    assert await everything(new) == before


async def test_a_successor_still_waits_behind_its_holder(apps: tuple[App, App], clock: Clock) -> None:
    old, new = apps
    there, _ = both(apps, COALESCE)
    await there.enqueue(1, "a")
    await start(old)
    assert (await there.enqueue(1, "b")).outcome is Outcome.RERUN
    clock.advance("1h")  # the worker is gone
    await old.maintenance.move_to(new)
    assert [job.state for job in await everything(new)] == [State.ACTIVE, State.PENDING]
    assert await new.maintenance.sweep() == (1, 0)
    clock.advance("1h")
    assert (await run(new)).arguments["text"] == "b"


async def test_a_successor_whose_holder_ended_in_the_new_home_meanwhile_is_let_in(
    apps: tuple[App, App], clock: Clock
) -> None:
    old, new = apps
    there, _ = both(apps, COALESCE)
    holder = (await there.enqueue(1, "a")).job
    await start(old)
    successor = (await there.enqueue(1, "b")).job
    clock.advance("1h")
    await move_batch(
        old._engine.store, new._engine.store, [holder.id], history=False
    )  # interrupted between the two
    await new.cancel(holder.id)
    assert await lease(new) == []
    await new.maintenance.sweep()
    await old.maintenance.move_to(new)
    assert (await run(new)).id == successor.id


async def test_a_dead_letter_is_carried_whole_and_can_be_replayed(apps: tuple[App, App]) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to"))
    await there.enqueue(1, "a")
    letter = await fail(old, await start(old), final=True)
    await old.maintenance.move_to(new)
    assert await new.dead.list() == [letter]
    assert (await new.dead.replay(letter.id)).outcome is Outcome.CREATED


async def test_an_old_version_stays_stale(apps: tuple[App, App]) -> None:
    old, new = apps
    there, here = both(apps, LATEST)
    await there.enqueue(1, 5)
    await run(old)
    assert (await old.maintenance.move_to(new)).moved == 1  # ended, but the key's mark names it
    assert (await here.enqueue(1, 4)).outcome is Outcome.STALE
    assert (await here.enqueue(1, 6)).outcome is Outcome.CREATED


async def test_what_has_ended_and_holds_nothing_is_left_unless_history_is_asked_for(
    apps: tuple[App, App],
) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to"))
    await there.enqueue(1)
    done = await run(old)
    result = await old.maintenance.move_to(new)
    assert (result.moved, result.left) == (0, 1)
    assert await everything(new) == []
    assert (await old.maintenance.move_to(new, history=True)).moved == 1
    assert await everything(new) == [done]


async def test_a_hold_that_outlives_its_job_is_carried(apps: tuple[App, App]) -> None:
    old, new = apps
    there, here = both(apps, Unique.once(by="to"))
    await there.enqueue(1)
    done = await run(old)
    await old.maintenance.move_to(new)
    assert (await here.enqueue(1)).job.id == done.id


async def test_counts_are_carried_once_however_often_the_move_is_run(apps: tuple[App, App]) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to"))
    for _ in range(4):
        await there.enqueue(1)
    await old.maintenance.move_to(new)
    await old.maintenance.move_to(new)
    assert (await new.stats()).absorbed == {"mail": {"kept": 3}}


async def test_a_move_that_was_interrupted_is_completed_by_running_it_again(apps: tuple[App, App]) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to"))
    jobs = [(await there.enqueue(number)).job for number in range(5)]
    await write(jobs[:2], {}, new._engine.store)  # killed before these were dropped from the old store
    await complete(new, (await lease(new, total=1))[0])
    assert (await old.maintenance.move_to(new)).moved == 5
    assert await everything(old) == []
    assert await ids(new) == {job.id for job in jobs}
    assert [job.state for job in await everything(new)].count(State.COMPLETED) == 1


async def test_a_key_that_the_new_home_has_given_to_another_stays_where_it_was(apps: tuple[App, App]) -> None:
    old, new = apps
    there, here = both(apps, Unique(by="to"))
    mine: Job = (await there.enqueue(1)).job
    theirs: Job = (await here.enqueue(1)).job
    await there.enqueue(2)
    result = await old.maintenance.move_to(new)
    assert (result.moved, result.taken) == (1, 1)
    assert await ids(old) == {mine.id}
    assert theirs.id in await ids(new)


async def test_running_jobs_are_not_moved_from_under_their_workers(apps: tuple[App, App]) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to"))
    await there.enqueue(1)
    await start(old)
    with pytest.raises(InvalidCall, match="stop the old store's workers"):
        await old.maintenance.move_to(new)
    assert await everything(new) == []


async def test_progress_is_reported_from_nothing_to_all(apps: tuple[App, App]) -> None:
    old, new = apps
    there, _ = both(apps, Unique(by="to"))
    await old.enqueue_many([there.call(number) for number in range(1200)])
    told: list[tuple[int, int]] = []
    await old.maintenance.move_to(new, report=lambda done, total: told.append((done, total)))
    assert told == [(0, 1200), (500, 1200), (1000, 1200), (1200, 1200)]


async def test_a_move_onto_the_same_store_is_refused_and_changes_nothing(store: FullStore) -> None:
    async with App(store=store) as app, App(store=store, namespace="other") as same:
        await mailer(app, Unique(by="to")).enqueue(1, "a")
        before = await everything(app)
        with pytest.raises(InvalidCall, match="the same store"):
            await app.maintenance.move_to(same)
        assert await everything(app) == before
        assert await store.settings("", PROBE) == {}


async def test_a_copy_of_a_store_is_another_store(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'old.db'}") as old:
        await mailer(old, Unique(by="to")).enqueue(1, "a")
    shutil.copy(tmp_path / "old.db", tmp_path / "new.db")
    async with App(f"sqlite:///{tmp_path / 'old.db'}") as old, App(f"sqlite:///{tmp_path / 'new.db'}") as new:
        assert (await old.maintenance.move_to(new)).moved == 1
        assert await everything(old) == []
        assert len(await everything(new)) == 1


async def test_ended_jobs_that_a_moved_job_needs_are_carried_with_it(apps: tuple[App, App]) -> None:
    old, new = apps
    there, _ = both(apps, None)
    blocker = await there.enqueue(1, "a")
    await there.options(delay="1h", after=[blocker]).enqueue(2, "b")
    await run(old, "sent")
    await notify(old, await everything(old))
    await old.maintenance.move_to(new)
    assert [job.state for job in await everything(new)] == [State.COMPLETED, State.SCHEDULED]
