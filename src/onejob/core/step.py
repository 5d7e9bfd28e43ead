"""A step: a pure function from a View (what a store shows) to Changes (what the store writes)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from onejob.core.job import Job, Mark, Trait

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Tally(msgspec.Struct, frozen=True, gc=False):
    """How often requests were absorbed: per task, outcome and the job that served them, since when, by which.

    A store that gets one without times takes the present. `last_by` says what made the last request; a store
    keeps that of the tally with the latest time that has one, and does not read it.
    """

    namespace: str
    task: str
    outcome: str
    job_id: str
    count: int
    last_at: datetime | None = None
    first_at: datetime | None = None
    last_by: str = ""

    @classmethod
    def of(cls, asked: Job, outcome: str, job_id: str, now: datetime) -> Tally:
        """Return the tally of one request, by the job that it asked for and the job that serves it."""
        return cls(asked.namespace, asked.task, str(outcome), job_id, 1, now, now)

    def plus(self, other: Tally) -> Tally:
        """Return the sum with another tally of the same counter; both have times."""
        assert self.last_at and self.first_at and other.last_at and other.first_at  # noqa: PT018
        older, newer = (self, other) if other.last_at >= self.last_at else (other, self)
        return msgspec.structs.replace(
            newer,
            count=self.count + other.count,
            first_at=min(self.first_at, other.first_at),
            last_by=newer.last_by or older.last_by,
        )


class View(msgspec.Struct, frozen=True, gc=False):
    """The rows that concern a step, as committed, at the store's time."""

    now: datetime
    job: Job | None = None
    holder: Job | None = None
    successor: Job | None = None
    mark: Mark | None = None
    marked: Job | None = None  # the job that the mark names
    depth: int | None = None  # how many jobs wait in the queue that the step names


class Changes(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """The step's answer, and the rows to write, in this order, as one atomic act.

    The tally is added to the counters in the same act; there is none without rows.
    """

    answer: T_co
    updates: tuple[Job, ...] = ()
    inserts: tuple[Job, ...] = ()
    deletes: tuple[str, ...] = ()
    mark: Mark | None = None
    tally: Tally | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.updates or self.inserts or self.deletes or self.mark)


NO_CHANGES: Changes[None] = Changes(None)


def answering(changes: Changes[Any], answer: T) -> Changes[T]:
    """Return the same changes with another answer."""
    return Changes(answer, changes.updates, changes.inserts, changes.deletes, changes.mark)


class Step(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """One atomic act on a job or on a key."""

    act: Callable[[View], Changes[T_co]]
    job_id: str | None = None
    key: bytes | None = None
    marks: bool = True  # whether the act needs the key's mark
    alone: bool = False  # whether the act needs nothing but the job: no other row of its key
    queue: tuple[str, str] | None = None  # namespace and queue whose number of waiting jobs the act needs
    seen: Job | None = None  # the job as the caller last saw it

    @property
    def needs_no_reading(self) -> bool:
        """Whether the job that the caller saw is all that the act needs.

        A store may then act on it without reading, if it writes only while the row has the same revision.
        A step that adds a successor or a mark raises the revision of the job that it concerns.
        """
        if self.seen is None:
            return False
        return self.alone or not self.seen.traits & (Trait.HAS_SUCCESSOR | Trait.MARKED)
