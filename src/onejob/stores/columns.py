"""The one table of a job's columns: what is stored where, and how it is written and read.

A field of `Job` is a column of its own if it is indexed, filtered, unique, fenced or part of the payload.
Fields that are equal for all jobs of a task with the same options are packed into the column `policy`, fields
that most jobs do not have into `more`, which is NULL for most of them. Both are JSON objects. A new field is
one line here. Fields that a newer version has written there are kept as they are, so a policy that gets a new
property gets a new field here: an older version reads `retry` and the like as lists of a known length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import convert
from msgspec.structs import fields

from onejob.core.job import EPOCH, Job, Mark, Merging, Replay, Retention, Retry, State

Row = Sequence[Any]
Kind = Literal["text", "integer", "boolean", "time", "bytes", "json", "state", "meta", "chain"]
MICROSECOND = timedelta(microseconds=1)


def write_time(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


@lru_cache(maxsize=4096)
def read_time(time: int) -> datetime:
    """Return the time of `write_time`; cached, because a job has most of its times twice."""
    return EPOCH + timedelta(microseconds=time)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


class Column(NamedTuple):
    """A column of its own: the field's name and how it is stored."""

    name: str
    kind: Kind
    changes: bool = True  # whether it can change after the insert


COLUMNS = (
    Column("id", "text", changes=False),
    Column("namespace", "text", changes=False),
    Column("task", "text", changes=False),
    Column("queue", "text"),
    Column("state", "state"),
    Column("priority", "integer"),
    Column("run_at", "time"),
    Column("place", "integer"),
    Column("created_at", "time", changes=False),
    Column("args", "json"),
    Column("meta", "meta"),  # NULL if empty
    Column("payload_digest", "bytes"),
    Column("chain_id", "chain", changes=False),  # NULL if it is the job's own id
    Column("chain_index", "integer", changes=False),
    Column("parent_id", "text", changes=False),
    Column("expires_at", "time"),
    Column("partition", "text"),
    Column("key", "bytes", changes=False),
    Column("stand", "integer"),
    Column("traits", "integer"),
    Column("held_at", "time"),
    Column("attempt", "integer"),
    Column("token", "integer"),
    Column("revision", "integer"),
    Column("worker", "text"),
    Column("lease_until", "time"),
    Column("cancel_requested", "boolean"),
    Column("started_at", "time"),
    Column("finished_at", "time"),
    Column("kept_until", "time"),
    Column("result", "json"),
)


@dataclass(frozen=True, slots=True)
class Packed:
    """A field inside `policy` or `more`: how it becomes a JSON value, and back."""

    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _raw(value: bytes) -> msgspec.Raw:
    return msgspec.Raw(value)


def _time(name: str) -> Packed:
    return Packed(name, write_time, read_time)


def _json(name: str, kind: Any) -> Packed:
    return Packed(name, _raw, lambda stored: msgspec.json.encode(convert(stored, kind)))


def _value(name: str, kind: type) -> Packed:
    return Packed(name, _same, partial(convert, type=kind))


def _fields(name: str, kind: Any, types: Any) -> Packed:
    return Packed(name, astuple, lambda stored: kind(*convert(stored, types)))


POLICY = (
    Packed("retry", astuple, lambda stored: Retry(*stored)),
    Packed("replay", astuple, lambda stored: Replay(*stored)),
    _fields("retention", Retention, tuple[float, float, float]),
    _fields("merging", Merging, tuple[tuple[tuple[str, str], ...] | None, int]),
    _value("timeout", float),
    _value("holds", int),
    _value("within", float),
)

MORE = (
    _time("holds_until"),
    _time("latest_at"),
    _value("version", int),
    _json("errors", list[dict[str, Any]]),
    _json("progress", Any),
    _value("reason", str),
    _value("superseded_by", str),
    _value("replays", int),
    _json("blockers", list[str]),
    Packed("arrived", bytes.decode, str.encode),
    _json("following", list[Any]),
    _json("trace", dict[str, Any]),
)

NAMES = (*(column.name for column in COLUMNS), "policy", "more")
CHANGING = (*(column.name for column in COLUMNS if column.changes), "policy", "more")
INDEX = {name: index for index, name in enumerate(NAMES)}


# ── writing ───────────────────────────────────────────────────────────────────────────────────────

_DEFAULTS = {field.name: field.default for field in fields(Job)}
_STATES = {state.value: state for state in State}
STATE_NAMES = {state: state.value for state in State}  # faster than the attribute
values_of = attrgetter(*(column.name for column in COLUMNS))
_POLICY = (*(packed.name for packed in POLICY), "newer_policy")
_MORE = (*(packed.name for packed in MORE), "newer_more")
policy_of = attrgetter(*_POLICY)
_more = attrgetter(*_MORE)
_NO_MORE = tuple(_DEFAULTS[name] for name in _MORE)
_TIMES = tuple(INDEX[column.name] for column in COLUMNS if column.kind == "time")
_GIVEN_TIMES = tuple(INDEX[name] for name in ("run_at", "created_at"))  # of every job
_OTHER_TIMES = tuple(index for index in _TIMES if index not in _GIVEN_TIMES)
_TEXTS = tuple(INDEX[column.name] for column in COLUMNS if column.kind in {"json", "meta"})
_STATE, _META, _CHAIN, _CANCEL = (INDEX[name] for name in ("state", "meta", "chain_id", "cancel_requested"))
NO_META = b"{}"

_TYPES: dict[Kind, set[type]] = {"text": {str}, "integer": {int}, "bytes": {bytes, bytearray, memoryview}}
_CHECKED = [column for column in COLUMNS if column.kind in _TYPES]  # the others fail when they are converted
_checked = itemgetter(*(INDEX[column.name] for column in _CHECKED))


def write_job(job: Job) -> list[Any]:
    """Return the row of a job, in the order of `NAMES`."""
    values: list[Any] = list(values_of(job))
    values[_STATE] = STATE_NAMES[job.state]
    if job.meta == NO_META:
        values[_META] = None
    if job.chain_id == job.id:
        values[_CHAIN] = None
    for index in _TIMES:
        time = values[index]
        if time is not None:
            values[index] = write_time(time)
    values.append(write_policy(policy_of(job)))
    values.append(write_more(job))
    return values


@lru_cache(maxsize=4096)
def write_policy(policy: tuple[Any, ...]) -> str:
    """Return the JSON of the fields of POLICY; cached, because tasks have few policies."""
    return _pack(POLICY, policy)


def write_more(job: Job) -> str | None:
    """Return the JSON of the fields of MORE that a job has, or None."""
    values = _more(job)
    return None if values == _NO_MORE else _pack(MORE, values)


def _pack(table: Sequence[Packed], values: Sequence[Any]) -> str:
    """Return JSON of the values that differ from a new job's, and of the fields of a newer version."""
    *own, newer = values
    pairs = zip(table, own, strict=True)
    chosen = {one.name: one.write(value) for one, value in pairs if value != _DEFAULTS[one.name]}
    if newer is not None:
        chosen |= msgspec.json.decode(newer, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(chosen).decode()


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


class Unreadable(ValueError):
    """A row that cannot be read; `id` names it."""

    def __init__(self, row: Row, cause: Exception) -> None:
        super().__init__(f"The row of job {row[0]} cannot be read: {type(cause).__name__}: {cause}.")
        self.id = str(row[0])


def read_job(row: Row) -> Job:
    """Return the job of a row; columns that a newer version has added at the end are ignored.

    Raises:
        Unreadable: A value of the row cannot be what its column says.
    """
    try:
        return _read_job(row)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgspec.MsgspecError) as error:
        raise Unreadable(row, error) from error


def _read_job(row: Row) -> Job:
    *values, policy, more = row if len(row) == len(NAMES) else row[: len(NAMES)]
    types = tuple(map(type, _checked(values)))
    if types not in _SEEN:
        _check(types)
    values[_STATE] = _STATES[values[_STATE]]
    values[_CANCEL] = values[_CANCEL] != 0
    for index in _GIVEN_TIMES:
        values[index] = read_time(values[index])
    for index in _OTHER_TIMES:
        time = values[index]
        if time is not None:
            values[index] = read_time(time)
    for index in _TEXTS:
        text = values[index]
        if text.__class__ is str:  # some drivers return JSON as text
            values[index] = text.encode()
    values[_META] = values[_META] or NO_META
    values[_CHAIN] = values[_CHAIN] or values[0]
    return make_job(values, policy, more)


def make_job(values: Sequence[Any], policy: str | bytes, more: str | bytes | None) -> Job:
    """Return the job of the values of COLUMNS, as its fields have them, and of what is packed."""
    packed = (*read_policy(policy), *(_NO_MORE if more is None else read_more(more)))
    return Job(*_in_order_of_fields((*values, *packed)))


_SEEN: set[tuple[type, ...]] = set()  # the types of rows that could be read: few, as most rows are alike


def _check(types: tuple[type, ...]) -> None:
    """Raise TypeError if a column cannot have such a value: in SQLite and Redis any can be written."""
    for column, found in zip(_CHECKED, types, strict=True):
        is_missing = found is type(None) and _DEFAULTS[column.name] is None
        if not is_missing and found not in _TYPES[column.kind]:
            raise TypeError(f"{column.name} is of type {found.__name__}")
    _SEEN.add(types)


@lru_cache(maxsize=4096)
def read_policy(policy: str | bytes) -> tuple[Any, ...]:
    """Return the values of POLICY; cached by value."""
    values = _unpack(POLICY, policy)
    if msgspec.NODEFAULT in values:
        raise ValueError("its policy has no retry")
    return values


def read_more(more: str | bytes) -> tuple[Any, ...]:
    """Return the values of MORE."""
    return _unpack(MORE, more)


def _unpack(table: Sequence[Packed], text: str | bytes) -> tuple[Any, ...]:
    """Return the values of a table's fields, and the other fields as JSON."""
    stored = msgspec.json.decode(text, type=dict[str, Any])
    own = [one.read(stored.pop(one.name)) if one.name in stored else _DEFAULTS[one.name] for one in table]
    return (*own, msgspec.json.encode(stored) if stored else None)


_READ = [*(column.name for column in COLUMNS), *_POLICY, *_MORE]
_in_order_of_fields = itemgetter(*(_READ.index(field.name) for field in fields(Job)))


def write_mark(mark: Mark) -> Row:
    """Return the row of a mark."""
    prior = (mark.prior_version, mark.prior_job)
    return (mark.key, mark.version, mark.job, mark.void, write_time(mark.touched_at), *prior)


def read_mark(row: Row) -> Mark:
    """Return the mark of a row."""
    key, version, job, void, touched_at, prior_version, prior_job = row
    return Mark(bytes(key), version, job, bool(void), read_time(touched_at), prior_version, prior_job)
