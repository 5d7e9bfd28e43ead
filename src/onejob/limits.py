"""What a queue allows: how many jobs at once, how many of one partition, how often, and how many may wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from onejob.errors import InvalidPolicy
from onejob.schedule import Duration, duration, spell

PAUSED = "paused"  # the kind of the settings that name the queues which give no jobs


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `times` starts in any span of `per`."""

    times: int
    per: timedelta

    def __str__(self) -> str:
        """Write it as it is read: 100/1m."""
        return f"{self.times}/{spell(self.per)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue and its limits, which hold over all workers; None means no limit."""

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
    """Make a queue of what was written, or refuse what cannot be meant."""
    if not isinstance(name, str) or not name:
        raise InvalidPolicy(f"queue({name!r}): a queue's name is text that is not empty.")
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
    """Read how often something may start: "100/1m", or 100 and a span of time."""
    number: object
    span: Duration
    match value:
        case str():
            times, _, span = value.partition("/")
            number = int(times) if times.isdecimal() else times
        case Rate():
            number, span = value.times, value.per
        case _:
            number, span = value
    if not isinstance(number, int) or not _is_count(number) or not span or duration(span) <= timedelta():
        raise InvalidPolicy(f'rate={value!r} is not a rate: write "100/1m" for 100 starts in any minute.')
    return Rate(number, duration(span))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
