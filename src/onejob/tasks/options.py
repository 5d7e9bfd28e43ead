"""How one call differs from its task: `task.options(…)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from onejob.core.durations import Duration
from onejob.core.fluent import Fluent
from onejob.core.job import Job, Retry, Trait
from onejob.core.policy import Unique
from onejob.core.text import one_line
from onejob.engine.short_ids import WHOLE
from onejob.errors import InvalidCall, UnknownJob
from onejob.tasks.admission import Admission
from onejob.tasks.declaration import is_priority
from onejob.tasks.foreign import instead_of_retry, unknown_options

OnBlockerFailure = Literal["wait", "fail", "ignore"]
WITH_BLOCKERS: Mapping[str, int] = {
    "wait": Trait.NONE,
    "fail": Trait.FAILS_WITH_BLOCKER,
    "ignore": Trait.AFTER_ALL,
}


def chosen_options(task: str, unknown: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """Return the options that a call sets; raise InvalidCall for those that do not exist."""
    if unknown:
        raise InvalidCall(unknown_options(task, unknown))
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How one call differs from its task."""

    delay: Duration | None = None
    run_at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    unique: Unique | Fluent | bool | None = None
    key: str | None = None
    meta: Mapping[str, Any] | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    force: bool = False
    connection: Any = None
    expires_at: datetime | None = None
    expires_in: Duration | None = None
    after: Sequence[Any] = ()
    on_blocker_failure: OnBlockerFailure = "wait"
    exclude: Sequence[Any] = ()
    traits: int = Trait.NONE  # of the callbacks of a batch

    def __post_init__(self) -> None:
        """Raise InvalidCall for options that contradict each other or have the wrong type."""
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidCall(f"retry={self.retry!r}: write {instead_of_retry(self.retry)}.")
        if self.meta is not None and not isinstance(self.meta, Mapping):
            raise InvalidCall(f"meta={self.meta!r}: write a mapping of names to values.")
        if self.key is not None and (not isinstance(self.key, str) or not self.key):
            raise InvalidCall('key= must be text that is not empty, such as key="user-123".')
        if self.key is not None and self.unique is False:
            raise InvalidCall("unique=False and key= contradict each other: leave one of them out.")
        if self.on_blocker_failure not in WITH_BLOCKERS:
            raise InvalidCall(f"on_blocker_failure={self.on_blocker_failure!r}: write wait, fail or ignore.")
        if self.priority is not None and not is_priority(self.priority):
            raise InvalidCall("priority= must be a whole number of at most 31 bits; higher runs sooner.")
        self._check_run_time()
        self._check_expiry()

    def _check_run_time(self) -> None:
        if self.run_at is not None and not isinstance(self.run_at, datetime):
            raise InvalidCall(f"run_at={self.run_at!r}: write a datetime with a time zone, or use delay=.")
        if self.delay is not None and self.run_at is not None:
            raise InvalidCall("delay= and run_at= both say when: write one of them.")
        if self.run_at is not None and self.run_at.tzinfo is None:
            raise InvalidCall("run_at= has no time zone: write datetime(…, tzinfo=UTC).")

    def _check_expiry(self) -> None:
        if self.expires_at is not None and self.expires_in is not None:
            raise InvalidCall("expires_at= and expires_in= both say when it is too late: write one of them.")
        if self.expires_at is not None and not is_aware(self.expires_at):
            raise InvalidCall(f"expires_at={self.expires_at!r}: write a datetime with a time zone.")


def is_aware(value: object) -> bool:
    """Return whether a value is a datetime with a time zone."""
    return isinstance(value, datetime) and value.tzinfo is not None


def checked_id(given: str, option: str) -> str:
    """Return an id of an option, which may be short; raise UnknownJob for one that is too long for an id."""
    if len(given) > WHOLE:
        raise UnknownJob(
            f"{option}= names chain {one_line(given)!r}, which does not exist: an id has {WHOLE} characters."
        )
    return given


def chains_of(given: Any, option: str) -> dict[str, Job | None]:
    """Return the chains that an option names, and the jobs that come with them."""
    found: dict[str, Job | None] = {}
    for one in given if isinstance(given, Iterable) and not isinstance(given, str) else [given]:
        match one:
            case str():
                found[checked_id(one, option)] = None
            case Job():
                found[one.chain_id] = one
            case Admission():
                found[one.job.chain_id] = one.job
            case _ if hasattr(one, "chain_ids"):
                found |= dict.fromkeys(one.chain_ids)
            case _:
                raise InvalidCall(f"{option}= names {one!r}: give what enqueue returned, a chain, or its id.")
    return found
