"""Unique modes: until executing, until executed, throttle; three kinds of key; skips counted (S1)."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from onejob import App, Duplicate, Outcome, Retry, State, Task, Unique, unique
from onejob.errors import InvalidPolicy
from onejob.stores.sqlite.store import SQLiteStore
from onejob.tasks.task import builder_of
from onejob.testing import Clock
from tests.system.scenarios.stage import Stage, run_due

Send = Task[..., None]
CREATED, KEPT = Outcome.CREATED, Outcome.KEPT


def sending(app: App, stage: Stage, policy: Unique | None, *, attempts: int = 1) -> Send:
    @app.task(unique=policy, retry=Retry(attempts, base="1s", jitter=0))
    async def send(to: int, text: str = "") -> None:
        await stage.play((to, text))
        if text == "fail":
            raise RuntimeError("the mail server is away")

    return send


# ── how long ──────────────────────────────────────────────────────────────────────────────────────


async def test_until_executing_releases_the_key_when_the_job_starts(app: App, stage: Stage) -> None:
    """S1.1, S1.14: a duplicate is absorbed while the job waits and accepted while it runs."""
    send = sending(app, stage, Unique.until_executing())
    stage.close()
    await send.enqueue(1)
    assert (await send.enqueue(1)).outcome is KEPT
    async with app.worker():
        await stage.begun(1)
        assert (await send.enqueue(1)).outcome is CREATED
        await stage.begun(2)
        assert stage.most_at_once == 2
        stage.open()
        await run_due(app)


async def test_until_executing_does_not_take_the_key_back_for_a_retry(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S1.14: the key is let go where execution begins; a waiting retry neither has it nor is judged again."""
    send = sending(app, stage, Unique.until_executing(), attempts=3)
    first = await send.enqueue(1, "fail")
    await run_due(app)
    assert (await app.job(first.job.id)).state is State.RETRYABLE
    second = await send.enqueue(1, "fail")
    assert second.outcome is CREATED
    clock.advance("1m")
    await run_due(app)
    assert len(stage.runs) == 3
    assert {(await app.job(asked.job.id)).state for asked in (first, second)} == {State.RETRYABLE}


@pytest.mark.parametrize(("text", "end"), [("", State.COMPLETED), ("fail", State.DISCARDED)])
async def test_until_executed_holds_until_the_end(app: App, stage: Stage, text: str, end: State) -> None:
    """S1.2: the key is held while the job waits and runs, and free after success and after failure."""
    send = sending(app, stage, Unique.until_executed())
    stage.close()
    first = await send.enqueue(1, text)
    assert (await send.enqueue(1, text)).outcome is KEPT
    async with app.worker():
        await stage.begun(1)
        assert (await send.enqueue(1, text)).outcome is KEPT
        stage.open()
        await run_due(app)
    assert (await app.job(first.job.id)).state is end
    assert (await send.enqueue(1, text)).outcome is CREATED


def test_until_executed_is_the_default() -> None:
    """S1.2: a bare Unique() means until executed."""
    assert Unique() == Unique.until_executed()


async def test_scheduled_and_retryable_jobs_hold_the_key(app: App, stage: Stage, clock: Clock) -> None:
    """S1.19: a job that waits for its time or for its retry is the same work too."""
    send = sending(app, stage, Unique.until_executed(), attempts=2)
    later = await send.options(delay="1h").enqueue(1)
    assert later.job.state is State.SCHEDULED
    assert (await send.enqueue(1)).job.id == later.job.id

    failing = await send.enqueue(2, "fail")
    await run_due(app)
    assert (await app.job(failing.job.id)).state is State.RETRYABLE
    assert (await send.enqueue(2, "fail")).job.id == failing.job.id
    clock.advance("1m")
    await run_due(app)
    assert (await send.enqueue(2, "fail")).outcome is CREATED


async def test_throttle_ignores_duplicates_for_its_window_whatever_the_state(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S1.3, S1.20: waiting, active, completed, dead: absorbed until the window ends, then accepted."""
    send = sending(app, stage, Unique.throttle("5m"))
    stage.close()
    first = await send.enqueue(1)
    assert (await send.enqueue(1)).outcome is KEPT
    async with app.worker():
        await stage.begun(1)
        assert (await send.enqueue(1)).outcome is KEPT
        stage.open()
        await first.result(30)
    clock.advance("4m59s")
    assert (await send.enqueue(1)).job.state is State.COMPLETED
    clock.advance("1s")
    assert (await send.enqueue(1)).outcome is CREATED

    failed = await send.enqueue(2, "fail")
    await run_due(app)
    assert (await app.job(failed.job.id)).state is State.DISCARDED
    assert (await send.enqueue(2, "fail")).outcome is KEPT


async def test_throttle_does_not_block_after_its_window_while_the_job_runs(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S1.20: a window may end while the job still runs, and updates do not prolong it."""
    send = sending(app, stage, Unique.throttle("5m"))
    stage.close()
    await send.enqueue(1)
    async with app.worker():
        await stage.begun(1)
        clock.advance("4m")
        assert (await send.enqueue(1)).outcome is KEPT
        clock.advance("1m")
        assert (await send.enqueue(1)).outcome is CREATED
        await stage.begun(2)
        stage.open()
        await run_due(app)


async def test_throttle_first_and_last_runs_once_more_at_the_end_of_the_window(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S1.3: with both edges, what was suppressed is not lost: the last of it runs when the window ends."""
    send = sending(app, stage, Unique.throttle("5m", "first+last", by="to"))
    await send.enqueue(1, "first")
    await run_due(app)
    outcomes = [(await send.enqueue(1, text)).outcome for text in ("second", "third", "last")]
    assert outcomes == [Outcome.RERUN, Outcome.UPDATED, Outcome.UPDATED]
    clock.advance("4m59s")
    await run_due(app)
    assert stage.runs == [(1, "first")]
    clock.advance("1s")
    await run_due(app)
    assert stage.runs == [(1, "first"), (1, "last")]


# ── what is the same work ─────────────────────────────────────────────────────────────────────────


async def test_the_default_key_is_the_whole_input_within_the_task(app: App, stage: Stage) -> None:
    """S1.5, S1.18: equal input of one task is the same, of two tasks it is not; no policy, no sameness."""
    send = sending(app, stage, Unique())

    @app.task(unique=True)
    async def print_out(to: int, text: str = "") -> None: ...

    @app.task
    async def shred(to: int, text: str = "") -> None: ...

    await send.enqueue(1, "a")
    assert (await send.enqueue(to=1, text="a")).outcome is KEPT
    assert (await send.enqueue(1, "b")).outcome is CREATED
    assert (await send.enqueue(1)).outcome is CREATED
    assert (await send.enqueue(1, text="")).outcome is KEPT  # a default is input like any other
    assert (await print_out.enqueue(1, "a")).outcome is CREATED
    assert [(await shred.enqueue(1, "a")).outcome for _ in range(3)] == [CREATED] * 3


async def test_a_custom_key_function(app: App) -> None:
    """S1.6: the key is what a function of the arguments says; None says "not unique this time"."""

    def mailbox(address: str) -> str | None:
        return None if address == "test" else address.lower()

    @app.task(unique=Unique(key=mailbox))
    async def welcome(address: str, name: str) -> None: ...

    await welcome.enqueue("Ada@Example.com", "Ada")
    assert (await welcome.enqueue("ada@example.COM", "Countess")).outcome is KEPT
    assert [(await welcome.enqueue("test", "x")).outcome for _ in range(2)] == [CREATED] * 2


async def test_a_partial_key(app: App) -> None:
    """S1.7: inputs that differ outside the key are duplicates, and the answer says that they differ."""

    @app.task(unique=Unique(by="tenant_id"))
    async def rebuild(tenant_id: str, reason: str) -> None: ...

    first = await rebuild.enqueue("acme", "nightly")
    again = await rebuild.enqueue("acme", "by hand")
    assert (again.outcome, again.payload_differs) == (KEPT, True)
    assert again.job.arguments == {"tenant_id": "acme", "reason": "nightly"}
    assert again.job.id == first.job.id
    assert (await rebuild.enqueue("zeta", "nightly")).outcome is CREATED


async def test_long_keys_are_hashed_and_never_cut(app: App, stage: Stage) -> None:
    """S1.22: texts of 100 000 characters that differ in the last one are different work."""
    send = sending(app, stage, Unique())
    long = "x" * 100_000
    first = await send.enqueue(1, long + "a")
    assert (await send.enqueue(1, long + "b")).outcome is CREATED
    assert (await send.enqueue(1, long + "a")).outcome is KEPT
    assert first.key is not None
    assert len(first.key) == 64


# ── said where the task is registered ─────────────────────────────────────────────────────────────


def test_the_policy_is_said_where_the_task_is_registered() -> None:
    """S1.4: declaratively or fluently, with the same meaning; nonsense fails there, not at the first call."""
    app = App("memory://")
    fluent = unique.by("tenant_id").until("finish").within("5m").or_update()
    assert fluent.policy == Unique(by="tenant_id", until="finish", within="5m", on_conflict="update")

    @app.task(unique=fluent)
    async def rebuild(tenant_id: str) -> None: ...

    assert builder_of(rebuild).policy == fluent.policy
    with pytest.raises(InvalidPolicy, match="tenant"):
        app.task(name="other", unique=Unique(by="tenant"))(lambda tenant_id: tenant_id)


# ── telemetry ─────────────────────────────────────────────────────────────────────────────────────


async def test_skips_are_counted_per_task(app: App, stage: Stage) -> None:
    """S1.8: how many requests were absorbed is known per task and outcome, and per job."""
    send = sending(app, stage, Unique())

    @app.task(unique=Unique(on_conflict="reject"))
    async def refuse() -> None: ...

    first = await send.enqueue(1)
    for _ in range(7):
        await send.enqueue(1)
    await refuse.enqueue()
    for _ in range(2):
        with pytest.raises(Duplicate):
            await refuse.enqueue()
    await send.explain(1)  # asking is not counted
    assert (await app.stats()).absorbed == {"send": {"kept": 7}, "refuse": {"rejected": 2}}
    assert (await app.absorbed())[first.job.id] == 7


async def test_each_skip_is_one_debug_line_with_task_and_key(
    app: App, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """S1.15: one line per skip, at DEBUG, with task and key and without the arguments."""
    send = sending(app, stage, Unique())
    with caplog.at_level(logging.DEBUG, "onejob"):
        first = await send.enqueue(1, "private")
        assert caplog.records == []
        await send.enqueue(1, "private")
        await send.enqueue(1, "private")
    assert first.key is not None
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2
    for record in caplog.records:
        assert "send" in record.message
        assert first.key in record.message
        assert "private" not in record.message


# ── the answer ────────────────────────────────────────────────────────────────────────────────────


async def test_the_answer_names_the_existing_run(app: App) -> None:
    """S1.16: no empty id and no error: the run that is there, with its result; raising is a choice."""

    @app.task(unique=True)
    async def double(number: int) -> int:
        return 2 * number

    first, again = await double.enqueue(21), await double.enqueue(21)
    assert again.job.id == first.job.id
    assert again.holder is not None
    await run_due(app)
    assert await again.result(30) == 42

    reject = double.options(unique=Unique(on_conflict="reject"))
    standing = await reject.enqueue(1)
    with pytest.raises(Duplicate) as raised:
        await reject.enqueue(1)
    assert raised.value.job.id == standing.job.id


# ── atomic ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_double_click_makes_one_run(app: App, stage: Stage) -> None:
    """S1.17, S4.12: two requests at the same instant, one run."""
    send = sending(app, stage, Unique())
    clicks = await asyncio.gather(*(send.enqueue(1) for _ in range(2)))
    assert sorted(click.outcome for click in clicks) == [CREATED, KEPT]
    await run_due(app)
    assert stage.runs == [(1, "")]


async def test_concurrent_producers_see_one_job_and_no_database_error(app: App, stage: Stage) -> None:
    """S1.10, S1.11, S1.12, S1.21: threads race for fifty keys: one creator each, the rest get its job."""
    send = sending(app, stage, Unique())
    ready = threading.Barrier(8)

    def produce(_producer: int) -> list[tuple[Outcome, str]]:
        ready.wait()
        answers = [send.enqueue_sync(number) for number in range(50)]
        return [(answer.outcome, answer.job.id) for answer in answers]

    with ThreadPoolExecutor(8) as pool:
        by_producer = list(pool.map(produce, range(8)))
    for answers in zip(*by_producer, strict=True):
        assert sorted(outcome for outcome, _ in answers) == [CREATED] + [KEPT] * 7
        assert len({job_id for _, job_id in answers}) == 1


async def test_checking_takes_less_than_five_milliseconds(tmp_path: Path, stage: Stage) -> None:
    """S1.9: on the durable default, with ten thousand keys held, the median check stays below 5 ms.

    The median, because the slowest twentieth measures whatever else the machine is doing: tails are for
    `make bench`, on a quiet one.
    """
    async with App(store=SQLiteStore(tmp_path / "jobs.db")) as app:
        send = sending(app, stage, Unique())
        await app.enqueue_many([send.call(number) for number in range(10_000)])
        taken = []
        for number in range(200):
            began = perf_counter()
            await send.enqueue(number * 50)
            taken.append(perf_counter() - began)
    assert median(taken) < 0.005
