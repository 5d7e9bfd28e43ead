"""Jobs and marks as bytes, and back.

A record begins with its revision, which every write changes, and the job's key, so that a script can compare
the one and follow the other without knowing what a job is.
"""

from __future__ import annotations

from dataclasses import astuple
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from onejob.job import Job, Mark, Retry, State

REVISION = 8  # bytes
ID, RETRY, CHAIN = (Job.__struct_fields__.index(name) for name in ("id", "retry", "chain_id"))

Fields = tuple[
    str,  # id
    str,  # namespace
    str,  # task
    str,  # queue
    State,
    int,  # priority
    datetime,  # run_at
    int,  # place
    datetime,  # created_at
    bytes,  # args
    bytes,  # meta
    bytes,  # payload_digest
    bytes,  # retry
    str | None,  # chain_id, None if it is the id
    float | None,  # timeout
    int,  # attempt
    datetime | None,  # started_at
    datetime | None,  # finished_at
    bytes | None,  # key
    bytes | None,  # held_key
    bytes | None,  # next_key
    int,  # holds
    int,  # traits
    float | None,  # within
    datetime | None,  # held_at
    datetime | None,  # holds_until
    datetime | None,  # latest_at
    int | None,  # version
    int,  # chain_index
    str | None,  # parent_id
    str | None,  # superseded_by
    str | None,  # reason
    int,  # token
    str | None,  # worker
    datetime | None,  # lease_until
    bool,  # cancel_requested
    bytes,  # errors
    bytes | None,  # result
    bytes | None,  # progress
    datetime | None,  # expires_at
    str | None,  # partition
    int,  # replays
    bytes | None,  # blockers
    bytes | None,  # arrived
    bytes | None,  # following
]

_encode = msgspec.msgpack.Encoder().encode
_fields = msgspec.msgpack.Decoder(Fields).decode
_mark = msgspec.msgpack.Decoder(tuple[bytes, int | None, str, bool, datetime, int | None, str | None]).decode


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A job as it was read, and the revision that it had then."""

    revision: bytes
    job: Job


@lru_cache(maxsize=1024)
def write_retry(retry: Retry) -> bytes:
    """Write a retry policy; there are few, so they are kept."""
    return _encode(astuple(same(retry)))


@lru_cache(maxsize=1024)
def read_retry(data: bytes) -> Retry:
    """Read a retry policy."""
    return same(Retry(*msgspec.msgpack.decode(data)))


@lru_cache(maxsize=1024)
def same(retry: Retry) -> Retry:
    """Give one object for all that are equal, so that looking it up compares nothing."""
    return retry


def write_job(job: Job, revision: bytes) -> bytes:
    """Make the record of a job."""
    fields: list[Any] = list(msgspec.structs.astuple(job))
    fields[RETRY] = write_retry(job.retry)
    if job.chain_id == job.id:
        fields[CHAIN] = None
    key = job.key or b""
    return b"%b%c%b%b" % (revision, len(key), key, _encode(fields))


def read_job(record: bytes) -> Seen:
    """Make a job of its record."""
    fields: list[Any] = list(_fields(record[REVISION + 1 + record[REVISION] :]))
    fields[RETRY] = read_retry(fields[RETRY])
    if fields[CHAIN] is None:
        fields[CHAIN] = fields[ID]
    return Seen(record[:REVISION], Job(*fields))


def write_mark(mark: Mark) -> bytes:
    """Make the record of a mark; it begins with the job that it names."""
    job = mark.job.encode()
    return b"%c%b%b" % (len(job), job, _encode(msgspec.structs.astuple(mark)))


def read_mark(record: bytes) -> Mark:
    """Make a mark of its record."""
    return Mark(*_mark(record[1 + record[0] :]))
