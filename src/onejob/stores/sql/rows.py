"""Jobs and marks as rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import fields

from onejob.job import EPOCH, Job, Mark, Retry, State, alter
from onejob.stores.contract import Tally

Row = Sequence[Any]

MICROSECOND = timedelta(microseconds=1)
STATES = {state.value: state for state in State}
NAMES = {state: state.value for state in State}  # quicker than asking each for its value
COLUMNS = len(Job.__struct_fields__)


def micros(time: datetime) -> int:
    """Write a time as microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


@lru_cache(maxsize=4096)
def moment(time: int) -> datetime:
    """Read what `micros` wrote; a job has most of its times twice, and its neighbours have some of them."""
    return EPOCH + timedelta(microseconds=time)


def instant(time: int | None) -> datetime | None:
    """Read what `micros` wrote, if anything."""
    return None if time is None else moment(time)


@lru_cache(maxsize=1024)
def write_retry(retry: Retry) -> str:
    """Write a retry policy; there are few, so they are kept."""
    return msgspec.json.encode(astuple(retry)).decode()


@lru_cache(maxsize=1024)
def read_retry(text: str) -> Retry:
    """Read a retry policy."""
    return Retry(*msgspec.json.decode(text))


def write_job(job: Job) -> Row:
    """Make the row of a new job."""
    return (
        job.id,
        job.namespace,
        job.task,
        job.queue,
        NAMES[job.state],
        job.priority,
        micros(job.run_at),
        job.place,
        micros(job.created_at),
        job.args,
        job.meta,
        job.payload_digest,
        write_retry(job.retry),
        job.chain_id,
        job.timeout,
        job.attempt,
        job.started_at and micros(job.started_at),
        job.finished_at and micros(job.finished_at),
        job.key,
        job.held_key,
        job.next_key,
        job.holds,
        job.traits,
        job.within,
        job.held_at and micros(job.held_at),
        job.holds_until and micros(job.holds_until),
        job.latest_at and micros(job.latest_at),
        job.version,
        job.chain_index,
        job.parent_id,
        job.superseded_by,
        job.reason,
        job.token,
        job.worker,
        job.lease_until and micros(job.lease_until),
        job.cancel_requested,
        job.errors,
        job.result,
        job.progress,
        job.expires_at and micros(job.expires_at),
        job.partition,
        job.replays,
        job.blockers,
        job.arrived,
        job.following,
    )


def write_plain(job: Job) -> Row:
    """Make the row of a new job that `is_plain`.

    The sqlite3 module asks bytes how they want to be stored, but not a bytearray: that takes half the time.
    """
    return (
        job.id,
        job.namespace,
        job.task,
        job.queue,
        NAMES[job.state],
        job.priority,
        micros(job.run_at),
        job.place,
        micros(job.created_at),
        bytearray(job.args),
        bytearray(job.meta),
        bytearray(job.payload_digest),
        write_retry(job.retry),
        job.chain_id,
        job.key and bytearray(job.key),
        job.held_key and bytearray(job.held_key),
        job.holds,
        job.traits,
        job.held_at and micros(job.held_at),
        job.chain_index,
        job.parent_id,
        job.following,
    )


PLAIN = (
    *("id", "namespace", "task", "queue", "state", "priority", "run_at", "place", "created_at", "args"),
    *("meta", "payload_digest", "retry", "chain_id", "key", "held_key", "holds", "traits", "held_at"),
    *("chain_index", "parent_id", "following"),
)
RARE = {field.name: field.default for field in fields(Job) if field.name not in PLAIN}
_rare = attrgetter(*RARE)
_none = tuple(RARE.values())


def is_plain(job: Job) -> bool:
    """Tell whether a job has nothing but what most jobs have when they are new."""
    return bool(_rare(job) == _none)


def insertion(job: Job) -> tuple[str, Row]:
    """Choose the narrowest statement that writes a new job: it takes long to say what is not there."""
    return ("insert_plain_job", write_plain(job)) if is_plain(job) else ("insert_job", write_job(job))


def write_changes(job: Job) -> Row:
    """Make the row of what may change in a job, its id last."""
    return (
        job.queue,
        NAMES[job.state],
        job.priority,
        micros(job.run_at),
        job.place,
        job.args,
        job.meta,
        job.payload_digest,
        job.attempt,
        job.started_at and micros(job.started_at),
        job.finished_at and micros(job.finished_at),
        job.held_key,
        job.next_key,
        job.traits,
        job.held_at and micros(job.held_at),
        job.holds_until and micros(job.holds_until),
        job.version,
        job.superseded_by,
        job.reason,
        job.token,
        job.worker,
        job.lease_until and micros(job.lease_until),
        job.cancel_requested,
        job.errors,
        job.result,
        job.progress,
        job.expires_at and micros(job.expires_at),
        job.partition,
        job.replays,
        job.blockers,
        job.arrived,
        job.following,
        job.id,
    )


def write_start(job: Job) -> Row:
    """Make the row of what a start changes, the id last."""
    return (
        NAMES[job.state],
        job.attempt,
        job.started_at and micros(job.started_at),
        job.token,
        job.worker,
        job.lease_until and micros(job.lease_until),
        job.id,
    )


def write_completion(job: Job) -> Row:
    """Make the row of what the end of a run changes that has succeeded and holds nothing, the id last."""
    return (job.finished_at and micros(job.finished_at), job.result and bytearray(job.result), job.id)


def revision(old: Job | None, new: Job) -> tuple[str, Row]:
    """Choose the narrowest statement that writes all that has changed."""
    if old is not None and new.state is State.ACTIVE and new == started(old, new):
        return "start_job", write_start(new)
    if old is not None and new.state is State.COMPLETED and new == completed(old, new):
        return "complete_job", write_completion(new)
    return "update_job", write_changes(new)


def started(old: Job, new: Job) -> Job:
    """Tell what becomes of a job if `start_job` makes it the new one."""
    return alter(
        old,
        state=new.state,
        attempt=new.attempt,
        started_at=new.started_at,
        token=new.token,
        worker=new.worker,
        lease_until=new.lease_until,
    )


def completed(old: Job, new: Job) -> Job:
    """Tell what becomes of a job if `complete_job` makes it the new one."""
    return alter(
        old,
        state=State.COMPLETED,
        finished_at=new.finished_at,
        held_key=None,
        reason=None,
        worker=None,
        lease_until=None,
        result=new.result,
    )


def read_job(row: Row) -> Job:
    """Make a job of its row."""
    values = list(row[:COLUMNS])  # a newer onejob may have added more at the end
    values[4] = STATES[values[4]]
    values[12] = read_retry(values[12])
    if values[9].__class__ is str:  # PostgreSQL keeps JSON as text, SQLite as bytes
        for column in (9, 10, 36):
            values[column] = values[column].encode()
        for column in (37, 38, 42, 43, 44):
            if values[column] is not None:
                values[column] = values[column].encode()
    values[35] = bool(values[35])
    for column in (6, 8, 16, 17, 24, 25, 26, 34, 39):
        time = values[column]
        if time is not None:
            values[column] = moment(time)
    return Job(*values)


def write_mark(mark: Mark) -> Row:
    """Make the row of a mark."""
    prior = (mark.prior_version, mark.prior_job)
    return (mark.key, mark.version, mark.job, mark.void, micros(mark.touched_at), *prior)


def read_mark(row: Row) -> Mark:
    """Make a mark of its row."""
    key, version, job, void, touched_at, prior_version, prior_job = row
    at = EPOCH + timedelta(microseconds=touched_at)
    return Mark(key, version, job, bool(void), at, prior_version, prior_job)


def read_tally(row: Row) -> Tally:
    """Make a tally of its row."""
    namespace, task, outcome, job_id, count, last_at = row
    return Tally(namespace, task, outcome, job_id, count, instant(last_at))
