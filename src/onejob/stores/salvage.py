"""Rows that cannot be read: what is left of them as a discarded job, so that all other jobs go on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from onejob.core.holds import add_error, finish
from onejob.core.job import EPOCH, Job, Retry, State, Trait, fingerprint
from onejob.stores.columns import INDEX, NAMES, Row, Unreadable, read_job, write_job

UNREADABLE = "unreadable"  # the reason of such a job


def salvage(row: Row, cause: Unreadable, now: datetime) -> Job:
    """Return a discarded job with all values of a row that can be read, and an error that says why.

    It stands for no key, and it is not replayed automatically.
    """
    values = write_job(blank_job(cause.id))
    for name in NAMES:
        attempted = list(values)
        attempted[INDEX[name]] = row[INDEX[name]]
        if _is_readable(attempted):
            values = attempted
    job = read_job(values)
    error = {"type": type(cause).__name__, "message": str(cause), "traceback": ""}
    ended = finish(job, State.DISCARDED, now, reason=UNREADABLE, errors=add_error(job, error, now))
    return msgspec.structs.replace(ended, stand=None, traits=ended.traits & ~Trait.RETURNS, blockers=None)


def blank_job(job_id: str) -> Job:
    """Return a discarded job of which only the id is known."""
    return Job(
        id=job_id,
        namespace="",
        task="",
        queue="",
        state=State.DISCARDED,
        priority=0,
        run_at=EPOCH,
        place=0,
        created_at=EPOCH,
        args=b"{}",
        meta=b"{}",
        payload_digest=fingerprint(b"{}", b"{}"),
        retry=Retry(),
        chain_id=job_id,
    )


def _is_readable(values: list[Any]) -> bool:
    """Return whether a row can be read, and written again as the same row."""
    try:
        write_job(read_job(values))
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError):
        return False
    return True
