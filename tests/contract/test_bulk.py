"""Bulk is the same calls in order, folded through the same rules (rule 9; cases 27 to 29)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onejob import App, Outcome, Unique
from onejob.errors import UnencodableArgument
from tests.contract.steps import absorbed, complete, everything, lease, mailer, run, start


async def test_case_27_one_key_three_times_under_keep_runs_the_first_payload(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    admissions = await app.enqueue_many([mail.call(1, text) for text in ("a", "b", "c")])
    assert [admission.outcome for admission in admissions] == [Outcome.CREATED, Outcome.KEPT, Outcome.KEPT]
    assert len({admission.job.id for admission in admissions}) == 1
    assert (await run(app)).arguments["text"] == "a"


async def test_case_27_one_key_three_times_under_update_runs_the_last_payload(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    admissions = await app.enqueue_many([mail.call(1, text) for text in ("a", "b", "c")])
    assert [a.outcome for a in admissions] == [Outcome.CREATED, Outcome.UPDATED, Outcome.UPDATED]
    assert len({admission.job.id for admission in admissions}) == 1
    assert (await run(app)).arguments["text"] == "c"


async def test_case_27_one_key_three_times_under_replace_leaves_one(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    admissions = await app.enqueue_many([mail.call(1, text) for text in ("a", "b", "c")])
    assert [a.outcome for a in admissions] == [Outcome.CREATED, Outcome.REPLACED, Outcome.REPLACED]
    assert (await app.job(admissions[0].job.id)).superseded_by == admissions[1].job.id
    assert (await run(app)).arguments["text"] == "c"


async def test_requests_of_one_loop_turn_are_decided_one_by_one(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    held = await mail.enqueue(1)
    admissions = await asyncio.gather(*(mail.enqueue(to) for to in (1, 2, 2, 3, 1)))
    assert [admissions[at].job.id for at in (0, 4)] == [held.job.id] * 2
    assert sorted(admissions[at].outcome for at in (1, 2)) == [Outcome.CREATED, Outcome.KEPT]
    assert admissions[1].job.id == admissions[2].job.id
    assert admissions[3].outcome is Outcome.CREATED


async def test_inner_duplicates_are_merged(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to", merge={"text": "append"}))
    await app.enqueue_many([mail.call(1, [number]) for number in range(5)])
    assert (await run(app)).arguments["text"] == [0, 1, 2, 3, 4]


async def test_a_rejected_duplicate_is_an_outcome_in_bulk(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="reject"))
    first = await mail.enqueue(1)
    admissions = await app.enqueue_many([mail.call(1), mail.call(2), mail.call(2)])
    assert [a.outcome for a in admissions] == [Outcome.REJECTED, Outcome.CREATED, Outcome.REJECTED]
    assert admissions[0].job.id == first.job.id
    assert admissions[0].deduplicated


async def test_bulk_meets_waiting_and_running_jobs_like_single_requests(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "running")
    running = await start(app)
    await mail.enqueue(2, "waiting")
    calls = [mail.call(1, "x"), mail.call(2, "x"), mail.call(3, "x"), mail.call(1, "y")]
    admissions = await app.enqueue_many(calls)
    outcomes = [Outcome.RERUN, Outcome.UPDATED, Outcome.CREATED, Outcome.UPDATED]
    assert [admission.outcome for admission in admissions] == outcomes
    await complete(app, running)
    assert {job.arguments["to"]: job.arguments["text"] for job in await lease(app)} == {
        1: "y",
        2: "x",
        3: "x",
    }


async def test_bulk_may_mix_tasks_options_and_keys(app: App) -> None:
    mail, note = mailer(app, Unique(by="to")), mailer(app, name="note")
    first = await mail.enqueue(1)
    admissions = await app.enqueue_many(
        [note.call(1), mail.call(1), mail.options(force=True).call(1), mail.options(priority=3).call(2)]
    )
    outcomes = [Outcome.CREATED, Outcome.KEPT, Outcome.FORCED, Outcome.CREATED]
    assert [admission.outcome for admission in admissions] == outcomes
    assert admissions[1].job.id == first.job.id
    assert admissions[3].job.priority == 3


async def test_case_29_ten_thousand_calls_with_one_duplicate_keep_order_and_length(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    existing = await mail.enqueue(5_000)
    admissions = await app.enqueue_many([mail.call(number) for number in range(10_000)])
    assert len(admissions) == 10_000
    created = [admission for admission in admissions if admission.outcome is Outcome.CREATED]
    assert len(created) == 9_999
    assert admissions[5_000].outcome is Outcome.KEPT
    assert admissions[5_000].job.id == existing.job.id
    assert [admission.job.arguments["to"] for admission in admissions] == list(range(10_000))


async def test_an_empty_bulk_is_an_empty_answer(app: App) -> None:
    assert await app.enqueue_many([]) == []


async def test_blocking_code_has_the_same_bulk(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    admissions = await asyncio.to_thread(app.enqueue_many_sync, [mail.call(1), mail.call(2), mail.call(1)])
    assert [a.outcome for a in admissions] == [Outcome.CREATED, Outcome.CREATED, Outcome.KEPT]


async def test_a_call_that_cannot_be_encoded_stops_the_bulk_before_anything_is_stored(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    with pytest.raises(UnencodableArgument):
        await app.enqueue_many([mail.call(1), mail.call(float("nan")), mail.call(2)])
    assert await everything(app) == []


async def test_a_merge_that_fails_is_an_outcome_in_bulk_and_the_rest_is_admitted(app: App) -> None:
    """Atomic per key: the old payload stays, the other keys are admitted, each request is counted once."""
    mail = mailer(app, Unique.coalesce(by="to", merge={"text": "append"}))
    await mail.enqueue(1, ["a"])
    await mail.enqueue(2, ["b"])
    failed, updated = await app.enqueue_many([mail.call(1, "no list"), mail.call(2, ["c"])])
    assert (failed.outcome, failed.refusal) == (Outcome.REJECTED, "merge")
    assert updated.outcome is Outcome.UPDATED
    texts = {job.arguments["to"]: job.arguments["text"] for job in await everything(app)}
    assert texts == {1: ["a"], 2: ["b", "c"]}
    assert await absorbed(app) == {"rejected": 1, "updated": 1}


async def test_case_28_bulks_with_keys_in_opposite_orders_do_not_deadlock(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    upwards = [mail.call(number, "up") for number in range(200)]
    downwards = [mail.call(number, "down") for number in reversed(range(200))]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(4) as threads:
        bulks: list[Any] = []
        for calls in (upwards, downwards, upwards, downwards):
            bulks.append(loop.run_in_executor(threads, app.enqueue_many_sync, calls))
            bulks.append(app.enqueue_many(calls))
        admissions = [admission for bulk in await asyncio.gather(*bulks) for admission in bulk]
    assert sum(admission.outcome is Outcome.CREATED for admission in admissions) == 200
    assert len(await everything(app)) == 200
