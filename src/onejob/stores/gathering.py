"""Group commit on an event loop: callers that arrive while batches are under way share the next one.

A lone caller's steps run at once, in its own task. Two batches may be under way where a store gains by it:
one is decided while the server writes the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onejob.core.step import Step
from onejob.errors import StoreError

CROWD = 8  # waiting callers that are worth a second batch beside the first

Apply = Callable[[Sequence[Step[Any]]], Awaitable[list[Any]]]
Waiting = tuple[Sequence[Step[Any]], "asyncio.Future[list[Any]]"]


class Gathering:
    """The steps of one event loop, in batches."""

    def __init__(self, apply: Apply, is_lost: Callable[[Exception], bool], *, batches: int = 2) -> None:
        """Gather steps.

        Args:
            apply: Runs a batch.
            is_lost: Whether an error means that each caller alone would fail too, and wait as long.
            batches: How many batches may be under way.
        """
        self._most = batches
        self._apply = apply
        self._is_lost = is_lost
        self._waiting: list[Waiting] = []
        self._batches: set[asyncio.Task[None] | None] = set()  # None is a lone caller's own task
        self._callers = 0  # whose steps are under way

    async def apply(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Run steps, now or with the next batch, and return their answers."""
        if self._batches:
            future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            self._waiting.append((steps, future))
            self._start_batch()
            return await future
        self._batches.add(None)
        self._callers += 1
        try:
            return await self._apply(steps)
        finally:
            self._callers -= 1
            self._end_batch(None)

    def _start_batch(self) -> None:
        most = 1 if len(self._waiting) < CROWD else self._most
        if self._waiting and len(self._batches) < most:
            task = asyncio.create_task(self._run_batch())
            self._batches.add(task)
            task.add_done_callback(self._end_batch)  # after its callers went on, who may come again at once

    def _end_batch(self, task: asyncio.Task[None] | None) -> None:
        self._batches.discard(task)
        self._start_batch()

    async def _run_batch(self) -> None:
        """Run the steps of waiting callers, a share of all; a cancelled caller stops no other."""
        most = max(CROWD, -(-(len(self._waiting) + self._callers) // self._most))
        batch, self._waiting = self._waiting[:most], self._waiting[most:]
        self._callers += len(batch)
        try:
            await self._answer(batch)
        except asyncio.CancelledError:
            _fail(batch, StoreError("The event loop is closing: whether this was stored is not known."))
            raise
        finally:
            self._callers -= len(batch)

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        """Run several callers' steps together; if that is refused, each caller's alone."""
        try:
            answers = await self._apply([step for steps, _ in batch for step in steps])
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            if len(batch) == 1 or self._is_lost(error):
                _fail(batch, error)
            else:
                for one in batch:
                    await self._answer([one])
        else:
            _deliver(batch, answers)


def _deliver(batch: Sequence[Waiting], answers: Sequence[Any]) -> None:
    first = 0
    for steps, future in batch:
        if not future.done():
            future.set_result(list(answers[first : first + len(steps)]))
        first += len(steps)


def _fail(batch: Sequence[Waiting], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
