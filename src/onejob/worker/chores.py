"""The chores of a worker: what it repeats at intervals beside its loop, through outages of the store."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from onejob.engine.presence import HEARTBEAT
from onejob.errors import StoreError
from onejob.worker.upkeep import Upkeep

log = logging.getLogger("onejob")

WATCH_EVERY = 0.5  # seconds between looks for cancellation, and between writes of progress
SWEEP_EVERY = 5.0
PRUNE_EVERY = 60.0

Chore = Callable[[], Awaitable[None]]

AIMS = {
    "beat": "record that it is alive",
    "tick": "make the ticks of schedules",
    "renew": "renew its leases",
    "watch": "look for cancelled jobs and write progress",
    "sweep": "take back jobs of dead workers",
    "prune": "remove ended jobs",
    "warn_of_unknown_tasks": "look for jobs whose task it does not have",
}
"""What the log says that a worker cannot do, by the name of the chore."""


class Chores:
    """Repeats chores; an error of the store is logged once, until the chore succeeds again."""

    def __init__(self, upkeep: Upkeep, worker: str, renew_every: float) -> None:
        self._upkeep = upkeep
        self._worker = worker
        self._renew_every = renew_every
        self._failing: set[str] = set()  # what the store has refused since it last succeeded

    def start(self) -> list[asyncio.Task[None]]:
        """Start a task for each chore."""
        chores = [
            (HEARTBEAT.total_seconds(), self._upkeep.heartbeat.beat),
            (self._renew_every, self._upkeep.renew),
            (WATCH_EVERY, self._upkeep.watch),
            (SWEEP_EVERY, self._upkeep.sweep),
            (PRUNE_EVERY, self._prune),
        ]
        return [asyncio.create_task(self._repeat(*chore)) for chore in chores]

    async def _repeat(self, seconds: float, chore: Chore) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.guard(chore)

    async def guard(self, chore: Chore) -> None:
        """Do a chore once; log its error instead of raising it."""
        aim = AIMS[chore.__name__.lstrip("_")]
        try:
            await chore()
            self._failing.discard(aim)
        except StoreError as error:
            level = logging.DEBUG if aim in self._failing else logging.WARNING
            self._failing.add(aim)
            log.log(level, "worker %s cannot %s: %s", self._worker, aim, error)
        except Exception:
            log.exception("worker %s cannot %s", self._worker, aim)

    async def _prune(self) -> None:
        await asyncio.sleep(random.uniform(0, PRUNE_EVERY / 4))  # noqa: S311 - workers should not prune all at once
        await self._upkeep.prune()
