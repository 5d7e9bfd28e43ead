"""The next job of a chain: chosen by its handler, or written when the chain began."""

from __future__ import annotations

from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any

import msgspec

from onejob.core.decide import Request, make
from onejob.core.job import Job, Replay, Retention, Retry, alter
from onejob.core.runs import Completed
from onejob.engine.engine import Engine
from onejob.engine.sealing import Sealer, digest_of, place_in, place_of, seal, seal_job, unseal
from onejob.engine.short_ids import is_whole
from onejob.errors import InvalidCall
from onejob.tasks.call import Call, parts_of
from onejob.tasks.request import make_next, make_template
from onejob.tasks.signature import encode


class StoredCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that will continue a chain, as it is kept with the jobs before it."""

    task: str
    queue: str
    priority: int
    retry: tuple[Any, ...]
    timeout: float | None
    delay: float | None
    args: msgspec.Raw
    meta: msgspec.Raw
    takes: str | None  # the argument that gets the previous result
    replay: tuple[Any, ...] | None = None
    retention: tuple[Any, ...] = ()
    expires_in: float | None = None
    partition: str | None = None


_read_calls = msgspec.json.Decoder(list[StoredCall]).decode
_read_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def complete_run(engine: Engine, job: Job, value: object, chosen: Job | None) -> Completed:
    """Return the result of a run that returned: its value, and the next job of its chain.

    Args:
        engine: Its sealer seals the value.
        job: The job that ran.
        value: What its handler returned.
        chosen: The continuation that its handler chose; without one, the chain's stored calls go on.
    """
    result = encode(value, f"The result of {job.task}", engine.max_args)
    following = chosen
    if chosen is None and job.following is not None:
        following = stored_next(job, result, engine.store.now(), engine.sealer)
    continuation = None if following is None else seal_job(engine.sealer, following)
    sealer = engine.sealer
    return Completed(result if sealer is None else sealer.seal(result, place_in(job, "result")), continuation)


# ── chosen by the handler ─────────────────────────────────────────────────────────────────────────


def chosen_next(job: Job, call: Call[Any], now: datetime) -> Job:
    """Return the next job that a handler chose; the chain's stored calls follow after it.

    Raises:
        InvalidCall: The call does not fit its task, or has a connection of its own.
    """
    builder, args, kwargs = parts_of(call)
    if builder.options.connection is not None:
        raise InvalidCall("A continuation is written with its run's completion: leave connection= out.")
    if short := [name for name in builder.template.awaits if not is_whole(name)]:
        raise InvalidCall(
            f"after= of a continuation needs whole ids, and {short[0]!r} is short: give the job."
        )
    return next_job(builder.continuation(args, kwargs, job), now, job.following)


def next_job(request: Request, now: datetime, following: bytes | None) -> Job:
    """Return the job of a continuation's request, with the calls that follow it."""
    return alter(make(request, now), following=following)


# ── written when the chain began ──────────────────────────────────────────────────────────────────


def store_call(call: Call[Any], chain_id: str) -> StoredCall:
    """Return a call as it is kept with the jobs before it; one of its arguments may be open.

    Raises:
        InvalidCall: More than one argument is open, or an option is for the first call of a chain only.
    """
    builder, args, kwargs = parts_of(call)
    task, options, sealer = builder.declaration, builder.options, builder.engine.sealer
    bound, takes = task.signature.bind_but_one(args, kwargs)
    clear = encode(bound, "The arguments", builder.engine.max_args, aware=True)
    job = builder.template
    if job.blockers is not None or options.run_at is not None:
        raise InvalidCall(f"{task.name}: only the first call of a chain takes after= or run_at=; use delay=.")
    if builder.delay and builder.expires_in and builder.expires_in <= builder.delay:
        raise InvalidCall(f"{task.name} would expire before its run time: give it more time, or less delay.")
    return StoredCall(
        task=task.name,
        queue=job.queue,
        priority=job.priority,
        retry=astuple(job.retry),
        timeout=job.timeout,
        delay=None if builder.delay is None else builder.delay.total_seconds(),
        args=msgspec.Raw(seal(sealer, clear, place_of(job.namespace, task.name, chain_id, "call"))),
        meta=msgspec.Raw(job.meta),
        takes=takes,
        replay=None if job.replay is None else astuple(job.replay),
        retention=astuple(job.retention),
        expires_in=None if builder.expires_in is None else builder.expires_in.total_seconds(),
        partition=builder.no_partition,
    )


def stored_next(job: Job, result: bytes | None, now: datetime, sealer: Sealer | None) -> Job | None:
    """Return the next job that was written when the chain began, with the previous result."""
    if job.following is None:
        return None
    first, *others = _read_calls(job.following)
    following = msgspec.json.encode(others) if others else None
    return next_job(stored_request(first, job, result, sealer), now, following)


def stored_request(call: StoredCall, job: Job, result: bytes | None, sealer: Sealer | None) -> Request:
    """Return the request of a stored call, with the previous result."""
    template = make_template(
        namespace=job.namespace,
        task=call.task,
        queue=call.queue,
        priority=call.priority,
        meta=bytes(call.meta),
        retry=Retry(*call.retry),
        replay=None if call.replay is None else Replay(*call.replay),
        retention=Retention(*call.retention),
        timeout=call.timeout,
    )
    asked = make_next(template, stored_payload(call, job, result, sealer), job, call.partition)
    return Request(asked, delay=read_seconds(call.delay), expires_in=read_seconds(call.expires_in))


def stored_payload(
    call: StoredCall, job: Job, result: bytes | None, sealer: Sealer | None
) -> tuple[bytes, bytes]:
    """Return the arguments of a stored call with the previous result, and the digest of the payload."""
    what = f"The arguments of {call.task}, after job {job.id},"
    clear = unseal(sealer, bytes(call.args), what, place_of(job.namespace, call.task, job.chain_id, "call"))
    if call.takes is not None:
        given = _read_arguments(clear) | {call.takes: msgspec.Raw(result or b"null")}
        clear = msgspec.json.encode(given, order="sorted")
    return clear, digest_of(sealer, clear, bytes(call.meta))


def read_seconds(value: float | None) -> timedelta | None:
    """Return a stored number of seconds as a timedelta."""
    return None if value is None else timedelta(seconds=value)
