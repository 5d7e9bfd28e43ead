"""Two years, 20 time zones, 200 cron lines: every tick, against a wall that is watched minute by minute.

The watcher shares no code with `onejob.core.cron`: lines are drawn as sets of numbers and written down for it
to read, and what it must answer is found by looking at each minute. The gate looks at some lines of each
zone, in the days around every change of its clocks; `make ticks` looks at all lines in all of both years.
"""

from __future__ import annotations

import os
import random
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from onejob.core.cron import read, ticks

DEEP = os.environ.get("ONEJOB_HYPOTHESIS") == "deep"

pytestmark = pytest.mark.timeout(7200 if DEEP else 300)

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
NEAR = timedelta(days=1)  # of a change of the clocks

ZONES = {  # with the first of two years
    "UTC": 2026,
    "Africa/Cairo": 2026,  # forward at midnight
    "Africa/Casablanca": 2026,  # back for Ramadan
    "America/Havana": 2026,  # forward at midnight, back at one
    "America/New_York": 2026,
    "America/Nuuk": 2026,  # changes across midnight
    "America/Santiago": 2026,  # back from midnight to eleven: a day that ends twice
    "America/Sao_Paulo": 2017,  # forward at midnight, while it did
    "America/St_Johns": 2026,
    "Antarctica/Troll": 2026,  # two hours at once
    "Asia/Beirut": 2026,
    "Asia/Gaza": 2026,  # four changes a year
    "Asia/Kathmandu": 2026,
    "Asia/Pyongyang": 2015,  # moved by half an hour
    "Australia/Lord_Howe": 2026,  # changes by half an hour
    "Europe/Berlin": 2026,
    "Europe/London": 2026,
    "Pacific/Apia": 2011,  # left out a whole day
    "Pacific/Auckland": 2026,
    "Pacific/Chatham": 2026,  # changes at a quarter to
}
LINES = 200
SOME = 30


# ── lines as sets of numbers ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Wanted:
    """What a line names, and how it is written."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    last_day: bool
    ranked: frozenset[tuple[int, int]]
    any_hour: bool
    either_day: bool


Drawn = tuple[str, frozenset[int]]


def one(chance: random.Random, low: int, high: int) -> Drawn:
    value = chance.randint(low, high)
    return str(value), frozenset({value})


def several(chance: random.Random, low: int, high: int) -> Drawn:
    values = chance.sample(range(low, high + 1), chance.randint(2, 4))
    return ",".join(map(str, values)), frozenset(values)


def span(chance: random.Random, low: int, high: int) -> Drawn:
    first, last = sorted(chance.sample(range(low, high + 1), 2))
    return f"{first}-{last}", frozenset(range(first, last + 1))


def stepped(chance: random.Random, low: int, high: int) -> Drawn:
    first, last = sorted(chance.sample(range(low, high + 1), 2))
    step = chance.randint(2, 5)
    return f"{first}-{last}/{step}", frozenset(range(first, last + 1, step))


def star(_chance: random.Random, low: int, high: int) -> Drawn:
    return "*", frozenset(range(low, high + 1))


def star_stepped(chance: random.Random, low: int, high: int) -> Drawn:
    step = chance.randint(2, 12)
    return f"*/{step}", frozenset(range(low, high + 1, step))


def draw_line(chance: random.Random) -> Wanted:
    """Draw a line; most tick a few times a day, some each hour, few more often."""
    ways = (one, several, span, stepped, star, star_stepped)
    minute, minutes = chance.choices(ways, (80, 12, 1, 3, 2, 2))[0](chance, 0, 59)
    hour, hours = chance.choices(ways, (45, 20, 8, 7, 10, 10))[0](chance, 0, 23)
    day, days = chance.choices(ways, (15, 8, 5, 2, 65, 5))[0](chance, 1, 31)
    month, months = chance.choices(ways, (4, 8, 6, 2, 80, 0))[0](chance, 1, 12)
    weekday, weekdays = chance.choices(ways, (15, 10, 10, 0, 60, 5))[0](chance, 0, 6)
    last_day, ranked = chance.random() < 0.05, frozenset[tuple[int, int]]()
    if last_day:
        day, days = ("L", frozenset()) if day[0] == "*" else (f"{day},L", days)
    if chance.random() < 0.05:
        ranked = frozenset({(chance.randint(0, 6), chance.randint(1, 5))})
        [(which, rank)] = ranked
        weekday, weekdays = f"{which}#{rank}", frozenset()
    return Wanted(
        f"{minute} {hour} {day} {month} {weekday}",
        *(minutes, hours, days, months, weekdays),
        last_day=last_day,
        ranked=ranked,
        any_hour=hour[0] == "*",
        either_day=day[0] != "*" and weekday[0] != "*",
    )


def is_possible(line: Wanted) -> bool:
    """Return whether there is such a day: 30 February is refused when a line is read."""
    longest = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
    if line.either_day or line.last_day:
        return True
    return any(min(line.days) <= longest.get(month, 31) for month in line.months)


def lines() -> list[Wanted]:
    """Draw the 200 lines, always the same."""
    chance = random.Random(2)
    found: list[Wanted] = []
    while len(found) < LINES:
        line = draw_line(chance)
        found += [line] if is_possible(line) else []
    return found


# ── the watcher ───────────────────────────────────────────────────────────────────────────────────
#
# A stretch of wall time is a row of minutes. Each of its fields is one byte per minute, so that a line's
# numbers are looked up for all minutes at once, and what matches is a row of zeros and ones.


class Wall:
    """Minutes on the wall, one after the other as the calendar has them."""

    def __init__(self, first: datetime, last: datetime) -> None:
        self.first, self.count = first, (last - first) // MINUTE + 1
        days = (self.count - 1) // 1440 + 2
        start = first.replace(hour=0, minute=0)
        skip = (first - start) // MINUTE
        calendar = [start + n * DAY for n in range(days)]
        self.minute = self._cut(bytes(range(60)) * 24 * days, skip)
        self.hour = self._cut(b"".join(bytes([hour]) * 60 for hour in range(24)) * days, skip)
        self.day = self._cut(b"".join(bytes([day.day]) * 1440 for day in calendar), skip)
        self.month = self._cut(b"".join(bytes([day.month]) * 1440 for day in calendar), skip)
        self.weekday = self._cut(b"".join(bytes([(day.weekday() + 1) % 7]) * 1440 for day in calendar), skip)
        rest = [monthrange(day.year, day.month)[1] - day.day for day in calendar]
        self.rest = self._cut(b"".join(bytes([left]) * 1440 for left in rest), skip)
        self.rank = self._cut(b"".join(bytes([-(-day.day // 7)]) * 1440 for day in calendar), skip)

    def _cut(self, row: bytes, skip: int) -> bytes:
        return row[skip : skip + self.count]

    def matching(self, line: Wanted) -> bytes:
        """Mark the minutes that a line names."""
        of_month = among(self.day, line.days) | (among(self.rest, {0}) if line.last_day else 0)
        of_week = among(self.weekday, line.weekdays)
        for weekday, rank in line.ranked:
            of_week |= among(self.weekday, {weekday}) & among(self.rank, {rank})
        day = of_month | of_week if line.either_day else of_month & of_week
        times = (
            among(self.minute, line.minutes) & among(self.hour, line.hours) & among(self.month, line.months)
        )
        return (times & day).to_bytes(self.count, "big")


def among(row: bytes, values: set[int] | frozenset[int]) -> int:
    """Mark where a row has one of the values, as one large number that has a byte per minute."""
    return int.from_bytes(row.translate(bytes(value in values for value in range(256))), "big")


@dataclass(frozen=True)
class Run:
    """Minutes of real time in which the wall went on by one each; minutes are counted from the first."""

    real: int
    shown: int
    length: int
    new: int  # from which minute of the run on the wall shows what it has never shown
    passed: int  # the first minute on the wall that was never shown before


@dataclass(frozen=True)
class Watch:
    """What the wall showed in each minute of real time."""

    first: datetime
    wall: Wall
    runs: Sequence[Run]

    def ticks(self, line: Wanted) -> Iterator[datetime]:
        """Find a line's ticks among the minutes that the wall showed."""
        matching = self.wall.matching(line)
        for run in self.runs:
            begin = 0 if line.any_hour else run.new
            if not line.any_hour and 1 in matching[run.passed : run.shown]:  # the wall has gone past some
                yield self.first + run.real * MINUTE
                begin = 1
            shown = matching[run.shown : run.shown + run.length]
            at = shown.find(1, begin)
            while at >= 0:
                yield self.first + (run.real + at) * MINUTE
                at = shown.find(1, at + 1)


def watch(zone: ZoneInfo, first: datetime, last: datetime) -> Watch:
    """Look at the wall in each minute of real time."""
    count = (last - first) // MINUTE
    walls = [(first + n * MINUTE).astimezone(zone).replace(tzinfo=None) for n in range(count)]
    wall = Wall(min(walls), max(walls))
    shown = [(one - wall.first) // MINUTE for one in walls]
    starts = [n for n in range(count) if n == 0 or shown[n] != shown[n - 1] + 1]
    runs, unseen = [], shown[0]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        new = max(0, min(unseen - shown[start], end - start))
        runs.append(Run(start, shown[start], end - start, new, unseen))
        unseen = max(unseen, shown[end - 1] + 1)
    return Watch(first, wall, runs)


def stretches(zone: ZoneInfo, year: int) -> Iterator[tuple[datetime, datetime]]:
    """Part what is to be watched: both years whole, or the days around each change of the clocks."""
    first, last = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 2, 1, 1, tzinfo=UTC)
    if DEEP:
        yield first, last
        return
    yield first, first + NEAR
    for n in range((last - first) // DAY):
        day = first + n * DAY
        if day.astimezone(zone).utcoffset() != (day + DAY).astimezone(zone).utcoffset():
            yield day - NEAR, day + DAY + NEAR


@pytest.mark.parametrize("name", ZONES)
def test_every_tick_is_where_the_wall_shows_it(name: str) -> None:
    zone, wrong, seen = ZoneInfo(name), [], 0
    chosen = lines() if DEEP else random.Random(name).sample(lines(), SOME)

    for first, last in stretches(zone, ZONES[name]):
        watched = watch(zone, first, last)
        for line in chosen:
            expected = list(watched.ticks(line))
            found = []
            for tick in ticks(read(line.text), zone, first - timedelta.resolution):
                if tick >= last:
                    break
                found.append(tick)
            seen += len(expected)
            if found != expected:
                odd = sorted(set(found) ^ set(expected)) or found
                wrong.append(f"{line.text}: {odd[0].astimezone(zone)} and {len(odd) - 1} more")

    print(f"{name}: {seen} ticks of {len(chosen)} lines, {len(wrong)} lines wrong")  # noqa: T201 - the figure
    assert not wrong
    assert seen > len(chosen)
