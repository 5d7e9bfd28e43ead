"""The explorer's nouns: a World, the moves that lead from it, and the ledger of what it owes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec

from onejob.core.decide import Outcome, Request, Verdict
from onejob.core.job import EPOCH, Job, Retry, State, Trait, alter
from onejob.core.policy import Unique
from onejob.core.step import Changes, Step, View
from onejob.stores.working_copy import WorkingCopy

WORKERS = 2
ATTEMPTS = 2
SOON = timedelta(seconds=1)  # less than WINDOW; a crash is retried after more than it
WINDOW = timedelta(seconds=3)
BACKOFF = timedelta(seconds=20)
CONTINUED = 100  # what a continuation adds to the number of the payload that it continues

KEYS = (b"one", b"two")
TASKS = ("task", "other task")  # of one family
ADMITTED = frozenset(
    {Outcome.CREATED, Outcome.FORCED, Outcome.REPLACED, Outcome.RERUN, Outcome.UPDATED},
)
RETRY = Retry(attempts=ATTEMPTS, base=BACKOFF, factor=1, jitter=0)


class Kind(StrEnum):
    """What can happen. The first six are the natural course, which brings every job to its end."""

    REQUEST = "request"
    START = "start"
    COMPLETE = "complete"
    MATURE = "mature"
    TICK = "tick"
    STOP = "stop"
    FORCE = "force"
    INSIDE = "request inside the run"
    OLDER = "request an older version"
    EQUAL = "request the same version"
    CONTINUE = "complete with a continuation"
    FAIL = "fail"
    FAIL_FOR_GOOD = "fail for good"
    CRASH = "lose the lease"
    HAND_BACK = "hand back"
    SNOOZE = "snooze"
    CANCEL = "cancel"
    CANCEL_BOTH = "cancel with successors"
    REPLAY = "replay"
    RELEASE = "release"
    RELEASE_BY_FORCE = "release by force"


NATURAL = frozenset({Kind.REQUEST, Kind.START, Kind.COMPLETE, Kind.MATURE, Kind.TICK, Kind.STOP})
REQUESTS = frozenset({Kind.REQUEST, Kind.FORCE, Kind.INSIDE, Kind.OLDER, Kind.EQUAL})
EVENTS = frozenset(Kind) - NATURAL


class Fate(StrEnum):
    """What became of an admitted payload."""

    DONE = "done"
    LIVE = "live"
    WITHDRAWN = "withdrawn"
    LOST = "lost"


class Entry(NamedTuple):
    """One admitted payload: what was promised, and what has been kept of it."""

    number: int
    key: bytes
    version: int
    order: int
    task: str = ""
    started: bool = False
    done: bool = False
    withdrawn: bool = False
    overwritten_by: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far to look: numbers of requests per key, and of events that are not the natural course."""

    requests: tuple[int, ...] = (3,)
    events: int = 1
    kinds: frozenset[Kind] = EVENTS


class World(msgspec.Struct, frozen=True):
    """What a store holds at one moment, and the ledger of what it owes. Its clock always stands at EPOCH."""

    book: WorkingCopy
    left: tuple[int, ...]
    events: int
    entries: dict[int, Entry]
    asked: frozenset[str] = frozenset()  # jobs that a user cancelled
    told: tuple[tuple[str, int], ...] = ()  # jobs told to stop, each with the payload that told it
    alone: frozenset[str] = frozenset()  # chains that lost their hold to a force, a take-over or a release
    unordered: frozenset[bytes] = frozenset()  # keys for which the newest no longer has to run last

    @property
    def jobs(self) -> Iterable[Job]:
        """All jobs, oldest first."""
        return self.book.jobs.values()

    def identity(self) -> Hashable:
        """Everything that the future depends on."""
        return (
            tuple(self.book.jobs.values()),
            tuple(self.book.marks.values()),
            self.left,
            self.events,
            tuple(self.entries.values()),
            self.asked,
            self.told,
            self.alone,
            self.unordered,
        )


@dataclass(frozen=True, slots=True)
class Move:
    """One atomic step, not yet made."""

    kind: Kind
    label: str
    step: Step[Any]
    request: Request | None = None
    passed: timedelta | None = None


class Taken(msgspec.Struct, frozen=True):
    """One step as it was made: what it saw, what it wrote, what it answered."""

    move: Move
    policy: Unique
    before: World
    view: View
    changes: Changes[Any]
    after: World

    @property
    def verdict(self) -> Verdict:
        """The answer to a request or a replay."""
        return cast("Verdict", self.changes.answer)

    @property
    def admits(self) -> bool:
        """Whether a request's payload was taken in."""
        if self.move.request is None:
            return False
        holder = self.verdict.holder
        bumped = self.policy.bump and holder is not None and self.verdict.job.args == holder.args
        return self.verdict.outcome in ADMITTED and not bumped


def payload(items: list[int]) -> bytes:
    """Write a payload down."""
    return msgspec.json.encode({"items": items})


@cache
def read(args: bytes) -> tuple[int, ...]:
    """Read a payload."""
    return tuple(msgspec.json.decode(args)["items"])


def numbers(job: Job) -> tuple[int, ...]:
    """Name the requests whose payload a job carries."""
    return read(job.args)


def described(job: Job) -> str:
    """Say in a few words how a job stands."""
    role = " holds" if job.is_holder else " waits behind" if job.is_successor else ""
    by = f" by {job.superseded_by}" if job.superseded_by else ""
    return f"{job.id}{list(numbers(job))} {job.state}{by}{role}"


# ── what a world forgets ──────────────────────────────────────────────────────────────────────────


def scrubbed(job: Job) -> Job:
    """Forget what no later decision reads, so that more worlds are the same; the clock stands at EPOCH."""
    known = alter(
        job,
        errors=b"[]",
        result=None,
        worker=None,
        started_at=None,
        finished_at=None,
        lease_until=job.lease_until and EPOCH,
        run_at=max(job.run_at, EPOCH),
        created_at=max(job.created_at, EPOCH - WINDOW),
        latest_at=job.latest_at and max(job.latest_at, EPOCH),
        held_at=max(job.held_at, EPOCH - WINDOW) if job.is_holder and job.held_at else None,
        holds_until=max(job.holds_until, EPOCH) if job.is_holder and job.holds_until else None,
    )
    if not job.is_terminal:
        return unversioned(known)
    ended = alter(known, run_at=EPOCH, created_at=EPOCH, attempt=0, token=1, cancel_requested=False)
    if job.state is State.COMPLETED or job.is_superseded:  # never to be replayed
        ended = alter(ended, latest_at=None, traits=Trait.NONE, version=None)
    return unversioned(ended)


def unversioned(job: Job) -> Job:
    """Forget how often a job was written, and when it may be pruned."""
    return msgspec.structs.replace(job, revision=0, kept_until=None)


def later(job: Job, passed: timedelta) -> Job:
    """Move the clock instead of the world: what is ahead comes closer, what is behind goes further."""
    times = ("run_at", "created_at", "latest_at", "held_at", "holds_until")
    return alter(job, **{name: at - passed for name in times if (at := getattr(job, name)) is not None})
