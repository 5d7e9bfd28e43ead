"""Admitting: what a newcomer meets, how long a key is held, and who wins a race for it."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import pytest

from onejob import App, Duplicate, Outcome, State, Task, Unique, unique
from onejob.core.policy import OnActive, OnConflict, Until
from onejob.errors import WeakStore
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock
from tests.contract.steps import (
    BACKOFF,
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
    states,
    stop,
)

# ── the answer ────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_request_is_created(app: App, clock: Clock) -> None:
    admission = await mailer(app, Unique(by="to")).enqueue(1, "hello")
    job = admission.job
    assert admission.outcome is Outcome.CREATED
    assert not admission.deduplicated
    assert not admission.payload_differs
    assert admission.holder is None
    assert admission.reason
    assert admission.key == (job.key or b"").hex()
    assert (job.state, job.task, job.queue, job.created_at) == (State.AVAILABLE, "mail", "default", clock())
    assert job.arguments == {"to": 1, "text": "hello"}
    assert await app.job(job.id) == job
    assert await states(app) == [State.AVAILABLE]


async def test_a_duplicate_is_kept_with_a_reason(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1, "a")
    again = await mail.enqueue(1, "b")
    assert again.outcome is Outcome.KEPT
    assert again.deduplicated
    assert again.payload_differs
    assert again.job == first.job
    assert again.holder == first.job
    assert again.reason.endswith(".")
    assert again.key == first.key
    assert not (await mail.enqueue(1, "a")).payload_differs


async def test_blocking_code_gets_the_same_answers(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    first = await asyncio.to_thread(mail.enqueue_sync, 1, "a")
    again = await asyncio.to_thread(mail.enqueue_sync, 1, "b")
    same = await asyncio.to_thread(mail.enqueue_sync, 1, "b")
    assert [first.outcome, again.outcome, same.outcome] == [Outcome.CREATED, Outcome.UPDATED, Outcome.KEPT]
    assert {again.job.id, same.job.id} == {first.job.id}


async def test_a_rejected_duplicate_raises_with_the_facts(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="reject"))
    first = await mail.enqueue(1, "a")
    with pytest.raises(Duplicate) as caught:
        await mail.enqueue(1, "b")
    refusal = caught.value
    assert refusal.job == refusal.holder == first.job
    assert refusal.key == first.key
    assert refusal.payload_differs
    assert refusal.admission.outcome is Outcome.REJECTED
    assert refusal.admission.deduplicated
    assert str(refusal) == refusal.admission.reason


async def test_a_task_without_a_policy_is_never_a_duplicate(app: App) -> None:
    mail = mailer(app)
    first, second = await mail.enqueue(1), await mail.enqueue(1)
    assert (first.outcome, second.outcome) == (Outcome.CREATED, Outcome.CREATED)
    assert first.key is None


async def test_a_call_may_switch_the_policy_off_or_on(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    assert (await mail.options(unique=False).enqueue(1)).outcome is Outcome.CREATED

    plain = mailer(app, name="plain")
    first = await plain.options(unique=True).enqueue(1)
    assert (await plain.options(unique=Unique()).enqueue(1)).job.id == first.job.id
    assert (await plain.enqueue(1)).outcome is Outcome.CREATED


async def test_a_duplicate_under_keep_or_reject_writes_no_job_row(app: App) -> None:
    """Rule 7; case 65: the path of a plain skip is free of writes."""
    mail = mailer(app, Unique(by="to"))
    strict = mailer(app, Unique(by="to", on_conflict="reject"), name="strict")
    await mail.enqueue(1)
    await strict.enqueue(1)
    before = await everything(app)
    for _ in range(20):
        await mail.enqueue(1, "again")
        with pytest.raises(Duplicate):
            await strict.enqueue(1, "again")
    assert await everything(app) == before


# ── what a newcomer meets ─────────────────────────────────────────────────────────────────────────

Meeting = Literal["scheduled", "available", "active", "retryable", "completed", "cancelled", "discarded"]


async def bring_to(app: App, mail: Task[..., str], meeting: Meeting) -> str:
    """Make the holder of a key and bring it into a state; return its id."""
    job = (await mail.options(delay="1h" if meeting == "scheduled" else None).enqueue(1, "old")).job
    match meeting:
        case "scheduled" | "available":
            pass
        case "active":
            await start(app)
        case "retryable":
            await fail(app, await start(app))
        case "completed":
            await run(app)
        case "cancelled":
            await app.cancel(job.id)
        case "discarded":
            await discard(app)
    assert (await app.job(job.id)).state == meeting
    return job.id


def row(
    on_conflict: OnConflict, on_active: OnActive | None, waiting: str, active: str, ended: str
) -> list[Any]:
    """Spell one row of the table of conflicts out: an outcome per state of the holder."""
    met: dict[Meeting, str] = {
        "scheduled": waiting,
        "available": waiting,
        "retryable": waiting,
        "active": active,
        "completed": ended,
        "cancelled": ended,
        "discarded": ended,
    }
    return [
        pytest.param(
            Unique(by="to", until="forever", on_conflict=on_conflict, on_active=on_active),
            meeting,
            Outcome(outcome),
            id=f"{on_conflict}/{on_active or 'default'}-{meeting}-{outcome}",
        )
        for meeting, outcome in met.items()
    ]


async def outcome_of(mail: Task[..., str]) -> Outcome:
    """Enqueue a newcomer; return its outcome, a refusal included."""
    try:
        return (await mail.enqueue(1, "new")).outcome
    except Duplicate as refusal:
        return Outcome(refusal.admission.outcome)


@pytest.mark.parametrize(
    ("policy", "meeting", "outcome"),
    [
        *row("keep", None, "kept", "kept", "kept"),
        *row("keep", "reject", "kept", "rejected", "kept"),
        *row("keep", "rerun", "kept", "rerun", "kept"),
        *row("keep", "cancel", "kept", "rerun", "kept"),
        *row("reject", None, "rejected", "rejected", "rejected"),
        *row("reject", "keep", "rejected", "kept", "rejected"),
        *row("reject", "rerun", "rejected", "rerun", "rejected"),
        *row("update", None, "updated", "rerun", "created"),
        *row("update", "keep", "updated", "kept", "created"),
        *row("update", "reject", "updated", "rejected", "created"),
        *row("update", "cancel", "updated", "rerun", "created"),
        *row("replace", None, "replaced", "rerun", "created"),
        *row("replace", "keep", "replaced", "kept", "created"),
        *row("replace", "reject", "replaced", "rejected", "created"),
    ],
)
async def test_what_a_newcomer_does_depends_on_the_state_of_the_holder(
    app: App, policy: Unique, meeting: Meeting, outcome: Outcome
) -> None:
    mail = mailer(app, policy)
    holder = await bring_to(app, mail, meeting)
    assert await outcome_of(mail) is outcome

    stands_for_key = [job for job in await everything(app) if job.is_holder]
    assert len(stands_for_key) == 1
    taken_over = outcome in {Outcome.REPLACED, Outcome.CREATED}
    assert (stands_for_key[0].id == holder) is not taken_over


async def test_case_33_retryable_holder_is_a_duplicate(app: App, clock: Clock) -> None:
    """And its retry is never refused by its own key (rule 2)."""
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    await fail(app, await start(app))
    assert (await mail.enqueue(1)).job.id == first.job.id

    clock.advance(BACKOFF)
    assert (await start(app)).id == first.job.id
    assert (await mail.enqueue(1)).outcome is Outcome.KEPT


# ── how long a key is held ────────────────────────────────────────────────────────────────────────

End = Callable[[App], Awaitable[Any]]


async def cancel_waiting(app: App) -> None:
    [job] = await live(app)
    await app.cancel(job.id)


async def cancel_running(app: App) -> None:
    job = await start(app)
    await app.cancel(job.id)
    await stop(app, job)


async def delete_ended(app: App) -> None:
    await app.delete((await run(app)).id)


async def start_and_hand_back(app: App) -> None:
    await hand_back(app, await start(app))


async def start_and_snooze(app: App) -> None:
    await snooze(app, await start(app), 60)


async def start_and_fail(app: App) -> None:
    await fail(app, await start(app))


ENDS: dict[str, End] = {
    "start": start,
    "retry": start_and_fail,
    "hand back": start_and_hand_back,
    "snooze": start_and_snooze,
    "complete": run,
    "discard": discard,
    "cancel waiting": cancel_waiting,
    "cancel running": cancel_running,
    "delete": delete_ended,
}
HELD_AFTER: dict[Until, set[str]] = {
    "start": set(),
    "finish": {"start", "retry", "hand back", "snooze"},
    "failure": {"start", "retry", "hand back", "snooze", "complete"},
    "forever": set(ENDS) - {"delete"},
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("until", HELD_AFTER)
async def test_case_38_every_step_keeps_or_frees_the_key_as_until_says(
    app: App, until: Until, end: str
) -> None:
    mail = mailer(app, Unique(by="to", until=until))
    await mail.enqueue(1)
    await ENDS[end](app)
    again = await mail.enqueue(1)
    assert again.outcome is (Outcome.KEPT if end in HELD_AFTER[until] else Outcome.CREATED)


async def test_states_are_compared_with_the_holder_at_the_moment_of_judging(app: App) -> None:
    mail = mailer(app, Unique(by="to", states=["available", "completed"]))
    first = await mail.enqueue(1)
    assert (await mail.enqueue(1)).job.id == first.job.id
    running = await start(app)
    assert (await mail.options(delay="1h").enqueue(1)).outcome is Outcome.CREATED
    await complete(app, running)


async def test_states_may_hold_a_key_again_after_a_gap(app: App) -> None:
    """Held while available and once completed, free while active: the escape hatch of the Open Job Spec."""
    mail = mailer(app, Unique(by="to", states=[State.AVAILABLE, State.COMPLETED]))
    first = await mail.enqueue(1)
    await run(app)
    again = await mail.enqueue(1)
    assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)


async def test_case_31_times_are_the_stores(app: App, store: Store, clock: Clock) -> None:
    """Two hosts with clocks of their own share the store's."""
    one = mailer(app, Unique(by="to", within="1m"))
    first = await one.enqueue(1)
    assert first.job.held_at == clock()
    async with App(store=store) as other:
        two = mailer(other, Unique(by="to", within="1m"))
        assert (await two.enqueue(1)).job.id == first.job.id
        clock.advance("1m")
        assert (await two.enqueue(1)).outcome is Outcome.CREATED


async def test_case_32_a_client_that_repeats_its_request_gets_the_same_job(app: App) -> None:
    """The first answer was lost on its way; also after the job has succeeded, under `once`."""
    mail = mailer(app, Unique.once(by="to"))
    first = await mail.enqueue(1)
    assert (await mail.enqueue(1)).job.id == first.job.id
    await run(app)
    assert (await mail.enqueue(1)).job.id == first.job.id
    assert len(await everything(app)) == 1


# ── taking over ───────────────────────────────────────────────────────────────────────────────────


async def test_rule_1_a_newcomers_own_window_may_leave_the_holder_out(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    impatient = mail.options(unique=Unique(by="to", within="1m"))
    first = await mail.enqueue(1, "a")
    clock.advance("59s")
    assert (await impatient.enqueue(1, "b")).outcome is Outcome.KEPT

    clock.advance("1s")
    second = await impatient.enqueue(1, "b")
    assert second.outcome is Outcome.CREATED
    assert second.holder is not None
    assert second.holder.id == first.job.id
    assert [job.id for job in await app.holds()] == [second.job.id]
    assert {job.id for job in await lease(app)} == {first.job.id, second.job.id}  # independent from here on


async def test_rule_1_a_newcomers_own_states_may_leave_the_holder_out(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    await start(app)
    second = await mail.options(unique=Unique(by="to", states=["available"])).enqueue(1)
    assert second.outcome is Outcome.CREATED
    assert [job.id for job in await app.holds()] == [second.job.id]

    kept = await mail.enqueue(1)
    assert kept.job.id == second.job.id != first.job.id


async def test_rule_1_take_over_absorbs_the_waiting_successor(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    first = await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    third = await mail.options(unique=Unique.coalesce(by="to", states=["available"])).enqueue(1, "c")
    assert third.outcome is Outcome.CREATED
    absorbed = await app.job(successor.job.id)
    assert (absorbed.state, absorbed.reason, absorbed.superseded_by) == (
        State.CANCELLED,
        "superseded",
        third.job.id,
    )
    assert (await complete(app, running)).state is State.COMPLETED
    assert [job.id for job in await live(app)] == [third.job.id]
    assert first.job.id == running.id


async def test_rule_5_force_admits_anyway_and_takes_the_hold(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1, "a")
    forced = await mail.options(force=True).enqueue(1, "b")
    assert forced.outcome is Outcome.FORCED
    assert not forced.deduplicated
    assert forced.holder is not None
    assert forced.holder.id == first.job.id

    kept = await mail.enqueue(1, "c")
    assert kept.job.id == forced.job.id
    started = await lease(app)
    assert [job.id for job in started] == [first.job.id, forced.job.id]  # the older job runs on
    assert (await complete(app, started[0])).state is State.COMPLETED
    assert (await mail.enqueue(1)).job.id == forced.job.id  # and its end frees nobody else's key


async def test_rule_5_force_absorbs_the_waiting_successor(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    forced = await mail.options(force=True).enqueue(1, "c")
    assert (await app.job(successor.job.id)).superseded_by == forced.job.id
    assert (await start(app)).id == forced.job.id
    assert (await complete(app, running)).state is State.COMPLETED


async def test_rule_1_force_merges_the_absorbed_successors_payload(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to", merge={"text": "append"}))
    await mail.enqueue(1, ["a"])
    await start(app)
    await mail.enqueue(1, ["b"])
    forced = await mail.options(force=True).enqueue(1, ["c"])
    assert forced.job.arguments["text"] == ["b", "c"]


async def test_case_64_a_deploy_may_change_the_policy_while_jobs_wait(app: App, store: Store) -> None:
    """Old rows keep the policy that they were admitted with."""
    await mailer(app, Unique.once(by="to")).enqueue(1)
    async with App(store=store) as later:
        mail = mailer(later, Unique(by="to"))
        assert (await mail.enqueue(1)).outcome is Outcome.KEPT
        await run(later)
        assert (await mail.enqueue(1)).outcome is Outcome.KEPT  # held through success, as was promised then

    without = App(store=store)
    assert (await mailer(without, None).enqueue(1)).outcome is Outcome.CREATED


# ── races ─────────────────────────────────────────────────────────────────────────────────────────


async def test_case_19_fifty_tasks_and_fifty_threads_create_one_job(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(50) as threads:
        requests: list[Awaitable[Any]] = []
        for number in range(50):
            requests.append(loop.run_in_executor(threads, mail.enqueue_sync, 1, number))
            requests.append(mail.enqueue(1, number))
        admissions = await asyncio.gather(*requests)
    outcomes = [admission.outcome for admission in admissions]
    assert outcomes.count(Outcome.CREATED) == 1
    assert outcomes.count(Outcome.KEPT) == 99
    assert len({admission.job.id for admission in admissions}) == 1
    assert len(await everything(app)) == 1


async def test_case_22_a_holder_that_finishes_meanwhile_never_leaves_a_request_without_a_job(
    app: App,
) -> None:
    mail = mailer(app, Unique(by="to"))
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(4) as threads:
        for _ in range(30):
            await mail.enqueue(1)
            running = await start(app)
            requests = [loop.run_in_executor(threads, mail.enqueue_sync, 1) for _ in range(4)]
            ended = await complete(app, running)
            admissions = [await request for request in requests]
            standing = {ended.id, *(job.id for job in await live(app))}
            outcomes = [admission.outcome for admission in admissions]
            assert set(outcomes) <= {Outcome.CREATED, Outcome.KEPT}
            assert outcomes.count(Outcome.CREATED) <= 1
            assert {admission.job.id for admission in admissions} <= standing
            for job in await lease(app):
                await complete(app, job)


async def test_case_46_a_replacement_that_races_with_a_lease_never_runs_the_old_payload(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    for number in range(30):
        old = await mail.enqueue(number, "old")
        started, new = await asyncio.gather(lease(app), mail.enqueue(number, "new"))
        if new.outcome is Outcome.REPLACED:
            assert old.job.id not in {job.id for job in started}
            started += await lease(app)
            assert [job.arguments["text"] for job in started] == ["new"]
            await complete(app, started[0])
        else:
            assert new.outcome is Outcome.RERUN
            assert [job.arguments["text"] for job in started] == ["old"]
            await complete(app, started[0])
            assert (await run(app)).arguments["text"] == "new"


# ── presets and the fluent form ───────────────────────────────────────────────────────────────────


async def test_preset_until_executing(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    first = await mail.enqueue(1)
    assert (await mail.enqueue(1)).job.id == first.job.id
    await start(app)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_preset_until_executed(app: App) -> None:
    mail = mailer(app, Unique.until_executed(by="to"))
    first = await mail.enqueue(1)
    running = await start(app)
    assert (await mail.enqueue(1)).job.id == first.job.id
    await complete(app, running)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_preset_once(app: App) -> None:
    mail = mailer(app, Unique.once(by="to"))
    first = await mail.enqueue(1)
    await run(app)
    assert (await mail.enqueue(1)).job.id == first.job.id

    second = await mail.enqueue(2)
    await discard(app)
    assert (await mail.enqueue(2)).outcome is Outcome.CREATED
    assert (await app.job(second.job.id)).state is State.DISCARDED


async def test_preset_singleton(app: App) -> None:
    mail = mailer(app, Unique.singleton())
    first = await mail.enqueue(1, "a")
    assert (await mail.enqueue(2, "b")).job.id == first.job.id


async def test_preset_coalesce(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    assert (await mail.enqueue(1, "a")).outcome is Outcome.CREATED
    assert (await mail.enqueue(1, "b")).outcome is Outcome.UPDATED
    running = await start(app)
    assert (await mail.enqueue(1, "c")).outcome is Outcome.RERUN
    await complete(app, running)
    assert (await run(app)).arguments["text"] == "c"


async def test_preset_latest(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    first = await mail.enqueue(1, 5)
    assert (await mail.enqueue(1, 4)).outcome is Outcome.STALE
    newer = await mail.enqueue(1, 6)
    assert (newer.outcome, newer.job.id) == (Outcome.UPDATED, first.job.id)
    assert (await run(app)).arguments["text"] == 6


async def test_preset_throttle(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("1m", by="to"))
    first = await mail.enqueue(1)
    await run(app)
    assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance("1m")
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_preset_debounce(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.debounce("5s", by="to"))
    await mail.enqueue(1, "a")
    clock.advance("4s")
    await mail.enqueue(1, "b")
    clock.advance("4s")
    assert await lease(app) == []
    clock.advance("1s")
    assert (await start(app)).arguments["text"] == "b"


async def test_the_fluent_form_says_the_same(app: App, clock: Clock) -> None:
    mail = mailer(app, unique.by("to").until("finish").within("5m").or_update())
    first = await mail.enqueue(1, "a")
    again = await mail.enqueue(1, "b")
    assert (again.outcome, again.job.id) == (Outcome.UPDATED, first.job.id)
    clock.advance("5m")
    assert (await mail.enqueue(1, "c")).outcome is Outcome.CREATED
    once = await mail.options(unique=unique.by("text").or_keep()).enqueue(2, "d")
    assert (await mail.options(unique=unique.by("text").or_keep()).enqueue(3, "d")).job.id == once.job.id


# ── when ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delayed_request_holds_its_key_while_scheduled(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.options(delay="30s").enqueue(1)
    assert (first.job.state, first.job.run_at) == (State.SCHEDULED, clock() + timedelta(seconds=30))
    assert (await mail.enqueue(1)).job.id == first.job.id
    assert await lease(app) == []
    clock.advance("30s")
    assert (await start(app)).id == first.job.id


async def test_a_request_may_name_its_time(app: App, clock: Clock) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    admission = await mailer(app).options(run_at=at).enqueue(1)
    assert (admission.job.state, admission.job.run_at) == (State.SCHEDULED, at)
    clock.advance("11h59m59s")
    assert await lease(app) == []
    clock.advance("1s")
    assert (await start(app)).id == admission.job.id


# ── strength ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_store_accepts_a_demand_that_it_declares_to_meet(app: App) -> None:
    assert app.guarantees().strength == "strong"
    mail = mailer(app, Unique(by="to", strength="strong"))
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


class WeakMemoryStore(MemoryStore):
    """The memory store, if it promised less."""

    guarantees = replace(MemoryStore.guarantees, store="weak", strength="best-effort")


async def test_a_store_that_declares_less_refuses_the_task_at_start_up() -> None:
    app = App(store=WeakMemoryStore())
    register = partial(mailer, app, Unique(by="to", strength="strong"))
    with pytest.raises(WeakStore, match="choose another store, or leave strength out"):
        register()
    mail = mailer(app, Unique(by="to"))
    with pytest.raises(WeakStore):
        mail.options(unique=unique.by("to").demand("strong"))
