"""Read the values that callers pass to the app."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from urllib.parse import urlsplit

from onejob.core.durations import Duration, duration
from onejob.core.fluent import Fluent, policy_of
from onejob.core.job import Retention, Retry, State
from onejob.core.policy import Unique
from onejob.core.step import Step
from onejob.core.text import is_name
from onejob.engine.jobs import rescheduling
from onejob.errors import InvalidCall, InvalidPolicy
from onejob.tasks.admission import id_of
from onejob.tasks.foreign import instead_of_retry
from onejob.tasks.options import is_aware

KEY_BYTES = 32


class WorkerOptions(TypedDict, total=False):
    """The options of `App.worker`."""

    concurrency: int
    queues: Collection[str] | Mapping[str, int] | None
    lease: Duration
    grace: Duration
    drain: bool
    name: str | None
    processes: int | None
    imported_as: str | None
    liveness_file: str | Path | None


def read_state(name: State | str) -> State:
    """Return a state by its name; raise InvalidCall for an unknown one."""
    try:
        return State(name)
    except ValueError:
        raise InvalidCall(f"{name!r} is no state: write one of {', '.join(State)}.") from None


def read_count(number: int, what: str = "limit") -> int:
    """Return a number of rows that a store can take; raise InvalidCall for what is no such number."""
    if type(number) is not int or number < 0:
        raise InvalidCall(f"{what}={number!r}: write a whole number that is not negative.")
    return min(number, 2**63 - 1)


def refuse_no_name(name: str | None, what: str) -> None:
    """Raise InvalidCall for a filter that can match nothing."""
    if name is not None and not is_name(name):
        raise InvalidCall(f"{what}={name!r} can name no {what}: write printable text.")


def read_key(key: str | bytes) -> bytes:
    """Return a key as bytes; raise InvalidCall for text that is not hexadecimal."""
    if isinstance(key, bytes):
        return key
    try:
        found = bytes.fromhex(key)
    except ValueError:
        found = b""
    if len(found) != KEY_BYTES:
        raise InvalidCall(
            f"{key!r} is not a key: give its {2 * KEY_BYTES} hexadecimal digits, as Admission.key shows them."
        )
    return found


class Defaults(NamedTuple):
    """The policies of tasks that declare none."""

    unique: Unique | None
    retry: Retry
    retention: Retention


def read_defaults(
    unique: Unique | Fluent | bool | None,  # noqa: FBT001 - as `unique=True` is written
    retry: Retry | None,
    retention: Mapping[State | str, Duration] | None,
) -> Defaults:
    """Return the policies that an app gives its tasks."""
    return Defaults(policy_of(unique), read_retry(retry), Retention().changed(retention or {}))


def read_retry(retry: Retry | None) -> Retry:
    """Return the retry policy of an app; raise InvalidPolicy for another value."""
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidPolicy(f"retry={retry!r}: write {instead_of_retry(retry)}.")
    return retry or Retry()


def read_namespace(name: str) -> str:
    """Return a namespace; raise InvalidPolicy if it cannot be printed."""
    if name and not is_name(name):
        raise InvalidPolicy(f"namespace={name!r}: a namespace is printable text.")
    return name


def shown(url: str) -> str:
    """Return a URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# ── moving jobs to another time ───────────────────────────────────────────────────────────────────


def is_several(job: object) -> bool:
    """Return whether an argument names several jobs."""
    return isinstance(job, list | tuple)


def read_rescheduling(
    job: Any, at: datetime | None, delay: Duration | None
) -> tuple[list[str], Callable[[Sequence[str]], list[Step[Any]]]]:
    """Return the ids of jobs, which may be short, and what returns the steps that move jobs by their ids.

    Raises:
        InvalidCall: The times have no meaning.
    """
    if (at is None) == (delay is None):
        raise InvalidCall("reschedule(…) needs one time: write at=datetime(…, tzinfo=UTC), or delay=.")
    if at is not None and not is_aware(at):
        raise InvalidCall(f"at={at!r}: write a datetime with a time zone.")
    ids = [id_of(one) for one in (job if is_several(job) else [job])]
    return ids, partial(rescheduling, at=at, delay=None if delay is None else duration(delay))
