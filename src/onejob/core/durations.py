"""Durations, as people write them and as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import isnan

from onejob.errors import InvalidDuration

Duration = str | float | timedelta
"""A span of time in any of the forms that `duration` reads."""

EXAMPLES = '"500ms", "30s", "5m", "1h30m", "2d", "1w", 1.5 (seconds), a timedelta or ISO 8601 such as "PT10M"'

LONGEST = timedelta(days=36_525)  # a time that far ahead can still be written as a date
MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = timedelta(weeks=1)

_STEPS = ((DAY, HOUR), (HOUR, MINUTE), (10 * SECOND, SECOND), (SECOND, 100 * MILLISECOND))
_UNITS = (WEEK, DAY, HOUR, MINUTE, SECOND, MILLISECOND)
_NUMBER = r"[0-9]{1,15}(?:[.][0-9]{1,9})?"
_COMPACT = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit in ("w", "d", "h", "m", "s", "ms")))
_ISO = re.compile(
    "P(?=[0-9T])(?:(N)W)?(?:(N)D)?(?:T(?=[0-9])(?:(N)H)?(?:(N)M)?(?:(N)S)?)?".replace(
        "N", _NUMBER.replace("[.]", "[.,]")
    )
)
_CALENDAR = re.compile(r"P[^T]*[YM].*")


def duration(value: Duration) -> timedelta:
    """Return a duration as a timedelta.

    Args:
        value: Compact text such as "1h30m", a number of seconds, a timedelta, or ISO 8601 such as "PT10M".

    Raises:
        InvalidDuration: It cannot be read, is negative, or is longer than a hundred years.

    Examples:
        >>> duration("1h30m")
        datetime.timedelta(seconds=5400)
    """
    try:
        delta = _read(value)
    except OverflowError:
        message = f"The duration is longer than a timedelta can be; write {EXAMPLES}."
        raise InvalidDuration(message) from None  # without the number, which may be too long to print
    if delta < timedelta():
        raise _refusal(value, "is negative")
    if delta > LONGEST:
        raise _refusal(value, "is longer than a hundred years")
    return delta


def seconds(value: Duration) -> float:
    """Return a duration as a number of seconds; raise InvalidDuration as `duration` does."""
    return duration(value).total_seconds()


def spell(delta: timedelta) -> str:
    """Return a duration as compact text, which `duration` reads back exactly unless it is negative.

    Examples:
        >>> spell(timedelta(minutes=90))
        '1h30m'
    """
    if delta < timedelta():
        return f"-{spell(-delta)}"
    parts = []
    for unit, letter in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        count, delta = divmod(delta, unit)
        parts += [f"{count}{letter}"] if count else []
    parts += [_spell_seconds(delta)] if delta else []
    return "".join(parts) or "0s"


def rough(delta: timedelta) -> str:
    """Return a duration as text in two units at most, with milliseconds only below a second.

    Examples:
        >>> rough(timedelta(days=1, hours=2, minutes=3))
        '1d2h'
    """
    for unit, step in _STEPS:
        if delta >= unit:
            return spell(delta // step * step)
    return spell(delta // MILLISECOND * MILLISECOND)


def when(moment: datetime, now: datetime) -> str:
    """Return a time as text in UTC, with how far away it is."""
    distance = moment - now
    away = f"in {rough(distance)}" if distance > timedelta() else f"{rough(-distance)} ago"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({away})"


def _spell_seconds(delta: timedelta) -> str:
    unit, letters = (SECOND, "s") if delta >= SECOND else (MILLISECOND, "ms")
    return f"{delta / unit:.6f}".rstrip("0").rstrip(".") + letters


def _read(value: object) -> timedelta:
    match value:
        case timedelta():
            return value
        case str():
            return _parse(value)
        case int() | float() if not isinstance(value, bool) and not isnan(value):
            return timedelta(seconds=value)
    raise _refusal(value, "is not a duration")


def _parse(text: str) -> timedelta:
    if _CALENDAR.fullmatch(text):
        raise _refusal(text, "counts years or months, whose length varies, so count days")
    found = _COMPACT.fullmatch(text) or _ISO.fullmatch(text)
    if not found or not text:
        raise _refusal(text, "is not a duration")
    terms = zip(found.groups("0"), _UNITS, strict=False)  # ISO 8601 has no milliseconds, the last unit
    return timedelta(microseconds=round(sum(_multiply(count, unit) for count, unit in terms)))


def _multiply(count: str, unit: timedelta) -> Fraction:
    """Return exact microseconds; a float would lose some of them in a long duration."""
    return Fraction(count.replace(",", ".")) * (unit // timedelta.resolution)


def _refusal(value: object, fault: str) -> InvalidDuration:
    return InvalidDuration(f"{value!r:.60} {fault}; write {EXAMPLES}.")
