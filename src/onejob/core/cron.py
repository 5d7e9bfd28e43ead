"""Cron lines: when they tick, in a time zone that changes its clocks, and how to say them in English.

A line names local times. Where the clocks go forward, local times are skipped; where they go back, local
times come twice. A line with fixed hours ticks once for each of its times: a time that is skipped ticks when
the clocks have changed, a time that comes twice ticks only the first time. A line for every hour (its hour
field begins with `*`) follows the clock: it ticks neither for a skipped time nor only once for a time that
comes twice.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from onejob.core.durations import DAY, MINUTE, SECOND, Duration, duration, spell
from onejob.errors import InvalidSchedule

EXAMPLES = '"*/5 * * * *", "30 7 * * MON-FRI", "@daily" or "@every 30s"'
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY = "@every "
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
RANKS = ("first", "second", "third", "fourth", "fifth")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS_AHEAD = 41  # a 29 February on a given weekday comes within 40 years
LONGEST_LINE = 1000
AT_A_GLANCE = 6  # times of day that are named one by one

_PART = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,4}))?")
_RANKED = re.compile(r"(\w+)#([1-5])")


@dataclass(frozen=True, slots=True)
class Cron:
    """A line of five fields, read."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    ranked: frozenset[tuple[int, int]]  # (weekday, which of the month): Monday the first
    last_day: bool
    follows_clock: bool  # whether times come and go with the clock, or are ticked once each
    either_day: bool  # whether one of both day fields is enough


@dataclass(frozen=True, slots=True)
class Every:
    """A line that counts an interval from 1970, so that all processes count alike."""

    text: str
    interval: timedelta


Line = Cron | Every


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    names: Sequence[str] = ()
    first_name: int = 0


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, [name[:3].upper() for name in MONTHS], 1),
    _Field("day of the week", 0, 7, [name[:3].upper() for name in WEEKDAYS]),
)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def read(text: str) -> Line:
    """Read a line: five fields, a macro such as @daily, or @every and a duration."""
    if not isinstance(text, str) or len(text) > LONGEST_LINE:
        raise InvalidSchedule(f"{text!r:.60} is not a cron line: write {EXAMPLES}.")
    line = " ".join(text.split())
    if line.lower().startswith(EVERY):
        return every(line[len(EVERY) :])
    fields = MACROS.get(line.lower(), line).split()
    if len(fields) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        count = f"has {len(fields)} field{'s' * (len(fields) != 1)}, not five"
        raise InvalidSchedule(f"{text!r:.60} {count} ({names}): write {EXAMPLES}.")
    found = _line(line, fields)
    if _first_day(found, date(2000, 1, 1)) is None:
        raise InvalidSchedule(f"{text!r:.60} never comes: no month that it names has such a day.")
    return found


def every(interval: Duration) -> Every:
    """Make the line that ticks at every multiple of an interval."""
    span = duration(interval)
    if span < SECOND:
        raise InvalidSchedule(f"@every {spell(span)} is too often: write one second or more.")
    return Every(f"{EVERY}{spell(span)}", span)


def zone_named(name: str) -> ZoneInfo:
    """Find a time zone by its IANA name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidSchedule(
            f"timezone={name!r:.60} is not known here: write an IANA name such as 'Europe/Berlin' or 'UTC', "
            "and install tzdata where the machine has no time zones."
        ) from None


def _line(text: str, fields: Sequence[str]) -> Cron:
    minutes, hours, days, months, weekdays = fields
    last_day, days_left = _take_last(days)
    ranked, weekdays_left = _take_ranked(weekdays)
    all_hours = _values(hours, _FIELDS[1])
    return Cron(
        text=text,
        minutes=tuple(sorted(_values(minutes, _FIELDS[0]))),
        hours=tuple(sorted(all_hours)),
        days=_values(days_left, _FIELDS[2]),
        months=_values(months, _FIELDS[3]),
        weekdays=frozenset(day % 7 for day in _values(weekdays_left, _FIELDS[4])),
        ranked=ranked,
        last_day=last_day,
        follows_clock=hours.startswith("*") or len(all_hours) == _FIELDS[1].most + 1,
        either_day=not days.startswith("*") and not weekdays.startswith("*"),
    )


def _take_last(text: str) -> tuple[bool, str | None]:
    """Take L, the last day of the month, out of a list of days."""
    parts = text.split(",")
    others = [part for part in parts if part.upper() != "L"]
    return len(others) < len(parts), ",".join(others) if others else None


def _take_ranked(text: str) -> tuple[frozenset[tuple[int, int]], str | None]:
    """Take parts such as MON#1, the first Monday of the month, out of a list of weekdays."""
    parts = text.split(",")
    found = {part: match for part in parts if (match := _RANKED.fullmatch(part))}
    ranked = frozenset((_value(m[1], _FIELDS[4], part) % 7, int(m[2])) for part, m in found.items())
    others = [part for part in parts if part not in found]
    return ranked, ",".join(others) if others else None


def _values(text: str | None, field: _Field) -> frozenset[int]:
    """Read one field, a list of parts; None is left of a day field if all of it was L or MON#1."""
    parts = [] if text is None else text.split(",")
    return frozenset(value for part in parts for value in _part(part, field))


def _part(part: str, field: _Field) -> range:
    match = _PART.fullmatch(part)
    if match is None or (match[1] == "*" and match[2]):
        raise _unreadable(field, part)
    first, last, step = match.groups()
    start = field.least if first == "*" else _value(first, field, part)
    stop = _value(last, field, part) if last else field.most if first == "*" or step else start
    if field.most == 7 and last and stop == 0:  # noqa: PLR2004 - a week that ends on Sunday
        stop = 7
    if stop < start:
        raise _refusal(field, part, f"runs backwards: write {start}-{field.most},{field.least}-{stop}")
    if step is not None and int(step) == 0:
        raise _refusal(field, part, "steps by nothing: write a step of 1 or more")
    return range(start, stop + 1, int(step or 1))


def _value(word: str, field: _Field, part: str) -> int:
    if word.upper() in field.names:
        return field.names.index(word.upper()) + field.first_name
    if word.isascii() and word.isdecimal() and field.least <= int(word) <= field.most:
        return int(word)
    raise _unreadable(field, part)


def _unreadable(field: _Field, part: str) -> InvalidSchedule:
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    allowed = f"{field.least} to {field.most}{names}, *, a range a-b, a step */n, or a list a,b"
    return _refusal(field, part, f"cannot be read: write {allowed}")


def _refusal(field: _Field, part: str, fault: str) -> InvalidSchedule:
    return InvalidSchedule(f"The {field.name} {part!r:.40} {fault}.")


# ── days and times on the wall ────────────────────────────────────────────────────────────────────


def _is_day(line: Cron, day: date) -> bool:
    """Return whether a line ticks on a day of the right month."""
    of_month = day.day in line.days or (line.last_day and day.day == monthrange(day.year, day.month)[1])
    weekday = day.isoweekday() % 7
    of_week = weekday in line.weekdays or (weekday, (day.day + 6) // 7) in line.ranked
    return of_month or of_week if line.either_day else of_month and of_week


def _first_day(line: Cron, day: date) -> date | None:
    """Find the first day from this one on; None if there is none within a lifetime."""
    last_year = min(day.year + YEARS_AHEAD, date.max.year - 1)
    while day.year <= last_year:
        if day.month not in line.months:
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        elif _is_day(line, day):
            return day
        else:
            day += DAY
    return None


def _first_wall(line: Cron, wall: datetime) -> datetime | None:
    """Find the first local time, from this one on, that the line names."""
    day = _first_day(line, wall.date())
    if day is None:
        return None
    if day == wall.date() and (today := _first_time(line, wall.time())):
        return datetime.combine(day, today)
    day = day if day > wall.date() else _first_day(line, day + DAY)
    return None if day is None else datetime.combine(day, time(line.hours[0], line.minutes[0]))


def _first_time(line: Cron, since: time) -> time | None:
    """Find the first time of day from this one on."""
    if since.hour in line.hours:
        for minute in line.minutes:
            if time(since.hour, minute) >= since:
                return time(since.hour, minute)
    later = next((hour for hour in line.hours if hour > since.hour), None)
    return None if later is None else time(later, line.minutes[0])


# ── ticks ─────────────────────────────────────────────────────────────────────────────────────────


def upcoming(line: Line, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first tick after a moment, in UTC; None if there is none within a lifetime."""
    if isinstance(line, Every):
        return EPOCH + ((after - EPOCH) // line.interval + 1) * line.interval
    after = after.astimezone(UTC)
    try:
        return _following(line, zone, after) if line.follows_clock else _find_fixed(line, zone, after)
    except OverflowError:  # the end of the calendar
        return None


def ticks(line: Line, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the ticks after a moment, in their order."""
    tick = upcoming(line, zone, after)
    while tick is not None:
        yield tick
        tick = upcoming(line, zone, tick)


def recent(line: Line, zone: ZoneInfo, after: datetime, until: datetime, most: int = 1) -> list[datetime]:
    """List the last ticks after one moment and up to another, without going through all between."""
    span = MINUTE
    while True:
        since = max(after, until - span)
        found = deque(takewhile(lambda tick: tick <= until, ticks(line, zone, since)), maxlen=most)
        if len(found) == most or since <= after:
            return list(found)
        span *= 2


def count(line: Line, zone: ZoneInfo, after: datetime, before: datetime, most: int) -> int:
    """Count the ticks between two moments, but no further than `most`."""
    return sum(1 for _ in islice(takewhile(lambda tick: tick < before, ticks(line, zone, after)), most))


def _find_fixed(line: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Find the next tick of a line with fixed hours: each local time, once.

    A later local time is never an earlier moment, so the first moment after `after` is the answer.
    """
    wall: datetime | None = after.astimezone(zone).replace(tzinfo=None)
    while wall is not None and (wall := _first_wall(line, wall)) is not None:
        moment = _moment(zone, wall)
        if moment > after:
            return moment
        wall += MINUTE
    return None


def _moment(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return when the local clock first shows a time; for a skipped time, when the clock has passed it."""
    moment = wall.replace(tzinfo=zone).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment
    return _change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), moment)


def _following(line: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Find the next tick of a line that follows the clock: whenever the clock shows one of its times.

    No zone changes its clocks twice within a day, or by more than a day. So once a day has gone by without
    a change, a time that the clock shows again belongs to a span without ticks, which can be left out.
    """
    at = after + timedelta.resolution
    while True:
        shown = at.astimezone(zone)
        here = shown.replace(tzinfo=None)
        wall = _first_wall(line, here)
        if wall is None:
            return None
        way = wall - here
        near = at + min(way, DAY)
        if _offset(zone, near) != shown.utcoffset():
            at = _change(zone, at, near)
        elif way <= DAY:
            return near
        else:
            at += max(DAY, way - DAY)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Find the second in which the clocks change between two moments."""
    old, low = _offset(zone, before), before.replace(microsecond=0)
    steps = -(-(after - low) // SECOND)
    first, last = 0, steps
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if _offset(zone, low + middle * SECOND) == old else (first, middle)
    return low + last * SECOND


# ── in English ────────────────────────────────────────────────────────────────────────────────────


def describe(line: Line) -> str:
    """Return a line in English: "at 07:30 on Monday and Friday"."""
    if isinstance(line, Every):
        return f"every {_span(line.interval)}"
    return " ".join(part for part in (_say_times(line), _say_days(line), _say_months(line)) if part)


def _span(interval: timedelta) -> str:
    for unit, name in ((DAY, "day"), (60 * MINUTE, "hour"), (MINUTE, "minute"), (SECOND, "second")):
        if interval % unit == timedelta():
            return name if interval == unit else f"{interval // unit} {name}s"
    return spell(interval)


def _say_times(line: Cron) -> str:
    every_hour = len(line.hours) == 24  # noqa: PLR2004 - hours of a day
    if len(line.minutes) * len(line.hours) <= AT_A_GLANCE:
        return f"at {_join([f'{hour:02}:{minute:02}' for hour in line.hours for minute in line.minutes])}"
    if line.minutes == (0,):
        return _say_hours(line.hours)
    stride = _stride(line.minutes, 60)
    if stride is not None:
        minutes = "every minute" if stride == 1 else f"every {stride} minutes"
        return minutes if every_hour else f"{minutes} {_say_span(line.hours)}"
    past = f"at {_join([str(run) for run in _runs(line.minutes)])} minutes past"
    if (hours := _stride(line.hours, 24)) is not None:
        return f"{past} every {'hour' if hours == 1 else f'{_ordinal(hours)} hour'}"
    return f"{past} the hour, {_say_span(line.hours)}"


def _say_hours(hours: tuple[int, ...]) -> str:
    stride = _stride(hours, 24)
    if stride is not None:
        return "every hour" if stride == 1 else f"every {stride} hours"
    if len(_runs(hours)) == 1:
        return f"every hour from {hours[0]:02}:00 to {hours[-1]:02}:00"
    return f"at {_join([f'{hour:02}:00' for hour in hours])}"


def _say_span(hours: tuple[int, ...]) -> str:
    """Return the hours during which something happens more than once."""
    if (stride := _stride(hours, 24)) is not None:
        return f"of every {_ordinal(stride)} hour"
    return _join([f"from {run.start:02}:00 to {run.last:02}:59" for run in _runs(hours)])


@dataclass(frozen=True, slots=True)
class _Run:
    """Whole numbers that follow each other."""

    start: int
    last: int

    def __str__(self) -> str:
        """Return the numbers in English: "3", "3 and 4" or "3 to 7"."""
        if self.start == self.last:
            return str(self.start)
        return f"{self.start} {'and' if self.last == self.start + 1 else 'to'} {self.last}"


def _runs(values: Collection[int]) -> list[_Run]:
    runs: list[_Run] = []
    for value in sorted(values):
        if runs and runs[-1].last == value - 1:
            runs[-1] = _Run(runs[-1].start, value)
        else:
            runs.append(_Run(value, value))
    return runs


def _stride(values: Sequence[int], whole: int) -> int | None:
    """Return by how much values step, if they fill the whole evenly from its beginning."""
    step = values[1] - values[0] if len(values) > 1 else 0
    return step if step and whole % step == 0 and tuple(values) == tuple(range(0, whole, step)) else None


def _say_days(line: Cron) -> str:
    of_month = "" if len(line.days) == 31 else _say_month_days(line)  # noqa: PLR2004 - all days of a month
    of_week = "" if len(line.weekdays) == 7 else _join(_week(line))  # noqa: PLR2004 - all days of a week
    if of_month and of_week:
        return f"on {of_month} or on {of_week}" if line.either_day else f"on {of_month}, if it is {of_week}"
    if of_month or of_week:
        return f"on {of_month or of_week}"
    return "every day" if len(line.minutes) * len(line.hours) <= AT_A_GLANCE else ""


def _say_month_days(line: Cron) -> str:
    step = min(line.days - {1}, default=1) - 1
    if step and line.days == frozenset(range(1, 32, step)):
        return f"every {_ordinal(step)} day of the month"
    words = [*map(str, _runs(line.days)), *["the last day"] * line.last_day]
    return f"{'' if not line.days else 'day ' if len(line.days) == 1 else 'days '}{_join(words)} of the month"


def _week(line: Cron) -> list[str]:
    """Name weekdays from Monday on, three or more that follow each other as a span."""
    words: list[str] = []
    for run in _runs([(day - 1) % 7 for day in line.weekdays]):
        names = [WEEKDAYS[(day + 1) % 7] for day in range(run.start, run.last + 1)]
        words += [f"{names[0]} to {names[-1]}"] if len(names) > 2 else names  # noqa: PLR2004 - three or more
    ranked = sorted(line.ranked, key=lambda one: (one[1], one[0]))
    return words + [f"the {RANKS[rank - 1]} {WEEKDAYS[day]} of the month" for day, rank in ranked]


def _say_months(line: Cron) -> str:
    if len(line.months) == len(MONTHS):
        return ""
    spans = [
        f"{MONTHS[run.start - 1]} to {MONTHS[run.last - 1]}"
        if run.last > run.start
        else MONTHS[run.start - 1]
        for run in _runs(line.months)
    ]
    return f"in {_join(spans)}"


def _ordinal(number: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
