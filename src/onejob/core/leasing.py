"""Leasing: the limits of a queue, and which of the available jobs start next.

The rules of order, capacity, fair share, rate and pause are defined here, once. A store supplies candidates
and counts, calls `choose`, and fences the write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from onejob.core.durations import Duration, duration, spell
from onejob.core.job import Job
from onejob.core.text import is_name
from onejob.errors import InvalidDuration, InvalidPolicy

PAUSED = "paused"  # the kind of the settings that name the paused queues


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `times` starts in any span of `per`."""

    times: int
    per: timedelta

    def __str__(self) -> str:
        """Return the rate as it is written in a declaration: 100/1m."""
        return f"{self.times}/{spell(self.per)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue and its limits, which hold over all workers; None means no limit.

    Args:
        name: The queue's name.
        concurrency: How many of its jobs may run at once.
        rate: How many of its jobs may start in a span of time.
        partition_concurrency: How many jobs of one partition may run at once.
        max_depth: How many of its jobs may wait; a request beyond that is refused with QueueFull.
    """

    name: str
    concurrency: int | None = None
    rate: Rate | None = None
    partition_concurrency: int | None = None
    max_depth: int | None = None


def declare(
    name: str,
    *,
    concurrency: int | None = None,
    rate: str | tuple[int, Duration] | Rate | None = None,
    partition_concurrency: int | None = None,
    max_depth: int | None = None,
) -> Queue:
    """Return a queue with its limits; raise InvalidPolicy for limits that make no sense."""
    if not is_name(name):
        raise InvalidPolicy(f"queue({name!r}): a queue's name is printable text.")
    numbers = {
        "concurrency": concurrency,
        "partition_concurrency": partition_concurrency,
        "max_depth": max_depth,
    }
    for what, number in numbers.items():
        if number is not None and not _is_count(number):
            raise InvalidPolicy(f"queue({name!r}, {what}={number!r}): allow at least one, or leave it out.")
    return Queue(
        name=name,
        concurrency=concurrency,
        rate=None if rate is None else read_rate(rate),
        partition_concurrency=partition_concurrency,
        max_depth=max_depth,
    )


def read_rate(value: str | tuple[int, Duration] | Rate) -> Rate:
    """Return a rate given as "100/1m", or as 100 and a span of time."""
    number: object = None
    span: Duration
    given: Any = value  # a caller may have written anything
    match given:
        case str():
            times, _, span = given.partition("/")
            number = int(times) if times.isdecimal() else times
        case Rate():
            number, span = given.times, given.per
        case [number, span]:
            pass
        case _:
            span = ""
    with suppress(InvalidDuration):
        if isinstance(number, int) and _is_count(number) and span and duration(span) > timedelta():
            return Rate(number, duration(span))
    raise InvalidPolicy(f'rate={value!r} is not a rate: write "100/1m" for 100 starts in any minute.')


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# ── what a worker asks for, and what a store has counted ──────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's request: at most `total` jobs, and at most the given number of each queue."""

    namespace: str
    worker: str
    queues: Mapping[str, int]
    total: int
    duration: timedelta
    tasks: Collection[str]
    # Limits over all workers, by queue: active jobs, active jobs of one partition, starts in a span of time.
    limits: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    # Called with each job that ends instead of starting; again, if the store has to decide again.
    on_end: Callable[[Job], None] | None = None

    @property
    def limited(self) -> list[str]:
        """The queues whose starts must be counted, in order."""
        counted = self.limits.keys() | self.shares.keys() | self.rates.keys()
        return sorted(queue for queue in self.queues if queue in counted)


@dataclass(frozen=True, slots=True)
class Load:
    """What a store has counted for a lease: only queues that the lease limits need to be in it."""

    active: Mapping[tuple[str, str], int] = field(
        default_factory=dict
    )  # by queue and partition ("" for none)
    starts: Mapping[str, Sequence[datetime]] = field(
        default_factory=dict
    )  # oldest first, at least within the span
    paused: Collection[str] = ()

    def active_in(self, queue: str) -> int:
        """Return how many jobs of a queue are active."""
        return sum(number for (name, _), number in self.active.items() if name == queue)


# ── the rules ─────────────────────────────────────────────────────────────────────────────────────


def rank(job: Job) -> tuple[int, datetime, int, str]:
    """Return the position of a due job: by priority, time, place, then id."""
    return (-job.priority, job.run_at, job.place, job.id)


def next_start(rate: Rate, starts: Sequence[datetime], now: datetime) -> datetime | None:
    """Return when a queue's rate allows one more start; None if it does now."""
    recent = [at for at in starts if at + rate.per > now]
    return None if len(recent) < rate.times else recent[len(recent) - rate.times] + rate.per


def next_due(
    wanted: Lease, load: Load, now: datetime, timed: datetime | None, started: Sequence[Job] = ()
) -> datetime | None:
    """Return when to lease again, if no change is noticed before.

    Args:
        wanted: The worker's request.
        load: What the store has counted.
        now: The store's time.
        timed: When the next scheduled or retryable job is due.
        started: Jobs that have started since the load was counted.
    """
    times = [timed]
    for queue, rate in wanted.rates.items():
        begun = [now for job in started if job.queue == queue]
        times.append(next_start(rate, [*load.starts.get(queue, ()), *begun], now))
    return min((at for at in times if at is not None), default=None)


class Capacity:
    """How many more jobs a lease may start: in all, by queue and by partition."""

    __slots__ = ("_queues", "_shares", "_taken", "_total")

    def __init__(self, wanted: Lease, load: Load, now: datetime, started: Iterable[Job] = ()) -> None:
        """Compute the free capacity.

        Args:
            wanted: The worker's request.
            load: What the store has counted.
            now: The store's time.
            started: Jobs that this lease has started already; in limited queues the load counts them too.
        """
        begun = Counter(job.queue for job in started)
        self._total = wanted.total - begun.total()
        self._queues = {queue: _free(queue, wanted, load, now, begun[queue]) for queue in wanted.queues}
        self._shares = wanted.shares
        self._taken = Counter(load.active)

    @property
    def total(self) -> int:
        """How many more jobs may start in all."""
        return self._total

    def free(self, queue: str) -> int:
        """Return how many more jobs of a queue may start."""
        return max(min(self._queues[queue], self._total), 0)

    def free_of(self, queue: str, partition: str | None) -> int:
        """Return how many more jobs of a queue's partition may start."""
        if not partition or queue not in self._shares:
            return self.free(queue)
        return max(min(self.free(queue), self._shares[queue] - self._taken[queue, partition]), 0)

    def take(self, job: Job) -> bool:
        """Use capacity for a job, and return whether there was any."""
        if self.free_of(job.queue, job.partition) < 1:
            return False
        self._total -= 1
        self._queues[job.queue] -= 1
        self._taken[job.queue, job.partition or ""] += 1
        return True


def _free(queue: str, wanted: Lease, load: Load, now: datetime, begun: int) -> int:
    if queue in load.paused:
        return 0
    free = wanted.queues[queue] - begun
    if queue in wanted.limits:
        free = min(free, wanted.limits[queue] - load.active_in(queue))
    if queue in wanted.rates:
        rate = wanted.rates[queue]
        free = min(free, rate.times - sum(at + rate.per > now for at in load.starts.get(queue, ())))
    return free


def choose(candidates: Iterable[Job], capacity: Capacity) -> list[Job]:
    """Return the jobs to start, best first; a job without capacity does not block those behind it.

    The candidates must include, for each queue with free capacity, the best available jobs whose partition
    has capacity, as many as may start; more than that does no harm.
    """
    return [job for job in sorted(candidates, key=rank) if capacity.take(job)]


def longest_due(jobs: Iterable[Job], now: datetime) -> dict[str, Job]:
    """Return the job of each queue that has been due longest by now, by queue."""
    due = [job for job in jobs if job.due_since <= now]
    return {job.queue: job for job in sorted(due, key=lambda job: (job.due_since, job.id), reverse=True)}
