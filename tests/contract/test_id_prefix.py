"""A unique beginning of an id names a job of one's own namespace, wherever an id is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onejob import App, Job, State, Unique, batch, chain, current
from onejob.engine import short_ids
from onejob.errors import InvalidCall, UnknownJob
from onejob.stores.contract import FullStore as Store
from onejob.stores.redis.store import RedisStore
from onejob.testing import Clock, drain
from tests.contract.steps import discard, everything, mailer, start

UNIQUE = 23  # characters that no other id shares: the time, the count and two random digits

Act = Callable[[App, Job, str], Awaitable[Any]]


async def release(app: App, job: Job, short: str) -> Job | None:
    assert job.key is not None
    return await app.release(job.key, job=short)


WAITING: dict[str, Act] = {
    "job": lambda app, _, short: app.job(short),
    "cancel": lambda app, _, short: app.cancel(short),
    "delete": lambda app, _, short: app.delete(short),
    "reschedule": lambda app, _, short: app.reschedule(short, delay="1h"),
    "run_now": lambda app, _, short: app.run_now(short),
    "chain": lambda app, _, short: app.chain(short).last(),
    "cancel of a chain": lambda app, _, short: app.chain(short).cancel(),
    "release": release,
}


def beginning(job: Job, others: list[Job]) -> str:
    """Return the shortest beginning of a job's id, of four characters or more, that no other job has."""
    for length in range(short_ids.SHORTEST, len(job.id)):
        if not any(other.id.startswith(job.id[:length]) for other in others if other.id != job.id):
            return job.id[:length]
    raise AssertionError("two jobs have one id")


def shown(job: Job) -> str:
    """Return an id as the dashboard shows it."""
    return f"{job.id[:4]}…{job.id[-8:-4]}"


async def some_jobs(app: App, count: int = 5) -> list[Job]:
    """Enqueue jobs whose keys, and so the endings of whose ids, differ."""
    task = mailer(app, Unique(by="to"))
    return [(await task.enqueue(number)).job for number in range(count)]


@pytest.mark.parametrize("act", WAITING)
@pytest.mark.parametrize("write", [beginning, lambda job, others: beginning(job, others).upper()])
async def test_a_unique_beginning_names_a_job(
    app: App, act: str, write: Callable[[Job, list[Job]], str]
) -> None:
    jobs = await some_jobs(app)
    job = jobs[2]
    answer = await WAITING[act](app, job, write(job, jobs))
    assert answer.id == job.id
    changed = {one.id for one in await everything(app)} ^ {one.id for one in jobs}
    assert changed == ({job.id} if act == "delete" else set())


async def test_the_form_that_the_dashboard_shows_names_a_job(app: App) -> None:
    jobs = await some_jobs(app)
    forms = [shown(job) for job in jobs]
    for job in (one for one in jobs if forms.count(shown(one)) == 1):  # four digits may be equal by chance
        assert (await app.job(shown(job))).id == job.id
        assert (await app.job(shown(job).replace("…", "..."))).id == job.id


async def test_a_short_form_is_refused_if_it_could_not_be_compared_with_all(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await some_jobs(app)
    monkeypatch.setattr(short_ids, "COMPARED", len(jobs) - 1)
    with pytest.raises(UnknownJob, match=f"More than 4 jobs have an id that begins with '{jobs[0].id[:4]}'"):
        await app.job(shown(jobs[0]))


async def test_a_dead_letter_is_replayed_by_the_beginning_of_its_id(app: App) -> None:
    await mailer(app).enqueue(1)
    dead = await discard(app)
    replayed = await app.dead.replay(dead.id[:20])
    assert (replayed.job.id, replayed.job.state) == (dead.id, State.AVAILABLE)


async def test_why_is_answered_for_the_beginning_of_an_id(app: App) -> None:
    jobs = await some_jobs(app)
    answer = await app.why(beginning(jobs[1], jobs))
    assert answer.job is not None
    assert answer.job.id == jobs[1].id
    difference = (await app.why(beginning(jobs[1], jobs), beginning(jobs[3], jobs))).difference
    assert difference is not None
    assert (difference.one.id, difference.other.id) == (jobs[1].id, jobs[3].id)


async def test_several_jobs_are_rescheduled_by_beginnings(app: App) -> None:
    jobs = await some_jobs(app)
    moved = await app.reschedule([beginning(jobs[0], jobs), jobs[1].id], delay="1h")
    assert [job.id for job in moved] == [jobs[0].id, jobs[1].id]


async def test_a_chain_is_named_by_the_beginning_of_a_jobs_id(app: App) -> None:
    jobs = await some_jobs(app)
    chain = app.chain(beginning(jobs[4], jobs))
    assert [job.id for job in await chain.jobs()] == [jobs[4].id]
    assert chain.id == jobs[4].id


# ── after= and exclude= ───────────────────────────────────────────────────────────────────────────


async def test_a_job_waits_for_the_chain_that_a_beginning_names(app: App) -> None:
    jobs = await some_jobs(app)
    task = app.tasks["mail"]
    first, second = jobs[1].id[:UNIQUE], jobs[3].id[:UNIQUE]
    waiting = (await task.options(after=[first, jobs[0].id, second.upper()]).enqueue(10)).job
    assert (waiting.state, waiting.awaits) == (State.PENDING, [jobs[1].id, jobs[0].id, jobs[3].id])
    assert (await app.job(waiting.id)).awaits == waiting.awaits
    assert (await task.options(after=app.chain(first)).enqueue(11)).job.awaits == [jobs[1].id]
    assert (await task.options(after=[first, jobs[1]]).enqueue(12)).job.awaits == [jobs[1].id]
    await drain(app)
    assert (await app.job(waiting.id)).state is State.COMPLETED


async def test_a_later_job_of_a_chain_names_its_chain(app: App) -> None:
    task = mailer(app)
    admission = await chain(task.call(1), task.call(2)).enqueue()
    await drain(app)
    last = await admission.chain.last()
    assert last.id != admission.job.id
    waiting = (await task.options(after=last.id[:UNIQUE]).enqueue(3)).job
    assert waiting.awaits == [admission.job.id]


async def test_bulk_requests_wait_for_what_beginnings_name(app: App) -> None:
    jobs = await some_jobs(app)
    task = app.tasks["mail"]
    short = [job.id[:UNIQUE] for job in jobs]
    calls = [task.options(after=short[number]).call(10 + number) for number in range(3)]
    answers = await app.enqueue_many([*calls, task.call(20), task.options(exclude=short[0]).call(0)])
    assert [one.job.awaits for one in answers] == [[jobs[0].id], [jobs[1].id], [jobs[2].id], [], []]
    assert [one.outcome for one in answers] == ["created"] * 5
    callback = task.options(after=short[4]).call(31)
    members = await batch(task.options(after=short[3]).call(30), on_success=callback).enqueue()
    assert members.admissions[0].job.awaits == [jobs[3].id]
    assert members.callbacks["on_success"].job.awaits == [jobs[4].id, members.admissions[0].job.id]


async def test_a_chain_that_a_beginning_names_does_not_count_as_holder(app: App) -> None:
    jobs = await some_jobs(app)
    task, short = app.tasks["mail"], beginning(jobs[2], jobs)
    beside = task.options(exclude=[short])
    assert (await task.explain(2)).outcome == "kept"
    assert (await beside.explain(2)).outcome == "created"
    assert (await beside.enqueue(2)).outcome == "created"


@pytest.mark.parametrize("option", ["after", "exclude"])
async def test_an_option_refuses_a_beginning_that_names_no_job_or_several(app: App, option: str) -> None:
    jobs = await some_jobs(app)
    before = await everything(app)
    wrong = {
        "ffff": "No job has the id",
        jobs[0].id[:4]: "several ids",
        "019": "too short",
        "f" * 37: "36 char",
    }
    for short, why in wrong.items():
        call = app.tasks["mail"].options(**{option: short}).call(9)  # type: ignore[arg-type]
        with pytest.raises(UnknownJob, match=why):
            await call.enqueue()
        with pytest.raises(UnknownJob, match=why):
            await app.enqueue_many([call])
    assert await everything(app) == before


async def test_a_continuation_refuses_a_beginning_in_after(app: App) -> None:
    refused: list[str] = []

    @app.task
    async def next_one(short: str) -> None:
        try:
            current().continue_with(task.options(after=short).call(1))
        except InvalidCall as error:
            refused.append(str(error))

    task = mailer(app)
    await next_one.enqueue("01a1")
    await drain(app)
    assert refused == ["after= of a continuation needs whole ids, and '01a1' is short: give the job."]


@pytest.mark.parametrize("act", ["job", "cancel", "delete", "reschedule", "chain", "release"])
async def test_an_ambiguous_beginning_is_refused_with_candidates(app: App, act: str) -> None:
    jobs = await some_jobs(app)
    before = await everything(app)
    with pytest.raises(UnknownJob) as refusal:
        await WAITING[act](app, jobs[0], jobs[0].id[:4])
    assert str(refusal.value).startswith(f"'{jobs[0].id[:4]}' is the beginning of several ids: ")
    assert all(job.id in str(refusal.value) for job in jobs)
    assert await everything(app) == before


async def test_a_refusal_lists_at_most_five(app: App) -> None:
    jobs = await some_jobs(app, 6)
    with pytest.raises(UnknownJob, match="and more") as refusal:
        await app.job(jobs[0].id[:4])
    assert [job.id in str(refusal.value) for job in jobs] == [False, *[True] * 5]


@pytest.mark.parametrize("short", ["0", "019", "…1234"])
async def test_a_beginning_of_less_than_four_characters_is_refused(app: App, short: str) -> None:
    await some_jobs(app)
    with pytest.raises(UnknownJob, match="too short for an id: write at least its first 4 characters"):
        await app.job(short)


@pytest.mark.parametrize("short", ["ffff", "01990c3e-5c1f-7000", "zzzz", "0%__", "[…]", "ffff…1234"])
async def test_a_beginning_that_no_id_has_is_unknown(app: App, short: str) -> None:
    await some_jobs(app)
    with pytest.raises(UnknownJob):
        await app.job(short)


async def test_the_beginning_of_a_foreign_id_is_unknown(app: App, store: Store) -> None:
    foreign = (await some_jobs(app))[0]
    async with App(store=store, namespace="other") as other:
        own = (await mailer(other).enqueue(1)).job
        assert (await other.job(own.id[:4])).id == own.id
        for act in ("job", "cancel", "delete", "reschedule", "chain"):
            with pytest.raises(UnknownJob, match="No job has the id"):
                await WAITING[act](other, foreign, foreign.id[:30])
    assert (await app.job(foreign.id)).state is State.AVAILABLE


async def test_a_key_is_released_only_if_the_named_job_holds_it(app: App) -> None:
    jobs = await some_jobs(app)
    assert jobs[0].key is not None
    with pytest.raises(InvalidCall, match=f"not job {jobs[1].id}"):
        await app.release(jobs[0].key, job=beginning(jobs[1], jobs))


async def test_jobs_in_every_state_are_found(app: App) -> None:
    task = mailer(app)
    ended = (await task.enqueue(1)).job
    await discard(app)
    running = (await task.enqueue(2)).job
    await start(app)
    later = (await task.options(delay="1h").enqueue(3)).job
    for job in (ended, running, later):
        assert (await app.job(beginning(job, [ended, running, later]))).id == job.id


async def test_a_whole_id_costs_no_lookup(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = await some_jobs(app)

    async def fail(*_: object) -> None:
        raise AssertionError("a whole id was looked up")

    monkeypatch.setattr("onejob.engine.engine.find_by_short_id", fail)
    monkeypatch.setattr("onejob.engine.short_ids.find_by_short_id", fail)
    named = app.tasks["mail"].options(after=jobs[1].id, exclude=jobs[2].id)
    assert (await named.enqueue(9)).job.awaits == [jobs[1].id]
    for act in ("job", "chain", "release", "reschedule", "cancel", "delete"):
        assert (await WAITING[act](app, jobs[0], jobs[0].id)).id == jobs[0].id


def test_blocking_calls_take_beginnings_too(store: Store) -> None:
    app = App(store=store)
    try:
        job = mailer(app).enqueue_sync(1).job
        assert app.job_sync(job.id[:8]).id == job.id
        assert app.reschedule_sync(job.id[:8], delay="1h").id == job.id
        task = app.tasks["mail"]
        assert task.options(after=job.id[:8]).enqueue_sync(2).job.awaits == [job.id]
        assert app.enqueue_many_sync([task.options(after=job.id[:30]).call(3)])[0].job.awaits == [job.id]
        assert app.cancel_sync(job.id[:30]).state is State.CANCELLED
    finally:
        app.close_sync()


async def test_beginnings_are_found_in_every_bucket(redis_url: str, clock: Clock) -> None:
    """On a cluster the ending of an id says where its job lies, which a beginning does not have."""
    mark = "&" if "?" in redis_url else "?"
    async with App(store=RedisStore(f"{redis_url}{mark}buckets=8", clock=clock)) as app:
        jobs = await some_jobs(app)
        assert len({int(job.id[-4:], 16) % 8 for job in jobs}) > 1
        for job in jobs:
            assert (await app.job(beginning(job, jobs))).id == job.id
        with pytest.raises(UnknownJob, match="several ids"):
            await app.cancel(jobs[0].id[:4])
