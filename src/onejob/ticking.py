"""A worker's part in schedules: wake when the next tick is due, and make it unless somebody else has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from onejob import cron, tick
from onejob.decide import DEDUPLICATED, Outcome, Request, Verdict
from onejob.dependants import converse, is_quiet, settle_in
from onejob.errors import OnejobError, StoreError
from onejob.schedules import Schedule, counter
from onejob.stores.contract import Act, Step, Tally
from onejob.tick import Tick, Ticked

if TYPE_CHECKING:
    from onejob.app import App

log = logging.getLogger("onejob")

LOOK_AGAIN = 5.0  # seconds at most until schedules that were added, paused or changed are noticed

SHORTEST_REST = 0.02  # as clocks of machines differ, a tick may be due here and not yet in the store

Patiently = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class Ticker:
    """Makes the ticks of an app's schedules. Any number of them may do so at once."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._last: dict[str, datetime] = {}  # the last tick that was seen, by schedule
        self._broken: set[str] = set()  # schedules whose fault has been told
        self.rest = LOOK_AGAIN

    async def run(self, patiently: Patiently) -> None:
        """Tick until cancelled; `patiently` bears outages of the store."""
        while True:
            self.rest = LOOK_AGAIN
            await patiently(self.tick)
            await asyncio.sleep(self.rest)

    async def tick(self) -> None:
        """Make every tick that is due, and tell how long to rest."""
        schedules = await self._app.schedules.all()
        here = [one for one in schedules if not one.paused and one.task in self._app.tasks]
        ahead = [await self._attend(one) for one in here]
        self._last = {one.name: self._last[one.name] for one in here if one.name in self._last}
        upcoming = min((moment for moment in ahead if moment is not None), default=None)
        if upcoming is not None:
            left = (upcoming - self._app.store.now()).total_seconds()
            self.rest = min(max(left, SHORTEST_REST), LOOK_AGAIN)

    async def _attend(self, schedule: Schedule) -> datetime | None:
        """Make a schedule's ticks; one that cannot be made is told once and holds nobody up."""
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
        """Make what is due of one schedule; tell when it ticks next."""
        last = self._last.get(schedule.name)
        upcoming = None if last is None else cron.upcoming(schedule.parsed, schedule.zone, last)
        if last is None or (upcoming is not None and upcoming <= self._app.store.now()):
            last = self._last[schedule.name] = await self._catch_up(schedule)
            upcoming = cron.upcoming(schedule.parsed, schedule.zone, last)
        return upcoming

    async def _catch_up(self, schedule: Schedule) -> datetime:
        """Make ticks until none is due; tell the last one, whoever made it."""
        wanted = self._app.schedules.key(schedule.name)
        while True:
            view = await self._app.store.look(wanted)
            last = tick.last_tick(view.mark)
            if last is None:
                await self._apply(partial(tick.begin, key=wanted), wanted)
                continue
            due = tick.plan(schedule.parsed, schedule.zone, schedule.missed, last, view.now)
            if not due:
                return last
            for one in due:
                await self._make(schedule, wanted, one)

    async def _make(self, schedule: Schedule, wanted: bytes, one: Tick) -> None:
        """Make one tick, and count what was absorbed or missed if it was ours to make."""
        request = self._app.schedules.request(schedule, one.at) if one.runs else None
        act = partial(tick.tick, key=wanted, one=one, request=request)
        made = await self._apply(act, wanted)
        if made is None:
            return
        if one.missed:
            self._count(schedule, "missed", one.missed)
        if request is not None and made.verdict is not None:
            await self._follow_up(schedule, request, made.verdict)

    async def _follow_up(self, schedule: Schedule, request: Request, verdict: Verdict) -> None:
        """Count a tick that came to no job of its own; tell whoever waited for a job that it replaced."""
        if verdict.outcome in DEDUPLICATED:
            self._count(schedule, verdict.outcome, 1)
        if not is_quiet(request, verdict):
            await converse(settle_in(request, verdict, {}), self._app.store, self._app.store.apply)

    async def _apply(self, act: Act, wanted: bytes) -> Ticked | None:
        answer: Ticked | OnejobError | None
        [answer] = await self._app.store.apply([Step(act, key=wanted)])
        if isinstance(answer, OnejobError):  # somebody's open transaction keeps the key
            raise answer
        return answer

    def _count(self, schedule: Schedule, outcome: Outcome | str, number: int) -> None:
        entry = (self._app.namespace, schedule.task, str(outcome), counter(schedule.name))
        self._app.ledger.count(Tally(*entry, number))
