"""What a store promises. It keeps records and makes steps atomic; it decides nothing.

A *step* is a pure function from a View to Changes. A store shows it the job and the key that it names,
as committed, and writes what it returns, so that no other step on the same job or key comes between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

import msgspec

from onejob.job import Changes, Job, State, View
from onejob.limits import Rate

Act = Callable[[View], Changes]
Level = Literal["ok", "warn", "fail"]

SCHEDULES = "cron:"  # begins what stands for a schedule where a counter names the job that stood for requests


class Step(msgspec.Struct, frozen=True):
    """One atomic act, on a job or on a key."""

    act: Act
    job_id: str | None = None
    key: bytes | None = None
    marks: bool = True  # whether the key's mark must be shown
    alone: bool = False  # whether the act concerns the job only: nobody who stands for its key must be shown
    queue: tuple[str, str] | None = None  # namespace and queue of which must be shown how many jobs wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a worker asks for: at most `total` jobs, at most so many from each queue."""

    namespace: str
    worker: str
    queues: Mapping[str, int]
    total: int
    duration: timedelta
    tasks: Collection[str]
    # What holds over all workers, by queue: how many are active at most, how many of them of one partition,
    # and how many start in a span of time.
    limits: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)

    @property
    def limited(self) -> list[str]:
        """The queues from which starts must be counted, in order."""
        counted = self.limits.keys() | self.shares.keys() | self.rates.keys()
        return sorted(queue for queue in self.queues if queue in counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs to look for; everything given must hold."""

    namespace: str | None = None
    states: Collection[State] = ()
    queue: str | None = None
    task: str | None = None
    key: bytes | None = None
    held: bool = False  # holds a key, or waits behind one that does
    chain_id: str | None = None
    leased_until: datetime | None = None  # active, with a lease that ends by then
    ended_before: datetime | None = None  # in the one state that is named, of a namespace; by when they ended
    beyond: tuple[datetime, str] | None = None  # with that: what comes after this time and id
    besides: Collection[str] = ()  # with that: not of these tasks
    returns_by: datetime | None = None  # a task's dead letters that are to come back by then; earliest first
    late_by: datetime | None = None  # not started, and too late to start by then; earliest first
    stranded: bool = False  # pending behind a predecessor that is gone
    awaits: Collection[str] = ()  # not ended, and one of its blockers is one of these chains
    blocked: bool = False  # pending until some chains have ended
    limit: int = 100
    offset: int = 0
    newest_first: bool = True


class Tally(msgspec.Struct, frozen=True, gc=False):
    """How often requests were absorbed: per task, outcome and the job that stood for them."""

    namespace: str
    task: str
    outcome: str
    job_id: str
    count: int
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs there are, by queue, task and state; and how many keys wait."""

    jobs: Mapping[tuple[str, str, State], int]
    keys_waiting: int


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What the store declares about itself."""

    store: str
    strength: Literal["strong", "best-effort"]
    scope: str
    durability: str
    not_promised: str


@dataclass(frozen=True, slots=True)
class Schema:
    """The version of the tables that are there, 0 if none are, and the one that this onejob knows."""

    found: int
    known: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, how it stands, and what to do about it."""

    check: str
    level: Level
    message: str
    advice: str = ""


def utcnow() -> datetime:
    """Read this machine's clock, which is the store's unless a test says otherwise."""
    return datetime.now(UTC)


class Store(Protocol):
    """A handful of atomic verbs."""

    @property
    def guarantees(self) -> Guarantees:
        """Declare strength and durability."""

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in order; answer each with its Changes' answer, or with the exception its act raised.

        Each step is atomic and durable when this returns; the batch is not one transaction. Two callers
        never see the same key or job at once: the second sees what the first wrote. A step that somebody
        else's open transaction keeps waiting for too long is answered with AdmissionBusy.
        """

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Do the same from blocking code, on the calling thread."""

    async def apply_within(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Do the same inside the caller's open transaction: all of it stands or falls with that.

        Raises ForeignConnection, AdmissionBusy when another transaction does not end in time, or
        TransactionConflict when the caller's own must be begun again.
        """

    def apply_within_now(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Do the same from blocking code."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction on a connection of its own, which it gives, for a handler's writes.

        It is committed at the end, or rolled back if anything is raised. An error at the end leaves in doubt
        whether it was committed. Raises NoTransactions, or AdmissionBusy as `apply_within` does.
        """

    def transaction_now(self) -> AbstractContextManager[Any]:
        """Do the same from blocking code."""

    async def lease(self, wanted: Lease) -> list[Job]:
        """Start due jobs, highest priority and oldest first, each given to one caller only.

        Scheduled and retryable jobs whose time has come are made available first. A queue that a setting of
        the kind `paused` names gives nothing. Limits hold whoever else leases at the same time, and a job
        that has to wait for one keeps nobody behind it waiting.
        """

    async def turn(self, steps: Sequence[Step], wanted: Lease) -> tuple[list[Any], list[Job]]:
        """Run steps that end runs, then lease into the room that they make; all at once, if the store can.

        Steps that somebody else's open transaction keeps waiting are answered with AdmissionBusy at once.
        """

    async def look(self, key: bytes) -> View:
        """Show who stands for a key, as `apply` would."""

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs by id, in input order."""

    async def find(self, wanted: Filter) -> list[Job]:
        """List jobs."""

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Read the last job of each chain, in input order."""

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Read what was decided at run time, by name: schedules, queues that pause."""

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write one such decision, or take it back."""

    async def counts(self, namespace: str) -> Counts:
        """Count jobs that are kept."""

    def tally(self, tallies: Sequence[Tally]) -> None:
        """Add to the counters of absorbed requests, on the calling thread."""

    async def tally_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Do the same inside the caller's transaction, so that a rollback takes the count back."""

    def tally_within_now(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Do the same from blocking code."""

    async def tallies(self, namespace: str) -> list[Tally]:
        """Read the counters of absorbed requests."""

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job (""), and tell how many there were.

        The counters of schedules stay, for a schedule outlives its jobs.
        """

    async def next_due(self, namespace: str, rates: Mapping[str, Rate] | None = None) -> datetime | None:
        """Tell when the next scheduled or retryable job is due, or a queue's rate allows one more start."""

    def pulse(self) -> Any:
        """Note where the store stands: ask before looking, so that `wait` misses nothing that comes after."""

    async def wait(self, timeout: float, since: Any = None) -> None:
        """Return when something may have changed, or after `timeout` seconds: a hint, never a promise."""

    def schema(self) -> Schema:
        """Tell the version of the tables, without making or changing any."""

    def migrate(self) -> Schema:
        """Make the tables or bring them up to date; opening does the same."""

    def migration_sql(self) -> str:
        """Write out what `migrate` would run now, as one script."""

    async def examine(self) -> list[Finding]:
        """Look at what lies beneath, such as files and settings, without changing it."""

    def now(self) -> datetime:
        """Tell the store's time."""

    async def close(self) -> None:
        """Let go of files, connections and threads."""
