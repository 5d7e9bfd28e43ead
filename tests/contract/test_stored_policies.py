"""Policies come from the row: the outcome is the same whichever app of the namespace sweeps or prunes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onejob import App, Job, Outcome, Replay, Retry, State, Unique, chain
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock, drain
from tests.contract.steps import RETRY, complete, everything, mailer, start

ONCE = Retry.never()


def same_app(_store: Store, app: App) -> App:
    return app


def without_tasks(store: Store, _app: App) -> App:
    return App(store=store)


def with_other_policies(store: Store, _app: App) -> App:
    """Return an app whose task of the same name has other policies."""
    app = App(store=store, retention={"completed": "1s", "discarded": "300d"})
    mailer(app, Unique.coalesce(by="to"), retry=RETRY)
    return app


Choose = Callable[[Store, App], App]
anyone = pytest.mark.parametrize("choose", [same_app, without_tasks, with_other_policies])


@anyone
async def test_a_crash_leads_to_the_same_replay(app: App, store: Store, clock: Clock, choose: Choose) -> None:
    mailer(app, retry=ONCE, replay=Replay(times=3, after="1h"))
    await app.tasks["mail"].enqueue(1)
    await start(app)
    clock.advance("16s")
    assert await choose(store, app).maintenance.sweep() == (1, 0)
    [letter] = await app.dead.list()
    assert letter.returns_at == clock() + timedelta(hours=1)
    clock.advance("1h")
    assert await choose(store, app).maintenance.replay_due() == {Outcome.CREATED: 1}


@anyone
async def test_an_ended_job_is_kept_as_long(app: App, store: Store, clock: Clock, choose: Choose) -> None:
    mailer(app, retention={"completed": "1h"})
    await app.tasks["mail"].enqueue(1)
    await complete(app, await start(app))
    clock.advance("59m")
    assert await choose(store, app).maintenance.prune() == 0
    clock.advance("2m")
    assert await choose(store, app).maintenance.prune() == 1


@anyone
async def test_reducers_merge_a_crashed_payload(app: App, store: Store, clock: Clock, choose: Choose) -> None:
    mailer(app, Unique.coalesce(by="to", merge={"text": "union"}))
    await app.tasks["mail"].enqueue(1, ["a"])
    await start(app)
    await app.tasks["mail"].enqueue(1, ["b"])
    clock.advance("16s")
    assert await choose(store, app).maintenance.sweep() == (1, 0)
    assert [job.arguments["text"] for job in await waiting(app)] == [["a", "b"]]


async def test_a_merge_function_is_left_to_an_app_that_has_it(app: App, store: Store, clock: Clock) -> None:
    def join(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return new | {"text": old["text"] + new["text"]}

    mailer(app, Unique.coalesce(by="to", merge=join))
    await app.tasks["mail"].enqueue(1, "a")
    await start(app)
    await app.tasks["mail"].enqueue(1, "b")
    clock.advance("16s")
    assert await App(store=store).maintenance.sweep() == (0, 0)
    assert [job.state for job in await everything(app)] == [State.ACTIVE, State.PENDING]
    assert await app.maintenance.sweep() == (1, 0)
    assert [job.arguments["text"] for job in await waiting(app)] == ["ab"]


async def waiting(app: App) -> list[Job]:
    return await app.jobs(state=["scheduled", "available", "retryable"])


@anyone
async def test_a_sweep_leaves_other_namespaces_alone(
    app: App, store: Store, clock: Clock, choose: Choose
) -> None:
    async with App(store=store, namespace="other") as stranger:
        mailer(stranger, retry=ONCE)
        await stranger.tasks["mail"].enqueue(1)
        await start(stranger)
        clock.advance("16s")
        assert await choose(store, app).maintenance.sweep() == (0, 0)
        assert await stranger.maintenance.sweep() == (1, 0)


async def test_stored_calls_of_a_chain_keep_their_policies(app: App) -> None:
    mailer(app)
    mailer(app, name="last", retry=ONCE, replay=Replay(times=2, after="2h"), retention={"discarded": "30d"})
    await chain(app.tasks["mail"].call(1), app.tasks["last"].step()).enqueue()
    await drain(app)
    [last] = await app.jobs(task="last")
    assert (last.state, last.retry, last.replay) == (State.COMPLETED, ONCE, Replay(times=2, after="2h"))
    assert last.retention.of(State.DISCARDED) == timedelta(days=30)
