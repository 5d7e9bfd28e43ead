"""Keyed start: an explicit key, a scope and a window; the answer is the job that is there (S3)."""

import sqlite3
from pathlib import Path

import pytest

from onejob import App, Outcome, State, Task, Unique
from onejob.errors import InvalidCall
from onejob.stores.sqlite.store import SQLiteStore
from onejob.tasks.task import builder_of
from onejob.testing import Clock
from tests.system.scenarios.stage import Stage, run_due

CREATED, KEPT = Outcome.CREATED, Outcome.KEPT

INCOMPLETE = Unique(until="finish")
ANY = Unique(until="forever")


def processing(app: App, stage: Stage, name: str = "process") -> Task[[int], str]:
    @app.task(name=name)
    async def process(user_id: int) -> str:
        await stage.play(user_id)
        return f"processed {user_id}"

    return process


async def test_without_a_key_every_start_is_new(app: App, stage: Stage) -> None:
    """S3.15: no deduplication option, no deduplication."""
    process = processing(app, stage)
    starts = [await process.enqueue(1) for _ in range(3)]
    assert [start.deduplicated for start in starts] == [False] * 3
    assert len({start.job.id for start in starts}) == 3
    assert starts[0].key is None


async def test_the_same_key_answers_with_the_existing_job(app: App, stage: Stage) -> None:
    """S3.1, S3.2, S3.3, S3.4: the job that is there, deduplicated; the new input is ignored, and it shows."""
    start = processing(app, stage).options(key="user-123")
    first, again = await start.enqueue(123), await start.enqueue(456)
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again.job.id == first.job.id
    assert again.job.arguments == {"user_id": 123}
    assert (first.payload_differs, again.payload_differs) == (False, True)
    await run_due(app)
    assert stage.runs == [123]
    assert await again.result(30) == "processed 123"


async def test_scope_incomplete_matches_until_the_end(app: App, stage: Stage) -> None:
    """S3.5: waiting and running jobs match, a finished one does not; this is the default."""
    process = processing(app, stage)
    assert builder_of(process.options(key="k")).policy == Unique(key="k", until="finish")
    start = process.options(key="k", unique=INCOMPLETE)
    stage.close()
    first = await start.enqueue(1)
    async with app.worker():
        await stage.begun(1)
        running = await start.enqueue(1)
        assert (running.outcome, running.job.state) == (KEPT, State.ACTIVE)
        stage.open()
        await first.result(30)
    assert (await start.enqueue(1)).outcome is CREATED


async def test_scope_any_matches_finished_jobs_too(app: App, stage: Stage, clock: Clock) -> None:
    """S3.6, S3.7: without a window a finished job answers for ever, with its result."""
    start = processing(app, stage).options(key="k", unique=ANY)
    first = await start.enqueue(1)
    await run_due(app)
    clock.advance("365d")
    again = await start.enqueue(2)
    assert (again.outcome, again.job.id, again.job.state) == (KEPT, first.job.id, State.COMPLETED)
    assert await again.result(30) == "processed 1"
    await run_due(app)
    assert stage.runs == [1]


async def test_scope_any_within_a_window(app: App, stage: Stage, clock: Clock) -> None:
    """S3.7: finished jobs match up to the age of the window, not beyond."""
    start = processing(app, stage).options(key="k", unique=Unique(until="forever", within="60s"))
    await start.enqueue(1)
    await run_due(app)
    clock.advance("59s")
    assert (await start.enqueue(1)).outcome is KEPT
    clock.advance("1s")
    assert (await start.enqueue(1)).outcome is CREATED


async def test_scope_incomplete_within_a_window(app: App, stage: Stage, clock: Clock) -> None:
    """S3.7: scope AND window: an unfinished job matches only while it is young, a finished one not at all."""
    start = processing(app, stage).options(key="k", unique=Unique(until="finish", within="60s"))
    first = await start.enqueue(1)
    clock.advance("59s")
    assert (await start.enqueue(1)).job.id == first.job.id
    clock.advance("1s")
    second = await start.enqueue(1)
    assert second.outcome is CREATED
    await run_due(app)
    assert (await start.enqueue(1)).outcome is CREATED


async def test_the_newcomers_window_counts_even_if_the_holder_has_none(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S3.7: whoever starts says how far back to look, as in Queuert."""
    process = processing(app, stage)
    await process.options(key="k", unique=ANY).enqueue(1)
    clock.advance("61s")
    look_back = process.options(key="k", unique=Unique(until="forever", within="60s"))
    assert (await look_back.enqueue(1)).outcome is CREATED


async def test_pruning_does_not_shorten_a_window(app: App, stage: Stage, clock: Clock) -> None:
    """S3.6, S3.7: the record of a finished job may go; what it stands for stays."""
    start = processing(app, stage).options(key="k", unique=Unique(until="forever", within="30d"))
    first = await start.enqueue(1)
    await run_due(app)
    clock.advance("8d")  # completed jobs are kept for 7
    await app.maintenance.prune()
    again = await start.enqueue(1)
    assert (again.outcome, again.job.id) == (KEPT, first.job.id)
    clock.advance("22d")
    assert (await start.enqueue(1)).outcome is CREATED


async def test_another_task_with_the_same_key_does_not_conflict(app: App, stage: Stage) -> None:
    """S3.16: a key belongs to its task; unless two tasks name a common family."""
    one, other = processing(app, stage), processing(app, stage, "other")
    await one.options(key="k").enqueue(1)
    assert (await other.options(key="k").enqueue(1)).outcome is CREATED

    shared = Unique(family="users")
    await one.options(key="u", unique=shared).enqueue(1)
    assert (await other.options(key="u", unique=shared).enqueue(1)).outcome is KEPT


async def test_a_batch_is_deduplicated_in_its_order(app: App, stage: Stage) -> None:
    """S3.17: in one batch the first of a key is created, the others answer with it, each in its place."""
    process = processing(app, stage)
    before = await process.options(key="a").enqueue(0)
    keys = ["b", "a", "b", "c", "b"]
    answers = await app.enqueue_many([process.options(key=key).call(n) for n, key in enumerate(keys)])
    assert [answer.outcome for answer in answers] == [CREATED, KEPT, KEPT, CREATED, KEPT]
    assert answers[1].job.id == before.job.id
    assert answers[2].job.id == answers[4].job.id == answers[0].job.id
    assert answers[4].job.arguments == {"user_id": 0}


async def test_one_transaction_is_deduplicated_and_rolls_back_whole(tmp_path: Path, stage: Stage) -> None:
    """S3.17: inside the caller's transaction the same rules hold, and nothing exists unless it commits."""
    async with App(store=SQLiteStore(tmp_path / "jobs.db", synchronous="NORMAL")) as app:
        process = processing(app, stage)
        assert await app.jobs() == []
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        start = process.options(key="k", connection=connection)
        for end, found in (("ROLLBACK", 0), ("COMMIT", 1)):
            connection.execute("BEGIN IMMEDIATE")
            outcomes = [(await start.enqueue(number)).outcome for number in range(3)]
            assert outcomes == [CREATED, KEPT, KEPT]
            connection.execute(end)
            assert len(await app.jobs()) == found
        connection.close()
        assert (await app.stats()).absorbed == {"process": {"kept": 2}}


async def test_a_job_can_start_its_own_next_run(app: App, stage: Stage) -> None:
    """S3.20: a request of a run's own key is not absorbed by that run: it follows, without overlap."""

    @app.task(unique=Unique.singleton())
    async def poll(left: int) -> None:
        await stage.play(left)
        if left:
            answer = await poll.enqueue(left - 1)
            assert answer.outcome is Outcome.RERUN

    await poll.enqueue(3)
    await run_due(app)
    assert stage.runs == [3, 2, 1, 0]
    assert stage.most_at_once == 1


async def test_the_duplicates_answer_shows_the_true_state(app: App, stage: Stage) -> None:
    """S3.22: what a duplicate is told about the job is what is true at that moment."""
    start = processing(app, stage).options(key="k", unique=ANY)
    stage.close()
    first = await start.enqueue(1)
    seen = [(await start.enqueue(1)).job.state]
    async with app.worker():
        await stage.begun(1)
        seen.append((await start.enqueue(1)).job.state)
        stage.open()
        await first.result(30)
    seen.append((await start.enqueue(1)).job.state)
    assert seen == [State.AVAILABLE, State.ACTIVE, State.COMPLETED]


async def test_explain_says_what_an_enqueue_would_do(app: App, stage: Stage, clock: Clock) -> None:
    """S3.2, S3.7: verdict, holder and the end of the hold, without starting or counting anything."""
    start = processing(app, stage).options(key="k", unique=Unique(until="forever", within="60s"))
    assert (await start.explain(1)).outcome is CREATED
    first = await start.enqueue(1)
    told = await start.explain(1)
    assert told.outcome is KEPT
    assert told.holder is not None
    assert told.holder.id == first.job.id
    assert told.frees_at == clock.advance("60s")
    assert len(await app.jobs()) == 1
    assert (await app.stats()).absorbed == {}


async def test_an_empty_key_is_refused(app: App, stage: Stage) -> None:
    """S3.1: a key that would make everything one job is a mistake."""
    with pytest.raises(InvalidCall, match="key="):
        processing(app, stage).options(key="")
