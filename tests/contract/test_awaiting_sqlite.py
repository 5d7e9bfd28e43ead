"""SQLite: what an awaiting caller waits for, and what its request shares with others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Outcome, Task, Unique
from onejob.stores.group_commit import Closed, GroupCommit


class Batches:
    """Keeps what a thread ran together."""

    def __init__(self) -> None:
        self.run: list[list[Any]] = []
        self.commits = GroupCommit(self.answer, "test", 10.0)

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request with itself."""
        self.run.append(list(requests))
        return list(requests)


def open_task(path: Path) -> tuple[App, Task[[int], None]]:
    """Return an app on a file, and a keyed task."""
    app = App(f"sqlite:///{path}/jobs.db")

    @app.task(unique=Unique())
    async def work(number: int) -> None: ...

    return app, work


async def test_an_awaited_duplicate_is_answered_without_waiting(tmp_path: Path) -> None:
    app, work = open_task(tmp_path)
    async with app:
        await work.enqueue(1)

        with pytest.raises(StopIteration) as answered:
            work.enqueue(1).send(None)

        assert answered.value.value.outcome is Outcome.KEPT


async def test_requests_of_one_turn_share_a_commit_although_the_thread_is_idle() -> None:
    batches = Batches()
    commits = batches.commits

    answers = await asyncio.gather(*(commits.submit(number, gather=True) for number in range(5)))

    assert answers == [0, 1, 2, 3, 4]
    assert batches.run == [[0, 1, 2, 3, 4]]
    commits.close()


async def test_a_request_that_was_gathered_before_the_end_is_told_so() -> None:
    batches = Batches()
    waiting = asyncio.ensure_future(batches.commits.submit(1, gather=True))
    await asyncio.sleep(0)  # it has been gathered, and is handed over at the end of the turn
    batches.commits.close()

    with pytest.raises(Closed):
        await waiting
    assert batches.run == []
