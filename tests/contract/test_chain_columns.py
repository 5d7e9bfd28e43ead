"""The hold belongs to the chain: it travels with the completion and ends with the last job (rule 3)."""

from datetime import timedelta

import msgspec
import pytest

from onejob import App, Job, Outcome, State, Unique
from onejob.core.job import Trait, alter
from onejob.core.policy import OnConflict
from onejob.core.runs import Completed
from onejob.stores.queries import OfChain
from onejob.testing import Clock
from tests.contract.steps import BACKOFF, complete, everything, fail, lease, live, mailer, run, settle, start


async def next_job(app: App, task: str = "then") -> Job:
    """Make a job that a run may continue with, as `continue_with` will: not yet admitted."""
    then = app.tasks[task] if task in app.tasks else mailer(app, name=task)
    job = (await then.enqueue("next", "payload of the continuation")).job
    await app.delete(job.id)
    return job


async def continued(app: App, job: Job) -> Job:
    """Complete a run with a continuation and return that."""
    then = await next_job(app)
    await complete(app, job, "step done", then=then)
    return await app.job(then.id)


async def test_the_hold_travels_to_the_continuation(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1h"))
    first = await mail.enqueue(1)
    running = await start(app)
    clock.advance("1m")
    then = await continued(app, running)
    assert (then.chain_id, then.chain_index, then.parent_id) == (first.job.id, 1, first.job.id)
    assert (then.key, then.is_holder) == (first.job.key, True)
    assert (then.held_at, then.holds_until) == (
        first.job.held_at,
        first.job.holds_until,
    )  # the chain's window
    assert then.state is State.AVAILABLE

    done = await app.job(first.job.id)
    assert (done.state, done.stand, done.result) == (State.COMPLETED, None, b'"step done"')


async def test_the_key_is_held_until_the_last_job_ends(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    second = await continued(app, await start(app))
    assert (await mail.enqueue(1)).job.id == second.id
    third = await continued(app, await start(app))
    assert third.chain_index == 2
    assert (await mail.enqueue(1)).job.id == third.id
    await run(app)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@pytest.mark.parametrize("end", ["discard", "cancel"])
async def test_a_chain_that_ends_badly_frees_its_key(app: App, end: str) -> None:
    mail = mailer(app, Unique.once(by="to"))
    await mail.enqueue(1)
    second = await continued(app, await start(app))
    if end == "cancel":
        await app.cancel(second.id)
    else:
        await fail(app, await start(app), final=True)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_chain_that_succeeds_under_once_stays_held(app: App) -> None:
    mail = mailer(app, Unique.once(by="to"))
    await mail.enqueue(1)
    second = await continued(app, await start(app))
    await run(app)
    kept = await mail.enqueue(1)
    assert (kept.outcome, kept.job.id) == (Outcome.KEPT, second.id)


async def test_a_successor_waits_for_the_end_of_the_chain(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    second = await continued(app, running)
    started = await start(app)
    assert started.id == second.id
    assert await lease(app) == []
    await complete(app, started)
    assert (await run(app)).id == successor.job.id


@pytest.mark.parametrize("state", ["available", "scheduled", "active", "retryable"])
@pytest.mark.parametrize("policy", ["update", "replace"])
async def test_a_chain_that_has_started_counts_as_active_whatever_its_jobs_state(
    app: App, policy: OnConflict, state: str
) -> None:
    mail = mailer(app, Unique(by="to", on_conflict=policy))
    await mail.enqueue(1, "a")
    running = await start(app)
    then = await next_job(app)
    if state == "scheduled":
        then = alter(then, run_at=then.run_at + timedelta(hours=1))
    await complete(app, running, then=then)
    if state in {"active", "retryable"}:
        second = await start(app)
        if state == "retryable":
            await fail(app, second)
    before = await app.job(then.id)
    assert before.state == state

    newcomer = await mail.enqueue(1, "b")
    assert newcomer.outcome is Outcome.RERUN
    assert newcomer.job.state is State.PENDING
    after = await app.job(then.id)
    assert after == alter(before, traits=before.traits | Trait.HAS_SUCCESSOR)  # its payload is untouched


async def test_a_waiting_chain_is_not_bumped(app: App) -> None:
    mail = mailer(app, Unique(by="to", bump=True))
    await mail.enqueue(1)
    then = await continued(app, await start(app))
    assert (await mail.options(priority=5).enqueue(1)).outcome is Outcome.KEPT
    assert await app.job(then.id) == then


async def test_on_active_cancel_between_two_jobs_admits_the_request_at_once(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update", on_active="cancel"))
    await mail.enqueue(1, "a")
    then = await continued(app, await start(app))
    newcomer = await mail.enqueue(1, "b")
    assert (await app.job(then.id)).superseded_by == newcomer.job.id
    assert (await start(app)).id == newcomer.job.id


async def test_a_completion_that_is_repeated_makes_no_second_continuation(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    then, again = await next_job(app), await next_job(app)
    await complete(app, running, then=then)
    repeated = await settle(app, running, Completed(None, again))
    assert repeated == await app.job(running.id)
    chain = await app._engine.store.find(OfChain(namespace="", chain_id=running.chain_id))
    assert [(job.id, job.chain_index) for job in chain] == [(running.id, 0), (then.id, 1)]


async def test_a_continuation_of_a_job_without_a_key(app: App) -> None:
    mail = mailer(app)
    first = await mail.enqueue(1)
    then = await continued(app, await start(app))
    assert (then.key, then.stand, then.chain_id) == (None, None, first.job.id)
    assert (await run(app)).id == then.id


async def test_a_continuations_own_policy_is_not_used(app: App) -> None:
    mailer(app, Unique(by="to"), name="then")
    held = await app.tasks["then"].enqueue("next")
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    jobs = {job.id: job for job in await lease(app)}
    then = alter(held.job, id=first.job.id[:-1] + "x", stand=None)
    await complete(app, jobs[first.job.id], then=then)
    assert (await app.job(then.id)).key == first.job.key
    assert (await app.job(held.job.id)).is_holder


async def test_a_run_that_was_asked_to_stop_starts_no_continuation(app: App) -> None:
    await mailer(app).enqueue(1)
    running = await start(app)
    await app.cancel(running.id)
    ended = await complete(app, running, then=await next_job(app))
    assert ended.state is State.CANCELLED
    assert await live(app) == []


async def test_until_start_releases_the_key_at_the_first_start_of_the_chain(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    await mail.enqueue(1)
    then = await continued(app, await start(app))
    assert not then.is_holder
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_retry_inside_the_chain_keeps_the_hold(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    then = await continued(app, await start(app))
    await fail(app, await start(app))
    assert (await mail.enqueue(1)).job.id == then.id
    clock.advance(BACKOFF)
    assert (await run(app)).id == then.id


async def test_the_version_of_a_chain_is_checked_at_every_step(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    await mail.enqueue(1, 5)
    then = await continued(app, await start(app))
    assert then.version == 5
    newer = await mail.enqueue(1, 6)
    assert newer.outcome is Outcome.RERUN
    started = await lease(app)  # the outdated continuation gives way at its lease
    assert (await app.job(then.id)).superseded_by == newer.job.id
    assert [job.id for job in started + await lease(app)] == [newer.job.id]


async def test_a_long_chain_holds_one_key_to_its_end(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    template = await next_job(app)
    for number in range(100):
        then = alter(template, id=f"{template.id[:-4]}{number:04d}")
        await complete(app, running, then=then)
        running = await start(app)
    await complete(app, running, "end")
    jobs = await everything(app)
    assert sorted(job.chain_index for job in jobs) == list(range(101))
    assert await app.holds() == []
    assert msgspec.json.decode((await app.job(running.id)).result or b"") == "end"
