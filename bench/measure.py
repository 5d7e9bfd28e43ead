"""Measure in turns, and judge the result."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.targets import Target


@dataclass(frozen=True)
class Plan:
    """How much to measure, and what to call after each half round and before what takes long."""

    rounds: int
    quick: bool
    tick: Callable[[], None]
    say: Callable[[str], None]

    def size(self, whole: int, quick: int) -> int:
        return quick if self.quick else whole


@dataclass(frozen=True)
class Pair:
    """The medians of onejob and of the reference, and the median ratio."""

    ours: float
    reference: float
    ratio: float


@dataclass(frozen=True)
class Reading:
    """One line of the table; without a bar it is only shown."""

    name: str
    measured: float
    unit: str
    reference: float | None = None
    against: str = ""
    ratio: float | None = None
    bar: str = ""
    passed: bool | None = None


@dataclass(frozen=True)
class Benchmark:
    """A named measurement, for any store."""

    name: str
    run: Callable[[Plan, Target], Iterator[Reading]]


def alternate(plan: Plan, ours: Callable[[], float], reference: Callable[[], float]) -> Pair:
    """Run both in turn, changing the order in each round, and return medians."""
    mine: list[float] = []
    theirs: list[float] = []
    for number in range(plan.rounds):
        turns = [(ours, mine), (reference, theirs)]
        for measure, results in reversed(turns) if number % 2 else turns:
            gc.collect()
            results.append(measure())
            plan.tick()
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    return Pair(statistics.median(mine), statistics.median(theirs), statistics.median(ratios))


def at_least(name: str, pair: Pair, bar: float, *, unit: str = "/s", against: str = "bare") -> Reading:
    """Judge a rate: more is better."""
    return Reading(
        name, pair.ours, unit, pair.reference, against, pair.ratio, f"≥ {bar:g} x", pair.ratio >= bar
    )


def at_most(name: str, pair: Pair, bar: float, *, unit: str = "ms", against: str = "bare") -> Reading:
    """Judge a duration by its ratio: less is better."""
    return Reading(
        name, pair.ours, unit, pair.reference, against, pair.ratio, f"≤ {bar:g} x", pair.ratio <= bar
    )


def judged(name: str, pair: Pair, bar: float | None, *, unit: str = "/s", against: str = "bare") -> Reading:
    """Judge a rate if there is a bar."""
    if bar is None:
        return shown(name, pair, unit=unit, against=against)
    return at_least(name, pair, bar, unit=unit, against=against)


def shown(name: str, pair: Pair, *, unit: str = "/s", against: str = "bare") -> Reading:
    """Show a ratio that has no bar."""
    return Reading(name, pair.ours, unit, pair.reference, against, pair.ratio)


def below(name: str, milliseconds: float, bar: float) -> Reading:
    """Judge a duration without a reference."""
    return Reading(name, milliseconds, "ms", bar=f"≤ {bar:g} ms", passed=milliseconds <= bar)


def true(name: str, count: int, unit: str, bar: str, *, passed: bool) -> Reading:
    """Judge a fact."""
    return Reading(name, count, unit, bar=bar, passed=passed)


class Stopwatch:
    """The seconds that a block took."""

    seconds = 0.0

    def rate(self, count: int) -> float:
        return count / self.seconds


@contextmanager
def timing() -> Iterator[Stopwatch]:
    """Time a block."""
    watch = Stopwatch()
    began = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - began


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` per cent of the values do not exceed."""
    return sorted(values)[max(ceil(len(values) * percent / 100) - 1, 0)]
