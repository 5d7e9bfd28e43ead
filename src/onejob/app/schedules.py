"""`app.schedules`: list schedules, and change them while workers run."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from onejob.core import ticks
from onejob.core.durations import Duration
from onejob.core.fluent import Fluent
from onejob.core.policy import Unique
from onejob.core.step import Step
from onejob.core.ticks import Missed
from onejob.engine.engine import Engine
from onejob.errors import InvalidSchedule, UnknownSchedule
from onejob.tasks.blocking import blocking
from onejob.tasks.call import Call
from onejob.tasks.registry import Registry
from onejob.tasks.schedule import KEEP, Schedule
from onejob.tasks.schedules import (
    KIND,
    all_schedules,
    counter_name,
    line_of,
    make_schedule,
    schedule_key,
    write_schedule,
)


@dataclass(frozen=True)
class ScheduleStatus:
    """A schedule and its state.

    Attributes:
        schedule: The schedule.
        since: The last tick, or when the schedule was added or resumed; None before its first tick.
        next: The next ticks.
        absorbed: How many ticks were absorbed or missed, by outcome.
    """

    schedule: Schedule
    since: datetime | None
    next: list[datetime]
    absorbed: Mapping[str, int]


class Schedules:
    """The schedules of an app: `app.schedules`."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry

    async def all(self) -> builtins.list[Schedule]:
        """Return every schedule by name: those declared in code and those that were added."""
        return await all_schedules(self._engine, self._registry)

    async def get(self, name: str) -> Schedule:
        """Return one schedule.

        Args:
            name: The schedule's name.

        Raises:
            UnknownSchedule: No schedule has that name.
        """
        schedules = await self.all()
        for schedule in schedules:
            if schedule.name == name:
                return schedule
        known = ", ".join(one.name for one in schedules) or "none"
        raise UnknownSchedule(f"No schedule is named {name!r}; there are: {known}.")

    async def list(self) -> builtins.list[ScheduleStatus]:
        """Return every schedule with its last tick, its next ticks and its counters."""
        self._engine.counters.flush()
        schedules = {counter_name(one.name): one for one in await self.all()}
        counts: dict[str, Counter[str]] = {}
        for tally in await self._engine.store.tallies(self._engine.namespace, schedules):
            counts.setdefault(tally.job_id, Counter())[tally.outcome] += tally.count
        return [await self._status(one, counts.get(name, {})) for name, one in schedules.items()]

    async def _status(self, schedule: Schedule, absorbed: Mapping[str, int]) -> ScheduleStatus:
        since = await last_tick(self._engine, schedule.name)
        ahead = [] if schedule.paused else schedule.upcoming(self._engine.store.now())
        return ScheduleStatus(schedule, since and since.astimezone(schedule.zone), ahead, absorbed)

    async def add(
        self,
        name: str,
        call: Call[Any],
        line: str | None = None,
        *,
        every: Duration | None = None,
        timezone: str = "UTC",
        overlap: Unique | Fluent | bool | None = KEEP,
        missed: Missed = "one",
    ) -> Schedule:
        """Add a schedule to the store, or change the one of that name; ticks before now are not missed.

        Args:
            name: The schedule's name.
            call: What runs: `task.call(…)`, without options.
            line: A cron line such as "*/5 * * * *".
            every: An interval such as "30s", instead of a line.
            timezone: The time zone in which the line is read.
            overlap: What happens to a tick while an earlier job of the schedule is unfinished.
            missed: What happens to ticks that were due while no worker ran: "skip", "one" or "all".

        Raises:
            InvalidSchedule: The schedule is declared in code, or its options contradict each other.
        """
        schedule = make_schedule(
            self._engine,
            self._registry,
            name,
            call,
            line_of(line, every),
            timezone=timezone,
            overlap=overlap,
            missed=missed,
        )
        if name in self._registry.schedules:
            raise InvalidSchedule(
                f"{name!r} is declared in code: change it there, or add one of another name."
            )
        await self._restart(name)
        await self._keep(schedule)
        return schedule

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed.

        Args:
            name: The schedule's name.

        Raises:
            UnknownSchedule: No schedule has that name.
        """
        paused = replace(await self.get(name), paused=True)
        await self._keep(paused)
        return paused

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule; ticks that were due while it was paused are not missed.

        Args:
            name: The schedule's name.

        Raises:
            UnknownSchedule: No schedule has that name.
        """
        schedule = await self.get(name)
        if schedule.paused:
            await self._restart(name)
            schedule = replace(schedule, paused=False)
            await self._keep(schedule)
        return schedule

    async def remove(self, name: str) -> Schedule:
        """Remove a schedule that was added; its jobs stay.

        Args:
            name: The schedule's name.

        Raises:
            InvalidSchedule: The schedule is declared in code.
            UnknownSchedule: No schedule has that name.
        """
        schedule = await self.get(name)
        if schedule.declared:
            raise InvalidSchedule(f"{name!r} is declared in code: remove it there, or pause it.")
        await self._engine.store.put_setting(self._engine.namespace, KIND, name, None)
        await self._engine.apply([Step(ticks.end, key=schedule_key(self._engine, name))])
        return schedule

    all_sync = blocking(all)  # noqa: A003 - the method
    get_sync = blocking(get)
    list_sync = blocking(list)  # noqa: A003 - the method
    add_sync = blocking(add)
    pause_sync = blocking(pause)
    resume_sync = blocking(resume)
    remove_sync = blocking(remove)

    async def _keep(self, schedule: Schedule) -> None:
        value = write_schedule(schedule)
        await self._engine.store.put_setting(self._engine.namespace, KIND, schedule.name, value)

    async def _restart(self, name: str) -> None:
        wanted = schedule_key(self._engine, name)
        await self._engine.apply([Step(partial(ticks.reset, key=wanted), key=wanted)])


async def last_tick(engine: Engine, name: str) -> datetime | None:
    """Return a schedule's last tick; None if it has not begun."""
    view = await engine.look(schedule_key(engine, name))
    return ticks.last_tick(view.mark)


async def copy_schedules(source: Engine, registry: Registry, target: Engine) -> None:
    """Copy added schedules, pauses, and the last tick of each schedule from one engine to another."""
    for name, value in (await source.store.settings(source.namespace, KIND)).items():
        await target.store.put_setting(target.namespace, KIND, name, value)
    for schedule in await all_schedules(source, registry):
        last = await last_tick(source, schedule.name)
        if last is not None:
            wanted = schedule_key(target, schedule.name)
            await target.apply([Step(partial(ticks.begin, key=wanted, at=last), key=wanted)])
