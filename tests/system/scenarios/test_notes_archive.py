"""The notes archive: one job per note, one per task without a note, and no request lost (S0)."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onejob import App, Outcome, Retry, State, Task, Unique
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from tests.system.scenarios.stage import Stage, crash_in, live, run_due, until

Embed = Task[..., None]


def embedding(app: App, stage: Stage, policy: Unique, *, attempts: int = 1) -> Embed:
    @app.task(name="embed_note", unique=policy, retry=Retry(attempts, base="1s", jitter=0))
    async def embed_note(note_id: str | None, text: str = "") -> None:
        await stage.play((note_id, text))
        if text == "fail":
            raise RuntimeError("no embedding today")

    return embed_note


def maintenance(app: App, stage: Stage, policy: Unique) -> Embed:
    @app.task(name="graph_maintenance", unique=policy)
    async def graph_maintenance(note_id: str | None = None, text: str = "") -> None:
        await stage.play((note_id, text))

    return graph_maintenance


KEEP = Unique(by="note_id")
COALESCE = Unique.coalesce(by="note_id")


async def test_one_waiting_or_running_job_per_note(app: App, stage: Stage) -> None:
    """S0.1, S0.5, S0.6, S0.16: waiting and running block; the answer names the job that is there."""
    embed = embedding(app, stage, KEEP)
    stage.close()
    first = await embed.enqueue("a")
    again = await embed.enqueue("a")
    assert (first.outcome, again.outcome) == (Outcome.CREATED, Outcome.KEPT)
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again.job.id == first.job.id
    async with app.worker():
        await stage.begun(1)
        running = await embed.enqueue("a")
        assert running.outcome is Outcome.KEPT
        assert running.job.state is State.ACTIVE
        assert len(await live(app, "embed_note")) == 1
        stage.open()
        await first.result(30)
    assert stage.runs == [("a", "")]


@pytest.mark.parametrize("end", [State.COMPLETED, State.DISCARDED, State.CANCELLED])
async def test_an_ended_job_does_not_block(app: App, stage: Stage, end: State) -> None:
    """S0.6: a completed, failed or cancelled predecessor lets the next one in."""
    embed = embedding(app, stage, KEEP)
    first = await embed.enqueue("a", "fail" if end is State.DISCARDED else "")
    if end is State.CANCELLED:
        await app.cancel(first.job.id)
    await run_due(app)
    assert (await app.job(first.job.id)).state is end
    assert (await embed.enqueue("a")).outcome is Outcome.CREATED


async def test_one_job_per_task_without_a_note(app: App, stage: Stage) -> None:
    """S0.2, S0.3, S0.11: None is a value, so any task asked for without a note has one."""
    tidy, embed = maintenance(app, stage, KEEP), embedding(app, stage, KEEP)
    first = await tidy.enqueue()
    assert (await tidy.enqueue(None)).job.id == first.job.id
    assert (await tidy.enqueue(note_id=None)).outcome is Outcome.KEPT

    assert (await embed.enqueue(None)).outcome is Outcome.CREATED  # another task: the same rule, no more code
    assert (await embed.enqueue(None)).outcome is Outcome.KEPT
    assert {job.queue for job in await app.jobs()} == {"default"}


async def test_no_note_is_not_any_note(app: App, stage: Stage) -> None:
    """S0.7, S0.13: with and without a note do not block each other; one path makes their keys."""
    embed = embedding(app, stage, KEEP)
    outcomes = [(await embed.enqueue(note)).outcome for note in (None, "a", "None", "null", "")]
    assert outcomes == [Outcome.CREATED] * 5
    without, with_note = await embed.explain(None), await embed.explain("a")
    assert without.dimensions["args"] == {"note_id": None}
    assert with_note.dimensions["args"] == {"note_id": "a"}
    assert {**without.dimensions, "args": 0} == {**with_note.dimensions, "args": 0}


async def test_different_notes_run_in_parallel(app: App, stage: Stage) -> None:
    """S0.4: the same task for different notes waits and runs at the same time."""
    embed = embedding(app, stage, COALESCE)
    stage.close()
    for note in "abc":
        await embed.enqueue(note)
    async with app.worker(concurrency=4):
        await stage.begun(3)
        assert sorted(note for note, _ in stage.running) == ["a", "b", "c"]
        stage.open()
        await run_due(app)


async def test_a_thousand_triggers_during_a_run_leave_one_waiting(app: App, stage: Stage) -> None:
    """S0.8, S0.12: no pile-up, and the newest request runs after the run that may have missed it."""
    tidy = maintenance(app, stage, COALESCE)
    stage.close()
    await tidy.enqueue(None, "0")
    async with app.worker():
        await stage.begun(1)
        answers = await app.enqueue_many([tidy.call(None, str(number)) for number in range(1, 1001)])
        assert [job.state for job in await live(app, "graph_maintenance")] == [State.ACTIVE, State.PENDING]
        assert [answer.outcome for answer in answers] == [Outcome.RERUN] + [Outcome.UPDATED] * 999
        assert {answer.job.id for answer in answers} == {answers[0].job.id}
        stage.open()
        await answers[-1].result(30)
    assert stage.runs == [(None, "0"), (None, "1000")]
    assert (await app.stats()).absorbed == {"graph_maintenance": {"rerun": 1, "updated": 999}}


async def test_a_global_task_never_overlaps_itself(app: App, stage: Stage) -> None:
    """S0.9: with several workers and many producers, one runs at a time."""
    tidy = maintenance(app, stage, COALESCE)

    async def produce(producer: int) -> None:
        for number in range(20):
            await tidy.enqueue(None, f"{producer}/{number}")
            await asyncio.sleep(0)

    async with app.worker(), app.worker(), app.worker():
        await asyncio.gather(*(produce(number) for number in range(8)))
        await run_due(app)
    assert stage.most_at_once == 1
    assert stage.runs
    assert await live(app, "graph_maintenance") == []


async def test_an_enqueue_inside_a_handler_never_fails_it(
    app: App, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """S0.10: the follow-up that cannot be enqueued is logged, and the note is embedded all the same."""
    tidy = maintenance(app, stage, COALESCE)

    @app.task(unique=KEEP)
    async def embed(note_id: str) -> str:  # noqa: ARG001 - the key
        good = await tidy.enqueue_quietly()
        bad = await tidy.enqueue_quietly(float("nan"))
        return f"{good and good.outcome}, {bad}"

    @app.task(unique=KEEP)
    def embed_in_thread(note_id: str) -> str:  # noqa: ARG001 - the key
        bad = tidy.enqueue_quietly_sync(object())
        return f"{bad}"

    with caplog.at_level(logging.ERROR, "onejob"):
        first, second = await embed.enqueue("a"), await embed_in_thread.enqueue("a")
        await run_due(app)
    assert await first.result(30) == "created, None"
    assert await second.result(30) == "None"
    assert [record.message for record in caplog.records] == [
        "a quiet enqueue of graph_maintenance failed"
    ] * 2


async def test_many_embeddings_ask_for_one_maintenance(app: App, stage: Stage) -> None:
    """S0.8, S0.10: a hundred notes that each ask for maintenance cost two runs of it, not a hundred."""
    tidy = maintenance(app, stage, COALESCE)

    @app.task(unique=KEEP)
    async def embed(note_id: int) -> None:  # noqa: ARG001 - the key
        await tidy.enqueue_quietly()

    await app.enqueue_many([embed.call(number) for number in range(100)])
    stage.close()
    async with app.worker(concurrency=8):
        await stage.begun(1)
        while (await app.stats()).by_state[State.COMPLETED] < 100:
            await app._engine.store.wait(0.05)
        stage.open()
        await run_due(app)
    assert len(stage.runs) == 2
    assert sum((await app.stats()).absorbed["graph_maintenance"].values()) == 99


async def test_a_stale_waiting_job_is_refreshed(app: App, stage: Stage) -> None:
    """S0.12: update gives the waiting job the fresh payload, under the same id."""
    embed = embedding(app, stage, Unique(by="note_id", on_conflict="update"))
    stale = await embed.enqueue("a", "old")
    fresh = await embed.enqueue("a", "new")
    assert fresh.outcome is Outcome.UPDATED
    assert fresh.job.id == stale.job.id
    assert fresh.payload_differs
    await run_due(app)
    assert stage.runs == [("a", "new")]


async def test_a_stale_waiting_job_is_replaced(app: App, stage: Stage) -> None:
    """S0.12: replace cancels the waiting job and names the one that took its place."""
    embed = embedding(app, stage, Unique(by="note_id", on_conflict="replace"))
    stale = await embed.enqueue("a", "old")
    fresh = await embed.enqueue("a", "new")
    assert fresh.outcome is Outcome.REPLACED
    old = await app.job(stale.job.id)
    assert (old.state, old.reason, old.superseded_by) == (State.CANCELLED, "superseded", fresh.job.id)
    await run_due(app)
    assert stage.runs == [("a", "new")]
    await stale.result(30)  # whoever waits for the old one gets the new one's result


async def test_force_adds_a_second_one_without_cancelling_the_first(app: App, stage: Stage) -> None:
    """S0.14: both run; the next ordinary request meets the forced one; the key is free after both."""
    tidy = maintenance(app, stage, KEEP)
    stage.close()
    first = await tidy.enqueue()
    forced = await tidy.options(force=True).enqueue()
    assert forced.outcome is Outcome.FORCED
    assert not forced.deduplicated
    assert (await tidy.enqueue()).job.id == forced.job.id
    async with app.worker():
        await stage.begun(2)
        assert stage.most_at_once == 2
        stage.open()
        await asyncio.gather(first.result(30), forced.result(30))
    assert (await tidy.enqueue()).outcome is Outcome.CREATED


async def test_the_store_holds_the_guarantee(tmp_path: Path, stage: Stage) -> None:
    """S0.15: sixteen producers with connections of their own, on both kinds of key: one job each."""
    apps = [App(store=SQLiteStore(tmp_path / "jobs.db", synchronous="NORMAL")) for _ in range(16)]
    tasks = [embedding(app, stage, KEEP) for app in apps]
    with ThreadPoolExecutor(16) as pool:
        for note in (None, *"abcdefghi"):
            answers = list(pool.map(lambda task, note=note: task.enqueue_sync(note), tasks))
            outcomes = sorted(answer.outcome for answer in answers)
            assert outcomes == [Outcome.CREATED] + [Outcome.KEPT] * 15
            assert len({answer.job.id for answer in answers}) == 1
    for app in apps:
        await app.close()


async def test_a_crash_does_not_block_the_key_for_good(app: App, stage: Stage, clock: Clock) -> None:
    """S0.17: a dead worker's job keeps its key, comes back after lease and backoff, and runs."""
    embed = embedding(app, stage, KEEP, attempts=3)
    asked = await embed.enqueue("a")
    assert [job.id for job in await crash_in(app)] == [asked.job.id]

    clock.advance("14s")
    assert await app.maintenance.sweep() == (0, 0)
    clock.advance("1s")
    assert await app.maintenance.sweep() == (1, 0)
    taken_back = await app.job(asked.job.id)
    assert (taken_back.state, taken_back.attempt) == (State.RETRYABLE, 1)
    assert taken_back.failures[0]["type"] == "LeaseExpired"
    assert taken_back.run_at > clock()
    assert (await embed.enqueue("a")).outcome is Outcome.KEPT

    clock.advance("5s")
    await run_due(app)
    assert (await app.job(asked.job.id)).state is State.COMPLETED


async def test_crashes_count_as_attempts_and_then_free_the_key(app: App, stage: Stage, clock: Clock) -> None:
    """S0.17: a job that kills every worker ends as a dead letter, within the retry limit."""
    embed = embedding(app, stage, KEEP, attempts=3)
    asked = await embed.enqueue("a")
    for _ in range(3):
        assert len(await crash_in(app)) == 1
        clock.advance("1m")
        await app.maintenance.sweep()
        clock.advance("1m")
    dead = await app.job(asked.job.id)
    assert (dead.state, dead.attempt) == (State.DISCARDED, 3)
    assert (await embed.enqueue("a")).outcome is Outcome.CREATED


async def test_a_request_during_a_crashed_run_is_not_lost(app: App, stage: Stage, clock: Clock) -> None:
    """S0.12, S0.17: the successor takes over from a worker that died."""
    embed = embedding(app, stage, COALESCE, attempts=3)
    first = await embed.enqueue("a", "old")
    await crash_in(app)
    late = await embed.enqueue("a", "new")
    assert late.outcome is Outcome.RERUN
    clock.advance("20s")
    await app.maintenance.sweep()
    clock.advance("20s")
    await run_due(app)
    assert stage.runs == [("a", "new")]
    assert (await app.job(first.job.id)).superseded_by == late.job.id


async def test_state_survives_a_restart(restart: Callable[[], App], stage: Stage) -> None:
    """S0.15: the rule is in the file, not in the process."""
    async with restart() as before:
        asked = await embedding(before, stage, KEEP).enqueue("a")
    async with restart() as after:
        assert (await embedding(after, stage, KEEP).enqueue("a")).job.id == asked.job.id
        await run_due(after)
        assert (await until(after, asked.job, State.COMPLETED)).attempt == 1
