"""Enqueue many calls in order: their ids are made in one go, their requests share commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from onejob.core.decide import Request
from onejob.core.job import Job, Trait, alter
from onejob.engine.engine import Engine
from onejob.engine.portal import refuse_running_loop
from onejob.errors import InvalidCall
from onejob.tasks.admission import Admission
from onejob.tasks.call import Call, parts_of
from onejob.tasks.enqueue import admissions_of
from onejob.tasks.ids import reserve_many
from onejob.tasks.request import RequestBuilder
from onejob.tasks.unawaited import Unawaited

R = TypeVar("R")


async def enqueue_many(
    engine: Engine,
    calls: Iterable[Call[R]],
    *,
    connection: Any = None,
    awaited: bool = False,
    unawaited: Unawaited | None = None,
) -> list[Admission[R]]:
    """Enqueue calls in order and answer each in its place; `awaited` marks each as awaited when written."""
    if unawaited is not None:
        unawaited.begin()
    builders, requests = requests_of(engine, list(calls), awaited=awaited)
    caller = None if unawaited is None else unawaited.caller
    return admissions_of(builders, await engine.admit(requests, connection, at_hand(builders), caller))


def enqueue_many_sync(
    engine: Engine, calls: Iterable[Call[R]], *, connection: Any = None, awaited: bool = False
) -> list[Admission[R]]:
    """Blocking variant of `enqueue_many`."""
    if connection is None:
        refuse_running_loop("App.enqueue_many")
    builders, requests = requests_of(engine, list_of_calls(calls), awaited=awaited)
    return admissions_of(builders, engine.admit_sync(requests, connection, at_hand(builders)))


def requests_of(
    engine: Engine, calls: Sequence[Call[Any]], *, awaited: bool
) -> tuple[list[RequestBuilder], list[Request]]:
    """Return the requests of calls; raise what is wrong with any of them before one is stored."""
    parts = [check_call(engine, call) for call in calls]
    slots = reserve_many(len(parts))
    requests = [
        builder.request(args, kwargs, slot)
        for (builder, args, kwargs), slot in zip(parts, slots, strict=True)
    ]
    requests = [mark_awaited(request) for request in requests] if awaited else requests
    return [builder for builder, _, _ in parts], requests


def list_of_calls(calls: Iterable[Call[R]]) -> list[Call[R]]:
    """Return calls as a list; raise InvalidCall for a single call."""
    if isinstance(calls, Call):
        raise InvalidCall(f"{calls!r} is one call: write enqueue_many([…]), or enqueue it by itself.")
    return list(calls)


def check_call(engine: Engine, call: Call[Any]) -> tuple[RequestBuilder, tuple[Any, ...], Mapping[str, Any]]:
    """Return the parts of a call; raise InvalidCall for one that this app cannot enqueue in a batch."""
    if not isinstance(call, Call):
        raise InvalidCall(f"{call!r} is no call: write task.call(…).")
    builder, args, kwargs = parts_of(call)
    if builder.engine is not engine:
        raise InvalidCall(f"{builder.declaration.name} belongs to another app: enqueue it there.")
    if builder.options.connection is not None:
        raise InvalidCall("A batch has one transaction: give connection= to enqueue_many, not to its calls.")
    return builder, args, kwargs


def mark_awaited(request: Request) -> Request:
    """Return a request whose job is awaited from the start."""
    job = alter(request.job, traits=request.job.traits | Trait.AWAITED)
    return msgspec.structs.replace(request, job=job)


def at_hand(builders: Sequence[RequestBuilder]) -> Mapping[str, Job]:
    """Return the jobs of chains that calls wait for, as far as the caller gave jobs."""
    return {chain: job for builder in set(builders) for chain, job in builder.at_hand.items()}
