"""Durations: every spelling that people use, and a sentence for each that is wrong."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onejob.core.durations import LONGEST, duration, spell
from onejob.errors import InvalidDuration
from tests.depth import examples


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("1w", timedelta(weeks=1)),
        ("1h30m", timedelta(minutes=90)),
        ("1w2d3h4m5s6ms", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6)),
        ("1m1ms", timedelta(minutes=1, milliseconds=1)),
        ("1.5h", timedelta(minutes=90)),
        ("0.1s", timedelta(milliseconds=100)),
        ("0.001ms", timedelta(microseconds=1)),
        ("0s", timedelta()),
        ("36525d", timedelta(days=36_525)),
        ("858993459200.001ms", timedelta(microseconds=858_993_459_200_001)),
        (0, timedelta()),
        (30, timedelta(seconds=30)),
        (1.5, timedelta(milliseconds=1500)),
        (timedelta(minutes=5), timedelta(minutes=5)),
        ("PT10M", timedelta(minutes=10)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("P2W", timedelta(weeks=2)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT0,5S", timedelta(milliseconds=500)),
        ("P1D", timedelta(days=1)),
        ("PT36H", timedelta(hours=36)),
        ("PT1H2M3.25S", timedelta(hours=1, minutes=2, seconds=3, milliseconds=250)),
        ("PT0S", timedelta()),
    ],
)
def test_a_duration_is_read(value: Any, expected: timedelta) -> None:
    assert duration(value) == expected


def name(value: object) -> str:
    """Name a case, though its value be too long to print."""
    return type(value).__name__ if isinstance(value, int) else ascii(value)[:20]


NONSENSE = [
    "",
    " ",
    "s",
    "30",
    "-5s",
    "+5s",
    "5 m",
    " 5m",
    "5m ",
    "5m\n",
    "5M",
    "5min",
    "1e3s",
    "1_0s",
    ".5s",
]
NONSENSE += ["5.s", "1,5h", "30m1h", "1m1m", "٣s", "five minutes", "nan", "1" * 16 + "s", "9" * 5000 + "s"]
NONSENSE += [
    "P",
    "PT",
    "P1DT",
    "PT1D",
    "P1H",
    "PT5M\n",
    "p1d",
    "-PT5M",
    "P-5D",
    "PT5",
    "P1D2W",
    "PTS",
    "\0",
    "\ud800",
]


@pytest.mark.parametrize(
    "value", [*NONSENSE, True, False, float("nan"), None, [], {}, b"5m", 1j, ...], ids=name
)
def test_nonsense_is_refused_with_examples(value: Any) -> None:
    with pytest.raises(
        InvalidDuration, match='is not a duration; write "500ms", "30s", "5m", "1h30m"'
    ) as refusal:
        duration(value)

    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize("value", [-1, -0.001, timedelta(microseconds=-1), timedelta.min])
def test_a_negative_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDuration, match='is negative; write "500ms"'):
        duration(value)


@pytest.mark.parametrize("value", ["P1Y", "P1M", "P1Y2M3DT4H", "P1M1D", "P1Y1D"])
def test_years_and_months_are_refused_because_their_length_varies(value: str) -> None:
    with pytest.raises(
        InvalidDuration, match="counts years or months, whose length varies, so count days; write"
    ):
        duration(value)


@pytest.mark.parametrize(
    "value", ["1000000000d", "9" * 15 + "w", 1e300, float("inf"), 10**400, 10**5000, -(10**5000)], ids=name
)
def test_an_endless_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDuration, match="longer than a timedelta can be; write"):
        duration(value)


def test_a_refusal_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        duration("soon")


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(microseconds=1), "0.001ms"),
        (timedelta(milliseconds=1500), "1.5s"),
        (timedelta(seconds=30), "30s"),
        (timedelta(seconds=100), "1m40s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(hours=24), "1d"),
        (timedelta(weeks=2), "14d"),
        (timedelta(days=1, seconds=1), "1d1s"),
        (timedelta(hours=1, milliseconds=250), "1h250ms"),
        (timedelta(seconds=59, microseconds=999_999), "59.999999s"),
        (timedelta(microseconds=999_999), "999.999ms"),
        (-timedelta(minutes=90), "-1h30m"),
    ],
)
def test_a_duration_is_spelled_compactly(delta: timedelta, text: str) -> None:
    assert spell(delta) == text


@settings(max_examples=examples(500))
@given(st.timedeltas(timedelta(), LONGEST) | st.timedeltas(timedelta(), timedelta(minutes=2)))
def test_what_is_spelled_is_read_back(delta: timedelta) -> None:
    assert duration(spell(delta)) == delta


@settings(max_examples=examples(500))
@given(st.text(alphabet="0123456789.,wdhmsPTWDHMSY-+ ", max_size=12) | st.text(max_size=8))
def test_any_text_is_a_duration_or_a_typed_refusal(text: str) -> None:
    try:
        assert duration(text) >= timedelta()
    except InvalidDuration as refusal:
        assert "; write" in str(refusal)  # noqa: PT017 - a refusal is one of two right answers here


@pytest.mark.parametrize("value", ["36526d", "999999999d", timedelta.max, 1e12])
def test_a_duration_that_no_date_can_hold_is_refused(value: str | float | timedelta) -> None:
    with pytest.raises(InvalidDuration, match="longer than a hundred years"):
        duration(value)
