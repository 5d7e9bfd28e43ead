"""Callers on one event loop share batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from onejob.core.step import NO_CHANGES, Step
from onejob.stores.gathering import Gathering

STEP = Step[Any](lambda _view: NO_CHANGES)


class Slow:
    """A store that takes a few turns of the event loop for each batch, and remembers how large they were."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def apply(self, steps: Sequence[Step[Any]]) -> list[Any]:
        self.sizes.append(len(steps))
        for _ in range(3):
            await asyncio.sleep(0)
        return [None for _ in steps]


@pytest.mark.parametrize("batches", [1, 2])
async def test_callers_that_come_again_at_once_share_the_next_batch(batches: int) -> None:
    store = Slow()
    gathering = Gathering(store.apply, lambda _: False, batches=batches)

    async def produce() -> None:
        for _ in range(10):
            await gathering.apply([STEP])

    await asyncio.gather(*(produce() for _ in range(16)))

    assert sum(store.sizes) == 160
    whole = 16 // batches
    assert store.sizes[2:-2] == [whole] * len(store.sizes[2:-2]), store.sizes  # not one alone in between


async def test_a_cancelled_batch_does_not_stop_the_callers_after_it() -> None:
    store = Slow()
    gathering = Gathering(store.apply, lambda _: False, batches=1)
    first, second = (asyncio.create_task(gathering.apply([STEP])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)

    assert await gathering.apply([STEP]) == [None]
