"""Jobs, marks and tallies as the JSON records that statements take, and rows as jobs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from onejob.job import Job, Mark, State
from onejob.stores.contract import Tally
from onejob.stores.sql.rows import PLAIN, completed, is_plain, micros, read_job, started, write_retry

Write = Callable[[Any], Any]


def hexed(key: bytes) -> str:
    """Write bytes as the database reads them."""
    return "\\x" + key.hex()


def legible(text: str) -> str:
    """Spell out the one character that PostgreSQL does not store."""
    return text.replace("\0", "\\0")


# What JSON or the database would not write as it is; all else they agree on.
WRITERS: Mapping[str, Write] = {
    **dict.fromkeys(("run_at", "created_at", "started_at", "finished_at"), micros),
    **dict.fromkeys(("held_at", "holds_until", "latest_at", "lease_until", "expires_at"), micros),
    **dict.fromkeys(("payload_digest", "key", "held_key", "next_key"), hexed),
    **dict.fromkeys(("args", "meta", "errors", "result", "progress"), bytes.decode),
    **dict.fromkeys(("blockers", "arrived", "following"), bytes.decode),
    "retry": write_retry,
    "reason": legible,
    "worker": legible,
    "partition": legible,
}


class Shape:
    """The columns that one statement takes of a job."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._values = attrgetter(*names)
        self._writers = [(name, WRITERS[name]) for name in names if name in WRITERS]

    def __call__(self, job: Job) -> dict[str, Any]:
        """Make the record of a job."""
        record: dict[str, Any] = dict(zip(self._names, self._values(job), strict=True))
        for name, write in self._writers:
            if (value := record[name]) is not None:
                record[name] = write(value)
        return record


KIND = attrgetter("attempt", "token", "started_at", "lease_until", "worker")
WHOLE = Shape(Job.__struct_fields__)
COMMON = Shape([name for name in Job.__struct_fields__ if name in PLAIN])
CHANGED = Shape(
    [
        *("id", "queue", "state", "priority", "run_at", "place", "args", "meta", "payload_digest", "attempt"),
        *("started_at", "finished_at", "held_key", "next_key", "traits", "held_at", "holds_until", "version"),
        *(
            "superseded_by",
            "reason",
            "token",
            "worker",
            "lease_until",
            "cancel_requested",
            "errors",
            "result",
        ),
        "progress",
        *("expires_at", "partition", "replays", "blockers", "arrived", "following"),
    ]
)


def starts_of(jobs: Iterable[Job]) -> Iterator[Sequence[Any]]:
    """Make what `start_job` takes, of each kind of start: most jobs that start together start alike."""
    for kind, alike in groupby(sorted(jobs, key=attrgetter("attempt", "token")), KIND):
        attempt, token, *times, worker = kind
        ids, (began, ends) = array(job.id for job in alike), [time and micros(time) for time in times]
        yield ids, attempt, token, began, ends, worker and legible(worker)


def record_of_completion(job: Job) -> dict[str, Any]:
    """Make the record of what the end of a run changes that went well."""
    return {
        "id": job.id,
        "finished_at": job.finished_at and micros(job.finished_at),
        "result": None if job.result is None else job.result.decode(),
    }


def update_of(old: Job, new: Job) -> str:
    """Choose the narrowest statement that writes all that has changed."""
    if new.state is State.ACTIVE and new == started(old, new):
        return "start_job"
    if new.state is State.COMPLETED and new == completed(old, new):
        return "complete_job"
    return "update_job"


def record_of_new(job: Job) -> dict[str, Any]:
    """Make the record of a new job; `admit` knows what it is not told."""
    return COMMON(job) if is_plain(job) else WHOLE(job)


def record_of_mark(mark: Mark) -> dict[str, Any]:
    """Make the record of a mark."""
    return {**msgspec.structs.asdict(mark), "key": hexed(mark.key), "touched_at": micros(mark.touched_at)}


def record_of_tally(tally: Tally, now: datetime) -> dict[str, Any]:
    """Make the record of a tally."""
    return {
        "namespace": tally.namespace,
        "task": tally.task,
        "outcome": tally.outcome,
        "job_id": tally.job_id,
        "count": tally.count,
        "last_at": micros(now),
    }


def array(records: Iterable[Any]) -> str:
    """Write records as the one parameter of a statement."""
    return msgspec.json.encode(list(records)).decode()


def read_record(text: str) -> Job:
    """Make a job of its row as JSON."""
    found = msgspec.json.decode(text)
    for name in ("payload_digest", "key", "held_key", "next_key"):
        found[name] = found[name] and bytes.fromhex(found[name][2:])
    return read_job([found[name] for name in Job.__struct_fields__])
