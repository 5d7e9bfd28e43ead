"""A store that is not good enough: it looks, and later it writes, and others come between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from onejob.core.step import Changes, Step
from onejob.errors import OnejobError
from onejob.stores.contract import Guarantees
from onejob.stores.memory import MemoryStore


class BestEffortStore(MemoryStore):
    """Checks, then inserts. The gap between the two is real, and lasts until `callers` stand in it."""

    guarantees = Guarantees(
        store="best-effort",
        strength="best-effort",
        scope="one process",
        durability="none",
        not_promised="that one key has one holder while several requests come at once",
    )

    def __init__(self, callers: int) -> None:
        super().__init__()
        self._threads = threading.Barrier(callers)
        self._tasks = asyncio.Barrier(callers)

    def apply_sync(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Decide on the present rows, and write when all callers have decided."""
        decided = self._decide(steps)
        self._threads.wait()
        return self._write(decided)

    async def apply(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Decide and write as `apply_sync` does, where the callers are tasks."""
        decided = self._decide(steps)
        await self._tasks.wait()
        return self._write(decided)

    def _decide(self, steps: Sequence[Step[Any]]) -> list[Changes[Any]]:
        with self._lock:
            return [self._foresee(step) for step in steps]

    def _foresee(self, step: Step[Any]) -> Changes[Any]:
        try:
            return step.act(self._rows.view(step, self.now()))
        except OnejobError as refusal:
            return Changes(refusal)

    def _write(self, decided: Sequence[Changes[Any]]) -> list[Any]:
        with self._lock:
            for changes in decided:
                self._rows.write(changes)
        return [changes.answer for changes in decided]
