"""Jobs, marks and tallies as the parameters of statements, and rows as jobs again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from msgspec.structs import asdict, replace

from onejob.core.job import Job
from onejob.stores.columns import CHANGING, COLUMNS, INDEX, NAMES, STATE_NAMES, write_job, write_time
from onejob.stores.contract import Tally
from onejob.stores.flow import Query
from onejob.stores.sql.reading import array

VARYING = ("id", "args", "place", "payload_digest", "key")  # what differs between jobs of a bulk
varying = attrgetter(*VARYING)
SHARED = tuple(INDEX[name] for name in NAMES if name not in VARYING)
CHANGED = tuple(INDEX[name] for name in CHANGING)
ARGS = CHANGING.index("args")
JSON = tuple(INDEX[column.name] for column in COLUMNS if column.kind in {"json", "meta"})
WORKER, PARTITION = INDEX["worker"], INDEX["partition"]


def write_row(job: Job) -> list[Any]:
    """Return the row of a job with JSON as text, as every driver can send it."""
    row = write_job(job)
    for index in JSON:
        if row[index].__class__ is bytes:
            row[index] = row[index].decode()
    for index in (WORKER, PARTITION):
        if row[index] is not None:
            row[index] = storable(row[index])
    return row


def storable(name: str) -> str:
    """Return a name without NUL, the one character that PostgreSQL cannot store."""
    return name.replace("\0", "\\0")


def joined(keys: Collection[bytes]) -> tuple[bytes, int]:
    """Return keys as two parameters: one run of bytes, and how many there are."""
    return b"".join(keys), len(keys)


# ── new jobs ──────────────────────────────────────────────────────────────────────────────────────


def admissions(jobs: Sequence[Job]) -> Iterator[tuple[Query, list[Job]]]:
    """Yield the statements that insert new jobs, and the jobs of each; jobs that are alike share one."""
    for group in alike(jobs):
        if len(group) == 1:
            yield Query("admit_job", write_row(group[0])), group
        else:
            yield Query("admit_jobs", group_parameters(group)), group


def alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs that differ only in the columns of VARYING; chains of one share their NULL."""
    if len(jobs) == 1:
        return [[*jobs]]
    groups: list[list[Job]] = []
    latest: dict[Any, tuple[dict[str, Any], list[Job]]] = {}  # begun last, by what often differs
    for job in jobs:
        kind = (job.task, job.state, job.key is None)
        same, group = latest.get(kind, ({}, []))
        if group and job.chain_id == job.id and replace(job, **same) == group[0]:
            group.append(job)
        else:
            same = dict(zip(("chain_id", *VARYING), (job.id, *varying(job)), strict=True))
            latest[kind] = (same, [job])
            groups.append(latest[kind][1])
    return groups


def group_parameters(jobs: Sequence[Job]) -> list[Any]:
    """Return the parameters of `admit_jobs`: arrays of what varies, then what all jobs share, once."""
    row = write_row(jobs[0])
    return [
        array(job.id for job in jobs),
        (b"[" + b",".join([job.args for job in jobs]) + b"]").decode(),
        array(job.place for job in jobs),
        b"".join([job.payload_digest for job in jobs]),
        b"" if jobs[0].key is None else b"".join([job.key for job in jobs if job.key is not None]),
        *(row[index] for index in SHARED),
    ]


# ── changed jobs ──────────────────────────────────────────────────────────────────────────────────

Pair = tuple[Job, Job]
"""A job before and after a change."""


def updates(pairs: Sequence[Pair], *, must: bool = False) -> Iterator[Query]:
    """Yield the statements that write changed jobs; what runs change alike is one statement.

    Each statement returns the ids that it wrote. If they `must` be written, it fails where a row is locked by
    another transaction or has another revision.
    """
    alike: dict[tuple[Any, ...], list[Pair]] = {}
    for pair in pairs if len(pairs) == 1 else sorted(pairs, key=lambda pair: position(pair[0])):
        change = change_of_run(*pair)
        if change is None:
            yield update(*pair, must=must)
        else:
            alike.setdefault(change, []).append(pair)
    for change, group in alike.items():
        yield update_alike(group, change, must=must)


def change_of_run(old: Job, new: Job) -> tuple[Any, ...] | None:
    """Return what the start, the renewal or the end of a run has changed; None if more has changed.

    It begins with the number by which the revision is raised, and ends with how the run began, if it begins.
    """
    changed = replace(
        old,
        state=new.state,
        stand=new.stand,
        attempt=new.attempt,
        token=new.token,
        revision=new.revision,
        worker=new.worker,
        lease_until=new.lease_until,
        started_at=new.started_at or old.started_at,
        finished_at=new.finished_at,
        kept_until=new.kept_until,
        result=new.result,
    )
    if changed != new:
        return None
    run = (new.state, new.stand, new.worker, new.lease_until, new.finished_at, new.kept_until)
    begun = (new.attempt, new.token, new.started_at)
    begins = begun != (old.attempt, old.token, old.started_at)
    return (new.revision - old.revision, *run, *(begun if begins else (None, None, None)))


def position(job: Job) -> tuple[bytes, str]:
    """Return the order in which rows are written: by key, then id, in every session."""
    return job.key or b"", job.id


def update(old: Job, new: Job, *, must: bool) -> Query:
    """Return the statement that writes everything that can change; arguments only if they have changed."""
    row = write_row(new)
    values = [row[index] for index in CHANGED]
    if new.args == old.args:
        values[ARGS] = None
    return Query("update_job", (old.id, old.revision, *values, int(must)))


def update_alike(pairs: Sequence[Pair], change: Sequence[Any], *, must: bool) -> Query:
    """Return the statement that writes what runs have changed alike."""
    raised, state, stand, worker, *times, attempt, token, started_at = change
    results = [new.result and new.result.decode() for _, new in pairs]
    values = (
        array(old.id for old, _ in pairs),
        array(old.revision for old, _ in pairs),
        array(results if any(results) else ()),  # where there are fewer, the rest is NULL
        raised,
        STATE_NAMES[state],
        stand,
        worker and storable(worker),
        *(at and write_time(at) for at in times),
        attempt,
        token,
        started_at and write_time(started_at),
    )
    return Query("update_jobs", (*values, len(pairs) if must else 0))


# ── counters ──────────────────────────────────────────────────────────────────────────────────────


def tally_records(tallies: Sequence[Tally], now: datetime) -> str:
    """Return tallies as JSON records."""
    return array(
        {
            **asdict(tally),
            "last_at": write_time(tally.last_at or now),
            "first_at": write_time(tally.first_at or now),
        }
        for tally in tallies
    )
