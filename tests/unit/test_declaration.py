"""Wrong declarations are refused where they are written: tasks, retries, batches, workers, URLs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from onejob import App, Retry
from onejob.errors import InvalidCall, InvalidPolicy


def noop() -> None: ...


def counting() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "policies",
    [
        {"queue": ""},
        {"queue": 5},
        {"retry": 3},
        {"timeout": 0},
        {"priority": "high"},
        {"give_up_on": ("x",)},
        {"give_up_on": ValueError("x")},
    ],
    ids=str,
)
def test_a_task_that_could_only_fail_later_is_refused(policies: dict[str, Any]) -> None:
    declare: Any = App("memory://").task
    with pytest.raises(InvalidPolicy):
        declare(**policies)(noop)


def test_a_generator_is_refused() -> None:
    with pytest.raises(InvalidPolicy, match="generator"):
        App("memory://").task(counting)


@pytest.mark.parametrize(
    "numbers",
    [
        {"attempts": 0},
        {"attempts": True},
        {"attempts": "3"},
        {"factor": float("nan")},
        {"factor": 1e200},
        {"factor": 0.5},
        {"jitter": 2},
        {"base": -1},
        {"cap": "9999999d"},
    ],
    ids=str,
)
def test_a_retry_that_cannot_be_meant_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicy):
        Retry(**numbers)


def test_no_retry_waits_longer_than_its_cap() -> None:
    assert Retry(attempts=99, base="1s", factor=1000, cap="1h", jitter=0).delay(98) == timedelta(hours=1)


def test_a_batch_takes_calls_of_its_own_app_only() -> None:
    first, second = App("memory://"), App("memory://")
    task = first.task(noop)
    for calls in ([task.call()], [5], [task]):
        with pytest.raises(InvalidCall):
            second.enqueue_many_sync(calls)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"retry": 3}, {"meta": 5}, {"run_at": "tomorrow"}], ids=str)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any]) -> None:
    task: Any = App("memory://").task(noop)
    with pytest.raises(InvalidCall):
        task.options(**options)


@pytest.mark.parametrize("options", [{"lease": 0}, {"concurrency": 0}, {"concurrency": 1.5}], ids=str)
def test_a_worker_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    make: Any = App("memory://").worker
    with pytest.raises(InvalidPolicy):
        make(**options)


def test_a_sqlite_database_in_memory_is_refused() -> None:
    with pytest.raises(InvalidCall, match="memory://"):
        App("sqlite:///:memory:")
