"""Jobs, marks and tallies as the JSON records that statements take, and rows as jobs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from onejob.job import Job, Mark
from onejob.stores.contract import Tally
from onejob.stores.sql.rows import micros, read_job, write_retry

Write = Callable[[Any], Any]


def time(moment: datetime | None) -> int | None:
    """Write a time."""
    return None if moment is None else micros(moment)


def hexed(key: bytes | None) -> str | None:
    """Write bytes as the database reads them."""
    return None if key is None else "\\x" + key.hex()


def decoded(json: bytes | None) -> str | None:
    """Write JSON as text."""
    return None if json is None else json.decode()


def legible(text: str | None) -> str | None:
    """Spell out the one character that PostgreSQL does not store."""
    return text.replace("\0", "\\0") if text and "\0" in text else text


def as_is(value: Any) -> Any:
    """Write what JSON and the database agree on."""
    return value


WRITERS: Mapping[str, Write] = (
    dict.fromkeys(Job.__struct_fields__, as_is)
    | dict.fromkeys(
        (
            "run_at",
            "created_at",
            "started_at",
            "finished_at",
            "held_at",
            "holds_until",
            "latest_at",
            "lease_until",
        ),
        time,
    )
    | dict.fromkeys(("payload_digest", "key", "held_key", "next_key"), hexed)
    | dict.fromkeys(("args", "meta", "errors", "result", "progress"), decoded)
    | {"retry": write_retry, "reason": legible, "worker": legible}
)


class Shape:
    """The columns that one statement takes of a job."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self._columns = [(name, attrgetter(name), WRITERS[name]) for name in names]

    def __call__(self, job: Job) -> dict[str, Any]:
        """Make the record of a job."""
        return {name: write(get(job)) for name, get, write in self._columns}


WHOLE = Shape(Job.__struct_fields__)
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
    ]
)
STARTED = Shape(["id", "state", "attempt", "started_at", "token", "worker", "lease_until"])
ENDED = Shape(["id", "state", "finished_at", "held_key", "reason", "worker", "lease_until", "result"])


def shape_of(old: Job | None, new: Job) -> tuple[str, Shape]:
    """Choose the narrowest statement that writes all that has changed."""
    if old is not None:
        changed = {name for name in CHANGED.names if getattr(old, name) != getattr(new, name)}
        if changed <= STARTED.names:
            return "start_job", STARTED
        if changed <= ENDED.names:
            return "end_job", ENDED
    return "update_job", CHANGED


def record_of_mark(mark: Mark) -> dict[str, Any]:
    """Make the record of a mark."""
    return {**msgspec.structs.asdict(mark), "key": hexed(mark.key), "touched_at": time(mark.touched_at)}


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
