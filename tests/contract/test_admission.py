"""What an admission lets its caller await: result() and covered() (DESIGN 3.3, rules 2e and 6)."""

import asyncio
import gc
import json
from datetime import datetime, timedelta

import pytest

from onejob import Admission, App, Outcome, Unique
from onejob.errors import JobCancelled, JobFailed, NotCovered, ResultGone, WouldDeadlock
from onejob.testing import Clock
from tests.contract.steps import BACKOFF, complete, discard, fail, inside, lease, mailer, run, start

SHORT = 0.01  # seconds: long enough to see that nothing comes


# ── result ────────────────────────────────────────────────────────────────────────────────────────


async def test_every_coalesced_caller_gets_the_one_result(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    callers = [await mail.enqueue(1, "a") for _ in range(5)]
    waiting = [asyncio.create_task(caller.result()) for caller in callers]
    await run(app, "sent")
    assert await asyncio.gather(*waiting) == ["sent"] * 5
    assert await callers[0].result() == "sent"  # and any time later


async def test_blocking_code_gets_the_result(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    admission = await mail.enqueue(1)
    await run(app, "sent")
    assert await asyncio.to_thread(admission.result_sync) == "sent"
    await asyncio.to_thread(admission.covered_sync)
    await app.close()
    gc.collect()  # a loop that was left open would be told here, and warnings are errors


async def test_a_result_has_the_type_that_the_task_declares(app: App) -> None:
    @app.task
    def days(text: str) -> list[tuple[int, str]]:
        return [(1, text)]

    admission = await days.enqueue("monday")
    await run(app, [[1, "monday"]])
    assert await admission.result() == [(1, "monday")]


async def test_a_result_of_none(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    admission = await nothing.enqueue()
    await run(app, None)
    result: object = await asyncio.create_task(admission.result())
    assert result is None


async def test_a_failed_job_raises_its_last_error(app: App) -> None:
    admission = await mailer(app).enqueue(1)
    await discard(app)
    with pytest.raises(JobFailed, match="ValueError: no luck"):
        await admission.result()


async def test_a_cancelled_job_raises_its_reason(app: App) -> None:
    admission = await mailer(app).enqueue(1)
    await app.cancel(admission.job.id, reason="not needed")
    with pytest.raises(JobCancelled, match="not needed"):
        await admission.result()


async def test_a_deleted_job_has_no_result(app: App) -> None:
    admission = await mailer(app).enqueue(1)
    await run(app)
    await app.delete(admission.job.id)
    with pytest.raises(ResultGone):
        await admission.result()


async def test_waiting_is_bounded_by_the_builtin_timeout(app: App) -> None:
    admission = await mailer(app).enqueue(1)
    with pytest.raises(TimeoutError):
        await admission.result(timeout=SHORT)
    with pytest.raises(TimeoutError):
        await admission.covered(timeout=SHORT)


async def test_rule_2e_a_result_follows_the_job_that_superseded_it(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    callers = [await mail.enqueue(1, text) for text in ("a", "b", "c")]
    waiting = [asyncio.create_task(caller.result()) for caller in callers]
    await run(app, "c was sent")
    assert await asyncio.gather(*waiting) == ["c was sent"] * 3


async def test_rule_2e_a_result_follows_into_the_successor(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    first = await mail.enqueue(1, "a")
    running = await start(app)
    second = await mail.enqueue(1, "b")
    await fail(app, running)
    clock.advance(BACKOFF)
    await run(app, "b was sent")
    assert await first.result() == await second.result() == "b was sent"


async def test_a_stale_request_gets_the_result_of_the_newest(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    await mail.enqueue(1, 5)
    stale = await mail.enqueue(1, 4)
    await run(app, "version 5")
    assert await stale.result() == "version 5"


async def test_rule_6_awaiting_the_own_successor_inside_the_run_would_deadlock(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    running = await start(app)

    async def handler() -> None:
        successor = await mail.enqueue(1, "next")
        for awaiting in (successor.result, successor.covered, first.result):
            with pytest.raises(WouldDeadlock):
                await awaiting()

    await inside(app, running, handler)


async def test_awaiting_another_job_inside_a_run_is_fine(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)

    async def handler() -> str:
        other = await mail.enqueue(2)
        await run(app, "other")
        return await other.result()

    assert await inside(app, running, handler) == "other"


# ── covered ───────────────────────────────────────────────────────────────────────────────────────


async def unfinished(admission: Admission[str]) -> bool:
    """Return whether the request is not yet covered, and may be."""
    try:
        await admission.covered(timeout=SHORT)
    except TimeoutError:
        return True
    return False


async def test_a_request_is_covered_when_its_own_job_has_run(app: App) -> None:
    admission = await mailer(app, Unique(by="to")).enqueue(1)
    assert await unfinished(admission)
    running = await start(app)
    assert await unfinished(admission)
    await complete(app, running)
    await admission.covered()


async def test_a_kept_request_is_covered_by_the_waiting_job(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    kept = await mail.enqueue(1)
    waiting = asyncio.create_task(kept.covered())
    await run(app)
    await waiting


async def test_a_request_that_met_a_run_is_not_covered_by_that_run(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    kept = await mail.enqueue(1)
    assert kept.outcome is Outcome.KEPT
    with pytest.raises(NotCovered):
        await kept.covered()
    await complete(app, running)
    with pytest.raises(NotCovered):
        await kept.covered()


async def test_a_request_that_met_a_finished_job_is_not_covered(app: App) -> None:
    mail = mailer(app, Unique.once(by="to"))
    await mail.enqueue(1)
    await run(app)
    kept = await mail.enqueue(1)
    with pytest.raises(NotCovered):
        await kept.covered()


async def test_a_rerun_covers_the_requests_that_made_it(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    rerun = await mail.enqueue(1, "b")
    updated = await mail.enqueue(1, "c")
    await complete(app, running)
    assert await unfinished(rerun)
    await run(app)
    await rerun.covered()
    await updated.covered()


async def test_a_request_that_met_a_run_is_covered_by_its_retry(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    kept = await mail.enqueue(1)
    await fail(app, running)
    assert await unfinished(kept)
    clock.advance(BACKOFF)
    await run(app)
    await kept.covered()


async def test_a_request_that_met_a_run_is_covered_by_a_successor_that_came_later(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    kept = await mail.enqueue(1)
    await mail.options(unique=Unique.coalesce(by="to")).enqueue(1, "later")
    assert await unfinished(kept)
    await complete(app, running)
    assert await unfinished(kept)
    successor = await start(app)
    assert await unfinished(kept)  # it started after the request, so it covers it
    await complete(app, successor)
    await kept.covered()


async def test_a_run_that_failed_for_good_has_covered(app: App) -> None:
    admission = await mailer(app).enqueue(1)
    await discard(app)
    await admission.covered()


async def test_a_job_that_never_ran_covers_nothing(app: App) -> None:
    admission = await mailer(app, Unique(by="to")).enqueue(1)
    await app.cancel(admission.job.id)
    with pytest.raises(NotCovered):
        await admission.covered()


async def test_a_removed_job_covers_nothing(app: App) -> None:
    admission = await mailer(app).enqueue(1)
    await app.delete(admission.job.id)
    with pytest.raises(NotCovered):
        await admission.covered()


async def test_covered_follows_the_job_that_superseded_it(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    first = await mail.enqueue(1, "a")
    await mail.enqueue(1, "b")
    assert await unfinished(first)
    await run(app)
    await first.covered()


async def test_a_replaced_request_is_covered_by_the_replacement_and_not_by_the_run_before(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    await mail.enqueue(1, "a")
    running = await start(app)
    second = await mail.enqueue(1, "b")
    third = await mail.enqueue(1, "c")
    await complete(app, running)
    assert await unfinished(second)
    assert [job.id for job in await lease(app)] == [third.job.id]


async def test_a_time_in_the_past_counts_as_now(app: App, clock: Clock) -> None:
    """It does not overtake jobs that already wait."""
    mail = mailer(app)
    first = await mail.enqueue("a")
    clock.advance("1s")
    late = await mail.options(run_at=clock() - timedelta(days=1)).enqueue("b")
    assert late.job.run_at == late.job.created_at
    assert [job.id for job in await lease(app)] == [first.job.id, late.job.id]


async def test_an_admission_a_job_and_the_statistics_are_json_values(app: App) -> None:
    mail = mailer(app, unique=True)
    first, again = await mail.options(delay="1h").enqueue(1), await mail.enqueue(1)
    answer, job, stats = again.as_dict(), first.job.as_dict(), (await app.stats()).as_dict()
    assert json.loads(json.dumps([answer, job, stats])) == [answer, job, stats]
    assert (answer["outcome"], answer["deduplicated"], answer["job"]) == ("kept", True, first.job.id)
    assert (job["id"], job["state"], job["key"]) == (first.job.id, "scheduled", first.key)
    assert datetime.fromisoformat(job["run_at"]) == first.job.run_at
    assert stats["absorbed"] == {"mail": {"kept": 1}}
