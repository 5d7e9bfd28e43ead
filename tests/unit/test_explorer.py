"""The rules of DESIGN.md §3 hold in every order of events within small bounds, and mutants break them.

ONEJOB_EXPLORE=deep looks further: three requests and two events for every policy, in about half an hour.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import pytest

from onejob.core import decide, holds, manual, replay, runs
from onejob.core.job import Job, Stand, State, alter
from onejob.core.policy import CHOICES, Unique
from onejob.core.step import Changes, View
from onejob.errors import InvalidPolicy
from tests.unit.explorer import Refuted, Report, explore, spelled
from tests.unit.explorer_world import SOON, WINDOW, Bounds

DEEP = os.environ.get("ONEJOB_EXPLORE") == "deep"
UNION = {"items": "union"}

pytestmark = [pytest.mark.timeout(0)] if DEEP else []


# ── the policies ──────────────────────────────────────────────────────────────────────────────────


def possible(**choices: Any) -> list[Unique]:
    """Make a policy, unless it contradicts itself."""
    try:
        return [Unique(**choices)]
    except InvalidPolicy:
        return []


def combinations() -> Iterator[Unique]:
    """Combine what decides how long a key is held and what a newcomer does."""
    axes = {
        "on_conflict": CHOICES["on_conflict"],
        "within": [None, WINDOW],
        "version": [None, "version"],
        "merge": [None, UNION],
    }
    for values in product(*axes.values()):
        choices = dict(zip(axes, values, strict=True))
        yield from possible(until="start", **choices)
        for until, on_active in product(("finish", "failure", "forever"), CHOICES["on_active"]):
            yield from possible(until=until, on_active=on_active, **choices)


def hatches() -> Iterator[Unique]:
    """Hold in hand-picked states."""
    sets = [
        {State.AVAILABLE},
        {State.ACTIVE},
        {State.RETRYABLE},
        {State.COMPLETED},
        {State.AVAILABLE, State.COMPLETED},
        {State.ACTIVE, State.RETRYABLE},
        {State.SCHEDULED, State.AVAILABLE, State.PENDING},
        frozenset(State) - {State.COMPLETED},
    ]
    for states, on_conflict in product(sets, CHOICES["on_conflict"]):
        yield from possible(states=states, on_conflict=on_conflict)
        yield from possible(states=states, on_conflict=on_conflict, version="version")
        yield from possible(states=states, on_conflict=on_conflict, within=WINDOW)
        yield from possible(states=states, on_conflict=on_conflict, merge=UNION)


DETAILS: list[dict[str, Any]] = [
    {"bump": True},
    {"keep_schedule": True},
    {"fields": ["time"]},
    {"merge": UNION, "merge_cap": 1},
    {"wait": 2 * SOON},
    {"wait": 2 * SOON, "max_wait": WINDOW},
    {"wait": 2 * SOON, "merge": UNION},
    {"wait": 2 * SOON, "version": "version"},
    {"shadow": True},
    {"shadow": True, "version": "version"},
    {"shadow": True, "within": WINDOW},
    {"shadow": True, "merge": UNION, "merge_cap": 1},
]


def details() -> Iterator[Unique]:
    """Add what changes little: times, fields, bumps, shadows, merges that fail."""
    for until, on_conflict, more in product(CHOICES["until"], CHOICES["on_conflict"], DETAILS):
        yield from possible(until=until, on_conflict=on_conflict, **more)


PRESETS = [
    Unique.until_executing(),
    Unique.until_executing(on_conflict="update"),
    Unique.until_executed(),
    Unique.throttle(WINDOW),
    Unique.throttle(WINDOW, "first+last"),
    Unique.throttle(WINDOW, "first+last", merge=UNION),
    Unique.debounce(2 * SOON),
    Unique.debounce(2 * SOON, WINDOW),
    Unique.latest(by="items", version="version"),
    Unique.latest(by="items", version="version", until="start"),
    Unique.latest(by="items", version="version", on_active="cancel"),
    Unique.coalesce(),
    Unique.coalesce(merge=UNION),
    Unique.once(),
    Unique.once(on_conflict="replace"),
    Unique.singleton(),
]
FAMILIES = [
    Unique.until_executing(family="items"),
    Unique.until_executing(family="items", on_conflict="update"),
    Unique.until_executed(family="items"),
    Unique.throttle(WINDOW, "first+last", family="items"),
    Unique.debounce(2 * SOON, WINDOW, family="items"),
    Unique.coalesce(family="items", fields=["time"]),
    Unique.coalesce(family="items", within=WINDOW),
    Unique.once(family="items", on_conflict="update"),
    Unique(family="items", on_conflict="replace", keep_schedule=True),
    Unique(family="items", on_conflict="update", on_active="cancel"),
    Unique.latest(by="items", version="version", family="items"),
    Unique.coalesce(family="items"),
]
POLICIES = list(
    {spelled(policy): policy for policy in [*combinations(), *hatches(), *details(), *PRESETS]}.values()
)


# ── the rules hold ────────────────────────────────────────────────────────────────────────────────


Look = Callable[[Unique, Bounds], None]


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    """Explore, and say in the end how much was seen (pytest -s shows it)."""
    reports: list[Report] = []
    yield lambda policy, bounds: reports.append(explore(policy, bounds))
    worlds, moves = (sum(counts) for counts in zip(*reports, strict=True)) if reports else (0, 0)
    print(f"\nexplored {worlds} worlds by {moves} moves in {len(reports)} explorations")  # noqa: T201


@pytest.mark.parametrize("policy", POLICIES, ids=spelled)
def test_three_requests_in_any_order(policy: Unique, look: Look) -> None:
    look(policy, Bounds((3,), 2 if DEEP else 0))


@pytest.mark.parametrize("policy", POLICIES, ids=spelled)
def test_two_requests_and_any_event(policy: Unique, look: Look) -> None:
    look(policy, Bounds((2,), 1))


@pytest.mark.parametrize("policy", PRESETS, ids=spelled)
def test_three_requests_and_any_event(policy: Unique, look: Look) -> None:
    look(policy, Bounds((3,), 1))


@pytest.mark.parametrize("policy", FAMILIES, ids=spelled)
def test_three_requests_of_two_tasks_of_one_family(policy: Unique, look: Look) -> None:
    look(policy, Bounds((3,), 1 if DEEP or policy in FAMILIES[-2:] else 0))


@pytest.mark.parametrize("policy", FAMILIES, ids=spelled)
def test_two_tasks_of_one_family_and_any_event(policy: Unique, look: Look) -> None:
    look(policy, Bounds((2,), 1))


@pytest.mark.parametrize("policy", PRESETS, ids=spelled)
def test_any_two_events(policy: Unique, look: Look) -> None:
    look(policy, Bounds((2,), 3 if DEEP else 2))


@pytest.mark.parametrize(
    "policy", [Unique.coalesce(), Unique.latest(by="items", version="version")], ids=spelled
)
def test_keys_do_not_touch_each_other(policy: Unique, look: Look) -> None:
    look(policy, Bounds((2, 1), 1))


def test_there_are_many_policies() -> None:
    assert len(POLICIES) > 55


# ── mutants ───────────────────────────────────────────────────────────────────────────────────────


Function = Callable[..., Any]
CORE = (holds, decide, runs, replay, manual)  # the module that defines a function comes first


@dataclass(frozen=True)
class Mutant:
    """A function of the core with a mistake in it, and where the explorer has to look to see it."""

    name: str
    function: str
    mistake: Callable[[Function], Function]
    policy: Unique
    seen: str
    requests: int = 2
    events: int = 1


def instead(function: Function) -> Callable[[Function], Function]:
    """Replace a function as a whole."""
    return lambda _original: function


def altered(**fields: Any) -> Callable[[Function], Function]:
    """Change the job that a function returns."""
    return lambda original: lambda *args, **options: alter(original(*args, **options), **fields)


def blind(original: Function) -> Function:
    """Hide the successor from a function that promotes it."""

    def leave(view: View, *args: Any, **options: Any) -> Changes[Any]:
        changes: Changes[Any] = original(msgspec.structs.replace(view, successor=None), *args, **options)
        return changes

    return leave


def forgetful(original: Function) -> Function:
    """Answer `updated`, and keep the old payload."""

    def refresh(request: Any, policy: Unique, view: View, standing: Job) -> Changes[Any]:
        changes: Changes[Any] = original(request, policy, view, standing)
        old = {"args": standing.args, "payload_digest": standing.payload_digest}
        return msgspec.structs.replace(changes, updates=tuple(alter(job, **old) for job in changes.updates))

    return refresh


def indifferent(original: Function) -> Function:
    """Update a job of another task."""

    def refresh(request: Any, policy: Unique, view: View, standing: Job) -> Changes[Any]:
        same = msgspec.structs.replace(request, job=alter(request.job, task=standing.task))
        changes: Changes[Any] = original(same, policy, view, standing)
        return changes

    return refresh


def hasty(original: Function) -> Function:
    """Let the successor in when its holder only rests."""

    def rest(view: View, job: Job, **options: Any) -> Changes[Any]:
        changes: Changes[Any] = original(view, job, **options)
        if view.successor is None:
            return changes
        return msgspec.structs.replace(
            changes, updates=(*changes.updates, holds.promote(view.successor, view.now))
        )

    return rest


def loose(original: Function) -> Function:
    """Let a failed job go on without its hold."""

    def retry(view: View, failed: Job, *args: Any) -> Changes[Any]:
        changes: Changes[Any] = original(view, alter(failed, stand=None), *args)
        return changes

    return retry


def greedy(original: Function) -> Function:
    """Take the key back at hand-back."""

    def rest(view: View, job: Job, **options: Any) -> Changes[Any]:
        changes: Changes[Any] = original(view, alter(job, stand=Stand.HOLDER), **options)
        return changes

    return rest


STARTING = Unique(until="start", on_conflict="update")
LATEST = Unique(until="start", on_conflict="update", version="version")
MUTANTS = [
    Mutant(
        "settle does not ask for the token",
        "owned",
        instead(lambda job, _token: job is not None and job.state is State.ACTIVE),
        Unique(),
        "a late completion",
        requests=1,
    ),
    Mutant(
        "leave does not promote",
        "leave",
        blind,
        Unique.coalesce(),
        "waits behind nobody",
        events=0,
    ),
    Mutant(
        "decide keeps while active",
        "meet_active",
        instead(decide.keep),
        Unique.coalesce(),
        "was kept, but should be rerun",
        events=0,
    ),
    Mutant(
        "an update ignores the newer payload",
        "refresh",
        forgetful,
        Unique.coalesce(),
        "lost|without the request's payload",
        events=0,
    ),
    Mutant(
        "an update takes the payload of another task",
        "refresh",
        indifferent,
        Unique.coalesce(family="items"),
        "should be replaced|which is of",
        events=0,
    ),
    Mutant(
        "a mark is never void",
        "void_mark",
        instead(lambda _mark, _ended: None),
        STARTING,
        "withdrawn",
        events=2,
    ),
    Mutant(
        "nobody is overtaken",
        "overtaken",
        instead(lambda _job, _mark: False),
        STARTING,
        "started after the newer",
    ),
    Mutant(
        "nobody is outdated",
        "outdated",
        instead(lambda _job, _mark: False),
        LATEST,
        "although 2 was admitted",
        events=0,
    ),
    Mutant(
        "a resting holder lets its successor in",
        "rest",
        hasty,
        Unique.coalesce(),
        "promoted|changed another|jobs have",
    ),
    Mutant("a retry drops the hold", "retry_or_yield", loose, Unique(), "lost its hold", requests=1),
    Mutant(
        "the hold does not follow the chain",
        "proceed",
        altered(stand=None),
        Unique(),
        "did not travel",
        requests=1,
    ),
    Mutant(
        "a forced-out job still gives way",
        "detach",
        instead(lambda job, _now: alter(job, stand=None)),
        Unique(on_conflict="update", within=WINDOW),
        "left to run on alone",
    ),
    Mutant(
        "a chain between two jobs counts as waiting",
        "phase",
        instead(lambda job: job.state),
        Unique.coalesce(),
        "was changed|should be rerun",
    ),
    Mutant("nothing is stale", "stale", instead(lambda _request, _view: False), LATEST, "should be stale"),
    Mutant(
        "a superseded payload is not merged",
        "absorb",
        instead(lambda _failed, successor, _merge: successor),
        Unique.coalesce(merge=UNION),
        "not merged",
    ),
    Mutant("hand-back takes the key back", "rest", greedy, STARTING, "changed the hold", requests=1),
    Mutant(
        "only the newest request is remembered",
        "remember",
        lambda original: (
            lambda *args: msgspec.structs.replace(original(*args), prior_version=None, prior_job=None)
        ),
        LATEST,
        "although 2 was admitted",
        requests=3,
    ),
    Mutant(
        "a newcomer may start at once",
        "due",
        instead(lambda _at, _now: State.AVAILABLE),
        Unique.debounce(2 * SOON),
        "before its time",
        events=0,
    ),
]


def substitute(
    monkeypatch: pytest.MonkeyPatch, function: str, mistake: Callable[[Function], Function]
) -> None:
    """Replace a function of the core in every module that uses it."""
    users = [module for module in CORE if hasattr(module, function)]
    assert users
    mistaken = mistake(getattr(users[0], function))
    for module in users:
        monkeypatch.setattr(module, function, mistaken)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_refuted(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    substitute(monkeypatch, mutant.function, mutant.mistake)

    with pytest.raises(Refuted, match=mutant.seen):
        explore(mutant.policy, Bounds((mutant.requests,), mutant.events))


def test_a_refutation_shows_the_shortest_path(monkeypatch: pytest.MonkeyPatch) -> None:
    substitute(monkeypatch, "promote", instead(lambda successor, _now, **_options: successor))

    with pytest.raises(Refuted) as refuted:
        explore(Unique.coalesce(), Bounds((2,), 0))

    assert str(refuted.value).splitlines()[2:] == [
        "  1. request for one with payload 1 → created  [job1-one[1] available holds]",
        "  2. start job1-one  [job1-one[1] active holds]",
        (
            "  3. request for one with payload 2 → rerun  "
            "[job1-one[1] active holds, job2-one[2] pending waits behind]"
        ),
        "  4. complete job1-one  [job1-one[1] completed, job2-one[2] pending waits behind]",
    ]
