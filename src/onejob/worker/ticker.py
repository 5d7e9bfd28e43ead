"""A worker's part in schedules: sleep until the next tick is due, and make it unless another worker has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from onejob.core import cron, ticks
from onejob.core.step import Step
from onejob.core.ticks import Tick
from onejob.engine.engine import Engine
from onejob.engine.steps import tick_step
from onejob.errors import OnejobError, StoreError
from onejob.tasks.registry import Registry
from onejob.tasks.schedule import Schedule
from onejob.tasks.schedules import all_schedules, counter_name, schedule_key, tick_request

log = logging.getLogger("onejob")

LOOK_AGAIN = 5.0  # seconds at most until added, paused or changed schedules are noticed
SHORTEST_SLEEP = 0.02  # the clocks of machines differ: a tick may be due here and not yet in the store

Guard = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs a function and survives outages of the store."""


class Ticker:
    """Makes the ticks of schedules. Any number of workers may do so at once."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._last: dict[str, datetime] = {}  # the last tick that this ticker has seen, by schedule
        self._broken: set[str] = set()  # schedules whose fault has been logged
        self.sleep = LOOK_AGAIN

    async def run(self, guard: Guard) -> None:
        """Tick until cancelled."""
        while True:
            self.sleep = LOOK_AGAIN
            await guard(self.tick)
            await asyncio.sleep(self.sleep)

    async def tick(self) -> None:
        """Make every tick that is due, and set how long to sleep."""
        schedules = await all_schedules(self._engine, self._registry)
        here = [one for one in schedules if not one.paused and one.task in self._registry.tasks]
        ahead = [await self._advance_or_log(one) for one in here]
        self._last = {one.name: self._last[one.name] for one in here if one.name in self._last}
        upcoming = min((moment for moment in ahead if moment is not None), default=None)
        if upcoming is not None:
            left = (upcoming - self._engine.store.now()).total_seconds()
            self.sleep = min(max(left, SHORTEST_SLEEP), LOOK_AGAIN)

    async def _advance_or_log(self, schedule: Schedule) -> datetime | None:
        """Make a schedule's ticks; a fault is logged once and does not delay other schedules."""
        try:
            upcoming = await self._advance(schedule)
        except StoreError:
            raise
        except Exception:
            if schedule.name not in self._broken:
                log.exception("schedule %s cannot tick", schedule.name)
            self._broken.add(schedule.name)
            return None
        self._broken.discard(schedule.name)
        return upcoming

    async def _advance(self, schedule: Schedule) -> datetime | None:
        """Make the due ticks of one schedule; return when it ticks next."""
        last = self._last.get(schedule.name)
        upcoming = None if last is None else cron.upcoming(schedule.parsed, schedule.zone, last)
        if last is None or (upcoming is not None and upcoming <= self._engine.store.now()):
            last = self._last[schedule.name] = await self._catch_up(schedule)
            upcoming = cron.upcoming(schedule.parsed, schedule.zone, last)
        return upcoming

    async def _catch_up(self, schedule: Schedule) -> datetime:
        """Make ticks until none is due; return the last one, whichever worker made it."""
        key = schedule_key(self._engine, schedule.name)
        while True:
            view = await self._engine.look(key)
            last = ticks.last_tick(view.mark)
            if last is None:
                await self._apply(Step(partial(ticks.begin, key=key), key=key))
                continue
            due = ticks.plan(schedule.parsed, schedule.zone, schedule.missed, last, view.now)
            if not due:
                return last
            for one in due:
                await self._make(schedule, key, one)

    async def _make(self, schedule: Schedule, key: bytes, one: Tick) -> None:
        """Make one tick; the engine counts it if it was absorbed or missed others."""
        engine, registry = self._engine, self._registry
        request = tick_request(engine, registry, schedule, one.at) if one.runs else None
        counter = counter_name(schedule.name)
        step = tick_step(key, one, request, task=schedule.task, counter=counter, sealer=self._engine.sealer)
        await self._apply(step)

    async def _apply(self, step: Step[Any]) -> None:
        [answer] = await self._engine.apply([step])
        if isinstance(answer, OnejobError):  # another open transaction keeps the key
            raise answer
