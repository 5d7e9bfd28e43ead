"""Recorded requests that are replayed under a policy: by hand, and against what the policy really did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onejob import App, Duplicate, State, Unique
from onejob.core.job import Job
from onejob.engine.recorded_requests import ALL, RecordedRequest
from onejob.observe.request_history import read_history
from onejob.observe.request_replay import History, Run, replay
from onejob.stores.contract import FullStore
from onejob.stores.memory import MemoryStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from tests.contract.steps import absorbed, complete, fail, lease, mailer

SECOND = 1_000_000


def asked(
    at: float, *values: str, job: str = "", outcome: str = "created", times: int = 1
) -> RecordedRequest:
    """Make a request at a second; equal values have equal digests."""
    digests = tuple(f"{sum(value.encode()):016x}" for value in values)
    return RecordedRequest(round(at * SECOND), digests, outcome, job, times=times)


def ran(start: float | None, end: float | None, state: State = State.COMPLETED) -> Run:
    return Run(
        None if start is None else round(start * SECOND), None if end is None else round(end * SECOND), state
    )


def history(requests: Sequence[RecordedRequest], **runs: Run) -> History:
    names = tuple("abc"[: len(requests[0].digests)])
    return History("task", names, requests, runs, sum(one.times for one in requests))


def outcome(past: History, policy: Unique, positions: Sequence[int] = (0,)) -> tuple[int, int]:
    """Return how many requests would have been absorbed, and how many of them as one more run."""
    result = replay(past, policy, past.values_of(positions))
    assert result.requests == past.total
    return result.absorbed, result.reruns


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────

# four requests for x: the first two wait together, the third comes during the first run, the fourth after it
FOUR = history(
    [asked(0, "x", job="j0"), asked(2, "x", job="j1"), asked(6, "x", job="j2"), asked(20, "x", job="j3")],
    j0=ran(5, 10),
    j1=ran(5, 9),
    j2=ran(7, 12),
    j3=ran(21, 25),
)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Unique.until_executing(), (1, 0)),  # the second
        (Unique.until_executed(), (2, 0)),  # the second and the third
        (Unique.coalesce(), (2, 1)),  # the second waits with the first, the third becomes one more run
        (Unique.throttle("15s"), (2, 0)),  # the window from 0 to 15
        (Unique.throttle("30s"), (3, 0)),
        (Unique.throttle("15s", "first+last"), (3, 2)),  # runs at 0, at 15, and at 30 for the fourth
        (Unique.debounce("3s"), (2, 1)),  # the first runs at 5, not before
        (Unique.debounce("30s"), (3, 0)),
        (Unique.once(), (3, 0)),
        (Unique(on_conflict="replace"), (1, 1)),  # the second replaces the first, the third follows it
    ],
    ids=lambda value: value.describe() if isinstance(value, Unique) else "",
)
def test_a_history_computed_manually(policy: Unique, expected: tuple[int, int]) -> None:
    assert outcome(FOUR, policy) == expected


def test_a_successor_starts_after_the_run_before_it_and_takes_its_own_time() -> None:
    past = history(
        [
            asked(0, "x", job="j0"),
            asked(6, "x", job="j1"),
            asked(13, "x", job="j2"),
            asked(16, "x", job="j3"),
        ],
        j0=ran(5, 10),
        j1=ran(7, 12),  # in the replay: from 10 to 15
        j2=ran(14, 18),  # the third asks for one more run: from 15 to 19
        j3=ran(17, 18),
    )
    assert outcome(past, Unique.coalesce()) == (3, 3)


def test_a_failed_run_releases_what_a_completed_one_holds() -> None:
    requests = [asked(0, "x", job="j0"), asked(9, "x", job="j1")]
    assert outcome(history(requests, j0=ran(1, 2)), Unique.once()) == (1, 0)
    assert outcome(history(requests, j0=ran(1, 2, State.DISCARDED)), Unique.once()) == (0, 0)
    assert outcome(history(requests, j0=ran(None, 2, State.CANCELLED)), Unique.once()) == (0, 0)


def test_a_job_that_has_not_started_or_ended_holds_on() -> None:
    requests = [asked(0, "x", job="j0"), asked(1000, "x", job="j1")]
    waiting = history(requests, j0=ran(None, None, State.AVAILABLE))
    assert outcome(waiting, Unique.until_executing()) == (1, 0)
    active = history(requests, j0=ran(1, None, State.ACTIVE))
    assert outcome(active, Unique.until_executed()) == (1, 0)
    assert outcome(active, Unique.until_executing()) == (0, 0)


def test_a_request_without_a_job_gets_the_median_wait_and_run_time() -> None:
    requests = [
        *(asked(0, "y", job="j0"), asked(0, "z", job="j1"), asked(0, "v", job="j2")),
        *(asked(100, "x", outcome="kept"), asked(104, "x", outcome="kept"), asked(106, "x", outcome="kept")),
    ]
    past = history(requests, j0=ran(1, 2), j1=ran(2, 5), j2=ran(9, 19))
    assert (past.wait, past.run_time) == (2 * SECOND, 3 * SECOND)
    assert outcome(past, Unique.until_executed()) == (1, 0)  # a run from 102 to 105


def test_equal_requests_count_each() -> None:
    past = history([asked(0, "x", job="j0"), asked(1, "x", outcome="kept", times=40)])
    assert outcome(past, Unique()) == (40, 0)


def test_a_forced_request_is_never_absorbed() -> None:
    past = history([asked(0, "x", job="j0"), asked(1, "x", job="j1", outcome="forced"), asked(2, "x")])
    assert outcome(past, Unique()) == (1, 0)


def test_the_sample_of_an_argument_is_complete() -> None:
    low, high = "00000001", "f0000000"
    requests = [
        RecordedRequest(at, (f"{one}{at:08x}", f"{two}00000000"), "created")
        for at, (one, two) in enumerate([(low, low), (low, high), (high, low), (low, high)])
    ]
    past = History("task", ("a", "b"), requests, {}, 400, ALL // 2)
    assert past.sample([1]).total == 2
    assert past.sample([0]).total == past.sample([0, 1]).total == 3  # by the argument with the most values
    assert past.sample([0]).share == 3 / 400


# ── against what really happened ──────────────────────────────────────────────────────────────────

POLICIES = {
    "until_executing": Unique.until_executing(by="to"),
    "until_executed": Unique.until_executed(by="to"),
    "coalesce": Unique.coalesce(by="to"),
    "once": Unique.once(by="to"),
    "reject": Unique(by="to", on_conflict="reject"),
    "replace": Unique(by="to", on_conflict="replace"),
    "window": Unique(by="to", within="7s"),
    "throttle": Unique.throttle("9s", by="to"),
    "first+last": Unique.throttle("9s", "first+last", by="to"),
    "debounce": Unique.debounce("4s", "12s", by="to"),
    "all arguments": Unique.coalesce(),
}

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("ask"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.sampled_from(["start", "complete", "discard"]), st.integers(1, 2), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


async def really(store: FullStore, clock: Clock, policy: Unique, acts: list[tuple[str, int, int]]) -> None:
    """Run a history under a policy, and compare the count of absorbed requests with its replay."""
    async with App(store=store) as app:
        mail, running, began = mailer(app, unique=policy), list[Job](), clock()
        for act, number, text in acts:
            clock.advance("1s")
            if act == "ask":
                with suppress(Duplicate):
                    await mail.enqueue(number, text)
            elif act == "start":
                running += await lease(app, total=number)
            elif running:
                job = running.pop(0)
                await (complete(app, job) if act == "complete" else fail(app, job, final=True))
        counted = sum((await absorbed(app)).values())
        past = await read_history(app._engine, "mail", began)
        assert (past is None) == (not any(act == "ask" for act, *_ in acts))
        if past is not None:
            result = replay(past, policy, [one.key.encode() for one in past.requests])
            assert (result.absorbed, result.requests) == (counted, past.seen)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(acts=ACTS)
def test_the_same_policy_absorbs_in_the_replay_what_it_really_did(
    name: str, acts: list[tuple[str, int, int]]
) -> None:
    clock = Clock()
    asyncio.run(really(MemoryStore(clock=clock), clock, POLICIES[name], acts))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=6, deadline=None)
@given(acts=ACTS)
def test_the_same_policy_absorbs_in_the_replay_what_it_did_on_sqlite(
    name: str, acts: list[tuple[str, int, int]]
) -> None:
    with TemporaryDirectory() as folder:
        clock = Clock()
        store = SQLiteStore(Path(folder) / "jobs.db", clock=clock, synchronous="NORMAL")
        asyncio.run(really(store, clock, POLICIES[name], acts))
