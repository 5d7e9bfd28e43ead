"""Defaults of tasks and apps: a delay, a policy; and a warning for policies with gaps."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from onejob import App, Outcome, State, Unique, chain, unique
from onejob.errors import InvalidPolicy
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock, drain
from tests.contract.steps import live, mailer


async def test_a_task_has_a_default_delay(app: App, clock: Clock) -> None:
    mail = mailer(app, delay="10m")
    job = (await mail.enqueue(1)).job
    assert (job.state, job.run_at) == (State.SCHEDULED, clock() + timedelta(minutes=10))


async def test_a_call_has_the_last_word_about_its_time(app: App, clock: Clock) -> None:
    mail = mailer(app, delay="10m")
    assert (await mail.options(delay=0).enqueue(1)).job.state is State.AVAILABLE
    assert (await mail.options(delay="1h").enqueue(2)).job.run_at == clock() + timedelta(hours=1)
    at = clock() + timedelta(minutes=1)
    assert (await mail.options(run_at=at).enqueue(3)).job.run_at == at


async def test_a_default_delay_holds_in_a_bulk_and_in_a_chain(app: App, clock: Clock) -> None:
    first, mail = mailer(app, name="first"), mailer(app, delay="10m")
    [many] = await app.enqueue_many([mail.call(1)])
    assert many.job.state is State.SCHEDULED
    await chain(first.call(1), mail.call(2)).enqueue()
    await drain(app)
    assert [job.state for job in await live(app)] == [State.SCHEDULED, State.SCHEDULED]
    clock.advance("10m")
    await drain(app)
    assert await live(app) == []


def test_a_delay_that_contradicts_another_option_is_refused() -> None:
    app = App("memory://")
    with pytest.raises(InvalidPolicy, match="leave delay= out"):
        mailer(app, Unique.debounce("10s", by="to"), delay="10m")
    with pytest.raises(InvalidPolicy, match="write a longer expires_in"):
        mailer(app, delay="10m", expires_in="10m")


async def test_an_app_has_a_default_policy(store: Store) -> None:
    async with App(store=store, unique=True) as app:

        @app.task
        async def plain(n: int) -> None: ...

        @app.task(unique=Unique(by="n", on_conflict="update"))
        async def own(n: int, text: str) -> None: ...

        @app.task(unique=False)
        async def free(n: int) -> None: ...

        assert [(await plain.enqueue(1)).outcome for _ in range(2)] == [Outcome.CREATED, Outcome.KEPT]
        assert [(await own.enqueue(1, text)).outcome for text in "ab"] == [Outcome.CREATED, Outcome.UPDATED]
        assert [(await free.enqueue(1)).outcome for _ in range(2)] == [Outcome.CREATED] * 2
        assert (await plain.options(unique=False).enqueue(1)).outcome is Outcome.CREATED


def test_a_default_policy_may_be_fluent_and_must_fit_the_task() -> None:
    app = App("memory://", unique=unique.by("customer_id"))
    with pytest.raises(InvalidPolicy, match="'customer_id' is not an argument"):
        mailer(app)


@pytest.mark.parametrize(
    ("states", "gaps"),
    [
        ({"completed"}, "scheduled, available, pending, active, retryable"),
        ({"active"}, "scheduled, available, pending, retryable"),
        ({"available"}, "scheduled, pending"),
        ({"scheduled", "available", "pending", "completed"}, "active, retryable"),
    ],
)
def test_a_set_of_states_with_gaps_is_warned_of(
    states: set[str], gaps: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "onejob"):
        mailer(App("memory://"), Unique(by="to", states=states))
    assert f"has gaps: while a job is {gaps}, it holds no key" in caplog.text


@pytest.mark.parametrize("ended", [set(), {"completed"}, {"completed", "cancelled", "discarded"}])
def test_a_set_of_states_without_gaps_is_accepted_silently(
    ended: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = {"scheduled", "available", "pending"}
    app = App("memory://")
    mailer(app, Unique(by="to", states=waiting), name="one")
    mailer(app, Unique(by="to", states=waiting | {"active", "retryable"} | ended), name="two")
    assert caplog.text == ""
