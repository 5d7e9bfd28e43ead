"""The rules of leasing hold in every order of events within small bounds, and mutants break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onejob.core import leasing
from onejob.core.leasing import Lease, Load, Rate
from tests.unit.explorer_leasing import SPAN, Plan, Refuted, explore

PLANS = {
    "no limit": Plan(((0, None), (1, None), (0, None))),
    "one at a time": Plan(((0, None), (1, None), (0, None)), limit=1, mishaps=2),
    "two at a time": Plan(((0, None), (1, None), (0, None), (0, None)), limit=2),
    "one of each partition": Plan(((0, "x"), (0, "x"), (1, "y"), (0, None)), share=1),
    "two at a time, one of each partition": Plan(((1, "x"), (1, "x"), (0, "y"), (0, "")), limit=2, share=1),
    "a rate": Plan(((0, None), (1, None), (0, None)), totals=(2,), rate=Rate(2, SPAN)),
    "a rate and a limit": Plan(((0, None), (1, None), (0, None)), limit=1, rate=Rate(2, SPAN)),
    "one key": Plan(((0, None), (1, None), (0, None)), limit=1, keyed=True),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_limits_hold_in_every_order(name: str) -> None:
    states = explore(PLANS[name])
    print(f"{name}: {states} states")  # noqa: T201
    assert states > 50


# ── mutants ───────────────────────────────────────────────────────────────────────────────────────


Function = Callable[..., Any]


def ignoring(*names: str) -> Function:
    """Compute the free capacity without some limits, or without pauses."""
    free = leasing._free

    def mistaken(queue: str, wanted: Lease, load: Load, *rest: Any) -> int:
        ignored: dict[str, Any] = {name: {} for name in names if name != "paused"}
        wanted = replace(wanted, **ignored)
        return free(queue, wanted, replace(load, paused=()) if "paused" in names else load, *rest)

    return mistaken


def unordered(candidates: Any, capacity: Any) -> list[Any]:
    return [job for job in candidates if capacity.take(job)]


def blocked(candidates: Any, capacity: Any) -> list[Any]:
    """Stop at the first job without capacity."""
    started = []
    for job in sorted(candidates, key=leasing.rank):
        if not capacity.take(job):
            break
        started.append(job)
    return started


MUTANTS: dict[str, tuple[str, Function, str, str]] = {
    "the limit is not read": ("_free", ignoring("limits"), "two at a time", "whose limit is 2"),
    "the rate is not read": ("_free", ignoring("rates"), "a rate", "within the span"),
    "the pause is not read": ("_free", ignoring("paused"), "no limit", "in a paused queue"),
    "jobs start in any order": ("choose", unordered, "one at a time", "started before"),
    "a crowded partition hides the others": (
        "choose",
        blocked,
        "two at a time, one of each partition",
        "although there was capacity",
    ),
    "nothing starts": (
        "choose",
        lambda _candidates, _capacity: [],
        "one at a time",
        "nothing can happen",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, mistake, plan, seen = MUTANTS[name]
    monkeypatch.setattr(leasing, function, mistake)
    with pytest.raises(Refuted, match=seen):
        explore(PLANS[plan])


def test_a_share_that_is_not_read_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing.Capacity, "free_of", lambda self, queue, _partition: self.free(queue))
    with pytest.raises(Refuted, match="more than its share"):
        explore(PLANS["one of each partition"])
