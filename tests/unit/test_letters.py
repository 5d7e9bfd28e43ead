"""Which messages are alike: what differs from one dead letter to the next is taken out, and no more."""

import pytest

from onejob.app.dead_letters import LONGEST, generalise


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("user 17 has no address", "user # has no address"),
        ("took 3.25 s of 1,000", "took # s of #"),
        ("at 2026-01-02T03:04:05.678", "at #-#-#T#"),
        ("job 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42 is gone", "job # is gone"),
        ("digest 9f86d081884c7d65 differs", "digest # differs"),
        ("at 0x7F3a2b", "at #"),
        ("entry 1a2c has no text", "entry # has no text"),
        ("took 12ms", "took #"),
        ("utf8 and sha256 of a1b2", "utf# and sha# of #"),
        ("no such key: 'user-7'", "no such key: '…'"),
        ('cannot open "a b.txt"', "cannot open '…'"),
        ("it's the server's fault", "it's the server's fault"),
        ("the facade defaced", "the facade defaced"),
        ("two\n  lines\t here ", "two lines here"),
        ("", ""),
    ],
)
def test_what_differs_is_taken_out(message: str, expected: str) -> None:
    assert generalise(message) == expected


def test_a_long_message_is_cut() -> None:
    assert len(generalise("word " * 1000)) == LONGEST
