"""Schedules: which task runs when. Declared in code, or kept in the store and changed while workers run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from onejob import cron, key, tick
from onejob.codec import opened
from onejob.decide import Request
from onejob.errors import InvalidSchedule, UnknownSchedule
from onejob.fluent import Fluent, policy_of
from onejob.ids import new_id
from onejob.job import alter
from onejob.payload import encode
from onejob.policy import Unique
from onejob.schedule import Duration
from onejob.stores.contract import SCHEDULES, Step
from onejob.tasks import KEY_SCHEME, Call
from onejob.tick import Missed

if TYPE_CHECKING:
    from onejob.app import App

KIND = "cron"  # of the store's settings
KEEP = Unique()
SHOWN = 5  # next runs


@dataclass(frozen=True)
class Schedule:
    """A task with its arguments, when it runs, and what becomes of a tick that meets a run or is missed."""

    name: str
    task: str
    line: str
    timezone: str = "UTC"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    overlap: Unique | None = KEEP
    missed: Missed = "one"
    paused: bool = False
    declared: bool = False  # in code; then only a pause is kept in the store

    @cached_property
    def parsed(self) -> cron.Line:
        """The line, read."""
        return cron.read(self.line)

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone, found."""
        return cron.zone_named(self.timezone)

    @property
    def description(self) -> str:
        """The line in English, with its time zone."""
        said = cron.describe(self.parsed)
        return said if isinstance(self.parsed, cron.Every) else f"{said}, {self.timezone} time"

    def upcoming(self, after: datetime, most: int = SHOWN) -> list[datetime]:
        """List the next ticks after a moment, in the schedule's own time zone."""
        found = islice(cron.ticks(self.parsed, self.zone, after), most)
        return [one.astimezone(self.zone) for one in found]


@dataclass(frozen=True)
class Standing:
    """A schedule and how it stands: up to when its ticks are settled, the next, and what came to no job."""

    schedule: Schedule
    since: datetime | None  # the last tick, or when it was added or resumed
    next: list[datetime]
    absorbed: Mapping[str, int]


class Schedules:
    """The schedules of an app: `app.schedules`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[str, Schedule] = {}

    # ── what there is ─────────────────────────────────────────────────────────────────────────────

    def declare(self, call: Call[Any], line: str, *, name: str | None = None, **policies: Any) -> Schedule:
        """Take in a schedule of the code; what cannot be meant is refused here and now."""
        schedule = self._make(name or call.task.name, call, line, **policies)
        if schedule.name in self._declared:
            raise InvalidSchedule(
                f"Two schedules are named {schedule.name!r}: give one of them another name=."
            )
        self._declared[schedule.name] = replace(schedule, declared=True)
        return schedule

    async def all(self) -> list[Schedule]:
        """Read every schedule, by name: those of the code, and those that were added."""
        kept = await self._app.store.settings(self._app.namespace, KIND)
        found = dict(self._kept(kept))
        for name, schedule in self._declared.items():
            found[name] = replace(schedule, paused=is_paused(kept.get(name)))
        return [found[name] for name in sorted(found)]

    def _kept(self, settings: Mapping[str, bytes]) -> Iterator[tuple[str, Schedule]]:
        for name, text in settings.items():
            try:
                document = msgspec.json.decode(text)
                if "line" in document:
                    yield name, read(name, document)
            except (KeyError, TypeError, ValueError) as error:  # as a newer version may have written it
                self._app.log.warning("schedule %s cannot be read: %s", name, error)

    async def get(self, name: str) -> Schedule:
        """Read one schedule."""
        schedules = await self.all()
        for schedule in schedules:
            if schedule.name == name:
                return schedule
        known = ", ".join(one.name for one in schedules) or "none"
        raise UnknownSchedule(f"No schedule is named {name!r}; there are: {known}.")

    async def list(self) -> list[Standing]:
        """Tell how every schedule stands."""
        self._app.ledger.flush()
        counts: dict[str, Counter[str]] = {}
        for tally in await self._app.store.tallies(self._app.namespace):
            counts.setdefault(tally.job_id, Counter())[tally.outcome] += tally.count
        return [await self._standing(one, counts.get(counter(one.name), {})) for one in await self.all()]

    async def _standing(self, schedule: Schedule, absorbed: Mapping[str, int]) -> Standing:
        since = tick.last_tick((await self._app.store.look(self.key(schedule.name))).mark)
        ahead = [] if schedule.paused else schedule.upcoming(self._app.store.now())
        return Standing(schedule, since and since.astimezone(schedule.zone), ahead, absorbed)

    # ── changing it while workers run ─────────────────────────────────────────────────────────────

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
        """Keep a schedule in the store, or change the one of that name; it has missed nothing before."""
        schedule = self._make(
            name, call, line_of(line, every), timezone=timezone, overlap=overlap, missed=missed
        )
        if name in self._declared:
            raise InvalidSchedule(
                f"{name!r} is declared in code: change it there, or add one of another name."
            )
        await self._restart(name)
        await self._keep(schedule)
        return schedule

    async def pause(self, name: str) -> Schedule:
        """Let a schedule rest until it is resumed."""
        paused = replace(await self.get(name), paused=True)
        await self._keep(paused)
        return paused

    async def resume(self, name: str) -> Schedule:
        """Let a schedule go on; what it would have done meanwhile is not missed."""
        schedule = await self.get(name)
        if schedule.paused:
            await self._restart(name)
            schedule = replace(schedule, paused=False)
            await self._keep(schedule)
        return schedule

    async def remove(self, name: str) -> Schedule:
        """Forget a schedule that was added; the jobs that it made stay."""
        schedule = await self.get(name)
        if schedule.declared:
            raise InvalidSchedule(f"{name!r} is declared in code: take it out there, or pause it.")
        await self._app.store.put_setting(self._app.namespace, KIND, name, None)
        await self._app.store.apply([Step(tick.end, key=self.key(name))])
        return schedule

    async def _keep(self, schedule: Schedule) -> None:
        value = written(schedule)
        await self._app.store.put_setting(self._app.namespace, KIND, schedule.name, value)

    async def _restart(self, name: str) -> None:
        wanted = self.key(name)
        await self._app.store.apply([Step(partial(tick.reset, key=wanted), key=wanted)])

    async def carry(self, target: Schedules) -> None:
        """Bring schedules that were added, pauses, and where each schedule stands, to another app's store."""
        store, there = self._app.store, target._app
        for name, value in (await store.settings(self._app.namespace, KIND)).items():
            await there.store.put_setting(there.namespace, KIND, name, value)
        for schedule in await self.all():
            last = tick.last_tick((await store.look(self.key(schedule.name))).mark)
            if last is not None:
                wanted = target.key(schedule.name)
                await there.store.apply([Step(partial(tick.begin, key=wanted, at=last), key=wanted)])

    # ── the parts of a tick ───────────────────────────────────────────────────────────────────────

    def _make(
        self,
        name: str,
        call: Call[Any],
        line: str,
        *,
        timezone: str = "UTC",
        overlap: Unique | Fluent | bool | None = KEEP,
        missed: Missed = "one",
    ) -> Schedule:
        if not isinstance(name, str) or not name:
            raise InvalidSchedule(f"name={name!r}: a schedule's name is text that is not empty.")
        if call.task is not self._app.tasks.get(call.task.name):
            raise InvalidSchedule(f"{name!r} needs the task as the app has it: leave options(…) out.")
        policy = policy_of(overlap)
        tick.check(policy, missed)
        if policy is not None:
            self._app.check_strength(call.task.name, policy)
        bound = encode(call.task.signature.bind(call.args, call.kwargs), "The arguments", self._app.max_args)
        safe = self._app.safe
        arguments = msgspec.json.decode(bound if safe is None else safe.seal(bound))
        schedule = Schedule(name, call.task.name, cron.read(line).text, timezone, arguments, policy, missed)
        if schedule.zone.key != "UTC" and isinstance(schedule.parsed, cron.Every):
            raise InvalidSchedule(f"{schedule.line} counts from 1970 in UTC: leave timezone= out.")
        return schedule

    def key(self, name: str) -> bytes:
        """Hash the identity of a schedule."""
        dimensions = {"v": KEY_SCHEME, "namespace": self._app.namespace, "cron": name}
        return key.digest(dimensions, self._app.secret)

    def request(self, schedule: Schedule, at: datetime) -> Request:
        """Make the request of a tick: keyed by the schedule, and told in its metadata which tick it is."""
        meta = {"cron": schedule.name}
        task = self._app.task_named(schedule.task).options(unique=False, meta=meta)
        args, kwargs = task.signature.restore(self._arguments(schedule))
        request = task.request(tuple(args), kwargs)
        wanted = self.key(schedule.name)
        job_id, place = new_id(wanted)
        job = alter(
            request.job,
            id=job_id,
            chain_id=job_id,
            place=place,
            key=wanted,
            meta=msgspec.json.encode(meta | {"tick": at.isoformat()}),
            parent_id=None,
        )
        return msgspec.structs.replace(
            request, job=job, policy=schedule.overlap, run_at=at, running_chain=None
        )

    def _arguments(self, schedule: Schedule) -> dict[str, Any]:
        stored = msgspec.json.encode(schedule.arguments)
        clear = opened(self._app.safe, stored, f"The arguments of schedule {schedule.name}")
        return msgspec.json.decode(clear, type=dict[str, Any])


def counter(name: str) -> str:
    """Name what a schedule's absorbed and missed ticks are counted under, where a job's id would stand."""
    return f"{SCHEDULES}{name}"


def line_of(line: str | None, every: Duration | None) -> str:
    """Read when a schedule ticks: by a line or by an interval."""
    if (line is None) == (every is None):
        raise InvalidSchedule('A schedule needs a line or an interval: write "*/5 * * * *" or every="30s".')
    return cron.every(every).text if every is not None else line or ""


# ── as the store keeps them ───────────────────────────────────────────────────────────────────────


def written(schedule: Schedule) -> bytes | None:
    """Write what the store keeps of a schedule; nothing if the code says all of it."""
    if schedule.declared:
        return msgspec.json.encode({"paused": True}) if schedule.paused else None
    document = {one.name: getattr(schedule, one.name) for one in fields(schedule) if one.name != "name"}
    del document["declared"]
    document["overlap"] = None if schedule.overlap is None else plain(schedule.overlap)
    return msgspec.json.encode(document)


def read(name: str, document: Mapping[str, Any]) -> Schedule:
    """Read what `written` wrote."""
    overlap = document["overlap"]
    return Schedule(**{**document, "name": name, "overlap": None if overlap is None else Unique(**overlap)})


def is_paused(text: bytes | None) -> bool:
    """Tell whether the store says that a schedule rests."""
    return text is not None and bool(msgspec.json.decode(text).get("paused"))


def plain(policy: Unique) -> dict[str, Any]:
    """Write what a policy says beyond the defaults."""
    said = {one.name: getattr(policy, one.name) for one in fields(policy)}
    usual = {one.name: one.default for one in fields(policy) if one.default is not MISSING}
    return {name: plain_value(value) for name, value in said.items() if value != usual[name]}


def plain_value(value: Any) -> Any:
    """Write a policy's value as JSON has it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return sorted(value) if isinstance(value, frozenset) else value
