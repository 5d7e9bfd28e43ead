"""Worker processes keep to a queue's limit, also while some of them are killed; and the judge sees it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.races.slots import LIMIT, judge, most_at_once, race, share
from tests.races.stores import STORES


def test_the_judge_sees_overlap_and_idleness() -> None:
    assert most_at_once([(0, 1), (1, 2), (2, 3)]) == 1
    assert most_at_once([(0, 2), (1, 3), (1.5, 1.6), (4, 5)]) == 3
    assert share([(0, 10), (0, 10), (0, 10)], (0, 10)) == 1
    assert share([(-5, 5), (8, 20)], (0, 10)) == pytest.approx(7 / 30)


def test_the_judge_reads_the_notes_of_all_workers(tmp_path: Path) -> None:
    (tmp_path / "notes-0").write_text("0.0 1.0 0.0\n1.0 2.0 0.0\n")
    (tmp_path / "notes-1").write_text("0.5 1.5 0.0\n")
    finding = judge(tmp_path, (0.0, 2.0))
    assert (finding.runs, finding.most, finding.busy) == (3, 2, 0.5)


@pytest.mark.races
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_four_workers_never_exceed_a_limit_of_three(store: str, chance: random.Random) -> None:
    finding = race(store, seconds=4, work=0.01, kills=None, chance=chance)
    assert finding.runs > 20
    assert finding.most == LIMIT


@pytest.mark.races
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_four_workers_never_exceed_the_limit_while_some_are_killed(store: str, chance: random.Random) -> None:
    finding = race(store, seconds=8, work=0.01, kills=2, chance=chance)
    assert finding.runs > 20
    assert finding.most <= LIMIT
