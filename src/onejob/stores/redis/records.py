"""Jobs and marks as stored, and back.

A record begins with text that scripts read: the revision, the id of the write that made the record, whether a
step on the job needs other rows of its key, and the key. The row of `columns` follows, packed: values as the
fields of the job have them, except the key, and the two that have many fields.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import astuple

from onejob.core.job import EPOCH, Job, Mark, State, Trait
from onejob.stores.columns import (
    COLUMNS,
    INDEX,
    Unreadable,
    make_job,
    policy_of,
    read_mark,
    values_of,
    write_job,
    write_mark,
    write_more,
    write_policy,
    write_time,
)
from onejob.stores.salvage import blank_job, salvage

REVISION = 10  # digits
WRITE = REVISION + 8  # the end of the id of the write
KEY = WRITE + 1  # the beginning of the key

TYPES: dict[str, Any] = {
    **dict.fromkeys(("text", "chain"), str),
    **dict.fromkeys(("bytes", "json", "meta"), bytes),
    "integer": int,
    "boolean": bool,
    "time": datetime,
    "state": State,
}
OPTIONAL = {"chain_id", *(field.name for field in msgspec.structs.fields(Job) if field.default is None)}
_ID, _KEY, _STATE, _STAND, _REVISION = (INDEX[name] for name in ("id", "key", "state", "stand", "revision"))
_CHAIN = INDEX["chain_id"]  # None if it is the job's own id
_NEEDS_ROWS = Trait.HAS_SUCCESSOR | Trait.MARKED

Packed = msgspec.defstruct(
    "Packed",
    [(one.name, TYPES[one.kind] | None if one.name in OPTIONAL else TYPES[one.kind]) for one in COLUMNS]
    + [("policy", str), ("more", str | None)],
    array_like=True,
    gc=False,
)
"""The row of a job; what a newer version has added at the end is ignored."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packed).decode
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode
_decode_mark = msgspec.json.Decoder(tuple[int | None, bool, int, int | None, str | None]).decode


def new_write() -> bytes:
    """Return an id by which a write is recognised after its reply was lost."""
    return b"%08x" % random.getrandbits(32)  # a label


def write_record(job: Job, write: bytes) -> bytes:
    """Return the record of a job."""
    row = [*values_of(job), write_policy(policy_of(job)), write_more(job)]
    row[_KEY] = None
    if job.chain_id == job.id:
        row[_CHAIN] = None
    key = b"" if job.key is None else job.key.hex().encode()
    needs_rows = b"+" if job.traits & _NEEDS_ROWS else b"-"
    return b"%010d%b%b%b:%b" % (job.revision, write, needs_rows, key, _encode(row))


def read_record(record: bytes, job_id: str) -> Job:
    """Return the job of a record; raise Unreadable if it is damaged."""
    try:
        end = record.index(b":", KEY)
        *values, policy, more = astuple(_decode(record[end + 1 :]))
        values[_KEY] = bytes.fromhex(record[KEY:end].decode()) if end > KEY else None
        values[_CHAIN] = values[_CHAIN] or values[_ID]
        values[_REVISION] = int(record[:REVISION])  # as scripts compare it
        return make_job(values, policy, more)
    except (ValueError, TypeError, LookupError, AttributeError, msgspec.MsgspecError) as error:
        raise Unreadable([job_id], error) from error


def _read_anything(record: bytes) -> list[Any]:
    """Return what a damaged record has, as a row of `columns`."""
    end = record.index(b":", KEY)
    row = _decode_any(record[end + 1 :])
    row[_KEY] = bytes.fromhex(record[KEY:end].decode()) if end > KEY else None
    return [write_time(value) if isinstance(value, datetime) else value for value in row]


def is_by(record: bytes | None, write: bytes) -> bool:
    """Return whether a write made this record."""
    return record is not None and record[REVISION:WRITE] == write


def write_stored_mark(mark: Mark) -> str:
    """Return a mark as text; it begins with the job that it names, which scripts read."""
    _key, version, job, *rest = write_mark(mark)
    return f"{job}:{msgspec.json.encode((version, *rest)).decode()}"


def read_stored_mark(key: bytes, text: str) -> Mark:
    """Return the mark of a text."""
    job, _, rest = text.partition(":")
    version, *others = _decode_mark(rest)
    return read_mark((key, version, job, *others))


# ── damaged records ───────────────────────────────────────────────────────────────────────────────


def read_or_replace(record: bytes, job_id: str) -> Job:
    """Return the job of a record; for a damaged one, a dead letter that is not stored takes its place."""
    try:
        return read_record(record, job_id)
    except Unreadable as error:
        _, discarded = repair(record, job_id, error, EPOCH)
        return msgspec.structs.replace(discarded, revision=discarded.revision - 1)


def repair(record: bytes, job_id: str, error: Unreadable, now: datetime) -> tuple[Job, Job]:
    """Return what is known of a damaged job as it was, and the dead letter that replaces it."""
    row = write_job(blank_job(job_id))
    try:
        found = _read_anything(record)
        row = [*found, *row[len(found) :]]
    except (ValueError, LookupError, msgspec.MsgspecError):  # nothing of it can be read
        row[_STATE] = State.AVAILABLE
    digits = record[:REVISION]
    revision = int(digits) if digits.isdigit() else 0
    after = msgspec.structs.replace(salvage(row, error, now), id=job_id, revision=revision + 1)
    state = State(row[_STATE]) if row[_STATE] in list(State) else State.AVAILABLE
    stand = row[_STAND] if row[_STAND] in (0, 1) else None
    before = msgspec.structs.replace(after, state=state, stand=stand, revision=revision)
    return before, after
