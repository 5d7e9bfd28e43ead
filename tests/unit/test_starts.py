"""Ends that are foreseen from starts keep the order of steps, and starts that nobody ends are forgotten."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest

from onejob import Job, Retry, State, lifecycle
from onejob.lifecycle import Completed, Failed
from onejob.stores.contract import Step
from onejob.stores.sql.postgres import starts as module
from onejob.stores.sql.postgres.flows import foreseen
from onejob.stores.sql.postgres.starts import Starts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, OTHER = b"k" * 32, b"o" * 32
DONE = Completed(b"1")


def started(number: int, key: bytes | None = None, **given: object) -> Job:
    return Job(
        id=str(number),
        namespace="",
        task="mail",
        queue="default",
        state=State.ACTIVE,
        priority=0,
        run_at=NOW,
        place=number,
        created_at=NOW,
        args=b"{}",
        meta=b"{}",
        payload_digest=b"d" * 32,
        retry=Retry.never(),
        chain_id=str(number),
        token=1,
        key=key,
        **{"held_key": key, **given},  # type: ignore[arg-type]
    )


def end(number: int, result: Completed | Failed = DONE) -> Step:
    return Step(partial(lifecycle.settle, token=1, result=result), str(number))


def foresee(steps: list[Step], *jobs: Job) -> list[int]:
    """Tell which steps are foreseen if these jobs were started here."""
    starts = Starts()
    starts.note(jobs, "7")
    ends = foreseen(steps, starts, NOW)
    assert not any(starts.take(step.job_id) for step in steps)  # whatever is about to be written is forgotten
    return list(ends)


def test_plain_ends_are_foreseen_with_or_without_a_key() -> None:
    assert foresee([end(1), end(2), end(3)], started(1), started(2, KEY), started(3, OTHER)) == [0, 1, 2]


def test_of_one_key_only_the_first_end_is_foreseen() -> None:
    """The first may be somebody else's by now: then the second would come before it."""
    assert foresee([end(1), end(2), end(3)], started(1, KEY), started(2, KEY), started(3, OTHER)) == [0, 2]


def test_no_end_comes_before_another_step_on_its_key() -> None:
    admission = Step(lifecycle.mature, key=KEY)
    assert foresee([admission, end(1), end(2)], started(1, KEY), started(2, OTHER)) == [2]
    loose = started(1, KEY, held_key=None)
    assert foresee([end(1), end(2)], loose, started(2, KEY)) == []


def test_no_end_is_foreseen_after_a_step_on_a_job_that_nobody_knows() -> None:
    assert foresee([end(1), end(9), end(2)], started(1, KEY), started(2, OTHER)) == [0]


def test_what_is_no_plain_end_is_not_foreseen() -> None:
    failed = Failed({"type": "Boom", "message": "", "traceback": ""})
    renewal = Step(partial(lifecycle.extend, token=1, lease=NOW - NOW), "2", alone=True)
    lost = Step(partial(lifecycle.settle, token=2, result=Completed()), "3")
    assert foresee([end(1, failed), renewal, lost], started(1), started(2), started(3)) == []


def test_starts_that_nobody_ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    starts = Starts()
    for number in range(12):
        starts.note([started(number)], str(number))
    left = [number for number in range(12) if starts.take(str(number)) is not None]
    assert left == [6, 7, 8, 9, 10, 11]
