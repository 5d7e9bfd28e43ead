"""Histograms: percentiles are exact to a tenth, and sums are those of all measurements together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.core.histogram import (
    LONGEST,
    SHORTEST,
    Histogram,
    Percentiles,
    add_up,
    bucket_of,
    percentile,
    percentiles,
    seconds_of,
)

durations = st.lists(st.floats(SHORTEST, LONGEST), min_size=1, max_size=200)


def measured(seconds: Sequence[float]) -> Histogram:
    return add_up({bucket_of(one): 1} for one in seconds)


@given(durations, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_exact_to_a_tenth(seconds: list[float], share: float) -> None:
    exact = sorted(seconds)[ceil(share * len(seconds)) - 1]
    assert percentile(measured(seconds), share) == pytest.approx(exact, rel=0.1)


@given(durations, durations)
def test_the_sum_of_histograms_is_the_histogram_of_all(one: list[float], other: list[float]) -> None:
    assert add_up([measured(one), measured(other)]) == measured([*one, *other])


@given(st.integers(0, bucket_of(LONGEST)))
def test_the_middle_of_a_bucket_lies_in_it(bucket: int) -> None:
    assert bucket_of(seconds_of(bucket)) == bucket


@pytest.mark.parametrize("seconds", [-1.0, 0.0, SHORTEST / 2])
def test_a_clock_that_was_set_back_counts_as_the_shortest(seconds: float) -> None:
    assert bucket_of(seconds) == 0


def test_a_histogram_is_small_however_long_things_take() -> None:
    assert bucket_of(LONGEST * 1000) == bucket_of(LONGEST) < 150


def test_four_numbers_describe_a_histogram() -> None:
    found = percentiles(measured([0.1] * 90 + [1.0] * 8 + [10.0] * 2))
    assert found.count == 100
    assert found.p50 == pytest.approx(0.1, rel=0.1)
    assert found.p95 == pytest.approx(1.0, rel=0.1)
    assert found.p99 == pytest.approx(10.0, rel=0.1)
    assert percentiles({}) == Percentiles()
