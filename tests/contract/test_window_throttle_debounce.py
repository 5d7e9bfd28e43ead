"""Windows, throttles and debounces, by the store's clock (cases 41, 43, 44, 48 to 50)."""

import typing
from datetime import timedelta

import pytest

from onejob import App, Outcome, State, Unique
from onejob.testing import Clock
from tests.contract.steps import complete, fail, inside, lease, live, mailer, run, start

# ── windows ───────────────────────────────────────────────────────────────────────────────────────


async def test_case_41_a_window_ends_at_its_age_and_not_before(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", until="forever", within="1m"))
    first = await mail.enqueue(1)
    assert first.job.holds_until == clock() + timedelta(minutes=1)
    clock.advance("59999ms")
    assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance("1ms")
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_case_41_refused_requests_do_not_extend_a_window(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m"))
    first = await mail.enqueue(1)
    for _ in range(5):
        clock.advance("10s")
        assert (await mail.enqueue(1)).job.id == first.job.id
    clock.advance("10s")
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_updates_do_not_extend_a_window(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m", on_conflict="update"))
    first = await mail.enqueue(1, "a")
    clock.advance("30s")
    updated = await mail.enqueue(1, "b")
    assert updated.job.holds_until == first.job.holds_until
    clock.advance("30s")
    assert (await mail.enqueue(1, "c")).outcome is Outcome.CREATED


async def test_a_window_and_until_must_both_hold(app: App) -> None:
    mail = mailer(app, Unique(by="to", within="1h"))
    await mail.enqueue(1)
    await run(app)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_case_43_a_window_counts_from_admission_and_not_from_the_run_time(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique(by="to", within="2m"))
    tomorrow = await mail.options(delay="1d").enqueue(1)
    clock.advance("1m59s")
    assert (await mail.enqueue(1)).job.id == tomorrow.job.id
    clock.advance("1s")
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED
    assert len(await live(app)) == 2


async def test_case_44_a_window_may_end_while_the_job_runs(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m"))
    first = await mail.enqueue(1)
    running = await start(app)
    clock.advance("1m")
    second = await mail.enqueue(1)
    assert second.outcome is Outcome.CREATED
    assert (await complete(app, running)).id == first.job.id
    assert (
        await mail.enqueue(1)
    ).job.id == second.job.id  # the first job's end freed nothing of the second's


async def test_a_successors_window_counts_from_its_promotion(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.coalesce(by="to", within="1m"))
    await mail.enqueue(1, "a")
    running = await start(app)
    clock.advance("40s")
    successor = await mail.enqueue(1, "b")
    assert successor.job.holds_until is None
    clock.advance("40s")
    await complete(app, running)
    promoted = await app.job(successor.job.id)
    assert (promoted.held_at, promoted.holds_until) == (clock(), clock() + timedelta(minutes=1))


async def test_a_retry_does_not_renew_a_window(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m"))
    first = await mail.enqueue(1)
    await fail(app, await start(app))
    clock.advance("20s")
    again = await start(app)
    assert (again.id, again.holds_until) == (first.job.id, first.job.holds_until)


End = typing.Literal["waiting", "active", "completed", "cancelled", "discarded"]

# ── throttle ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", typing.get_args(End))
async def test_throttle_admits_one_per_window_however_it_ends(app: App, clock: Clock, end: End) -> None:
    mail = mailer(app, Unique.throttle("1m", by="to"))
    first = await mail.enqueue(1)
    match end:
        case "waiting":
            pass
        case "active":
            await start(app)
        case "completed":
            await run(app)
        case "cancelled":
            await app.cancel(first.job.id)
        case "discarded":
            await fail(app, await start(app), final=True)
    clock.advance("59s")
    kept = await mail.enqueue(1)
    assert (kept.outcome, kept.job.id) == (Outcome.KEPT, first.job.id)
    clock.advance("1s")
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_throttle_first_and_last_runs_the_last_payload_at_the_windows_end(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique.throttle("1m", "first+last", by="to"))
    first = await mail.enqueue(1, "first")
    running = await start(app)
    clock.advance("10s")
    second = await mail.enqueue(1, "second")
    third = await mail.enqueue(1, "third")
    assert (second.outcome, third.outcome) == (Outcome.RERUN, Outcome.UPDATED)
    assert second.job.id == third.job.id != first.job.id
    assert second.job.run_at == first.job.holds_until
    await complete(app, running)
    assert await lease(app) == []

    clock.advance("49s")
    assert await lease(app) == []
    clock.advance("1s")
    assert (await run(app)).arguments["text"] == "third"


async def test_throttle_first_and_last_after_the_first_has_ended(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("1m", "first+last", by="to"))
    first = await mail.enqueue(1, "first")
    await run(app)
    clock.advance("10s")
    last = await mail.enqueue(1, "second")
    assert last.outcome is Outcome.RERUN
    assert (last.job.state, last.job.run_at) == (State.SCHEDULED, first.job.holds_until)
    updated = await mail.enqueue(1, "third")
    assert (updated.outcome, updated.job.id) == (Outcome.UPDATED, last.job.id)
    clock.advance("50s")
    assert (await run(app)).arguments["text"] == "third"


async def test_throttle_first_and_last_begins_a_new_window_with_the_last(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("1m", "first+last", by="to"))
    first = await mail.enqueue(1, "first")
    await run(app)
    last = await mail.enqueue(1, "second")
    clock.advance("1m")
    await run(app)

    clock.advance("59s")  # within the window that the last one began
    next_last = await mail.enqueue(1, "third")
    assert next_last.outcome is Outcome.RERUN
    assert first.job.holds_until is not None
    assert next_last.job.run_at == first.job.holds_until + timedelta(minutes=1)
    assert next_last.job.id != last.job.id
    clock.advance("1s")
    assert (await run(app)).arguments["text"] == "third"


async def test_throttle_first_and_last_without_a_second_request_runs_once(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("1m", "first+last", by="to"))
    await mail.enqueue(1)
    await run(app)
    clock.advance("1h")
    assert await lease(app) == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_throttle_first_and_last_while_the_first_still_waits(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("1m", "first+last", by="to"))
    await mail.enqueue(1, "first")
    last = await mail.enqueue(1, "second")
    assert (last.outcome, last.job.state) == (Outcome.RERUN, State.PENDING)
    assert (await run(app)).arguments["text"] == "first"
    assert await lease(app) == []
    clock.advance("1m")
    assert (await run(app)).arguments["text"] == "second"


async def test_throttle_first_and_last_throttles_a_task_that_enqueues_itself(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.throttle("1m", "first+last", by="to"))
    first = await mail.enqueue(1, "first")
    running = await start(app)
    last = await inside(app, running, lambda: mail.enqueue(1, "second"))
    assert (last.outcome, last.job.run_at) == (Outcome.RERUN, first.job.holds_until)
    await complete(app, running)
    assert await lease(app) == []
    clock.advance("1m")
    assert (await run(app)).arguments["text"] == "second"


# ── debounce ──────────────────────────────────────────────────────────────────────────────────────


async def test_case_48_a_debounce_runs_once_with_the_last_payload_at_the_cap(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.debounce("5s", "30s", by="to"))
    began = clock()
    first = await mail.enqueue(1, 0)
    assert (first.job.state, first.job.run_at) == (State.SCHEDULED, began + timedelta(seconds=5))
    for second in range(1, 30):
        clock.advance("1s")
        again = await mail.enqueue(1, second)
        assert again.job.id == first.job.id
        assert again.job.run_at == min(clock() + timedelta(seconds=5), began + timedelta(seconds=30))
        assert await lease(app) == []
    clock.advance("1s")
    assert (await run(app)).arguments["text"] == 29

    clock.advance("1s")
    cycle = await mail.enqueue(1, "next")
    assert cycle.outcome is Outcome.CREATED
    assert cycle.job.run_at == clock() + timedelta(seconds=5)


async def test_a_debounce_without_a_cap_waits_for_quiet(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.debounce("5s", by="to"))
    await mail.enqueue(1, 0)
    for second in range(1, 100):
        clock.advance("1s")
        await mail.enqueue(1, second)
    clock.advance("4s")
    assert await lease(app) == []
    clock.advance("1s")
    assert (await run(app)).arguments["text"] == 99


async def test_a_debounce_with_an_equal_payload_still_waits_for_quiet(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.debounce("5s", by="to"))
    await mail.enqueue(1, "same")
    clock.advance("4s")
    again = await mail.enqueue(1, "same")
    assert (again.outcome, again.payload_differs) == (Outcome.UPDATED, False)
    clock.advance("4s")
    assert await lease(app) == []


async def test_case_49_the_first_requests_cap_rules_and_the_delay_is_each_calls(
    app: App, clock: Clock
) -> None:
    mail = mailer(app, Unique.debounce("5s", "10s", by="to"))
    began = clock()
    await mail.enqueue(1, "a")
    patient = mail.options(unique=Unique.debounce("8s", "1h", by="to"))
    clock.advance("1s")
    longer = await patient.enqueue(1, "b")
    assert longer.job.run_at == began + timedelta(seconds=9)
    clock.advance("3s")
    clamped = await patient.enqueue(1, "c")
    assert clamped.job.run_at == began + timedelta(seconds=10)
    clock.advance("2s")
    assert (await mail.enqueue(1, "d")).job.run_at == began + timedelta(seconds=10)


async def test_case_50_leading_keeps_the_first_payload_and_trailing_the_last(app: App, clock: Clock) -> None:
    leading = mailer(app, Unique.throttle("5s", by="to"), name="leading")
    trailing = mailer(app, Unique.debounce("5s", by="to"), name="trailing")
    for text in ("first", "last"):
        await leading.enqueue(1, text)
        await trailing.enqueue(1, text)
    assert (await run(app)).arguments["text"] == "first"
    clock.advance("5s")
    assert (await run(app)).arguments["text"] == "last"


async def test_a_debounced_request_during_a_run_waits_for_quiet_and_for_the_run(
    app: App, clock: Clock
) -> None:
    """A successor keeps its own time and starts no earlier."""
    mail = mailer(app, Unique.debounce("5s", "30s", by="to"))
    await mail.enqueue(1, "a")
    clock.advance("5s")
    running = await start(app)
    successor = await mail.enqueue(1, "b")
    assert (successor.outcome, successor.job.state) == (Outcome.RERUN, State.PENDING)
    clock.advance("3s")
    await mail.enqueue(1, "c")
    await complete(app, running)
    assert await lease(app) == []
    clock.advance("4s")
    assert await lease(app) == []
    clock.advance("1s")
    assert (await run(app)).arguments["text"] == "c"


async def test_a_debounced_successor_does_not_wait_longer_than_its_run(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique.debounce("5s", by="to"))
    await mail.enqueue(1, "a")
    clock.advance("5s")
    running = await start(app)
    await mail.enqueue(1, "b")
    clock.advance("14s")
    await complete(app, running)
    assert (await start(app)).arguments["text"] == "b"
