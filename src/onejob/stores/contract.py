"""What a store promises. It keeps rows and makes steps atomic; it decides nothing.

A *step* is a pure function from a View to Changes. A store loads the view as committed and writes the changes
so that no other step on the same job or key happens in between.

`Store` is what every store has. What only some stores can do is in small protocols of their own: a store that
cannot do it does not have the methods.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from onejob.core import step as core_step
from onejob.core.job import Job, State
from onejob.core.leasing import Lease
from onejob.core.step import Step, View
from onejob.errors import OnejobError
from onejob.stores.queries import Query
from onejob.stores.store_clock import Clock

T = TypeVar("T")
Level = Literal["ok", "warn", "fail"]
Tally = core_step.Tally

SCHEDULES = "cron:"  # the prefix of a schedule's name where a tally names a job


class Leased(NamedTuple):
    """The answer of a lease."""

    answers: list[Any]  # of the steps that were applied first
    jobs: list[Job]
    next_due: datetime | None  # when to lease again; None if nothing is timed, or no more jobs were wanted


class Observation(msgspec.Struct, frozen=True, gc=False):
    """What was observed and is kept for a while: absorbed requests, a worker, a manual release."""

    namespace: str
    kind: str
    id: str  # unique within its kind
    subject: str  # what it is about: a key, a worker
    at: datetime
    data: str  # JSON


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs there are, by queue, task and state; and how many keys have a waiting job."""

    jobs: Mapping[tuple[str, str, State], int]
    keys_waiting: int


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a store declares about itself.

    Attributes:
        store: The kind of store: "memory", "sqlite", "postgresql" or "redis".
        strength: "strong" if two jobs can never hold one key at the same time.
        scope: Which callers that includes.
        durability: What an admitted job survives.
        not_promised: What the store does not guarantee.
    """

    store: str
    strength: Literal["strong", "best-effort"]
    scope: str
    durability: str
    not_promised: str


@dataclass(frozen=True, slots=True)
class Schema:
    """The version of the tables found, 0 if there are none, and the version that this onejob knows."""

    found: int
    known: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined.

    Attributes:
        check: What was examined.
        level: "ok", "warn" or "fail".
        message: What was found, in one sentence.
        advice: What to do about it; empty if there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""


utcnow: Clock = partial(datetime.now, UTC)
"""Return this machine's time."""


class Store(Protocol):
    """Rows and atomic steps."""

    async def apply(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Run steps in order, and answer each with its answer, or with the OnejobError that it raised.

        Each step is atomic and durable when this returns; the batch is not one transaction. No two callers
        see the same key or job at once: the second sees what the first has written. A step that another
        open transaction delays for too long is answered with AdmissionBusy.
        """

    def apply_sync(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Blocking variant of `apply`, on the calling thread."""

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        """Apply the steps `after`, which free capacity, then start due jobs by the rules of `core.leasing`.

        Both happen in one commit where the store can do that. Scheduled and retryable jobs whose time has
        come become available first. No two callers get the same job; limits hold over all callers. A step
        that another open transaction delays is answered with AdmissionBusy at once. A row that cannot be
        read is set aside: it becomes discarded with the reason `unreadable`.
        """

    async def look(self, key: bytes) -> View:
        """Return the jobs and the mark of a key, as a step sees them."""

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id, in input order."""

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Return the last job of each chain, in input order."""

    async def find(self, query: Query) -> list[Job]:
        """Return the jobs that a query names, in its order."""

    async def counts(self, namespace: str) -> Counts:
        """Count the jobs of a namespace."""

    def position(self) -> Any:
        """Return a value that changes with every commit; take it before reading, and pass it to `wait`."""

    async def wait(self, timeout: float, since: Any = None) -> None:
        """Return when something may have changed since a position, or after `timeout` seconds."""

    def now(self) -> datetime:
        """Return the store's time."""

    async def close(self) -> None:
        """Close files, connections and threads."""


@runtime_checkable
class Transactions(Protocol):
    """A store that can join the caller's transaction, and open one for a handler."""

    async def apply_within(self, connection: Any, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Apply steps inside the caller's open transaction: they are committed or rolled back with it.

        Raises:
            ForeignConnection: The connection belongs to another database.
            AdmissionBusy: Another transaction does not end in time.
            TransactionConflict: The caller must roll back and run its transaction again.
        """

    def apply_within_sync(self, connection: Any, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Blocking variant of `apply_within`."""

    async def count_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count absorbed requests inside the caller's transaction, so that a rollback undoes the count."""

    def count_within_sync(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Blocking variant of `count_within`."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction for a handler's writes and yield its connection.

        It commits at the end, or rolls back if anything is raised. An error of the commit itself leaves open
        whether it was committed.
        """

    def transaction_sync(self) -> AbstractContextManager[Any]:
        """Blocking variant of `transaction`."""


@runtime_checkable
class Clocked(Protocol):
    """A store whose clock a test can replace while it is open."""

    def use_clock(self, clock: Clock | None) -> Clock | None:
        """Take the time from another clock, or from its own again if it is None; return the one before."""


class Counters(Protocol):
    """Counters of absorbed requests."""

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:
        """Add to the counters, on the calling thread.

        A caller that got no answer repeats the tallies under the same `batch`, a random name. A store whose
        replies can be lost counts them once.
        """

    async def tallies(self, namespace: str, jobs: Collection[str] | None = None) -> list[Tally]:
        """Return the counters of a namespace, or only those of some jobs."""

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job (""), and return how many there were.

        Counters of schedules stay, because a schedule outlives its jobs.
        """


class Observations(Protocol):
    """Records of what was observed, limited per subject, in number and in age."""

    async def observe(self, observations: Sequence[Observation], most: int) -> None:
        """Write observations; one whose id exists replaces it.

        Of each subject that they name, the `most` newest stay.
        """

    def observe_sync(self, observations: Sequence[Observation], most: int) -> None:
        """Blocking variant of `observe`, on the calling thread."""

    async def observations(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Return observations of a kind, or those about one subject, newest first."""

    def observations_sync(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Blocking variant of `observations`, on the calling thread."""

    async def forget(self, namespace: str, kind: str, *, before: datetime, most: int) -> int:
        """Remove observations from before a time, and all but the `most` newest; return how many."""


class Settings(Protocol):
    """Small values that are changed while workers run: schedules, paused queues."""

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Return the settings of a kind by name."""

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write a setting, or remove it if the value is None."""


class Admin(Protocol):
    """What operators ask of a store."""

    @property
    def guarantees(self) -> Guarantees:
        """The store's strength and durability."""

    def schema(self) -> Schema:
        """Return the version of the tables, without creating or changing any."""

    def migrate(self) -> Schema:
        """Create the tables or upgrade them; opening does the same."""

    def migration_sql(self) -> str:
        """Return what `migrate` would run now, as one script."""

    async def clear(self, namespace: str) -> None:
        """Remove counters, observations, settings and recorded starts of a namespace.

        Its jobs and marks are removed by steps.
        """

    async def starts(self, namespace: str, queue: str, since: datetime) -> list[datetime]:
        """Return when jobs of a queue that has a rate have started since a time, oldest first."""

    async def examine(self) -> list[Finding]:
        """Examine files, servers and settings without changing them."""


class FullStore(Store, Counters, Observations, Settings, Admin, Protocol):
    """A store as `open_store` returns it; only some also have `Transactions`."""
