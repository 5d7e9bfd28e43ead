"""Histograms of durations: counts on a logarithmic scale, which can be added up, and their percentiles."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log2

PER_DOUBLING = 4  # buckets between a duration and twice as much: a percentile is exact to a tenth
SHORTEST = 0.0001  # seconds; a shorter duration counts as this long
LONGEST = 30 * 86400.0  # seconds; a longer duration counts as this long
OFFSET = PER_DOUBLING * log2(SHORTEST)
BUCKETS = round(PER_DOUBLING * log2(LONGEST) - OFFSET) + 1
ENDS = [2 ** ((bucket + 0.5 + OFFSET) / PER_DOUBLING) for bucket in range(BUCKETS - 1)]  # but the last's

Histogram = dict[int, int]
"""How many durations there were, by bucket; a bucket without any is left out."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How long something took, in seconds.

    Attributes:
        count: How many times it was measured.
        p50: Half of the measurements took at most this long; 0 if there is none.
        p95: 95 of 100 took at most this long.
        p99: 99 of 100 took at most this long.
    """

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration: 0 for the shortest."""
    return bisect_right(ENDS, seconds)  # a search takes less time than a logarithm


def seconds_of(bucket: int) -> float:
    """Return the duration in the middle of a bucket."""
    return round(float(2 ** ((bucket + OFFSET) / PER_DOUBLING)), 6)


def add_up(histograms: Iterable[Mapping[int, int]]) -> Histogram:
    """Return the sum of histograms."""
    total: Histogram = {}
    for histogram in histograms:
        for bucket, number in histogram.items():
            total[bucket] = total.get(bucket, 0) + number
    return total


def percentile(histogram: Mapping[int, int], share: float) -> float:
    """Return a duration that a share of the measurements did not exceed; 0 if there is none."""
    left = ceil(share * sum(histogram.values()))
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 0:
            return seconds_of(bucket)
    return 0.0


def percentiles(histogram: Mapping[int, int]) -> Percentiles:
    """Return what a histogram says in four numbers."""
    shares = (percentile(histogram, share) for share in (0.5, 0.95, 0.99))
    return Percentiles(sum(histogram.values()), *shares)
