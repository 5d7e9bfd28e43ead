"""merge, bump, on_mismatch and shadow (cases 55 to 57)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from onejob import App, Duplicate, Outcome, State, Unique
from onejob.errors import MergeFailed, PayloadMismatch
from onejob.testing import Clock
from tests.contract.steps import (
    BACKOFF,
    absorbed,
    complete,
    everything,
    fail,
    lease,
    live,
    mailer,
    run,
    start,
)


def merging(how: Any, **more: Any) -> Unique:
    return Unique.coalesce(by="to", merge=how, **more)


# ── merge ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reducer", "old", "new", "merged"),
    [
        ("union", [1, 2], [2, 3], [1, 2, 3]),
        ("append", [1, 2], [2, 3], [1, 2, 2, 3]),
        ("sum", 2, 3, 5),
        ("max", 3, 2, 3),
        ("min", 3, 2, 2),
        ("latest", "a", "b", "b"),
        ("first", "a", "b", "a"),
        ("any", False, True, True),
        ("all", False, True, False),
        (lambda old, new: f"{old}+{new}", "a", "b", "a+b"),
    ],
)
async def test_a_reducer_combines_an_argument(
    app: App, reducer: Any, old: object, new: object, merged: object
) -> None:
    mail = mailer(app, merging({"text": reducer}))
    first = await mail.enqueue(1, old)
    second = await mail.enqueue(1, new)
    assert second.job.id == first.job.id
    assert (await run(app)).arguments == {"to": 1, "text": merged}


async def test_a_function_may_merge_whole_payloads(app: App) -> None:
    def join(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return {"to": new["to"], "text": old["text"] + new["text"]}

    mail = mailer(app, merging(join))
    for text in ("a", "b", "c"):
        await mail.enqueue(1, text)
    assert (await run(app)).arguments["text"] == "abc"


async def test_a_merge_that_changes_nothing_is_kept(app: App) -> None:
    mail = mailer(app, merging({"text": "union"}))
    await mail.enqueue(1, [1, 2])
    before = await everything(app)
    assert (await mail.enqueue(1, [2])).outcome is Outcome.KEPT
    assert await everything(app) == before


def fails(old: object, new: object) -> object:
    raise ZeroDivisionError(f"{old} and {new}")


@pytest.mark.parametrize(
    ("how", "old", "new"),
    [
        pytest.param({"text": "union"}, [1], "two", id="types-differ"),
        pytest.param({"text": "sum"}, 1, "two", id="not-a-number"),
        pytest.param({"text": "sum"}, 1, True, id="a-truth-is-no-number"),
        pytest.param({"text": fails}, [1], [2], id="reducer-raises"),
        pytest.param(fails, [1], [2], id="function-raises"),
        pytest.param(lambda old, _new: old["text"], [1], [2], id="no-payload"),
        pytest.param(lambda old, _new: {"to": old["to"]}, [1], [2], id="an-argument-is-missing"),
        pytest.param({"text": lambda _old, _new: object()}, [1], [2], id="result-has-no-json-form"),
        pytest.param({"text": lambda _old, _new: float("nan")}, [1], [2], id="result-is-nan"),
    ],
)
async def test_case_55_a_merge_that_fails_leaves_the_old_payload_intact(
    app: App, how: Any, old: object, new: object
) -> None:
    mail = mailer(app, merging(how))
    await mail.enqueue(1, old)
    before = await everything(app)
    with pytest.raises(MergeFailed):
        await mail.enqueue(1, new)
    assert await everything(app) == before
    assert (await run(app)).arguments["text"] == old


async def test_case_55_a_merge_is_capped(app: App) -> None:
    mail = mailer(app, merging({"text": "append"}, merge_cap=3))
    await mail.enqueue(1, [1, 2])
    assert (await mail.enqueue(1, [3])).outcome is Outcome.UPDATED
    with pytest.raises(MergeFailed, match="merge_cap is 3"):
        await mail.enqueue(1, [4])
    assert (await run(app)).arguments["text"] == [1, 2, 3]


async def test_case_55_a_function_of_whole_payloads_is_capped_as_well(app: App) -> None:
    def join(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return {"to": new["to"], "text": old["text"] + new["text"]}

    mail = mailer(app, merging(join, merge_cap=3))
    await mail.enqueue(1, [1, 2])
    with pytest.raises(MergeFailed):
        await mail.enqueue(1, [3, 4])
    assert (await run(app)).arguments["text"] == [1, 2]


async def test_case_56_a_merge_during_a_run_goes_to_the_successor(app: App) -> None:
    mail = mailer(app, merging({"text": "append"}))
    await mail.enqueue(1, ["a"])
    running = await start(app)
    await mail.enqueue(1, ["b"])
    await mail.enqueue(1, ["c"])
    assert (await app.job(running.id)).arguments["text"] == ["a"]
    await complete(app, running)
    assert (await run(app)).arguments["text"] == ["b", "c"]


async def test_rule_2c_superseding_merges_the_older_payload_into_the_successor(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, merging({"text": "append"}))
    await mail.enqueue(1, ["a"])
    running = await start(app)
    await mail.enqueue(1, ["b"])
    assert (await fail(app, running)).is_superseded
    clock.advance(BACKOFF)
    assert (await run(app)).arguments["text"] == ["a", "b"]


async def test_rule_2c_what_cannot_be_merged_runs_twice_in_order(app: App, clock: Clock) -> None:
    mail = mailer(app, merging({"text": "append"}, merge_cap=2))
    await mail.enqueue(1, ["a", "b"])
    running = await start(app)
    await mail.enqueue(1, ["c"])
    assert (await fail(app, running)).state is State.RETRYABLE
    clock.advance(BACKOFF)
    assert (await run(app)).arguments["text"] == ["a", "b"]
    assert (await run(app)).arguments["text"] == ["c"]


async def test_rule_2c_a_policy_given_with_the_call_loses_no_payload(app: App, clock: Clock) -> None:
    """The task itself has no policy, so whoever settles the run does not know how to merge."""
    mail = mailer(app).options(unique=merging({"text": "append"}))
    await mail.enqueue(1, ["a"])
    running = await start(app)
    await mail.enqueue(1, ["b"])
    await fail(app, running)
    clock.advance(BACKOFF)
    texts: list[Any] = []
    while started := await lease(app):
        for job in started:
            texts += job.arguments["text"]
            await complete(app, job)
    assert texts == ["a", "b"]


# ── bump ──────────────────────────────────────────────────────────────────────────────────────────


async def test_case_57_a_duplicate_may_raise_the_priority_and_the_line_honours_it(app: App) -> None:
    mail = mailer(app, Unique(by="to", bump=True))
    await mail.enqueue(1, "a")
    second = await mail.enqueue(2, "b")
    bumped = await mail.options(priority=5).enqueue(2, "c")
    assert (bumped.outcome, bumped.job.id, bumped.job.priority) == (Outcome.UPDATED, second.job.id, 5)
    assert bumped.payload_differs
    assert [job.arguments["text"] for job in await lease(app)] == ["b", "a"]  # raised, and otherwise kept


async def test_case_57_a_duplicate_may_bring_the_time_forward(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", bump=True))
    await mail.options(delay="1h").enqueue(1, "a")
    sooner = await mail.options(delay="1m").enqueue(1, "b")
    assert (sooner.outcome, sooner.job.run_at) == (Outcome.UPDATED, clock() + timedelta(minutes=1))
    now = await mail.enqueue(1, "c")
    assert (now.outcome, now.job.state) == (Outcome.UPDATED, State.AVAILABLE)
    assert (await start(app)).arguments["text"] == "a"


async def test_case_57_a_duplicate_never_lowers_or_postpones(app: App) -> None:
    mail = mailer(app, Unique(by="to", bump=True))
    await mail.options(priority=5, delay="1m").enqueue(1)
    before = await everything(app)
    assert (await mail.options(priority=1, delay="1h").enqueue(1)).outcome is Outcome.KEPT
    assert (await mail.options(priority=5, delay="1m").enqueue(1)).outcome is Outcome.KEPT
    assert await everything(app) == before


async def test_case_57_a_duplicate_may_raise_one_thing_without_lowering_the_other(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique(by="to", bump=True))
    await mail.options(priority=5, delay="1m").enqueue(1)
    raised = await mail.options(priority=9, delay="1h").enqueue(1)
    assert (raised.job.priority, raised.job.run_at) == (9, clock() + timedelta(minutes=1))
    sooner = await mail.options(priority=1, delay="1s").enqueue(1)
    assert (sooner.job.priority, sooner.job.run_at) == (9, clock() + timedelta(seconds=1))


async def test_a_running_job_is_not_bumped(app: App) -> None:
    mail = mailer(app, Unique(by="to", bump=True))
    await mail.enqueue(1)
    running = await start(app)
    assert (await mail.options(priority=5).enqueue(1)).outcome is Outcome.KEPT
    assert await app.job(running.id) == running


async def test_without_bump_a_duplicate_raises_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    before = await everything(app)
    assert (await mail.options(priority=5).enqueue(1)).outcome is Outcome.KEPT
    assert await everything(app) == before


# ── on_mismatch ───────────────────────────────────────────────────────────────────────────────────


async def test_the_same_key_with_another_payload_is_an_error(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_mismatch="error"))
    first = await mail.enqueue(1, "a")
    assert (await mail.enqueue(1, "a")).outcome is Outcome.KEPT
    with pytest.raises(PayloadMismatch) as caught:
        await mail.enqueue(1, "b")
    assert isinstance(caught.value, Duplicate)
    assert caught.value.job.id == first.job.id
    assert caught.value.payload_differs
    assert (await app.job(first.job.id)).arguments["text"] == "a"


async def test_a_mismatch_is_an_error_while_the_job_runs_and_after_it_ended(app: App) -> None:
    mail = mailer(app, Unique.once(by="to", on_mismatch="error"))
    await mail.enqueue(1, "a")
    running = await start(app)
    with pytest.raises(PayloadMismatch):
        await mail.enqueue(1, "b")
    await complete(app, running)
    with pytest.raises(PayloadMismatch):
        await mail.enqueue(1, "b")
    assert (await mail.enqueue(1, "a")).outcome is Outcome.KEPT


async def test_a_mismatch_is_ignored_by_default_and_reported(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1, "a")
    kept = await mail.enqueue(1, "b")
    assert (kept.outcome, kept.payload_differs) == (Outcome.KEPT, True)


# ── shadow ────────────────────────────────────────────────────────────────────────────────────────

SHADOWED: Mapping[str, tuple[Unique, str]] = {
    "keep": (Unique(by="to", shadow=True), "kept"),
    "reject": (Unique(by="to", on_conflict="reject", shadow=True), "rejected"),
    "update": (Unique(by="to", on_conflict="update", shadow=True), "updated"),
    "replace": (Unique(by="to", on_conflict="replace", shadow=True), "replaced"),
    "mismatch": (Unique(by="to", on_mismatch="error", shadow=True), "rejected"),
}


@pytest.mark.parametrize("name", SHADOWED)
async def test_a_shadow_policy_judges_and_counts_but_admits(app: App, name: str) -> None:
    policy, verdict = SHADOWED[name]
    mail = mailer(app, policy)
    first = await mail.enqueue(1, "a")
    second = await mail.enqueue(1, "b")
    assert second.outcome is Outcome.CREATED
    assert not second.deduplicated
    assert second.shadow == verdict
    assert second.job.id != first.job.id
    assert (await app.job(first.job.id)).arguments["text"] == "a"
    assert [job.arguments["text"] for job in await lease(app)] == ["a", "b"]
    assert await absorbed(app) == {f"shadow:{verdict}": 1}


async def test_a_shadow_job_has_no_hold(app: App) -> None:
    mail = mailer(app, Unique(by="to", shadow=True))
    first = await mail.enqueue(1)
    second = await mail.enqueue(1)
    assert [job.id for job in await app.holds()] == [first.job.id]
    running = {job.id: job for job in await lease(app)}
    await complete(app, running[second.job.id])
    assert [job.id for job in await app.holds()] == [first.job.id]
    await complete(app, running[first.job.id])
    assert (await mail.enqueue(1)).shadow is None


async def test_a_shadow_successor_does_not_wait(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to", shadow=True))
    await mail.enqueue(1, "a")
    await start(app)
    second = await mail.enqueue(1, "b")
    assert (second.outcome, second.shadow, second.job.state) == (
        Outcome.CREATED,
        Outcome.RERUN,
        State.AVAILABLE,
    )
    assert (await start(app)).id == second.job.id


async def test_a_shadow_version_ends_no_job(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text", shadow=True))
    first = await mail.enqueue(1, 5)
    stale = await mail.enqueue(1, 4)
    assert (stale.outcome, stale.shadow) == (Outcome.CREATED, Outcome.STALE)
    jobs = await lease(app)
    assert [job.id for job in jobs] == [first.job.id, stale.job.id]
    for job in jobs:
        assert (await complete(app, job)).state is State.COMPLETED


async def test_a_shadow_of_a_lapsed_hold_ends_no_job(app: App) -> None:
    """Trying a policy on live traffic must not supersede what already runs."""
    mail = mailer(app, Unique.latest(by="to", version="text", until="start", shadow=True))
    await mail.enqueue(1, 5)
    running = await start(app)
    assert (await mail.enqueue(1, 6)).outcome is Outcome.CREATED
    assert (await complete(app, running, "done")).state is State.COMPLETED


async def test_a_shadow_of_an_overtaken_job_still_retries(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.until_executing(by="to", on_conflict="update", shadow=True))
    await mail.enqueue(1, "a")
    running = await start(app)
    await mail.enqueue(1, "b")
    assert (await fail(app, running)).state is State.RETRYABLE
    clock.advance(BACKOFF)
    assert len(await live(app)) == 2
