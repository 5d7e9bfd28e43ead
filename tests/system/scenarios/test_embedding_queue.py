"""The embedding queue: the latest version wins, three at once, retries, dead letters, restarts (S2)."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from onejob import App, Outcome, Retry, State, Task, Unique, current
from onejob.errors import JobFailed, NotCovered
from onejob.testing import Clock
from tests.system.live import PATIENCE, wait_for_hints_only
from tests.system.scenarios.stage import Stage, crash_in, live, run_due, until

Embed = Task[..., str]
LATEST = Unique.latest(by="entry_id", version="seq")


def embedding(app: App, stage: Stage, *, retry: Retry | None = None, policy: Unique = LATEST) -> Embed:
    """Declare the whole queue; there is nothing else to it (S2.19)."""
    app.queue("embeddings", concurrency=3)

    @app.task(queue="embeddings", unique=policy, retry=retry or Retry.embedding())
    async def embed(entry_id: str, seq: int, text: str = "") -> str:
        await stage.play((entry_id, seq))
        if text.startswith("fail"):
            raise ConnectionError(f"no embedding of {entry_id}")
        return f"{entry_id} v{seq}"

    return embed


# ── one waiting job per entry, the latest ─────────────────────────────────────────────────────────


async def test_enqueue_does_not_wait_for_the_work(app: App, stage: Stage) -> None:
    """S2.1: fire and forget; nobody works here, and the answer is there all the same."""
    asked = await embedding(app, stage).enqueue("a", 1)
    assert (asked.outcome, asked.job.state) == (Outcome.CREATED, State.AVAILABLE)


async def test_a_newer_version_takes_over_the_waiting_job(app: App, stage: Stage) -> None:
    """S2.2, S2.4, S2.12: same job, same place in the queue, one entry, the new content."""
    embed = embedding(app, stage)
    first = await embed.enqueue("a", 1, "old")
    newer = await embed.enqueue("a", 2, "new")
    assert newer.outcome is Outcome.UPDATED
    assert (newer.job.id, newer.job.place) == (first.job.id, first.job.place)
    [waiting] = await live(app, "embed")
    assert waiting.arguments == {"entry_id": "a", "seq": 2, "text": "new"}


@pytest.mark.parametrize("seq", [2, 1, -1])
async def test_a_version_that_is_not_newer_is_stale(app: App, stage: Stage, seq: int) -> None:
    """S2.3: equal and older ones are discarded while the latest waits, runs, and after it has ended."""
    embed = embedding(app, stage)
    stage.close()
    latest = await embed.enqueue("a", 2)
    answers = [await embed.enqueue("a", seq)]
    async with app.worker():
        await stage.begun(1)
        answers.append(await embed.enqueue("a", seq))
        stage.open()
        await latest.result(30)
    answers.append(await embed.enqueue("a", seq))
    assert [answer.outcome for answer in answers] == [Outcome.STALE] * 3
    assert {answer.job.id for answer in answers} == {latest.job.id}
    assert stage.runs == [("a", 2)]


async def test_first_come_first_served_by_the_first_arrival_of_each_entry(app: App, stage: Stage) -> None:
    """S2.5: an update does not send an entry to the back of the queue."""
    embed = embedding(app, stage)
    for entry, seq in (("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)):
        await embed.enqueue(entry, seq)
    await run_due(app, concurrency=1)
    assert stage.runs == [("a", 3), ("b", 2), ("c", 1)]


async def test_an_old_version_is_skipped_when_its_turn_comes(app: App, stage: Stage) -> None:
    """S2.6: one that waits without being the latest ends superseded instead of running."""
    embed = embedding(app, stage)
    old = await embed.enqueue("a", 1)
    new = await embed.options(force=True).enqueue("a", 2)  # force leaves the old one in the queue
    assert (await app.job(old.job.id)).state is State.AVAILABLE
    await run_due(app)
    assert stage.runs == [("a", 2)]
    skipped = await app.job(old.job.id)
    assert (skipped.state, skipped.reason, skipped.superseded_by) == (
        State.CANCELLED,
        "superseded",
        new.job.id,
    )
    assert await old.result(30) == "a v2"


async def test_a_thousand_updates_cost_one_run(app: App, stage: Stage) -> None:
    """S2.12, S2.13: before a slot is free they cost one run, with the last content."""
    embed = embedding(app, stage)
    answers = await app.enqueue_many([embed.call("a", seq, f"text {seq}") for seq in range(1, 1001)])
    assert len(await live(app, "embed")) == 1
    assert [answer.outcome for answer in answers[1:]] == [Outcome.UPDATED] * 999
    await run_due(app)
    assert stage.runs == [("a", 1000)]


async def test_a_thousand_updates_during_a_run_cost_two_runs(app: App, stage: Stage) -> None:
    """S2.13, S2.14: they wait as one, which runs after the run that they came too late for."""
    embed = embedding(app, stage)
    stage.close()
    await embed.enqueue("a", 1)
    async with app.worker():
        await stage.begun(1)
        await app.enqueue_many([embed.call("a", seq) for seq in range(2, 1002)])
        stage.open()
        await run_due(app)
    assert stage.runs == [("a", 1), ("a", 1001)]
    assert stage.most_at_once == 1


async def test_key_parts_are_encoded_not_joined(app: App) -> None:
    """S2.25: ("a:b", "c") and ("a", "b:c") are different entries."""

    @app.task(unique=Unique.latest(by=["entry_type", "entry_id"], version="seq"))
    async def embed(entry_type: str, entry_id: str, seq: int) -> None: ...

    parts = [("a:b", "c"), ("a", "b:c"), ("a", "b"), ("a:b:c", ""), ("", "a:b:c")]
    answers = [await embed.enqueue(kind, entry, 1) for kind, entry in parts]
    assert [answer.outcome for answer in answers] == [Outcome.CREATED] * 5


# ── three at once ─────────────────────────────────────────────────────────────────────────────────


async def test_never_more_than_three_and_the_next_starts_at_once(app: App, stage: Stage) -> None:
    """S2.7, S2.8: three in flight over two workers; each that ends lets the next one begin."""
    embed = embedding(app, stage)
    stage.close()
    await app.enqueue_many([embed.call(f"entry {number}", 1) for number in range(8)])
    async with app.worker(concurrency=8), app.worker(concurrency=8):
        await stage.begun(3)
        assert (await app.stats()).running == 3
        for begun in range(4, 9):
            stage.let_one_end()
            await stage.begun(begun)
        stage.open()
        await run_due(app)
    assert stage.most_at_once == 3
    assert len(stage.runs) == 8


async def test_a_worker_notices_every_request(
    app: App, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.8: no request slips by between a worker's look and its wait, nor a result between ours."""
    embed = embedding(app, stage)
    wait_for_hints_only(app._engine.store, monkeypatch)
    async with app.worker():
        for seq in range(1, 101):
            await (await embed.enqueue("a", seq)).result(PATIENCE)


async def test_concurrency_retries_and_backoff_are_configuration(app: App, stage: Stage) -> None:
    """S2.16: each is a parameter of queue, worker or task."""

    @app.task(queue="wide", retry=Retry(attempts=1))
    async def embed(number: int) -> None:
        await stage.play(number)
        raise ConnectionError

    app.queue("wide", concurrency=5)
    stage.close()
    await app.enqueue_many([embed.call(number) for number in range(7)])
    async with app.worker(concurrency=8):
        await stage.begun(5)
        stage.open()
        await run_due(app)
    assert stage.most_at_once == 5
    assert len(await app.dead.list()) == 7


# ── an update while the entry is being processed ──────────────────────────────────────────────────


async def test_an_old_result_never_overwrites_a_newer_one(app: App, stage: Stage) -> None:
    """S2.14: a run overtaken by a newer version ends superseded, keeps no result, and can know it."""
    app.queue("embeddings", concurrency=3)
    vectors: dict[str, int] = {}

    @app.task(queue="embeddings", unique=LATEST)
    async def embed(entry_id: str, seq: int) -> int:
        await stage.play((entry_id, seq))
        if await current().is_latest():
            vectors[entry_id] = seq
        return seq

    stage.close()
    old = await embed.enqueue("a", 1)
    async with app.worker():
        await stage.begun(1)
        new = await embed.enqueue("a", 2)
        assert (new.outcome, new.job.state) == (Outcome.RERUN, State.PENDING)
        stage.open()
        assert await new.result(30) == 2
        assert await old.result(30) == 2  # the old request is answered by the newer run
    assert vectors == {"a": 2}
    ended = await app.job(old.job.id)
    assert (ended.state, ended.reason, ended.result) == (State.CANCELLED, "superseded", None)


async def test_a_forced_older_run_cannot_overwrite_either(app: App, stage: Stage) -> None:
    """S2.14: even side by side with the newer one, the older finisher ends superseded."""
    embed = embedding(app, stage)
    stage.close()
    old = await embed.enqueue("a", 1)
    async with app.worker():
        await stage.begun(1)
        new = await embed.options(force=True).enqueue("a", 2)
        await stage.begun(2)
        stage.open()
        await run_due(app)
    assert (await app.job(old.job.id)).superseded_by == new.job.id
    assert (await app.job(new.job.id)).state is State.COMPLETED


# ── failure ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 30), (6, 30), (500, 30)]
)
def test_backoff_is_the_seeds(failures: int, seconds: int) -> None:
    """S2.9: min(1000 · 2^failures, 30000) ms, whatever the chance of jitter."""
    for chance in (0.0, 0.5, 0.99):
        assert Retry.embedding().delay(failures, chance) == timedelta(seconds=seconds)


async def test_a_failure_is_counted_kept_and_retried_after_the_backoff(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S2.9, S2.21: attempts, last error, 2 s, 4 s; a retry is never stale against its own version."""
    embed = embedding(app, stage, retry=Retry.embedding(attempts=3))
    asked = await embed.enqueue("a", 1, "fail")
    for attempt, wait in ((1, 2), (2, 4)):
        await run_due(app)
        failed = await app.job(asked.job.id)
        assert (failed.state, failed.attempt) == (State.RETRYABLE, attempt)
        assert failed.failures[-1]["message"] == "no embedding of a"
        assert failed.run_at - clock() == timedelta(seconds=wait)
        clock.advance(wait - 0.001)
        await run_due(app)
        assert len(stage.runs) == attempt
        clock.advance(0.001)
    await run_due(app)
    assert stage.runs == [("a", 1)] * 3
    assert (await app.job(asked.job.id)).state is State.DISCARDED


async def test_a_retry_succeeds_with_its_own_version(app: App, stage: Stage, clock: Clock) -> None:
    """S2.21: the seed's retry is discarded by its own version; this one runs and completes."""
    app.queue("embeddings", concurrency=3)

    @app.task(queue="embeddings", unique=LATEST, retry=Retry.embedding())
    async def embed(entry_id: str, seq: int) -> str:
        await stage.play((entry_id, seq))
        if current().attempt == 1:
            raise ConnectionError
        return "embedded"

    asked = await embed.enqueue("a", 7)
    await run_due(app)
    clock.advance("2s")
    await run_due(app)
    assert await asked.result(30) == "embedded"
    assert stage.runs == [("a", 7)] * 2


async def test_a_retry_gives_way_to_a_newer_version(app: App, stage: Stage, clock: Clock) -> None:
    """S2.22: a newer version takes over the waiting retry; the old one never runs again."""
    embed = embedding(app, stage)
    await embed.enqueue("a", 1, "fail")
    await run_due(app)
    newer = await embed.enqueue("a", 2)
    assert (newer.outcome, newer.job.attempt) == (Outcome.UPDATED, 0)
    clock.advance("1m")
    await run_due(app)
    assert stage.runs == [("a", 1), ("a", 2)]


async def test_a_failed_run_gives_way_to_its_successor(app: App, stage: Stage, clock: Clock) -> None:
    """S2.14, S2.22: a run that fails after a newer version came is not retried; the newer one runs."""
    embed = embedding(app, stage)
    stage.close()
    old = await embed.enqueue("a", 1, "fail")
    async with app.worker():
        await stage.begun(1)
        new = await embed.enqueue("a", 2)
        stage.open()
        await until(app, old.job, State.CANCELLED)
    clock.advance("1m")
    await run_due(app)
    assert stage.runs == [("a", 1), ("a", 2)]
    assert await old.result(30) == await new.result(30) == "a v2"


async def test_a_dead_letter_is_logged_with_key_attempts_and_error(
    app: App, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.10: one ERROR line says what died, how often it was tried, and of what."""
    embed = embedding(app, stage, retry=Retry.never())
    with caplog.at_level(logging.ERROR, "onejob"):
        asked = await embed.enqueue("a", 1, "fail privately")
        await run_due(app)
    [record] = caplog.records
    assert asked.key is not None
    for part in (asked.key, asked.job.id, "after 1 attempt and ", "ConnectionError", "no embedding of a"):
        assert part in record.message
    assert "privately" not in record.message
    with pytest.raises(JobFailed, match="no embedding of a"):
        await asked.result(30)


async def test_a_dead_letter_is_kept_whole(app: App, stage: Stage) -> None:
    """S2.23: all of a long payload and every error with its traceback."""
    embed = embedding(app, stage, retry=Retry.never())
    text = "fail " + "x" * 100_000
    await embed.enqueue("a", 1, text)
    await run_due(app)
    [letter] = await app.dead.list()
    assert letter.arguments == {"entry_id": "a", "seq": 1, "text": text}
    [failure] = letter.failures
    assert failure["type"] == "ConnectionError"
    assert "Traceback" in failure["traceback"]


async def test_dead_letters_are_replayed_one_many_or_all(app: App, stage: Stage) -> None:
    """S2.18: one call brings back one, those of a task, or all; they run with their whole payload."""
    broken = {"state": True}

    @app.task(unique=LATEST, retry=Retry.never())
    async def embed(entry_id: int, seq: int) -> int:
        if broken["state"]:
            raise ConnectionError
        await stage.play((entry_id, seq))
        return seq

    @app.task(retry=Retry.never())
    async def other() -> None:
        raise ConnectionError

    await app.enqueue_many([embed.call(number, 1) for number in range(5)])
    await other.enqueue()
    await run_due(app)
    assert len(await app.dead.list()) == 6

    broken["state"] = False
    one = await app.dead.replay((await app.dead.list(task="embed"))[0].id)
    assert one.outcome is Outcome.CREATED
    assert len(await app.dead.replay_all(task="embed")) == 4
    await run_due(app)
    assert sorted(stage.runs) == [(number, 1) for number in range(5)]
    assert [letter.task for letter in await app.dead.list()] == ["other"]
    assert [answer.outcome for answer in await app.dead.replay_all()] == [Outcome.CREATED]


async def test_replay_of_an_old_version_does_not_displace_a_newer_one(app: App, stage: Stage) -> None:
    """S2.22: with a newer one waiting or finished the letter stays where it is, and the answer says why."""
    embed = embedding(app, stage, retry=Retry.never())
    old = await embed.enqueue("a", 1, "fail")
    await run_due(app)
    await embed.enqueue("a", 2)
    waiting = await app.dead.replay(old.job.id)
    assert waiting.outcome is Outcome.KEPT
    await run_due(app)
    finished = await app.dead.replay(old.job.id)
    assert finished.outcome is Outcome.STALE
    assert "newer version" in finished.reason
    assert (await app.job(old.job.id)).state is State.DISCARDED
    assert stage.runs == [("a", 1), ("a", 2)]


async def test_a_version_that_died_may_come_again(app: App, stage: Stage) -> None:
    """S2.3, S2.18: an equal version is stale unless that version ended dead or cancelled."""
    embed = embedding(app, stage, retry=Retry.never())
    await embed.enqueue("a", 1, "fail")
    await run_due(app)
    again = await embed.enqueue("a", 1, "")
    assert again.outcome is Outcome.CREATED
    await run_due(app)
    assert (await embed.enqueue("a", 1)).outcome is Outcome.STALE


# ── seeing, waiting, restarting ───────────────────────────────────────────────────────────────────


async def test_stats_are_those_of_the_seed(app: App, stage: Stage) -> None:
    """S2.11: pending, in flight, dead, unique entries that wait."""
    embed = embedding(app, stage, retry=Retry.never())
    await embed.enqueue("dead", 1, "fail")
    await run_due(app)
    stage.close()
    await app.enqueue_many([embed.call(f"entry {number}", 1) for number in range(5)])
    async with app.worker():
        await stage.begun(4)
        await embed.enqueue("entry 0", 2)
        stats = await app.stats()
        assert (stats.waiting, stats.running, stats.dead) == (3, 3, 1)
        assert stats.keys_waiting == 3
        assert stats.by_queue["embeddings"][State.AVAILABLE] == 2
        stage.open()
        await run_due(app)


async def test_the_seeds_state_machine_can_be_observed(app: App, stage: Stage, clock: Clock) -> None:
    """S2.15: stale, replaced, waiting, running, retry, dead: each is an outcome or a state."""
    embed = embedding(app, stage, retry=Retry.embedding(attempts=2))
    stage.close()
    asked = await embed.enqueue("a", 1, "fail")
    seen: list[str] = [asked.job.state]
    seen.append((await embed.enqueue("a", 2, "fail")).outcome)
    seen.append((await embed.enqueue("a", 1)).outcome)
    async with app.worker():
        await stage.begun(1)
        seen.append((await app.job(asked.job.id)).state)
        stage.open()
        seen.append((await until(app, asked.job, State.RETRYABLE)).state)
    clock.advance("1m")
    await run_due(app)
    seen.append((await app.job(asked.job.id)).state)
    assert seen == ["available", "updated", "stale", "active", "retryable", "discarded"]


async def test_a_caller_can_wait_for_the_work_of_its_entry(app: App, stage: Stage) -> None:
    """S2.20: read your writes: covered() returns after a run that began after the request; pending() asks."""
    embed = embedding(app, stage)
    stage.close()
    await embed.enqueue("a", 1)
    assert await embed.pending("a", 1)
    assert not await embed.pending("b", 1)
    async with app.worker():
        await stage.begun(1)
        late = await embed.enqueue("a", 2)
        waiting = asyncio.create_task(late.covered(10))
        stage.let_one_end()
        await stage.begun(2)
        assert not waiting.done()
        stage.open()
        await waiting
    assert not await embed.pending("a", 1)


async def test_covered_says_at_once_if_no_run_will_come(app: App, stage: Stage) -> None:
    """S2.20: under keep a request during a run is not covered by any later run."""
    embed = embedding(app, stage, policy=Unique(by="entry_id"))
    stage.close()
    await embed.enqueue("a", 1)
    async with app.worker():
        await stage.begun(1)
        late = await embed.enqueue("a", 2)
        with pytest.raises(NotCovered):
            await late.covered(10)
        stage.open()
        await run_due(app)


async def test_state_survives_a_restart(restart: Callable[[], App], stage: Stage, clock: Clock) -> None:
    """S2.17: waiting jobs, versions, attempts, sleeping retries and dead letters are in the file."""
    async with restart() as app:
        embed = embedding(app, stage, retry=Retry.embedding(attempts=2))
        dead = await embed.options(retry=Retry.never()).enqueue("dead", 1, "fail")
        sleeping = await embed.enqueue("sleeping", 1, "fail")
        done = await embed.enqueue("done", 5)
        await run_due(app)
        lost = await embed.enqueue("lost", 1)
        await crash_in(app)
        waiting = await embed.enqueue("waiting", 3, "text")
    stage.runs.clear()

    async with restart() as app:
        embed = embedding(app, stage, retry=Retry.embedding(attempts=2))
        states = [(await app.job(asked.job.id)).state for asked in (dead, sleeping, done, lost, waiting)]
        assert states == [
            State.DISCARDED,
            State.RETRYABLE,
            State.COMPLETED,
            State.ACTIVE,
            State.AVAILABLE,
        ]
        assert (await embed.enqueue("done", 4)).outcome is Outcome.STALE
        assert (await embed.enqueue("waiting", 3)).outcome is Outcome.STALE
        assert (await embed.enqueue("waiting", 4)).job.id == waiting.job.id
        await run_due(app)
        assert stage.runs == [("waiting", 4)]

        clock.advance("1m")
        await app.maintenance.sweep()
        clock.advance("1m")
        await run_due(app)
        assert sorted(stage.runs) == [("lost", 1), ("sleeping", 1), ("waiting", 4)]
        assert (await app.job(sleeping.job.id)).attempt == 2
        assert (await app.dead.replay(dead.job.id)).outcome is Outcome.CREATED


async def test_versions_are_remembered_for_a_month_and_then_forgotten(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S2.24: pruning neither re-admits a stale version that still matters nor keeps versions for ever."""
    embed = embedding(app, stage)
    await embed.enqueue("a", 5)
    await run_due(app)
    clock.advance("29d")
    await app.maintenance.prune()
    assert (await embed.enqueue("a", 4)).outcome is Outcome.STALE
    clock.advance("2d")
    await app.maintenance.prune()
    assert await app.jobs() == []
    assert (await embed.enqueue("a", 4)).outcome is Outcome.CREATED
