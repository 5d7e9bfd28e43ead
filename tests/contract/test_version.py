"""Versions and the order of admission: an older request never overwrites a newer one (rule 2d, case 34)."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from onejob import App, Outcome, State, Unique
from onejob.errors import InvalidCall
from onejob.testing import Clock
from tests.contract.steps import (
    BACKOFF,
    LEASE,
    complete,
    discard,
    everything,
    fail,
    hand_back,
    lease,
    live,
    mailer,
    run,
    snooze,
    start,
)

LATEST = Unique.latest(by="to", version="text")


async def test_an_older_version_is_stale(app: App) -> None:
    mail = mailer(app, LATEST)
    first = await mail.enqueue(1, 5)
    stale = await mail.enqueue(1, 4)
    assert stale.outcome is Outcome.STALE
    assert stale.deduplicated
    assert stale.job.id == first.job.id
    assert "4" in stale.reason
    assert "5" in stale.reason
    assert (await app.job(first.job.id)).arguments["text"] == 5


async def test_an_equal_version_is_stale(app: App) -> None:
    mail = mailer(app, LATEST)
    first = await mail.enqueue(1, 5)
    stale = await mail.enqueue(1, 5)
    assert (stale.outcome, stale.job.id) == (Outcome.STALE, first.job.id)


async def test_a_version_stays_known_after_its_job_has_completed(app: App) -> None:
    mail = mailer(app, LATEST)
    first = await mail.enqueue(1, 5)
    await run(app)
    for version in (4, 5):
        stale = await mail.enqueue(1, version)
        assert (stale.outcome, stale.job.id) == (Outcome.STALE, first.job.id)
    assert (await mail.enqueue(1, 6)).outcome is Outcome.CREATED


async def test_a_newer_version_updates_the_waiting_job(app: App) -> None:
    mail = mailer(app, LATEST)
    first = await mail.enqueue(1, 5)
    newer = await mail.enqueue(1, 6)
    assert (newer.outcome, newer.job.id, newer.job.version) == (Outcome.UPDATED, first.job.id, 6)
    assert (await mail.enqueue(1, 5)).outcome is Outcome.STALE
    assert (await run(app)).arguments["text"] == 6


async def test_versions_out_of_order_leave_the_newest_standing(app: App) -> None:
    mail = mailer(app, LATEST)
    outcomes = [(await mail.enqueue(1, version)).outcome for version in (3, 1, 4, 1, 5, 9, 2, 6)]
    assert outcomes == [
        Outcome.CREATED,
        Outcome.STALE,
        Outcome.UPDATED,
        Outcome.STALE,
        Outcome.UPDATED,
        Outcome.UPDATED,
        Outcome.STALE,
        Outcome.STALE,
    ]
    assert (await run(app)).arguments["text"] == 9


@pytest.mark.parametrize("end", ["cancelled", "discarded"])
async def test_an_equal_version_may_come_again_if_it_was_withdrawn(app: App, end: str) -> None:
    mail = mailer(app, LATEST)
    first = await mail.enqueue(1, 5)
    if end == "cancelled":
        await app.cancel(first.job.id)
    else:
        await discard(app)
    assert (await mail.enqueue(1, 4)).outcome is Outcome.STALE  # older than the key's mark all the same
    again = await mail.enqueue(1, 5)
    assert again.outcome is Outcome.CREATED
    assert (await mail.enqueue(1, 5)).outcome is Outcome.STALE


async def test_a_newer_version_during_a_run_follows_it_and_the_finisher_ends_superseded(app: App) -> None:
    mail = mailer(app, LATEST)
    await mail.enqueue(1, 5)
    running = await start(app)
    newer = await mail.enqueue(1, 6)
    assert newer.outcome is Outcome.RERUN
    ended = await complete(app, running, "stale result")
    assert (ended.state, ended.reason, ended.superseded_by) == (State.CANCELLED, "superseded", newer.job.id)
    assert ended.result is None
    assert (await run(app)).arguments["text"] == 6


async def test_a_stale_finisher_starts_no_continuation(app: App) -> None:
    mail = mailer(app, LATEST)
    await mail.enqueue(1, 5)
    running = await start(app)
    await mail.enqueue(1, 6)
    then = (await mailer(app, name="then").enqueue(1)).job
    await app.delete(then.id)
    ended = await complete(app, running, then=then)
    assert ended.is_superseded
    assert [job.task for job in await live(app)] == ["mail"]


async def test_a_retry_of_the_current_version_is_not_stale_against_itself(app: App, clock: Clock) -> None:
    """Rule 2: also after a lost lease, a snooze and a hand-back."""
    mail = mailer(app, LATEST)
    first = await mail.enqueue(1, 5)
    await fail(app, await start(app))
    clock.advance(BACKOFF)
    await hand_back(app, await start(app))
    await snooze(app, await start(app), 1)
    clock.advance("1s")
    await start(app)
    clock.advance(LEASE)
    assert await app.maintenance.sweep() == (1, 0)
    clock.advance("1h")
    ended = await run(app, "done")
    assert (ended.id, ended.state) == (first.job.id, State.COMPLETED)


async def test_an_older_version_without_a_hold_is_superseded_at_its_lease(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text", within="1m"))
    old = await mail.options(delay="1h").enqueue(1, 5)
    clock.advance("1m")  # the window has ended, so the next one takes the key
    new = await mail.enqueue(1, 6)
    assert new.outcome is Outcome.CREATED
    clock.advance("1h")
    assert (await start(app)).id == new.job.id
    ended = await app.job(old.job.id)
    assert (ended.state, ended.superseded_by) == (State.CANCELLED, new.job.id)


async def test_an_older_version_without_a_hold_is_superseded_at_its_completion(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text", within="1m"))
    await mail.enqueue(1, 5)
    running = await start(app)
    clock.advance("1m")
    new = await mail.enqueue(1, 6)
    ended = await complete(app, running, "old")
    assert (ended.superseded_by, ended.result) == (new.job.id, None)


async def test_a_newer_version_that_was_withdrawn_no_longer_supersedes(app: App) -> None:
    mail = mailer(app, LATEST)
    await mail.enqueue(1, 5)
    running = await start(app)
    newer = await mail.enqueue(1, 6)
    await app.cancel(newer.job.id)
    ended = await complete(app, running, "done")
    assert (ended.state, ended.result) == (State.COMPLETED, b'"done"')


async def test_rule_5_force_sets_the_version_mark(app: App) -> None:
    mail = mailer(app, LATEST)
    await mail.enqueue(1, 5)
    forced = await mail.options(force=True).enqueue(1, 3)
    assert forced.outcome is Outcome.FORCED
    assert (await mail.enqueue(1, 3)).outcome is Outcome.STALE
    newer = await mail.enqueue(1, 4)
    assert (newer.outcome, newer.job.id) == (Outcome.UPDATED, forced.job.id)


async def test_an_aware_datetime_is_a_version(app: App) -> None:
    mail = mailer(app, LATEST)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    await mail.enqueue(1, noon)
    earlier_by_an_hour = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    assert (await mail.enqueue(1, earlier_by_an_hour)).outcome is Outcome.STALE
    assert (await mail.enqueue(1, noon + timedelta(microseconds=1))).outcome is Outcome.UPDATED


@pytest.mark.parametrize(
    "version",
    [2**63, -(2**63) - 1, "5", 5.0, True, None, datetime(2026, 1, 1)],  # noqa: DTZ001 - a naive one is refused
)
async def test_anything_else_is_no_version(app: App, version: object) -> None:
    with pytest.raises(InvalidCall, match=r"64-bit integer|has no time zone: write an aware datetime"):
        await mailer(app, LATEST).enqueue(1, version)
    assert await everything(app) == []


@pytest.mark.parametrize("version", [2**63 - 1, -(2**63), 0])
async def test_the_whole_of_64_bits_is_a_version(app: App, version: int) -> None:
    mail = mailer(app, LATEST)
    await mail.enqueue(1, version)
    assert (await start(app)).version == version
    assert (await mail.enqueue(1, version)).outcome is Outcome.STALE


async def test_a_version_under_replace(app: App) -> None:
    mail = mailer(app, Unique(by="to", version="text", on_conflict="replace"))
    await mail.enqueue(1, 5)
    newer = await mail.enqueue(1, 6)
    assert newer.outcome is Outcome.REPLACED
    assert (await mail.enqueue(1, 5)).outcome is Outcome.STALE
    assert (await mail.enqueue(1, 6)).outcome is Outcome.STALE


# ── the order of admission is an implicit version ─────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["update", "replace"])
async def test_case_34_an_overtaken_job_ends_superseded_at_its_failure(app: App, policy: Any) -> None:
    mail = mailer(app, Unique.until_executing(by="to", on_conflict=policy))
    await mail.enqueue(1, "a")
    running = await start(app)
    newer = await mail.enqueue(1, "b")
    assert newer.outcome is Outcome.CREATED
    ended = await fail(app, running)
    assert (ended.state, ended.superseded_by) == (State.CANCELLED, newer.job.id)
    assert (await start(app)).id == newer.job.id


async def test_case_34_an_overtaken_job_ends_superseded_at_its_next_lease(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to", on_conflict="update"))
    old = await mail.enqueue(1, "a")
    running = await start(app)
    newer = await mail.enqueue(1, "b")
    await hand_back(app, running)
    assert [job.id for job in await lease(app)] == [newer.job.id]
    assert (await app.job(old.job.id)).superseded_by == newer.job.id


async def test_case_34_an_overtaken_job_that_succeeds_is_completed(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to", on_conflict="update"))
    await mail.enqueue(1, "a")
    running = await start(app)
    await mail.enqueue(1, "b")
    assert (await complete(app, running, "done")).state is State.COMPLETED


async def test_case_34_under_keep_the_first_job_retries_without_a_hold(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    old = await mail.enqueue(1, "a")
    running = await start(app)
    newer = await mail.enqueue(1, "b")
    retried = await fail(app, running)
    assert (retried.state, retried.stand) == (State.RETRYABLE, None)
    clock.advance(BACKOFF)
    assert {job.id for job in await lease(app)} == {old.job.id, newer.job.id}


async def test_case_34_with_merge_an_overtaken_job_retries(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.until_executing(by="to", on_conflict="update", merge={"text": "append"}))
    old = await mail.enqueue(1, ["a"])
    running = await start(app)
    newer = await mail.enqueue(1, ["b"])
    assert (await fail(app, running)).state is State.RETRYABLE
    clock.advance(BACKOFF)
    assert {job.id for job in await lease(app)} == {old.job.id, newer.job.id}


async def test_rule_2d_hand_back_does_not_take_a_hold_back(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    first = await mail.enqueue(1)
    handed_back = await hand_back(app, await start(app))
    assert not handed_back.is_holder
    second = await mail.enqueue(1)
    assert second.outcome is Outcome.CREATED
    assert {job.id for job in await lease(app)} == {first.job.id, second.job.id}
