"""Advice says what to write, with figures; and says nothing where the requests show nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from hashlib import sha256

import pytest

from onejob import Advice, State, Unique
from onejob.engine.recorded_requests import ALL, RecordedRequest
from onejob.observe.advice import FEWEST, advice_on
from onejob.observe.request_replay import History, Run
from onejob.stores.columns import read_time

SECOND = 1_000_000
START = 1_767_225_600 * SECOND

Asked = tuple[str, dict[str, object]]


def history(
    requests: Iterable[Asked], *, key: Iterable[str] | None = None, waits: int = 30, threshold: int = ALL
) -> History:
    """Make a history of one request per second, whose jobs wait for half a minute and run for a second."""
    asked = list(requests)
    keys = [""] * len(asked) if key is None else list(key)
    found: list[RecordedRequest] = []
    runs: dict[str, Run] = {}
    for number, ((outcome, arguments), name) in enumerate(zip(asked, keys, strict=True)):
        at = START + number * SECOND
        digests = tuple(digest(value) for value in arguments.values())
        job = f"job {number}" if outcome in {"created", "shadow:kept"} else ""
        found.append(RecordedRequest(at, digests, outcome, job, name and digest(name)))
        runs |= {job: Run(at + waits * SECOND, at + (waits + 1) * SECOND, State.COMPLETED)} if job else {}
    return History("reindex", tuple(asked[0][1]), found, runs, len(found), threshold)


def digest(value: object) -> str:
    return sha256(repr(value).encode()).hexdigest()[:16]


def advise(past: History, policy: Unique | None = None) -> list[Advice]:
    return advice_on(past, policy, read_time(past.requests[-1].at) + timedelta(seconds=1))


def only(past: History, policy: Unique | None = None) -> Advice:
    [advice] = advise(past, policy)
    return advice


def created(count: int, **arguments: object) -> list[Asked]:
    """Make requests; an argument that is a function gets the number of the request."""
    return [
        ("created", {name: value(n) if callable(value) else value for name, value in arguments.items()})
        for n in range(count)
    ]


def test_exact_repeats_of_a_task_without_a_policy() -> None:
    advice = only(history(created(200, document=lambda n: n % 20, reason="changed")))
    assert (advice.kind, advice.policy) == ("repeats", "Unique.coalesce()")
    assert (advice.requests, advice.absorbed, advice.sampled) == (
        200,
        100,
        1.0,
    )  # every second one of a document, 20 s after the first
    assert advice.sentences == [
        "50 % of 200 requests of reindex in the last 3m20s repeated a waiting one; "  # noqa: ISC004
        "Unique.coalesce() would have absorbed 100 of 200."
    ]
    assert {one.policy: one.absorbed for one in advice.candidates}["Unique.until_executing()"] == 100


def test_an_argument_that_differs_is_left_out_of_the_key_and_named() -> None:
    advice = only(history(created(200, at=lambda n: n, document=lambda n: n % 20)))
    assert (advice.kind, advice.policy, advice.absorbed) == ("repeats", 'Unique.coalesce(by="document")', 100)
    assert advice.sentences[1] == "Those requests differ in at: with one key, the newest of them runs."


def test_the_finest_key_is_taken() -> None:
    past = history(created(300, at=lambda n: n, document=lambda n: n % 15, shop=lambda n: n % 15 % 12))
    assert only(past).policy == 'Unique.coalesce(by=["document", "shop"])'


def test_few_different_values_are_no_identity() -> None:
    past = history(created(300, order=lambda n: n, channel=lambda n: n % 3))
    assert only(past).kind == "nothing"


def test_repeats_after_their_runs_are_throttled() -> None:
    advice = only(history(created(200, document=lambda n: n % 20), waits=1))
    assert advice.policy == 'Unique.throttle("30s", "first+last")'
    assert advice.sentences[0].startswith(
        "90 % of 200 requests of reindex in the last 3m20s repeated an earlier one"
    )
    assert advice.absorbed == 180


def test_keys_that_never_match_name_the_argument_that_differs_each_time() -> None:
    past = history(
        created(200, customer=lambda n: n % 40, requested_at=lambda n: n), key=(str(n) for n in range(200))
    )
    advice = only(past, Unique.coalesce())
    assert (advice.kind, advice.policy) == ("never-matches", 'by="customer"')
    assert advice.sentences == [
        "Each of 200 requests of reindex in the last 3m20s had a key of its own, so none was absorbed. "  # noqa: ISC004
        "requested_at differs each time, as a time or a random id does; the others repeat.",
        f'by="customer" would have absorbed {advice.absorbed:,} of 200.',
    ]
    assert advice.absorbed == 0  # a customer comes again after 40 s, when the job has ended
    quick = history(
        created(200, customer=lambda n: n % 20, requested_at=lambda n: n), key=(str(n) for n in range(200))
    )
    assert only(quick, Unique.coalesce()).absorbed == 100
    assert only(quick, Unique(by="customer")).kind == "nothing"  # the argument is no part of the key


def test_a_key_function_that_never_matches() -> None:
    past = history(created(200, customer=lambda n: n % 20), key=(str(n) for n in range(200)))
    advice = only(past, Unique(key=lambda customer: customer))
    assert advice.kind == "never-matches"
    assert "Their arguments repeat" in advice.sentences[0]


def test_different_work_with_different_keys_is_as_it_should_be() -> None:
    past = history(created(200, order=lambda n: n, note="x"), key=(str(n) for n in range(200)))
    assert only(past, Unique(by="order")).kind == "nothing"


def test_keys_that_match_nearly_always_name_what_differs() -> None:
    asked: list[Asked] = [("kept" if n else "created", {"order": n, "tenant": 1}) for n in range(200)]
    past = history(asked, key=["tenant 1"] * 200, waits=1000)
    advice = only(past, Unique(by="tenant"))
    assert (advice.kind, advice.absorbed) == ("always-matches", 199)
    assert advice.sentences == [
        "99.5 % of 200 requests of reindex in the last 3m20s matched a key that was held, and "  # noqa: ISC004
        "they differ in order: the key may be too coarse.",
        'by=["order", "tenant"] would have absorbed 0 of 200.',
    ]


def test_keys_that_match_nearly_always_with_equal_payloads_are_as_they_should_be() -> None:
    asked: list[Asked] = [("kept" if n else "created", {"tenant": 1}) for n in range(200)]
    assert only(history(asked, key=["tenant 1"] * 200), Unique(by="tenant")).kind == "nothing"


def test_a_shadow_policy_that_can_be_switched_on() -> None:
    asked: list[Asked] = [("shadow:kept" if n % 4 else "created", {"document": n // 4}) for n in range(200)]
    past = history(asked, key=(str(n // 4) for n in range(200)))
    advice = only(past, Unique(by="document", shadow=True))
    assert (advice.kind, advice.absorbed) == ("shadow", 150)
    assert advice.sentences == [
        "The shadow policy would have absorbed 150 of 200 requests of reindex in the last 3m20s (150 kept).",
        "Remove shadow=True to switch it on.",
    ]


@pytest.mark.parametrize("count", [1, FEWEST - 1])
def test_there_is_no_advice_below_the_fewest_requests(count: int) -> None:
    advice = only(history(created(count, document="x")))
    assert (advice.kind, advice.absorbed) == ("nothing", 0)
    assert advice.sentences[0].startswith(f"Looked at {count} request")
    assert "fewer than 50" in advice.sentences[0]


def test_the_sampling_rate_is_said() -> None:
    past = history(created(200, document=lambda n: n % 20))
    sampled = History(past.task, past.arguments, past.requests, past.runs, seen=2000, threshold=ALL)
    advice = only(sampled)
    assert advice.sampled == 0.1
    assert "(10.0 % of 2,000 were recorded)" in advice.sentences[0]


def test_a_task_without_arguments() -> None:
    advice = only(history(created(100)))
    assert (advice.policy, advice.absorbed) == ("Unique.coalesce()", 99)
    assert (
        "99 of 100, 3 of them as one more run" in advice.sentences[0]
    )  # made while one ran: at 30, 60, 90 s
