"""Merge two payloads of one key: by named reducers per argument, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from onejob.core.job import Job, Merging, alter, fingerprint
from onejob.errors import MergeFailed

Reducer = Callable[[Any, Any], Any]
Payload = dict[str, Any]


def union(old: list[Any], new: list[Any]) -> list[Any]:
    """Keep each element once, in order of first appearance."""
    return [*old, *(item for item in new if item not in old)]


def append(old: list[Any], new: list[Any]) -> list[Any]:
    """Append the new elements to the old ones."""
    return [*old, *new]


REDUCERS: Mapping[str, Reducer] = {
    "union": union,
    "append": append,
    "sum": lambda old, new: old + new,
    "max": max,
    "min": min,
    "latest": lambda _old, new: new,
    "first": lambda old, _new: old,
    "any": lambda old, new: bool(old or new),
    "all": lambda old, new: bool(old and new),
}

LISTS = {"union", "append"}
NUMBERS = {"sum"}


def stored_merging(how: Mapping[str, str | Reducer] | Reducer | None, cap: int) -> Merging | None:
    """Return what a job's row keeps of a merge policy; functions cannot be stored."""
    if how is None:
        return None
    if callable(how) or not all(isinstance(reducer, str) for reducer in how.values()):
        return Merging(None, cap)
    return Merging(tuple((name, str(reducer)) for name, reducer in how.items()), cap)


def merge_jobs(older: Job, newer: Job, how: Mapping[str, str | Reducer] | Reducer, cap: int) -> Job:
    """Return the newer job with the older payload merged into its own; raise MergeFailed if that fails."""
    args = combine(older.arguments, newer.arguments, how, cap)
    return alter(newer, args=args, payload_digest=fingerprint(args, newer.meta))


def combine(old: Payload, new: Payload, how: Mapping[str, str | Reducer] | Reducer, cap: int) -> bytes:
    """Return two payloads merged into one, as JSON; raise MergeFailed if that is not possible."""
    if callable(how):
        return _write(_by_function(old, new, how), cap)
    merged = {name: _reduce(name, old[name], new[name], how[name]) for name in how if name in old}
    return _write(new | merged, cap)


def _write(merged: Payload, cap: int) -> bytes:
    for name, value in merged.items():
        if isinstance(value, list | dict | str) and len(value) > cap:
            raise MergeFailed(f"Merging {name!r} would make {len(value)} elements; merge_cap is {cap}.")
    try:
        text = msgspec.json.encode(merged, order="sorted")
        same = msgspec.json.decode(text) == merged
    except (TypeError, ValueError, RecursionError) as error:
        raise MergeFailed(f"The merged payload cannot be written as JSON: {error}.") from error
    if not same:
        raise MergeFailed("The merged payload would not read back the same: return plain JSON values.")
    return text


def _by_function(old: Payload, new: Payload, how: Reducer) -> Payload:
    try:
        merged = how(dict(old), dict(new))
    except Exception as error:
        raise MergeFailed(f"The merge function raised {type(error).__name__}: {error}") from error
    if not isinstance(merged, dict) or merged.keys() != new.keys():
        raise MergeFailed("The merge function must return a dict with the same arguments as the call.")
    return merged


def _reduce(name: str, old: Any, new: Any, reducer: str | Reducer) -> Any:
    if isinstance(reducer, str):
        _check_types(name, old, new, reducer)
        reducer = REDUCERS[reducer]
    try:
        return reducer(old, new)
    except Exception as error:
        raise MergeFailed(f"Merging {name!r} raised {type(error).__name__}: {error}") from error


def _check_types(name: str, old: Any, new: Any, reducer: str) -> None:
    wanted: Any = list if reducer in LISTS else (int, float) if reducer in NUMBERS else object
    for value in (old, new):
        if not isinstance(value, wanted) or (reducer in NUMBERS and isinstance(value, bool)):
            kind = "a list" if reducer in LISTS else "a number"
            raise MergeFailed(f"merge={{{name!r}: {reducer!r}}} needs {kind}, not {type(value).__name__}.")
