"""How a chain goes on: by its handler's choice, or by what was written down when it began."""

from __future__ import annotations

from dataclasses import astuple
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from onejob.codec import Safe, opened, pack
from onejob.decide import Request, make
from onejob.errors import InvalidCall
from onejob.ids import new_id
from onejob.job import EPOCH, Job, Retry, State, alter
from onejob.lifecycle import Completed
from onejob.payload import encode

if TYPE_CHECKING:
    from onejob.context import Context
    from onejob.tasks import Call


class Later(msgspec.Struct, frozen=True, array_like=True):
    """A call that is to continue a chain, as it is kept with the jobs before it."""

    task: str
    queue: str
    priority: int
    retry: tuple[Any, ...]
    timeout: float | None
    delay: float | None
    args: msgspec.Raw
    meta: msgspec.Raw
    takes: str | None  # the argument that the result before it becomes


_later = msgspec.json.Decoder(list[Later]).decode
_value = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def completed(context: Context, value: object) -> Completed:
    """Make what a run comes to that has returned: its result, and the job that goes on with its chain."""
    app, job = context.app, context.job
    result = encode(value, f"The result of {job.task}", app.max_args)
    if context.continuation is None and job.following is not None:
        context.continuation = written_next(job, result, app.store.now(), app.safe)
    return Completed(result if app.safe is None else app.safe.seal(result), context.continuation)


def chosen_next(job: Job, call: Call[Any], now: datetime) -> Job:
    """Make the job that a handler goes on with; what was written down follows after it."""
    return alter(make(placed(call.request(), job), now), following=job.following)


def written_next(job: Job, result: bytes | None, now: datetime, safe: Safe | None) -> Job | None:
    """Make the job that was written down to come next, with the result before it."""
    if job.following is None:
        return None
    first, *others = _later(job.following)
    following = msgspec.json.encode(others) if others else None
    return alter(make(placed(requested(first, job, result, safe), job), now), following=following)


def placed(request: Request, job: Job) -> Request:
    """Give a continuation an id by which a store finds it where its chain is; it has no policy of its own."""
    job_id, place = new_id(int(job.chain_id[-4:], 16).to_bytes(2, "big"))
    asked = alter(
        request.job, id=job_id, chain_id=job_id, place=place, key=None, version=None, parent_id=job.id
    )
    return msgspec.structs.replace(request, job=asked, policy=None)


def requested(later: Later, job: Job, result: bytes | None, safe: Safe | None) -> Request:
    """Make the request of a call that was written down, with the result before it."""
    clear = opened(safe, bytes(later.args), f"The arguments of {later.task}, after job {job.id},")
    if later.takes is not None:
        given = _value(clear) | {later.takes: msgspec.Raw(result or b"null")}
        clear = msgspec.json.encode(given, order="sorted")
    meta = bytes(later.meta)
    args, payload_digest = pack(safe, clear, meta)
    asked = Job(
        id="",
        namespace=job.namespace,
        task=later.task,
        queue=later.queue,
        state=State.AVAILABLE,
        priority=later.priority,
        run_at=EPOCH,
        place=0,
        created_at=EPOCH,
        args=args,
        meta=meta,
        payload_digest=payload_digest,
        retry=Retry(*later.retry),
        chain_id="",
        timeout=later.timeout,
    )
    return Request(asked, delay=None if later.delay is None else timedelta(seconds=later.delay))


def written(call: Call[Any]) -> Later:
    """Write a call down for later: bound as far as it goes, with the one argument that it still takes."""
    task = call.task
    bound, takes = task.signature.bind_but_one(call.args, call.kwargs)
    args = encode(bound, "The arguments", task.app.max_args)
    template = task.template
    job = template.job
    if job.blockers is not None or template.run_at is not None:
        raise InvalidCall(f"{task.name}: only the first call of a chain takes after= or run_at=; use delay=.")
    return Later(
        task.name,
        job.queue,
        job.priority,
        astuple(job.retry),
        job.timeout,
        None if template.delay is None else template.delay.total_seconds(),
        msgspec.Raw(args if task.app.safe is None else task.app.safe.seal(args)),
        msgspec.Raw(job.meta),
        takes,
    )
