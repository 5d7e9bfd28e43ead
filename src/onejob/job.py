"""The nouns: Job, State, Retry, Replay, Mark. Frozen values; the verbs are in `decide` and `lifecycle`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Self, cast

import msgspec

from onejob.errors import InvalidPolicy
from onejob.schedule import Duration, duration

LARGEST_FACTOR = 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class State(StrEnum):
    """The eight states of the Open Job Spec."""

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
    """What a job's policy asks of its later life, compiled at admission into bits."""

    NONE = 0
    RELEASES_AT_START = 1
    NEWEST_WINS = 2  # without its hold it gives way to whoever was admitted after it
    MERGES = 4
    TRAILING = 8  # the window that it opens begins at its run time
    AWAITED = 16  # somebody waits for its chain
    FAILS_WITH_BLOCKER = 32  # it ends as a dead letter if a chain that it waits for does
    AFTER_ALL = 64  # it runs when the chains that it waits for have ended, however they did
    AFTER_FAILURE = 128  # and only if one of them has failed
    RETURNS = 256  # a dead letter that comes back by itself at its run time

    OF_CHAIN = RELEASES_AT_START | NEWEST_WINS | MERGES | TRAILING | AWAITED  # what continuations take over


class Arrival:
    """What has become of a chain that a job waits for; one digit each in `Job.arrived`."""

    AWAITED = b"0"
    COMPLETED = b"1"
    FAILED = b"2"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed attempt is tried again: after min(base · factor^failures, cap)."""

    attempts: int = 5
    base: Duration = 1.0
    factor: float = 2.0
    cap: Duration = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        """Turn durations into seconds and refuse what cannot be meant."""
        object.__setattr__(self, "base", duration(self.base).total_seconds())
        object.__setattr__(self, "cap", duration(self.cap).total_seconds())
        if type(self.attempts) is not int or not 1 <= self.attempts < 2**31:
            raise InvalidPolicy("Retry(attempts=…) counts all attempts: write 1 to try once, never less.")
        if not 1 <= self.factor <= LARGEST_FACTOR or not 0 <= self.jitter <= 1:
            raise InvalidPolicy(f"Retry needs 1 ≤ factor ≤ {LARGEST_FACTOR} and 0 ≤ jitter ≤ 1.")

    @classmethod
    def never(cls) -> Self:
        """Try once; a failure is a dead letter at once."""
        return cls(attempts=1)

    @classmethod
    def embedding(cls, attempts: int = 3) -> Self:
        """Back off as the embedding queue does: min(1000 · 2^failures, 30000) ms, without jitter."""
        return cls(attempts, base=1.0, factor=2.0, cap=30.0, jitter=0.0)

    def delay(self, failures: int, chance: float = 0.5) -> timedelta:
        """Tell how long to wait after `failures`; `chance` in [0, 1) is spread over ± jitter."""
        base, cap = cast("float", self.base), cast("float", self.cap)
        seconds = min(base * self.factor ** min(failures, 64), cap)  # at most 1000^64, which a float holds
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))


@dataclass(frozen=True, slots=True)
class Replay:
    """How often and how soon a dead letter comes back by itself: after min(after · factor^replays, cap)."""

    times: int = 3
    after: Duration = 3600.0
    factor: float = 2.0
    cap: Duration = 86400.0

    def __post_init__(self) -> None:
        """Turn durations into seconds and refuse what cannot be meant."""
        object.__setattr__(self, "after", duration(self.after).total_seconds())
        object.__setattr__(self, "cap", duration(self.cap).total_seconds())
        if type(self.times) is not int or not 1 <= self.times < 2**31:
            raise InvalidPolicy("Replay(times=…) counts replays: write 1 or more, or leave replay= out.")
        if not 1 <= self.factor <= LARGEST_FACTOR:
            raise InvalidPolicy(f"Replay needs 1 ≤ factor ≤ {LARGEST_FACTOR}.")
        if cast("float", self.cap) < cast("float", self.after):
            raise InvalidPolicy(
                "Replay(cap=…) is less than after=: write a cap that lets the first replay be."
            )

    def delay(self, replays: int) -> timedelta:
        """Tell how long a letter that has been replayed so often stays dead."""
        after, cap = cast("float", self.after), cast("float", self.cap)
        return timedelta(seconds=min(after * self.factor ** min(replays, 64), cap))


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class Job(msgspec.Struct, frozen=True, gc=False):
    """One admitted unit of work. The fields are the columns of every store, in this order."""

    id: str
    namespace: str
    task: str
    queue: str
    state: State
    priority: int
    run_at: datetime
    place: int
    created_at: datetime
    args: bytes  # JSON, perhaps sealed; empty in a tombstone
    meta: bytes  # JSON
    payload_digest: bytes
    retry: Retry
    chain_id: str
    timeout: float | None = None
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None

    key: bytes | None = None
    held_key: bytes | None = None
    next_key: bytes | None = None
    holds: int = 0
    traits: int = Trait.NONE
    within: float | None = None
    held_at: datetime | None = None
    holds_until: datetime | None = None
    latest_at: datetime | None = None
    version: int | None = None

    chain_index: int = 0
    parent_id: str | None = None
    superseded_by: str | None = None
    reason: str | None = None

    token: int = 0
    worker: str | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False

    errors: bytes = b"[]"  # JSON
    result: bytes | None = None  # JSON
    progress: bytes | None = None  # JSON

    expires_at: datetime | None = None  # when it is too late to start
    partition: str | None = None  # whose share of its queue's places it takes; nobody's if empty
    replays: int = 0  # how often it came back as a dead letter
    blockers: bytes | None = None  # JSON: the chains that it waits for, in order
    arrived: bytes | None = None  # what became of each of them, one digit of `Arrival` each
    following: bytes | None = None  # JSON: the calls that are to continue its chain

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
        """Whether only the hold is left of this job."""
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
    def is_superseded(self) -> bool:
        """Whether a newer job took this one's work over."""
        return self.superseded_by is not None

    @property
    def returns_at(self) -> datetime | None:
        """When a dead letter comes back by itself; None if it does not."""
        returns = self.state is State.DISCARDED and self.traits & Trait.RETURNS
        return self.run_at if returns else None

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


alter = msgspec.structs.replace
"""Return a job with some fields changed."""


def fingerprint(args: bytes, meta: bytes) -> bytes:
    """Digest a payload, so that two requests can be compared without it."""
    return sha256(args + b"\0" + meta).digest()


def mask(states: frozenset[State]) -> int:
    """Pack a set of states into the bits that a store keeps."""
    return sum(1 << ORDINAL[state] for state in states)


def unmask(bits: int) -> frozenset[State]:
    """Unpack what `mask` packed."""
    return frozenset(state for state in State if bits >> ORDINAL[state] & 1)


ORDINAL = {state: index for index, state in enumerate(State)}


class View(msgspec.Struct, frozen=True, gc=False):
    """What a store shows a step: one job and those that stand for its key, at the store's time."""

    now: datetime
    job: Job | None = None
    holder: Job | None = None
    successor: Job | None = None
    mark: Mark | None = None
    marked: Job | None = None  # the job that the mark names
    depth: int | None = None  # how many jobs wait in the queue that the step names


class Changes(msgspec.Struct, frozen=True, gc=False):
    """What a step asks a store to write, in this order, as one atomic act; and the step's answer."""

    answer: Any = None
    updates: tuple[Job, ...] = ()
    inserts: tuple[Job, ...] = ()
    deletes: tuple[str, ...] = ()
    mark: Mark | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.updates or self.inserts or self.deletes or self.mark)
