"""Jobs and marks as stored, and back.

A record begins with text that scripts read: the revision, the id of the write that made the record, whether a
step on the job needs other rows of its key, and the key. The row of `columns` follows, packed.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import msgspec

from onejob.core.job import EPOCH, Job, Mark, State, Trait
from onejob.stores.columns import INDEX, Unreadable, read_job, read_mark, write_job, write_mark
from onejob.stores.salvage import blank_job, salvage

REVISION = 10  # digits
WRITE = REVISION + 8  # the end of the id of the write
KEY = WRITE + 1  # the beginning of the key

_KEY, _STATE, _STAND, _REVISION = (INDEX[name] for name in ("key", "state", "stand", "revision"))
_NEEDS_ROWS = Trait.HAS_SUCCESSOR | Trait.MARKED
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode
_decode_mark = msgspec.json.Decoder(tuple[int | None, bool, int, int | None, str | None]).decode


def new_write() -> bytes:
    """Return an id by which a write is recognised after its reply was lost."""
    return b"%08x" % random.getrandbits(32)  # a label


def write_record(job: Job, write: bytes) -> bytes:
    """Return the record of a job."""
    row = write_job(job)
    row[_KEY] = None
    key = b"" if job.key is None else job.key.hex().encode()
    needs_rows = b"+" if job.traits & _NEEDS_ROWS else b"-"
    return b"%010d%b%b%b:%b" % (job.revision, write, needs_rows, key, _encode(row))


def read_record(record: bytes, job_id: str) -> Job:
    """Return the job of a record; raise Unreadable if it is damaged."""
    try:
        row = _read_row(record)
    except (ValueError, LookupError, msgspec.MsgspecError) as error:
        raise Unreadable([job_id], error) from error
    return read_job(row)


def _read_row(record: bytes) -> list[Any]:
    end = record.index(b":", KEY)
    row = _decode(record[end + 1 :])
    row[_KEY] = bytes.fromhex(record[KEY:end].decode()) if end > KEY else None
    row[_REVISION] = int(record[:REVISION])  # as scripts compare it
    return row


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
        found = _read_row(record)
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
