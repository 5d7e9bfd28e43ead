"""Job, State and the policies that a job carries: frozen values, transformed by the rest of the core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Self, cast

import msgspec

from onejob.core import suggestions
from onejob.core.durations import Duration, duration
from onejob.errors import InvalidPolicy

LARGEST_FACTOR = 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class State(StrEnum):
    """The state of a job: one of the eight states of the Open Job Spec.

    Attributes:
        SCHEDULED: It waits for its run time.
        AVAILABLE: It waits for a worker.
        PENDING: It waits for another job: for the holder of its key, or for the chains named in `after=`.
        ACTIVE: It runs.
        RETRYABLE: An attempt has failed, and the next one waits for its time.
        COMPLETED: It has succeeded.
        CANCELLED: It was cancelled, replaced, or superseded by a newer request.
        DISCARDED: It has failed for good or expired: a dead letter.
    """

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    PENDING = "pending"
    ACTIVE = "active"
    RETRYABLE = "retryable"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"


WAITING = frozenset({State.SCHEDULED, State.AVAILABLE, State.PENDING})
INCOMPLETE = WAITING | {State.ACTIVE, State.RETRYABLE}
TERMINAL = frozenset(State) - INCOMPLETE
UNSTARTED = INCOMPLETE - {State.ACTIVE}  # no run is under way

EXPIRED = "expired"  # the reason of a discarded job that did not start in time
SUPERSEDED = "superseded"  # the reason of a cancelled job whose work a newer one took over

SEALED_FIELD = "onejob:sealed"
SEALED = b'{"onejob:sealed":"'  # begins a payload that only the app's codec can read


class Trait:
    """Facts about a job that later steps need, as bits of `Job.traits`."""

    NONE = 0
    RELEASES_AT_START = 1
    NEWEST_WINS = 2  # without its hold it gives way to a job of its key that was admitted later
    MERGES = 4
    TRAILING = 8  # the window that it opens begins at its run time
    AWAITED = 16  # another job waits, or has waited, for its chain
    FAILS_WITH_BLOCKER = 32  # it ends as a dead letter if a chain that it waits for does
    AFTER_ALL = 64  # it runs when the chains that it waits for have ended, however they did
    AFTER_FAILURE = 128  # and only if one of them has failed
    RETURNS = 256  # a dead letter that is replayed automatically at its run time
    MARKED = 512  # the version row of its key names, or has named, its chain
    HAS_SUCCESSOR = 1024  # a successor waits, or has waited, behind it

    OF_CHAIN = RELEASES_AT_START | NEWEST_WINS | MERGES | TRAILING | AWAITED | MARKED | HAS_SUCCESSOR
    """The traits that a continuation takes over from the job before it."""


class Stand:
    """How a job stands to its key, in `Job.stand`; None means that it does not occupy the key."""

    HOLDER = 0
    SUCCESSOR = 1


class Arrival:
    """How a chain that a job waits for has ended: one digit each in `Job.arrived`."""

    AWAITED = b"0"
    COMPLETED = b"1"
    FAILED = b"2"


@suggestions.answers_unknown(suggestions.RETRY)
@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed attempt is tried again.

    The delay after failure n is min(base · factor^(n - 1), max(cap, base)), ± jitter.

    Args:
        attempts: How many attempts there are in all; 1 means no retry.
        base: The delay after the first failure, as seconds, timedelta or text such as "30s".
        factor: By how much the delay grows with each failure.
        cap: The longest delay; `base` if that is longer.
        jitter: The part of the delay that is random, from 0 to 1.

    Raises:
        InvalidPolicy: A value is out of range.
    """

    attempts: int = 5
    base: Duration = 1.0
    factor: float = 2.0
    cap: Duration = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        """Convert durations to seconds and reject impossible values."""
        object.__setattr__(self, "base", duration(self.base).total_seconds())
        object.__setattr__(self, "cap", duration(self.cap).total_seconds())
        if type(self.attempts) is not int or not 1 <= self.attempts < 2**31:
            raise InvalidPolicy("Retry(attempts=…) counts all attempts: write 1 to try once, never less.")
        if not 1 <= self.factor <= LARGEST_FACTOR or not 0 <= self.jitter <= 1:
            raise InvalidPolicy(f"Retry needs 1 ≤ factor ≤ {LARGEST_FACTOR} and 0 ≤ jitter ≤ 1.")

    @classmethod
    def never(cls) -> Self:
        """Return a policy without retries: a job whose first attempt fails is a dead letter."""
        return cls(attempts=1)

    @classmethod
    def embedding(cls, attempts: int = 3) -> Self:
        """Return a backoff for calls to embedding services: 2, 4, 8, 16 s, then 30 s, without jitter.

        Args:
            attempts: How many attempts there are in all.
        """
        return cls(attempts, base=2.0, factor=2.0, cap=30.0, jitter=0.0)

    def delay(self, failures: int, chance: float = 0.5) -> timedelta:
        """Return how long to wait after `failures` failed attempts.

        Args:
            failures: How many attempts have failed so far.
            chance: A number in [0, 1) that places the delay within ± jitter.
        """
        base, cap = cast("float", self.base), cast("float", self.cap)
        growth = self.factor ** min(failures - 1, 64)  # at most 1000^64, which a float holds
        seconds = min(base * growth, max(cap, base))
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))


@dataclass(frozen=True, slots=True)
class Replay:
    """How often and how soon a dead letter is replayed automatically.

    The delay is min(after · factor^replays, cap).

    Args:
        times: How many replays there are in all.
        after: The delay of the first replay, as seconds, timedelta or text such as "1h".
        factor: By how much the delay grows with each replay.
        cap: The longest delay.

    Raises:
        InvalidPolicy: A value is out of range.
    """

    times: int = 3
    after: Duration = 3600.0
    factor: float = 2.0
    cap: Duration = 86400.0

    def __post_init__(self) -> None:
        """Convert durations to seconds and reject impossible values."""
        object.__setattr__(self, "after", duration(self.after).total_seconds())
        object.__setattr__(self, "cap", duration(self.cap).total_seconds())
        if type(self.times) is not int or not 1 <= self.times < 2**31:
            raise InvalidPolicy("Replay(times=…) counts replays: write 1 or more, or leave replay= out.")
        if not 1 <= self.factor <= LARGEST_FACTOR:
            raise InvalidPolicy(f"Replay needs 1 ≤ factor ≤ {LARGEST_FACTOR}.")
        if cast("float", self.cap) < cast("float", self.after):
            raise InvalidPolicy(
                "Replay(cap=…) is less than after=: write a cap that is at least as long as after=."
            )

    def delay(self, replays: int) -> timedelta:
        """Return how long a dead letter waits for its next replay after `replays` earlier ones."""
        after, cap = cast("float", self.after), cast("float", self.cap)
        return timedelta(seconds=min(after * self.factor ** min(replays, 64), cap))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long an ended job is kept, by its state.

    Args:
        completed: Seconds for completed jobs.
        cancelled: Seconds for cancelled jobs.
        discarded: Seconds for dead letters.
    """

    completed: float = 7 * 86400.0
    cancelled: float = 7 * 86400.0
    discarded: float = 180 * 86400.0

    def changed(self, ages: Mapping[Any, Duration]) -> Retention:
        """Return this retention with other ages for some states; raise InvalidPolicy for other states."""
        if not isinstance(ages, Mapping):
            raise InvalidPolicy(f'retention={ages!r} names no states: write {{"completed": {ages!r}}}.')
        for state in ages:
            if state not in TERMINAL:
                known = ", ".join(sorted(TERMINAL))
                raise InvalidPolicy(
                    f"retention={{{str(state)!r}: …}}: only {known} jobs are kept and pruned."
                )
        seconds = {str(state): duration(age).total_seconds() for state, age in ages.items()}
        return replace(self, **seconds)

    def of(self, state: State) -> timedelta:
        """Return how long a job that ended in `state` is kept."""
        seconds: float = getattr(self, state)
        return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Merging:
    """How payloads of the key are merged: named reducers by argument, or None if the task has a function."""

    reducers: tuple[tuple[str, str], ...] | None
    cap: int


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class Job(msgspec.Struct, frozen=True, gc=False):
    """One admitted unit of work: a frozen value, as the store had it when it was read.

    Attributes:
        id: The job's id, a UUIDv7.
        namespace: The namespace of the app.
        task: The name of its task.
        queue: The name of its queue.
        state: Its state.
        priority: Higher starts sooner.
        run_at: When it is due.
        created_at: When it was admitted.
        chain_id: The id of its chain, which is that of the chain's first job.
        parent_id: The id of the job before it in its chain; None for the first.
        attempt: How many attempts have started.
        worker: The name of the worker of the present or last run.
        started_at: When the present or last run started.
        finished_at: When it ended for good.
        expires_at: When it is too late to start; None for never.
        reason: Why it was cancelled or discarded.
        superseded_by: The id of the job that took its work over.
        replays: How often it was replayed as a dead letter.
    """

    # stores/columns.py lists how each field is stored
    id: str
    namespace: str
    task: str
    queue: str
    state: State
    priority: int
    run_at: datetime
    place: int  # the order of admission
    created_at: datetime
    args: bytes  # JSON, perhaps sealed; empty in a tombstone
    meta: bytes  # JSON
    payload_digest: bytes
    retry: Retry
    chain_id: str
    chain_index: int = 0
    parent_id: str | None = None
    timeout: float | None = None
    expires_at: datetime | None = None  # when it is too late to start
    partition: str | None = None  # the share of its queue's capacity that it uses; "" for none

    key: bytes | None = None
    stand: int | None = None  # how it stands to its key: see Stand
    holds: int = 0  # the states in which it holds its key, as bits
    traits: int = Trait.NONE
    within: float | None = None
    held_at: datetime | None = None
    holds_until: datetime | None = None
    latest_at: datetime | None = None
    version: int | None = None

    attempt: int = 0
    token: int = 0
    revision: int = 0  # raised by every write
    worker: str | None = None  # of its present or last run
    lease_until: datetime | None = None
    cancel_requested: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    kept_until: datetime | None = None  # when an ended job may be pruned

    result: bytes | None = None  # JSON
    errors: bytes = b"[]"  # JSON
    progress: bytes | None = None  # JSON
    reason: str | None = None
    superseded_by: str | None = None
    replays: int = 0  # how often it was replayed as a dead letter
    blockers: bytes | None = None  # JSON: the chains that it waits for, in order
    arrived: bytes | None = None  # how each of them has ended, one digit of `Arrival` each
    following: bytes | None = None  # JSON: the calls that continue its chain
    trace: bytes | None = None  # JSON: the trace context of its request; no part of the payload
    replay: Replay | None = None
    retention: Retention = Retention()
    merging: Merging | None = None
    newer_policy: bytes | None = None  # JSON: fields that a newer version of onejob has written
    newer_more: bytes | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments as plain JSON values; empty in a tombstone."""
        return _decode_object(self.args) if self.args else {}

    @property
    def is_sealed(self) -> bool:
        """Whether only the app's codec can read the arguments: see `App.reveal`."""
        return self.args.startswith(SEALED)

    @property
    def metadata(self) -> dict[str, Any]:
        """The call's metadata as plain JSON values."""
        return _decode_object(self.meta)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The error history, oldest first: attempt, at, type, message, traceback."""
        return msgspec.json.decode(self.errors, type=list[dict[str, Any]])

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended; only an explicit replay leaves such a state."""
        return self.state in TERMINAL

    @property
    def is_tombstone(self) -> bool:
        """Whether the payload has been pruned and only the hold is left."""
        return not self.args

    @property
    def is_blocked(self) -> bool:
        """Whether the job waits for a chain that has not ended."""
        return self.arrived is not None and Arrival.AWAITED in self.arrived

    @property
    def awaits(self) -> list[str]:
        """The chains that must end before the job may start, in the order in which they were named."""
        return [] if self.blockers is None else msgspec.json.decode(self.blockers, type=list[str])

    @property
    def is_holder(self) -> bool:
        """Whether the job occupies its key; the hold itself may have lapsed."""
        return self.stand == Stand.HOLDER

    @property
    def is_successor(self) -> bool:
        """Whether the job waits behind the holder of its key."""
        return self.stand == Stand.SUCCESSOR

    @property
    def is_superseded(self) -> bool:
        """Whether a newer job took this one's work over."""
        return self.superseded_by is not None

    @property
    def due_since(self) -> datetime:
        """When the job became due, or will: its run time, or when its predecessor ended, if that is later."""
        return self.run_at if self.held_at is None else max(self.run_at, self.held_at)

    @property
    def returns_at(self) -> datetime | None:
        """When a dead letter is replayed automatically; None if it is not."""
        returns = self.state is State.DISCARDED and self.traits & Trait.RETURNS
        return self.run_at if returns else None

    def as_dict(self) -> dict[str, Any]:
        """Return the job as JSON values, under the names that the command line prints.

        Times are texts in ISO 8601. Sealed arguments stay sealed.
        """
        return {
            "id": self.id,
            "task": self.task,
            "queue": self.queue,
            "state": str(self.state),
            "namespace": self.namespace,
            "priority": self.priority,
            "args": self.arguments,
            "meta": self.metadata,
            "attempt": self.attempt,
            "max_attempts": self.retry.attempts,
            "replays": self.replays,
            "returns_at": _stamp(self.returns_at),
            "created_at": _stamp(self.created_at),
            "run_at": _stamp(self.run_at),
            "started_at": _stamp(self.started_at),
            "finished_at": _stamp(self.finished_at),
            "reason": self.reason,
            "superseded_by": self.superseded_by,
            "key": self.key.hex() if self.key else None,
            "held_at": _stamp(self.held_at),
            "holds_until": _stamp(self.holds_until),
            "version": self.version,
            "chain_id": self.chain_id,
            "chain_index": self.chain_index,
            "parent_id": self.parent_id,
            "worker": self.worker,
            "lease_until": _stamp(self.lease_until),
            "cancel_requested": self.cancel_requested,
            "errors": self.failures,
            "result": _decoded(self.result),
            "progress": _decoded(self.progress),
        }

    def __repr__(self) -> str:
        """Name the job without its arguments: they may be private."""
        return f"<Job {self.id} {self.task} {self.state}>"


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The newest request of a key: remembered when its job is gone, so that older ones stay stale."""

    key: bytes
    version: int | None
    job: str
    void: bool  # that job ended cancelled or discarded: the same version may come again
    touched_at: datetime
    prior_version: int | None = None  # the newest request before it, which counts while it is void
    prior_job: str | None = None


def alter(job: Job, **changes: Any) -> Job:
    """Return a job with some fields changed and its revision raised."""
    return msgspec.structs.replace(job, revision=job.revision + 1, **changes)


def is_same(one: Job, other: Job) -> bool:
    """Return whether two jobs are equal apart from their revision."""
    return one == msgspec.structs.replace(other, revision=one.revision)


def fingerprint(args: bytes, meta: bytes) -> bytes:
    """Return the digest of a payload, by which two requests are compared."""
    return sha256(args + b"\0" + meta).digest()


def mask(states: frozenset[State]) -> int:
    """Pack a set of states into the bits that a store keeps."""
    return sum(1 << ORDINAL[state] for state in states)


ORDINAL = {state: index for index, state in enumerate(State)}


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _decoded(value: bytes | None) -> Any:
    return None if value is None else msgspec.json.decode(value)
