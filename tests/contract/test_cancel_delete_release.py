"""Ending and freeing by hand: cancel, delete, release (rule 4; cases 38, 58, 63)."""

import asyncio
from operator import attrgetter

import pytest

from onejob import App, Outcome, State, Unique
from onejob.core.job import Stand
from onejob.errors import InvalidCall, JobCancelled, UnknownJob
from onejob.testing import Clock
from tests.contract.steps import complete, everything, fail, hand_back, lease, live, mailer, run, start, stop


async def test_cancel_ends_a_waiting_job_and_frees_its_key(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    ended = await app.cancel(first.job.id, reason="changed my mind")
    assert (ended.state, ended.reason, ended.finished_at) == (State.CANCELLED, "changed my mind", clock())
    assert await app.holds() == []
    assert await lease(app) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


@pytest.mark.parametrize("delay", [None, "1h"])
async def test_cancel_ends_scheduled_and_retryable_jobs(app: App, delay: str | None) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.options(delay=delay).enqueue(1)
    if delay is None:
        await fail(app, await start(app))
    assert (await app.cancel(first.job.id)).state is State.CANCELLED
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_cancel_asks_a_running_job_to_stop_and_its_end_frees_the_key(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    asked = await app.cancel(running.id)
    assert (asked.state, asked.cancel_requested) == (State.ACTIVE, True)
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT  # it still runs
    assert (await stop(app, running)).state is State.CANCELLED
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_a_run_that_ends_before_it_notices_is_completed(app: App) -> None:
    await mailer(app).enqueue(1)
    running = await start(app)
    await app.cancel(running.id)
    assert (await complete(app, running, "done")).state is State.COMPLETED


async def test_cancel_of_an_ended_job_changes_nothing(app: App) -> None:
    await mailer(app).enqueue(1)
    done = await run(app)
    assert await app.cancel(done.id) == done
    assert await app.job(done.id) == done


async def test_cancel_ends_that_job_only_and_promotes_its_successor(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    waiting = await hand_back(app, running)
    await app.cancel(waiting.id)
    assert (await start(app)).id == successor.job.id


async def test_cancel_with_successors_ends_both(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    await app.cancel(running.id, successors=True)
    assert (await app.job(successor.job.id)).state is State.CANCELLED
    await stop(app, running)
    assert await live(app) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_cancel_of_the_successor_leaves_the_holder(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    await app.cancel(successor.job.id)
    assert (await mail.enqueue(1, "c")).outcome is Outcome.RERUN  # a new successor
    await complete(app, running)
    assert (await run(app)).arguments["text"] == "c"


async def test_case_58_a_caller_that_stops_waiting_cancels_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    one, two = await mail.enqueue(1), await mail.enqueue(1)
    leaving = asyncio.create_task(one.result())
    staying = asyncio.create_task(two.result())
    running = await start(app)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await complete(app, running, "for the other")
    assert await staying == "for the other"


async def test_case_58_a_cancelled_job_is_cancelled_for_every_caller(app: App) -> None:
    """DESIGN counts no references: cancelling the job ends it for all who joined."""
    mail = mailer(app, Unique(by="to"))
    one, two = await mail.enqueue(1), await mail.enqueue(1)
    await app.cancel(one.job.id)
    for admission in (one, two):
        with pytest.raises(JobCancelled):
            await admission.result()


@pytest.mark.parametrize("verb", ["cancel", "delete", "dead.replay", "job"])
async def test_an_unknown_job_is_reported(app: App, verb: str) -> None:
    with pytest.raises(UnknownJob, match="0190"):
        await attrgetter(verb)(app)("0190")


# ── delete ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("until", ["start", "finish", "failure", "forever"])
async def test_delete_always_frees(app: App, until: str) -> None:
    mail = mailer(app, Unique(by="to", until=until))  # type: ignore[arg-type]
    waiting = await mail.enqueue(1)
    await app.delete(waiting.job.id)
    assert await everything(app) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED

    ended = await run(app)
    await app.delete(ended.id)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_delete_promotes_the_successor(app: App) -> None:
    mail = mailer(app, Unique.throttle("1h", "first+last", by="to"))
    waiting = await mail.enqueue(1, "a")
    successor = await mail.enqueue(1, "b")
    assert successor.job.state is State.PENDING
    await app.delete(waiting.job.id)
    promoted = await app.job(successor.job.id)
    assert (promoted.key, promoted.stand) == (successor.job.key, Stand.HOLDER)
    assert promoted.state is State.SCHEDULED


async def test_delete_forgets_the_version(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    first = await mail.enqueue(1, 5)
    await app.delete(first.job.id)
    assert (await mail.enqueue(1, 4)).outcome is Outcome.CREATED


async def test_a_running_job_cannot_be_deleted(app: App) -> None:
    await mailer(app).enqueue(1)
    running = await start(app)
    with pytest.raises(InvalidCall, match="active"):
        await app.delete(running.id)
    assert await app.job(running.id) == running


# ── release ───────────────────────────────────────────────────────────────────────────────────────


async def test_release_frees_a_key_and_its_holder_goes_on(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    assert first.key is not None
    freed = await app.release(first.key)
    assert freed is not None
    assert freed.id == first.job.id
    second = await mail.enqueue(1)
    assert second.outcome is Outcome.CREATED
    assert {job.id for job in await lease(app)} == {first.job.id, second.job.id}


async def test_release_of_a_free_key_answers_none(app: App) -> None:
    assert await app.release(b"\0" * 32) is None


async def test_release_of_an_ended_holder(app: App) -> None:
    mail = mailer(app, Unique.once(by="to"))
    first = await mail.enqueue(1)
    assert first.key is not None
    await run(app)
    assert await app.release(first.key) is not None
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_case_63_release_while_the_holder_runs_needs_force(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    assert first.key is not None
    running = await start(app)
    with pytest.raises(InvalidCall, match="force"):
        await app.release(first.key)
    assert (await mail.enqueue(1)).job.id == first.job.id

    assert await app.release(first.key, force=True) is not None
    second = await mail.enqueue(1)
    assert second.outcome is Outcome.CREATED
    assert (await complete(app, running)).state is State.COMPLETED
    assert (await mail.enqueue(1)).job.id == second.job.id  # the old one's finish frees nothing


async def test_case_63_release_by_force_promotes_the_successor(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    first = await mail.enqueue(1, "a")
    assert first.key is not None
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    await app.release(first.key, force=True)
    assert (await start(app)).id == successor.job.id
    assert (await complete(app, running)).state is State.COMPLETED


async def test_a_key_is_given_in_hexadecimal(app: App) -> None:
    with pytest.raises(InvalidCall, match="hexadecimal"):
        await app.release("customer 7")
