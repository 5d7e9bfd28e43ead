"""Cron lines: when they tick, also when clocks change, how they are described, and which are refused."""

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onejob.core import cron
from onejob.errors import InvalidPolicy, InvalidSchedule

BERLIN = cron.zone_named("Europe/Berlin")
LORD_HOWE = cron.zone_named("Australia/Lord_Howe")
APIA = cron.zone_named("Pacific/Apia")


def walls(line: str, after: datetime, most: int, zone: ZoneInfo = BERLIN) -> list[str]:
    """List what the wall shows at the next ticks."""
    found = islice(cron.ticks(cron.read(line), zone, after), most)
    return [tick.astimezone(zone).strftime("%d %H:%M %z") for tick in found]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", "at 0, 7, 14, 21, 28, 35, 42, 49 and 56 minutes past every hour"),
        ("@hourly", "every hour"),
        ("15 * * * *", "at 15 minutes past every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("7 */3 * * *", "at 7 minutes past every 3rd hour"),
        ("*/20 */4 * * *", "every 20 minutes of every 4th hour"),
        ("@daily", "at 00:00 every day"),
        ("@midnight", "at 00:00 every day"),
        ("@weekly", "at 00:00 on Sunday"),
        ("@monthly", "at 00:00 on day 1 of the month"),
        ("@yearly", "at 00:00 on day 1 of the month in January"),
        ("@Annually", "at 00:00 on day 1 of the month in January"),
        ("30 7 * * MON,FRI", "at 07:30 on Monday and Friday"),
        ("30 7 * * 5,1", "at 07:30 on Monday and Friday"),
        ("0,30 9 * * *", "at 09:00 and 09:30 every day"),
        ("*/15 9-17 * * mon-fri", "every 15 minutes from 09:00 to 17:59 on Monday to Friday"),
        ("0 9-17 * * SAT-SUN", "every hour from 09:00 to 17:00 on Saturday and Sunday"),
        ("0 1,3,5,7,9,11,13 * * *", "at 01:00, 03:00, 05:00, 07:00, 09:00, 11:00 and 13:00"),
        (
            "0,1,2,30 3,4,8 * 1-3,6 *",
            (
                "at 0 to 2 and 30 minutes past the hour, from 03:00 to 04:59 and from 08:00 to 08:59 "
                "in January to March and June"
            ),
        ),
        ("0 0 13 * FRI", "at 00:00 on day 13 of the month or on Friday"),
        ("0 0 */2 * MON", "at 00:00 on every 2nd day of the month, if it is Monday"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 1-7,15,L * *", "at 00:00 on days 1 to 7, 15 and the last day of the month"),
        ("0 9 * * MON#1", "at 09:00 on the first Monday of the month"),
        (
            "0 9 * * MON#1,FRI#5",
            "at 09:00 on the first Monday of the month and the fifth Friday of the month",
        ),
        ("0 12 * 2 *", "at 12:00 every day in February"),
        ("@every 30s", "every 30 seconds"),
        ("@every 1h", "every hour"),
        ("@every 2d", "every 2 days"),
        ("@every 1.5s", "every 1.5s"),
    ],
)
def test_a_line_is_said_in_english(line: str, said: str) -> None:
    assert cron.describe(cron.read(line)) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("61 * * * *", "The minute '61' cannot be read: write 0 to 59"),
        ("* 24 * * *", "The hour '24' cannot be read: write 0 to 23"),
        ("* 22-2 * * *", "The hour '22-2' runs backwards: write 22-23,0-2."),
        ("* * 0 * *", "The day of the month '0' cannot be read: write 1 to 31"),
        ("* * * FOO *", "The month 'FOO' cannot be read: write 1 to 12 or JAN to DEC"),
        ("* * * * 8", "The day of the week '8' cannot be read: write 0 to 7 or SUN to SAT"),
        ("* * * * MON#6", "The day of the week 'MON#6' cannot be read"),
        ("* * * * XYZ#1", "The day of the week 'XYZ#1' cannot be read"),
        ("*/0 * * * *", "The minute '*/0' steps by nothing: write a step of 1 or more."),
        ("*-3 * * * *", "The minute '*-3' cannot be read"),
        ("1--2 * * * *", "The minute '1--2' cannot be read"),
        ("1,,2 * * * *", "The minute '' cannot be read"),
        ("* * L, * *", "The day of the month '' cannot be read"),
        ("* * * * MON#1,", "The day of the week '' cannot be read"),
        ("٣ * * * *", "The minute '٣' cannot be read"),
        ("* * *", "'* * *' has 3 fields, not five (minute, hour, day of the month, month, day of the week)"),
        ("0 0 0 * * *", "'0 0 0 * * *' has 6 fields, not five"),
        ("@often", "'@often' has 1 field, not five"),
        ("", "'' has 0 fields, not five"),
        ("0 0 30 2 *", "'0 0 30 2 *' never comes"),
        ("0 0 31 4,6,9,11 *", "'0 0 31 4,6,9,11 *' never comes"),
        ("@every 1ms", "@every 1ms is too often: write one second or more."),
        ("@every soon", "'soon' is not a duration"),
        ("* " * 600, "is not a cron line"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_field(line: str, said: str) -> None:
    with pytest.raises(InvalidPolicy, match=re.escape(said)):
        cron.read(line)


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "Europe", "", "a" * 5000, "Europe/Berlin\0"])
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="is not known here: write an IANA name"):
        cron.zone_named(name)


@settings(deadline=None)
@given(st.text(alphabet="0123456789*/,-#LMONFRI @", max_size=30))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    try:
        line = cron.read(text)
    except ValueError:
        return
    assert cron.describe(line)
    assert cron.upcoming(line, BERLIN, datetime(2026, 1, 1, tzinfo=UTC))


class TestClocksThatChange:
    SPRING = datetime(2026, 3, 29, tzinfo=UTC)  # 01:00 in Berlin, an hour before the clocks go forward
    AUTUMN = datetime(2026, 10, 24, 23, tzinfo=UTC)  # 01:00 in Berlin, two hours before they go back

    def test_a_time_that_is_left_out_ticks_once_when_the_clocks_have_changed(self) -> None:
        assert walls("30 2 * * *", self.SPRING, 2) == ["29 03:00 +0200", "30 02:30 +0200"]

    def test_many_times_that_are_left_out_tick_once(self) -> None:
        assert walls("*/20 2 * * *", self.SPRING, 2) == ["29 03:00 +0200", "30 02:00 +0200"]

    def test_a_time_that_is_left_out_meets_one_that_is_there(self) -> None:
        assert walls("0 2,3 * * *", self.SPRING, 2) == ["29 03:00 +0200", "30 02:00 +0200"]

    def test_a_line_for_every_hour_follows_the_clock_forward(self) -> None:
        assert walls("30 * * * *", self.SPRING, 2) == ["29 01:30 +0100", "29 03:30 +0200"]

    def test_a_time_that_comes_twice_ticks_the_first_time(self) -> None:
        assert walls("30 2 * * *", self.AUTUMN, 2) == ["25 02:30 +0200", "26 02:30 +0100"]

    def test_between_both_the_next_tick_is_tomorrow(self) -> None:
        between = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)
        assert walls("30 2 * * *", between, 1) == ["26 02:30 +0100"]

    def test_a_line_for_every_hour_ticks_both_times(self) -> None:
        assert walls("30 */2 * * *", self.AUTUMN, 3) == ["25 02:30 +0200", "25 02:30 +0100", "25 04:30 +0100"]
        assert walls("30 0-23 * * *", self.AUTUMN, 3)[1:] == ["25 02:30 +0200", "25 02:30 +0100"]

    def test_half_an_hour_is_a_change_too(self) -> None:
        before = datetime(2026, 10, 3, 15, tzinfo=UTC)
        assert walls("15 2 * * *", before, 1, LORD_HOWE) == ["04 02:30 +1100"]

    def test_a_day_that_is_left_out_ticks_once(self) -> None:
        before = datetime(2011, 12, 30, 9, 30, tzinfo=UTC)  # 29 December, 23:30; then comes the 31st
        assert walls("0 9,12 * * *", before, 2, APIA) == ["31 00:00 +1400", "31 09:00 +1400"]


class TestTicks:
    NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def test_a_tick_is_after_the_moment_not_at_it(self) -> None:
        assert cron.upcoming(cron.read("0 * * * *"), cron.zone_named("UTC"), self.NOON) == self.NOON.replace(
            hour=13
        )

    def test_an_interval_is_counted_from_1970(self) -> None:
        assert cron.upcoming(cron.every("40m"), BERLIN, self.NOON) == datetime(2026, 5, 4, 12, 40, tzinfo=UTC)
        [odd] = islice(cron.ticks(cron.every("7m"), BERLIN, self.NOON), 1)
        assert (odd - cron.EPOCH) % timedelta(minutes=7) == timedelta()

    def test_a_29th_of_february_on_a_monday_is_found(self) -> None:
        line = cron.read("0 0 29 2 */7")  # a star in a day field: both must hold
        [first] = islice(cron.ticks(line, cron.zone_named("UTC"), self.NOON), 1)
        assert (first.year, first.strftime("%A")) == (2032, "Sunday")

    def test_there_is_an_end_of_time(self) -> None:
        assert cron.upcoming(cron.read("@daily"), BERLIN, datetime(9999, 12, 31, 22, tzinfo=UTC)) is None
        assert cron.upcoming(cron.read("@hourly"), BERLIN, datetime(9999, 12, 31, 22, 30, tzinfo=UTC)) is None

    @settings(deadline=None)
    @given(
        st.sampled_from(["*/5 * * * *", "30 2 * * *", "0 0 1 * *", "@every 40s", "15 9-17 * * MON-FRI"]),
        st.timedeltas(timedelta(), timedelta(days=4)),
        st.integers(1, 5),
    )
    def test_the_recent_ticks_are_the_last_of_all(self, text: str, span: timedelta, most: int) -> None:
        line, until = cron.read(text), self.NOON + span
        every = []
        for one in cron.ticks(line, BERLIN, self.NOON):
            if one > until:
                break
            every.append(one)
        assert cron.recent(line, BERLIN, self.NOON, until, most) == every[-most:]
        assert cron.count(line, BERLIN, self.NOON, until + timedelta.resolution, 50) == min(len(every), 50)
