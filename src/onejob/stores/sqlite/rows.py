"""Which statement writes a job, and its parameters: the narrowest that covers what has changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from msgspec.structs import fields, replace

from onejob.core.job import Job, Mark, State
from onejob.stores.columns import (
    COLUMNS,
    INDEX,
    NO_META,
    POLICY,
    STATE_NAMES,
    policy_of,
    write_job,
    write_mark,
    write_policy,
    write_time,
)
from onejob.stores.sqlite.session import NULL, SQL

Parameters = Sequence[Any]

_TEXTS = tuple(INDEX[column.name] for column in COLUMNS if column.kind in {"json", "meta"})
_BLOBS = tuple(INDEX[column.name] for column in COLUMNS if column.kind == "bytes")
_written = itemgetter(*(INDEX[name] for name in re.findall(r"(\w+) = \?(?=,|\nWHERE)", SQL["update_job"])))

_names, _values = re.findall(r"\(([^)]+)\)", SQL["insert_new_job"])
_NEW = {
    name.strip() for name, value in zip(_names.split(","), _values.split(","), strict=True) if "?" in value
}
_ELSEWHERE = {"chain_id", "newer_policy", *(packed.name for packed in POLICY)}
_OTHERS = {field.name: field.default for field in fields(Job) if field.name not in _NEW | _ELSEWHERE}
_others = attrgetter(*_OTHERS)
_NO_OTHERS = tuple({**_OTHERS, "meta": NO_META}.values())


def insertion(job: Job) -> tuple[str, Parameters]:
    """Return the narrowest statement that inserts a job, and its parameters."""
    if _others(job) != _NO_OTHERS or job.chain_id != job.id:
        return "insert_job", whole(job)
    keyed = job.key is not None
    return "insert_new_job", (
        job.id,
        job.namespace,
        job.task,
        job.queue,
        STATE_NAMES[job.state],
        job.priority,
        write_time(job.run_at),
        job.place,
        write_time(job.created_at),
        job.args.decode(),
        bytearray(job.payload_digest),
        bytearray(job.key) if keyed else NULL,  # type: ignore[arg-type]
        NULL if job.stand is None else job.stand,
        job.traits,
        NULL if job.held_at is None else write_time(job.held_at),
        job.revision,
        write_policy(policy_of(job)),
    )


def whole(job: Job) -> Parameters:
    """Return all values of a row, in the order of the table."""
    values = write_job(job)
    for index in _TEXTS:
        if values[index] is not None:
            values[index] = values[index].decode(errors="replace")  # what was damaged still fails its own job
    for index in _BLOBS:
        if values[index] is not None:
            values[index] = bytearray(values[index])
    return [NULL if value is None else value for value in values]


def revision(old: Job, new: Job) -> tuple[str, Parameters]:
    """Return the narrowest statement that makes the new row of the old one, and its parameters."""
    fence = (new.id, old.revision)
    match new.state:
        case State.ACTIVE if old.state is State.ACTIVE and _is_renewed(old, new):
            return "renew_job", (new.revision, _time(new.lease_until), *fence)
        case State.ACTIVE if _is_started(old, new):
            times = (_time(new.lease_until), _time(new.started_at))
            return "start_job", (new.attempt, new.token, new.revision, new.worker, *times, *fence)
        case State.COMPLETED if new.stand is None and _is_completed(old, new):
            result = NULL if new.result is None else new.result.decode()
            times = (_time(new.finished_at), _time(new.kept_until))
            return "complete_job", (new.revision, *times, result, *fence)
        case State.AVAILABLE if replace(old, state=new.state, revision=new.revision) == new:
            return "ready_job", (new.revision, *fence)
        case _:
            return "update_job", (*changing(new), *fence)


def changing(job: Job) -> Parameters:
    """Return the values of all columns that may change after admission, in the order of `update_job`."""
    values: Parameters = _written(whole(job))
    return values


def _time(time: Any) -> Any:
    return NULL if time is None else write_time(time)


def _is_renewed(old: Job, new: Job) -> bool:
    return replace(old, lease_until=new.lease_until, revision=new.revision) == new


def _is_started(old: Job, new: Job) -> bool:
    started = replace(
        old,
        state=new.state,
        attempt=new.attempt,
        token=new.token,
        revision=new.revision,
        worker=new.worker,
        lease_until=new.lease_until,
        started_at=new.started_at,
    )
    return started == new


def _is_completed(old: Job, new: Job) -> bool:
    completed = replace(
        old,
        state=new.state,
        stand=None,
        revision=new.revision,
        lease_until=None,
        finished_at=new.finished_at,
        kept_until=new.kept_until,
        result=new.result,
    )
    return completed == new


def mark_row(mark: Mark) -> Parameters:
    """Return the parameters of `write_mark`."""
    key, *rest = write_mark(mark)
    return (bytearray(key), *(NULL if value is None else value for value in rest))
