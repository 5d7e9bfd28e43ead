"""Schedules: which task runs when. Declared in code, or kept in the store and changed while workers run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from onejob.core import cron, key, ticks
from onejob.core.decide import Request
from onejob.core.durations import Duration
from onejob.core.fluent import Fluent, policy_of
from onejob.core.job import alter
from onejob.core.policy import Unique
from onejob.core.text import is_name
from onejob.core.ticks import Missed
from onejob.engine.engine import Engine
from onejob.engine.sealing import place_of, seal, unseal
from onejob.errors import InvalidSchedule
from onejob.stores.contract import SCHEDULES
from onejob.tasks.call import Call, parts_of
from onejob.tasks.declaration import check_strength
from onejob.tasks.options import Options
from onejob.tasks.registry import Registry
from onejob.tasks.request import KEY_SCHEME, RequestBuilder
from onejob.tasks.schedule import KEEP, Schedule
from onejob.tasks.signature import encode

log = logging.getLogger("onejob")

KIND = "cron"  # of the store's settings


# ── declaring ─────────────────────────────────────────────────────────────────────────────────────


def make_schedule(
    engine: Engine,
    registry: Registry,
    name: str,
    call: Call[Any],
    line: str,
    *,
    timezone: str = "UTC",
    overlap: Unique | Fluent | bool | None = KEEP,
    missed: Missed = "one",
) -> Schedule:
    """Return a schedule; raise InvalidSchedule for options that contradict each other or the task."""
    if not is_name(name):
        raise InvalidSchedule(f"name={name!r}: a schedule's name is printable text.")
    if not isinstance(call, Call):
        raise InvalidSchedule(f"{call!r} is no call: write task.call(…).")
    builder, args, kwargs = parts_of(call)
    task = builder.declaration
    if task is not registry.tasks.get(task.name) or builder.options != Options():
        raise InvalidSchedule(f"{name!r} needs the task as the app has it: leave options(…) out.")
    policy = policy_of(overlap)
    ticks.check(policy, missed)
    if policy is not None:
        check_strength(task.name, policy, engine.store)
    bound = encode(task.signature.bind(args, kwargs), "The arguments", engine.max_args, aware=True)
    place = place_of(engine.namespace, task.name, name, "schedule")
    arguments = msgspec.json.decode(seal(engine.sealer, bound, place))
    text = cron.read(line).text
    schedule = Schedule(name, task.name, text, timezone, arguments, overlap=policy, missed=missed)
    if schedule.zone.key != "UTC" and isinstance(schedule.parsed, cron.Every):
        raise InvalidSchedule(f"{schedule.line} counts from 1970 in UTC: leave timezone= out.")
    return schedule


def declare_schedule(registry: Registry, schedule: Schedule) -> None:
    """Add a schedule of the code to the registry."""
    if schedule.name in registry.schedules:
        raise InvalidSchedule(f"Two schedules are named {schedule.name!r}: give one of them another name=.")
    registry.schedules[schedule.name] = replace(schedule, declared=True)


def line_of(line: str | None, every: Duration | None) -> str:
    """Return the line of a schedule that is given as a line or as an interval."""
    if (line is None) == (every is None) or not isinstance(line or "", str):
        raise InvalidSchedule('A schedule needs a line or an interval: write "*/5 * * * *" or every="30s".')
    return cron.every(every).text if every is not None else line or ""


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def all_schedules(engine: Engine, registry: Registry) -> list[Schedule]:
    """Return every schedule by name: those declared in code and those kept in the store."""
    kept = await engine.store.settings(engine.namespace, KIND)
    found = dict(read_settings(kept))
    for name, schedule in registry.schedules.items():
        found[name] = replace(schedule, paused=is_paused(kept.get(name)))
    return [found[name] for name in sorted(found)]


def read_settings(settings: Mapping[str, bytes]) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules that the store keeps; one that cannot be read is logged and left out."""
    for name, text in settings.items():
        try:
            document = msgspec.json.decode(text)
            if "line" in document:
                yield name, read_schedule(name, document)
        except (KeyError, TypeError, ValueError) as error:  # a newer version may have written it
            log.warning("schedule %s cannot be read: %s", name, error)


def is_paused(text: bytes | None) -> bool:
    """Return whether the store says that a schedule is paused."""
    return text is not None and bool(msgspec.json.decode(text).get("paused"))


# ── the parts of a tick ───────────────────────────────────────────────────────────────────────────


def schedule_key(engine: Engine, name: str) -> bytes:
    """Return the key of a schedule."""
    dimensions = {"v": KEY_SCHEME, "namespace": engine.namespace, "cron": name}
    return key.digest(dimensions, engine.secret)


def counter_name(schedule: str) -> str:
    """Return the name under which a schedule's absorbed and missed ticks are counted."""
    return f"{SCHEDULES}{schedule}"


def tick_request(engine: Engine, registry: Registry, schedule: Schedule, at: datetime) -> Request:
    """Return the request of a tick: keyed by the schedule, with the tick in its metadata.

    The payload's digest does not cover the tick, so that two ticks ask for the same work.
    """
    meta = {"cron": schedule.name}
    builder = RequestBuilder(engine, registry, registry.task(schedule.task), Options(unique=False, meta=meta))
    args, kwargs = builder.declaration.signature.restore(clear_arguments(engine, schedule))
    request = builder.keyed_request(tuple(args), kwargs, schedule_key(engine, schedule.name))
    job = alter(request.job, meta=msgspec.json.encode(meta | {"tick": at.isoformat()}))
    return msgspec.structs.replace(request, job=job, policy=schedule.overlap, run_at=at)


def clear_arguments(engine: Engine, schedule: Schedule) -> dict[str, Any]:
    """Return a schedule's arguments in clear text."""
    stored = msgspec.json.encode(schedule.arguments)
    place = place_of(engine.namespace, schedule.task, schedule.name, "schedule")
    clear = unseal(engine.sealer, stored, f"The arguments of schedule {schedule.name}", place)
    return msgspec.json.decode(clear, type=dict[str, Any])


# ── as the store keeps them ───────────────────────────────────────────────────────────────────────


def write_schedule(schedule: Schedule) -> bytes | None:
    """Return what the store keeps of a schedule; None if the code says all of it."""
    if schedule.declared:
        return msgspec.json.encode({"paused": True}) if schedule.paused else None
    document = {one.name: getattr(schedule, one.name) for one in fields(schedule) if one.name != "name"}
    del document["declared"]
    document["overlap"] = None if schedule.overlap is None else write_policy(schedule.overlap)
    return msgspec.json.encode(document)


def read_schedule(name: str, document: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `write_schedule` wrote."""
    overlap = document["overlap"]
    return Schedule(**{**document, "name": name, "overlap": None if overlap is None else Unique(**overlap)})


def write_policy(policy: Unique) -> dict[str, Any]:
    """Return the fields of a policy that differ from the defaults, as JSON values."""
    given = {one.name: getattr(policy, one.name) for one in fields(policy)}
    usual = {one.name: one.default for one in fields(policy) if one.default is not MISSING}
    return {name: plain_value(value) for name, value in given.items() if value != usual[name]}


def plain_value(value: Any) -> Any:
    """Return a policy's value as JSON has it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return sorted(value) if isinstance(value, frozenset) else value
