"""Every order of events within small bounds, breadth first, over the real decisions.

A World is what a store would hold, plus a ledger of what was promised to whom. A Move is one atomic step:
a request, a worker's act, a user's act, or the passing of time. `explore` makes every move in every world,
checks each step and each world against DESIGN.md §3, and raises Refuted with the shortest way to a broken one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from importlib import import_module
from typing import NamedTuple, cast

import msgspec

from onejob import lifecycle
from onejob.job import (
    EPOCH,
    INCOMPLETE,
    TERMINAL,
    WAITING,
    Changes,
    Job,
    Mark,
    Retry,
    State,
    Trait,
    View,
    alter,
    fingerprint,
)
from onejob.stores.book import Book
from onejob.stores.contract import Act, Step
from onejob.policy import Unique
from onejob.unique import Outcome, Request, Verdict

unique = import_module("onejob.unique")  # the package shows the fluent `unique` under this name

WORKERS = 2
ATTEMPTS = 2
SOON = timedelta(seconds=1)  # less than WINDOW; a crash is retried after more than it
WINDOW = timedelta(seconds=3)
BACKOFF = timedelta(seconds=20)
CONTINUED = 100  # what a continuation adds to the number of the payload that it continues

KEYS = (b"one", b"two")
ADMITTED = frozenset(
    {Outcome.CREATED, Outcome.FORCED, Outcome.REPLACED, Outcome.RERUN, Outcome.UPDATED},
)
INSERTING = ADMITTED - {Outcome.UPDATED}


class Kind(StrEnum):
    """What can happen. The first five need no bad luck: they bring every job to its end."""

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

    book: Book
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
    step: Step
    request: Request | None = None
    passed: timedelta | None = None


class Taken(msgspec.Struct, frozen=True):
    """One step as it was made: what it saw, what it wrote, what it answered."""

    move: Move
    policy: Unique
    before: World
    view: View
    changes: Changes
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


class Refuted(AssertionError):
    """A rule does not hold; the trace is the shortest way to see it."""

    def __init__(self, rule: str, trace: Iterable[str], policy: Unique) -> None:
        steps = "".join(f"\n  {number}. {label}" for number, label in enumerate(trace, start=1))
        super().__init__(f"{rule}\n{spelled(policy)}{steps}")
        self.rule = rule


class Report(NamedTuple):
    """How much was looked at."""

    worlds: int
    moves: int


def spelled(policy: Unique) -> str:
    """Write a policy as one would in code: only what differs from the default."""
    plain = Unique()
    chosen = {
        field.name: getattr(policy, field.name)
        for field in fields(policy)
        if getattr(policy, field.name) != getattr(plain, field.name) and field.name not in {"by", "key"}
    }
    return f"Unique({', '.join(f'{name}={_brief(value)}' for name, value in chosen.items())})"


def _brief(value: object) -> str:
    if isinstance(value, timedelta):
        return f'"{value.total_seconds():g}s"'
    if isinstance(value, frozenset):
        return "{" + "|".join(sorted(value)) + "}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# ── exploring ─────────────────────────────────────────────────────────────────────────────────────


def explore(policy: Unique, bounds: Bounds) -> Report:
    """Look at every world within bounds; raise Refuted at the first that breaks a rule."""
    first = World(Book(), bounds.requests, bounds.events, {})
    origins: dict[Hashable, Origin | None] = {first.identity(): None}
    layer = [(first, first.identity())]
    count = 0
    while layer:
        following: list[tuple[World, Hashable]] = []
        for world, identity in layer:
            for move in moves(world, policy, bounds):
                count += 1
                taken, broken = take(world, move, policy)
                reached = taken.after.identity()
                origin = Origin(identity, taken.move.label, taken.changes)
                if broken is None and reached not in origins:
                    origins[reached] = origin
                    following.append((taken.after, reached))
                    broken = first_broken(WORLD_RULES, taken)
                if broken is not None:
                    raise Refuted(broken, [*trace(origins, identity), told(origin)], policy)
        layer = following
    return Report(len(origins), count)


class Origin(NamedTuple):
    """How a world was first reached."""

    parent: Hashable
    label: str
    changes: Changes


def trace(origins: dict[Hashable, Origin | None], identity: Hashable) -> list[str]:
    """Walk back to the first world."""
    labels: list[str] = []
    while (origin := origins[identity]) is not None:
        identity = origin.parent
        labels.append(told(origin))
    return labels[::-1]


def told(origin: Origin) -> str:
    """Say what a move was and what it changed."""
    answer = origin.changes.answer
    outcome = f" → {answer.outcome}" if isinstance(answer, Verdict) else ""
    written = ", ".join(described(job) for job in (*origin.changes.updates, *origin.changes.inserts))
    return f"{origin.label}{outcome}  [{written}]"


def described(job: Job) -> str:
    """Say in a few words how a job stands."""
    role = " holds" if job.held_key else " waits behind" if job.next_key else ""
    by = f" by {job.superseded_by}" if job.superseded_by else ""
    return f"{job.id}{list(numbers(job))} {job.state}{by}{role}"


def take(world: World, move: Move, policy: Unique) -> tuple[Taken, str | None]:
    """Make a move and say which rule it breaks, if any."""
    view = world.book.view(move.step, EPOCH)
    changes, broken = Changes(), None
    try:
        changes = move.step.act(view)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
        broken = f"{move.kind} raised {type(error).__name__}: {error}"
    after = succeed(world, move, changes)
    taken = Taken(move, policy, world, view, changes, after)
    if broken is not None:
        return taken, broken
    try:
        taken = msgspec.structs.replace(taken, after=account(taken))
    except Broken as rule:
        return taken, str(rule)
    return taken, first_broken(STEP_RULES, taken)


def first_broken(rules: Iterable[Rule], taken: Taken) -> str | None:
    """Say which rule a step breaks, if any."""
    return next((broken for rule in rules for broken in rule(taken)), None)


def succeed(world: World, move: Move, changes: Changes) -> World:
    """Write what a step asks for into a copy of the world."""
    left = list(world.left)
    if move.request is not None and move.request.key is not None:
        left[KEYS.index(move.request.key)] -= 1
    events = world.events - (move.kind in EVENTS)
    book = world.book
    if move.passed:
        changes = Changes(updates=tuple(later(job, move.passed) for job in world.jobs))
    if changes.updates or changes.inserts or changes.mark:
        book = copied(book)
        book.write(
            Changes(
                updates=tuple(map(scrubbed, changes.updates)),
                inserts=tuple(map(scrubbed, changes.inserts)),
                mark=changes.mark and msgspec.structs.replace(changes.mark, touched_at=EPOCH),
            )
        )
    return msgspec.structs.replace(world, book=book, left=tuple(left), events=events)


def copied(book: Book) -> Book:
    """Copy what a book holds; jobs and marks are values."""
    copy = Book()
    for name in Book.__slots__:
        setattr(copy, name, dict(getattr(book, name)))
    return copy


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
        held_at=max(job.held_at, EPOCH - WINDOW) if job.held_key and job.held_at else None,
        holds_until=max(job.holds_until, EPOCH) if job.held_key and job.holds_until else None,
    )
    if not job.is_terminal:
        return known
    ended = alter(known, run_at=EPOCH, created_at=EPOCH, attempt=0, token=1, cancel_requested=False)
    if job.state is State.COMPLETED or job.is_superseded:  # never to be replayed
        ended = alter(ended, latest_at=None, traits=Trait.NONE, version=None)
    return ended


def later(job: Job, passed: timedelta) -> Job:
    """Move the clock instead of the world: what is ahead comes closer, what is behind goes further."""
    times = ("run_at", "created_at", "latest_at", "held_at", "holds_until")
    return alter(job, **{name: at - passed for name in times if (at := getattr(job, name)) is not None})


# ── what can happen ───────────────────────────────────────────────────────────────────────────────


def moves(world: World, policy: Unique, bounds: Bounds) -> Iterator[Move]:
    """List all that can happen next."""
    yield from natural_moves(world, policy)
    if world.events:
        for move in events(world, policy):
            if move.kind in bounds.kinds:
                yield move


def natural_moves(world: World, policy: Unique) -> Iterator[Move]:
    """List what happens without bad luck or a user's hand."""
    for key, left in zip(KEYS, world.left, strict=False):
        if left:
            yield request(world, policy, key, Kind.REQUEST, newest_version(world, key) + 1)
    busy = sum(job.state is State.ACTIVE for job in world.jobs) >= WORKERS
    for job in world.jobs:
        if job.state is State.AVAILABLE and not busy:
            yield act(Kind.START, job, start)
        elif job.state is State.ACTIVE:
            yield settling(Kind.COMPLETE, job, lifecycle.Completed(b"null"), policy)
            if job.cancel_requested:
                yield settling(Kind.STOP, job, lifecycle.Stopped("cancelled"), policy)
        elif job.state in {State.SCHEDULED, State.RETRYABLE} and job.run_at <= EPOCH:
            yield act(Kind.MATURE, job, mature)
    yield from tick(world, policy)


def events(world: World, policy: Unique) -> Iterator[Move]:
    """List what the bounds count."""
    for key, left in zip(KEYS, world.left, strict=False):
        if left:
            yield from odd_requests(world, policy, key)
        if key in world.book.held:
            yield Move(Kind.RELEASE, f"release {key.decode()}", Step(release, key=key))
            yield Move(
                Kind.RELEASE_BY_FORCE, f"release {key.decode()} by force", Step(release_by_force, key=key)
            )
    for job in world.jobs:
        if job.state is State.ACTIVE:
            yield from run_events(job, policy)
        yield from user_events(world, job)


def newest_version(world: World, key: bytes) -> int:
    """Tell the highest version that was admitted."""
    return max((entry.version for entry in world.entries.values() if entry.key == key), default=0)


def odd_requests(world: World, policy: Unique, key: bytes) -> Iterator[Move]:
    """List the requests for a key that are not plain ones with the next version."""
    newest = newest_version(world, key)
    yield request(world, policy, key, Kind.FORCE, newest + 1)
    if policy.version is not None and newest:
        yield request(world, policy, key, Kind.OLDER, newest - 1)
        yield request(world, policy, key, Kind.EQUAL, newest)
    for job in world.jobs:
        if job.state is State.ACTIVE and job.key == key:
            yield request(world, policy, key, Kind.INSIDE, newest + 1, job.chain_id)


def request(
    world: World, policy: Unique, key: bytes, kind: Kind, version: int, inside: str | None = None
) -> Move:
    """Make the next request; its number is its payload."""
    number = 1 + sum(entry.number < CONTINUED for entry in world.entries.values())
    args = payload([number])
    wanted = Request(
        id=f"job{number}-{key.decode()}",
        place=number,
        namespace="",
        task="task",
        queue="default",
        args=args,
        meta=b"{}",
        payload_digest=fingerprint(args, b"{}"),
        priority=number if policy.bump else 0,
        retry=RETRY,
        key=key,
        policy=policy,
        version=version if policy.version is not None else None,
        force=kind is Kind.FORCE,
        running_chain=inside,
    )
    if "time" in policy.fields:
        wanted = msgspec.structs.replace(wanted, delay=SOON * (number - 1))
    where = f" {inside}" if inside else ""
    what = f" as version {version}" if policy.version is not None else ""
    label = f"{kind}{where} for {key.decode()} with payload {number}{what}"
    return Move(kind, label, Step(partial(decide, wanted=wanted), key=key), wanted)


def run_events(job: Job, policy: Unique) -> Iterator[Move]:
    """List how a run can end otherwise than well."""
    yield settling(Kind.CONTINUE, job, lifecycle.Completed(b"null", continuation(job)), policy)
    yield settling(Kind.FAIL, job, lifecycle.Failed({}, after=SOON), policy)
    yield settling(Kind.FAIL_FOR_GOOD, job, lifecycle.Failed({}, final=True), policy)
    yield settling(Kind.HAND_BACK, job, lifecycle.HandedBack(), policy)
    yield settling(Kind.SNOOZE, job, lifecycle.Snoozed(SOON), policy)
    yield act(Kind.CRASH, job, partial(expire, merge=merging(policy)))


def user_events(world: World, job: Job) -> Iterator[Move]:
    """List what a user can do to a job."""
    if job.state in INCOMPLETE and not job.cancel_requested:
        yield act(Kind.CANCEL, job, cancel)
    if job.held_key is not None and job.held_key in world.book.nexts:
        yield act(Kind.CANCEL_BOTH, job, cancel_both)
    if job.state is State.DISCARDED or (job.state is State.CANCELLED and not job.is_superseded):
        yield act(Kind.REPLAY, job, replay)


def act(kind: Kind, job: Job, function: Act) -> Move:
    """Make the move that applies a function to a job."""
    return Move(kind, f"{kind} {job.id}", Step(function, job.id))


def settling(kind: Kind, job: Job, result: lifecycle.Result, policy: Unique) -> Move:
    """Make the move that ends a run."""
    return act(kind, job, partial(settle, token=job.token, result=result, merge=merging(policy)))


# The functions under test are called by their modules, so that a mutant can take their place.


def decide(view: View, *, wanted: Request) -> Changes:
    """Make a request."""
    return cast("Changes", unique.decide(wanted, view))


def replay(view: View) -> Changes:
    """Bring a dead letter back."""
    return cast("Changes", unique.replay(view))


def start(view: View) -> Changes:
    """Lease a job, with a lease that may be lost at any time."""
    return lifecycle.start(view, worker="w", lease=timedelta(0))


def mature(view: View) -> Changes:
    """Make a job available whose time has come."""
    return lifecycle.mature(view)


def settle(view: View, *, token: int, result: lifecycle.Result, merge: lifecycle.Merge) -> Changes:
    """End a run."""
    return lifecycle.settle(view, token=token, result=result, merge=merge)


def expire(view: View, *, merge: lifecycle.Merge) -> Changes:
    """Take a lease back."""
    return lifecycle.expire(view, merge=merge)


def cancel(view: View) -> Changes:
    """Cancel a job."""
    return lifecycle.cancel(view)


def cancel_both(view: View) -> Changes:
    """Cancel a job and the one behind it."""
    return lifecycle.cancel(view, successors=True)


def release(view: View) -> Changes:
    """Free a key, unless its holder runs."""
    return lifecycle.release(view)


def release_by_force(view: View) -> Changes:
    """Free a key."""
    return lifecycle.release(view, force=True)


def continuation(job: Job) -> Job:
    """Make the job that a run asks to follow it; its payload is no request's."""
    args = payload([CONTINUED + max(numbers(job))])
    wanted = Request(
        id=f"{job.chain_id}+{job.chain_index + 1}",
        place=0,
        namespace="",
        task="next",
        queue="default",
        args=args,
        meta=b"{}",
        payload_digest=fingerprint(args, b"{}"),
        priority=0,
        retry=RETRY,
    )
    return unique.make(wanted, EPOCH)


def tick(world: World, policy: Unique) -> Iterator[Move]:
    """Let time pass until something comes due or lapses."""
    moments = [moment for job in world.jobs for moment in moments_of(job) if moment > EPOCH]
    if policy.wait is not None and any(world.left) and any(job.run_at > EPOCH for job in world.jobs):
        moments.append(EPOCH + SOON)
    if moments:
        passed = min(moments) - EPOCH
        label = f"{Kind.TICK} {passed.total_seconds():g}s"
        yield Move(Kind.TICK, label, Step(lambda _view: Changes()), passed=passed)


def moments_of(job: Job) -> Iterator[datetime]:
    """Name the moments at which the passing of time changes what is decided about a job."""
    if job.state in {State.SCHEDULED, State.RETRYABLE}:
        yield job.run_at
    if job.held_key is not None and job.holds_until is not None:
        yield job.holds_until


def merging(policy: Unique) -> lifecycle.Merge:
    """Make the merge that a worker passes to `settle`."""
    return lambda older, newer: unique.merged(older, newer, policy)


RETRY = Retry(attempts=ATTEMPTS, base=BACKOFF, factor=1, jitter=0)


def payload(items: list[int]) -> bytes:
    """Write a payload down."""
    return msgspec.json.encode({"items": items})


@lru_cache(maxsize=None)
def read(args: bytes) -> tuple[int, ...]:
    """Read a payload."""
    return tuple(msgspec.json.decode(args)["items"])


def numbers(job: Job) -> tuple[int, ...]:
    """Name the requests whose payload a job carries."""
    return read(job.args)


# ── the ledger ────────────────────────────────────────────────────────────────────────────────────


class Broken(Exception):
    """An entry of the ledger cannot be made: a promise is broken."""


def account(taken: Taken) -> World:
    """Enter what a step means for every payload that was admitted."""
    world, move, changes = taken.after, taken.move, taken.changes
    if not (changes.updates or changes.inserts):
        return world
    if move.kind in {Kind.CANCEL, Kind.CANCEL_BOTH}:
        ended = {move.step.job_id or ""} | {job.id for job in changes.updates if job.reason == "cancelled"}
        world = msgspec.structs.replace(world, asked=world.asked | ended)
    if move.kind in {Kind.RELEASE, Kind.RELEASE_BY_FORCE} and move.step.key is not None:
        assert taken.view.holder is not None  # release wrote something
        world = left_alone(world, taken.view.holder, move.step.key)
    if taken.admits:
        world = admitted(taken, world)
    if move.kind is Kind.REPLAY and taken.verdict.outcome is Outcome.CREATED:
        world = replayed(taken, world)
    entries = dict(world.entries)
    world = msgspec.structs.replace(world, entries=entries)
    for job in (*changes.updates, *changes.inserts):
        compare(taken, world, taken.before.book.jobs.get(job.id), world.book.jobs[job.id])
    return world


def left_alone(world: World, job: Job, key: bytes) -> World:
    """Note that a chain lost its hold, and that its key has no order any more."""
    return msgspec.structs.replace(
        world, alone=world.alone | {job.chain_id}, unordered=world.unordered | {key}
    )


def admitted(taken: Taken, world: World) -> World:
    """Enter a new payload, and whom it left without a hold or told to stop."""
    wanted, verdict, holder = taken.move.request, taken.verdict, taken.view.holder
    assert wanted is not None  # taken.admits says so
    assert wanted.key is not None  # the explorer's requests all have one
    (number,) = read(wanted.args)
    entry = Entry(number, wanted.key, wanted.version or 0, next_order(world))
    world = msgspec.structs.replace(world, entries=world.entries | {number: entry})
    if holder is None:
        return (
            msgspec.structs.replace(world, unordered=world.unordered | {wanted.key})
            if wanted.force
            else world
        )
    if wanted.force or (verdict.holder is not None and verdict.outcome is Outcome.CREATED):
        world = left_alone(world, holder, wanted.key) if not holder.is_terminal else world
    if world.book.jobs[holder.id].cancel_requested and not holder.cancel_requested:
        world = msgspec.structs.replace(world, told=(*world.told, (holder.id, number)))
    return world


def replayed(taken: Taken, world: World) -> World:
    """Enter a dead letter's payload again, as the newest."""
    job = taken.view.job
    assert job is not None  # there is a verdict
    entries = dict(world.entries)
    for number in numbers(job):
        entries[number] = entries[number]._replace(
            order=next_order(world), withdrawn=False, overwritten_by=None, started=False
        )
    unordered = world.unordered | ({job.key} if job.key else set())
    return msgspec.structs.replace(world, entries=entries, unordered=unordered, asked=world.asked - {job.id})


def next_order(world: World) -> int:
    """Count admissions."""
    return 1 + max((entry.order for entry in world.entries.values()), default=0)


def compare(taken: Taken, world: World, old: Job | None, new: Job) -> None:
    """Enter what happened to one job, into entries that are this step's own."""
    if old is None and new.chain_index:
        (number,) = numbers(new)
        world.entries[number] = world.entries[number % CONTINUED]._replace(
            number=number, started=False, done=False, withdrawn=False, overwritten_by=None
        )
    if old is not None and old.args != new.args:
        overwrite(taken, world, old, new)
    if new.state is State.ACTIVE and (old is None or old.state is not State.ACTIVE):
        for number in numbers(new):
            world.entries[number] = world.entries[number]._replace(started=True)
    if new.is_terminal and (old is None or not old.is_terminal):
        end(taken, world, new)


def overwrite(taken: Taken, world: World, old: Job, new: Job) -> None:
    """Enter that a payload was overwritten in place."""
    gone = set(numbers(old)) - set(numbers(new))
    if old.state is State.ACTIVE or old.is_terminal or old.chain_index:
        raise Broken(f"the payload of {described(old)} was changed")
    if gone and (taken.move.request is None or taken.policy.merge is not None):
        raise Broken(f"the payload {gone} of {old.id} was dropped by: {taken.move.label}")
    for number in gone:
        world.entries[number] = world.entries[number]._replace(overwritten_by=max(numbers(new)))


def end(taken: Taken, world: World, job: Job) -> None:
    """Enter how the payloads of a job ended."""
    for number in numbers(job):
        entry = world.entries[number]
        if job.state is State.COMPLETED:
            entry = entry._replace(done=True)
        elif job.is_superseded:
            entry = superseded(taken, world, job, entry)
        elif job.state is State.CANCELLED and job.id not in world.asked:
            entry = stopped(taken, world, job, entry)
        else:
            entry = entry._replace(withdrawn=True)
        world.entries[number] = entry


def superseded(taken: Taken, world: World, job: Job, entry: Entry) -> Entry:
    """Enter that a newer job took a payload's place; it must be newer, and not withdrawn itself."""
    by = world.book.jobs.get(job.superseded_by or "")
    if by is None:
        raise Broken(f"{job.id} is superseded by {job.superseded_by}, which does not exist")
    if taken.policy.shadow:
        raise Broken(f"{job.id} is superseded under a shadow policy")
    if job.chain_id in world.alone and not taken.policy.version and taken.move.kind is not Kind.REQUEST:
        raise Broken(f"{job.id} was left to run on alone, but ended superseded")
    if entry.number in numbers(by) and by.id != job.id:
        return entry  # merged
    newest = max((world.entries[number] for number in numbers(by)), key=lambda other: other.order)
    if newest.order <= entry.order:
        raise Broken(f"{job.id} is superseded by {by.id}, which is not newer")
    if taken.policy.merge is not None and not job.chain_index:
        raise Broken(f"{job.id} is superseded, but its payload was not merged into {by.id}")
    if fate(world, newest) not in {Fate.LIVE, Fate.DONE}:
        raise Broken(f"{job.id} is superseded by {by.id}, which is itself {fate(world, newest)}")
    return entry._replace(overwritten_by=newest.number)


def stopped(taken: Taken, world: World, job: Job, entry: Entry) -> Entry:
    """Enter that a run ended because a newcomer told it to."""
    teller = dict(world.told).get(job.id)
    if teller is None:
        raise Broken(f"{job.id} ended cancelled, but nobody asked for it")
    if taken.policy.merge is not None and not job.chain_index and entry.number not in carried(world):
        raise Broken(f"{job.id} was told to stop, and its payload was not merged into the one that follows")
    return entry._replace(overwritten_by=teller)


def carried(world: World) -> set[int]:
    """Name the payloads that live jobs carry."""
    return {number for job in world.jobs if job.state in INCOMPLETE for number in numbers(job)}


def fate(world: World, entry: Entry) -> Fate:
    """Follow an admitted payload to where it is now."""
    return follow(world, entry, carried(world))


def follow(world: World, entry: Entry, live: set[int]) -> Fate:
    """Follow an admitted payload to where it is now, given the payloads that are live."""
    if entry.done:
        return Fate.DONE
    if entry.number in live:
        return Fate.LIVE
    if entry.withdrawn:
        return Fate.WITHDRAWN
    if entry.overwritten_by is None:
        return Fate.LOST
    return follow(world, world.entries[entry.overwritten_by], live)


# ── the rules: each yields a sentence for every way in which it is broken ─────────────────────────


Rule = Callable[[Taken], Iterator[str]]


def answers(taken: Taken) -> Iterator[str]:
    """Nothing is undefined: what can happen writes something, and a request is always answered."""
    move, changes = taken.move, taken.changes
    if move.kind in REQUESTS | {Kind.REPLAY}:
        if not isinstance(changes.answer, Verdict):
            yield f"{move.kind} was not answered with a verdict"
    elif move.kind in {Kind.TICK, Kind.RELEASE, Kind.RELEASE_BY_FORCE}:
        return
    elif not changes.updates:
        yield f"{move.kind} changed nothing"


def verdict_matches_writes(taken: Taken) -> Iterator[str]:
    """A duplicate writes no job and names one that exists; an admission writes the job that it names."""
    if taken.move.request is None:
        return
    verdict, changes = taken.verdict, taken.changes
    deduplicated = verdict.outcome in {Outcome.KEPT, Outcome.REJECTED, Outcome.STALE}
    if deduplicated and (changes.updates or changes.inserts or changes.mark):
        yield f"{verdict.outcome} wrote something"
    if (verdict.outcome in INSERTING) != (len(changes.inserts) == 1):
        yield f"{verdict.outcome} inserted {len(changes.inserts)} jobs"
    if verdict.outcome is Outcome.UPDATED and [job.id for job in changes.updates] != [verdict.job.id]:
        yield "updated wrote another job than it names"
    if verdict.job.id not in taken.after.book.jobs:
        yield f"{verdict.outcome} names a job that does not exist"
    if taken.admits and not set(read(taken.move.request.args)) <= set(numbers(verdict.job)):
        yield f"{verdict.outcome} names a job without the request's payload"


def outcome_is_due(taken: Taken) -> Iterator[str]:
    """The outcome is what DESIGN.md §3.2 says for what the request meets."""
    if taken.move.request is None:
        return
    if taken.policy.shadow:
        if taken.verdict.outcome not in {Outcome.CREATED, Outcome.FORCED}:
            yield f"a shadow policy answered {taken.verdict.outcome}"
        return
    if taken.verdict.refusal == "merge":
        yield from merge_refused(taken)
        return
    due = expected(taken.move.request, taken)
    if taken.verdict.outcome is not due:
        yield f"a request was {taken.verdict.outcome}, but should be {due}"


def merge_refused(taken: Taken) -> Iterator[str]:
    """Say it if a merge was refused that is possible."""
    standing = taken.view.successor or taken.view.holder
    if standing is None or taken.policy.merge is None or len(numbers(standing)) < taken.policy.merge_cap:
        yield "a merge was refused without need"


def expected(wanted: Request, taken: Taken) -> Outcome:
    """Read the outcome off the design's tables."""
    policy, view = taken.policy, taken.view
    standing = view.successor or view.holder
    if wanted.force:
        return Outcome.FORCED
    if is_stale(wanted, taken.before):
        return Outcome.STALE
    if standing is None or not (standing is view.successor or alive(standing, policy, view.now)):
        return Outcome.CREATED
    if policy.edges != "first+last" and inside(wanted, view):
        return Outcome.UPDATED if view.successor else Outcome.RERUN
    if view.holder and policy.states is not None and stage(view.holder) not in policy.states:
        return Outcome.CREATED
    if policy.edges == "first+last":
        ahead = standing.state in WAITING and standing.held_at is not None and standing.held_at > view.now
        return Outcome.UPDATED if view.successor or ahead else Outcome.RERUN
    return BY_CONFLICT[situation(standing, view)](policy, standing, wanted, view.now)


def is_stale(wanted: Request, before: World) -> bool:
    """Tell whether a version is older than the newest admitted, or equal to it and not withdrawn."""
    of_key = [e for e in before.entries.values() if e.key == wanted.key and e.number < CONTINUED]
    if wanted.version is None or not of_key:
        return False
    newest = max(of_key, key=lambda entry: entry.order)
    withdrawn = fate(before, newest) is Fate.WITHDRAWN
    return wanted.version < newest.version or (wanted.version == newest.version and not withdrawn)


def stage(job: Job) -> State:
    """Tell the state that counts: a chain that has started is active until it ends."""
    return State.ACTIVE if job.chain_index and not job.is_terminal else job.state


def alive(job: Job, policy: Unique, now: datetime) -> bool:
    """Tell whether a hold is alive."""
    in_window = policy.within is None or (
        job.held_at is not None and now - job.held_at < cast("timedelta", policy.within)
    )
    return stage(job) in policy.held_states and in_window


def inside(wanted: Request, view: View) -> bool:
    """Tell whether a request comes from inside the run that holds its key."""
    holder = view.holder
    return holder is not None and not holder.is_terminal and holder.chain_id == wanted.running_chain


def situation(standing: Job, view: View) -> str:
    """Tell which row of the table applies."""
    if standing is view.successor or stage(standing) in WAITING or stage(standing) is State.RETRYABLE:
        return "waiting"
    return "ended" if standing.is_terminal else "active"


def against_waiting(policy: Unique, standing: Job, wanted: Request, now: datetime) -> Outcome:
    """Read the row of `on_conflict`."""
    if policy.on_conflict == "keep":
        sooner = standing.state is not State.RETRYABLE and standing.run_at > now
        higher = wanted.priority > standing.priority
        return Outcome.UPDATED if policy.bump and (higher or sooner) else Outcome.KEPT
    return {"reject": Outcome.REJECTED, "update": Outcome.UPDATED, "replace": Outcome.REPLACED}[
        policy.on_conflict
    ]


def against_active(policy: Unique, standing: Job, _wanted: Request, _now: datetime) -> Outcome:
    """Read the row of `on_active`; a chain between two jobs has nothing to stop."""
    if policy.while_active == "cancel":
        return Outcome.RERUN if standing.state is State.ACTIVE else Outcome.REPLACED
    return {"keep": Outcome.KEPT, "reject": Outcome.REJECTED, "rerun": Outcome.RERUN}[policy.while_active]


def against_ended(policy: Unique, _standing: Job, _wanted: Request, _now: datetime) -> Outcome:
    """Read the row of the terminal holder."""
    return {"keep": Outcome.KEPT, "reject": Outcome.REJECTED}.get(policy.on_conflict, Outcome.CREATED)


BY_CONFLICT = {"waiting": against_waiting, "active": against_active, "ended": against_ended}


def unheld(job: Job) -> Job:
    """Show a job as it would be without its hold."""
    return scrubbed(alter(job, held_key=None, traits=Trait.NONE))


def terminal_is_final(taken: Taken) -> Iterator[str]:
    """Only a replay leaves a terminal state; others may at most take the hold away."""
    for new in taken.changes.updates:
        old = taken.before.book.jobs.get(new.id)
        if old is not None and old.is_terminal and taken.move.kind is not Kind.REPLAY:
            if unheld(taken.after.book.jobs[new.id]) != unheld(old):
                yield f"{old.id} had ended and was changed"


def tokens_rise(taken: Taken) -> Iterator[str]:
    """Every lease has a higher token, and nothing lowers one."""
    for new in taken.changes.updates:
        old = taken.before.book.jobs.get(new.id)
        rise = taken.move.kind is Kind.START and new.state is State.ACTIVE
        if old is not None and new.token != old.token + rise:
            yield f"the token of {new.id} went from {old.token} to {new.token}"


def starts_in_time(taken: Taken) -> Iterator[str]:
    """A run starts not before its time, and never behind a predecessor."""
    job = taken.view.job
    if taken.move.kind is Kind.START and job is not None and taken.changes.answer is not None:
        if job.run_at > taken.view.now:
            yield f"{job.id} started before its time"
        if job.next_key is not None:
            yield f"{job.id} started while it was a successor"


def newest_runs_last(taken: Taken) -> Iterator[str]:
    """No older payload starts after a newer one of its key has, unless the newer was withdrawn."""
    job, policy, world = taken.view.job, taken.policy, taken.after
    promised = policy.version is not None or policy.on_conflict in {"update", "replace"}
    if taken.move.kind is not Kind.START or job is None or not promised or policy.shadow:
        return
    if taken.changes.answer is None or policy.merge is not None or job.key in world.unordered:
        return
    order = max(world.entries[number].order for number in numbers(job))
    for other in world.entries.values():
        newer = other.key == job.key and other.order > order and other.started
        if newer and fate(taken.before, other) is not Fate.WITHDRAWN:
            yield f"{job.id} started after the newer payload {other.number} had"


def newest_version_stands(taken: Taken) -> Iterator[str]:
    """No version completes after a newer one was admitted and not withdrawn."""
    job, world = taken.view.job, taken.before
    if taken.policy.version is None or taken.policy.shadow or job is None:
        return
    if taken.move.kind not in {Kind.COMPLETE, Kind.CONTINUE}:
        return
    if taken.after.book.jobs[job.id].state is State.COMPLETED:
        own = max((world.entries[number] for number in numbers(job)), key=lambda entry: entry.order)
        for other in world.entries.values():
            newer = other.key == own.key and other.order > own.order and other.version > own.version
            if newer and fate(world, other) is not Fate.WITHDRAWN:
                yield f"{job.id} completed version {own.version} although {other.version} was admitted"


def failure_yields(taken: Taken) -> Iterator[str]:
    """Rule 2b: a failed holder with a successor ends superseded, and that runs when the retry would have."""
    job, successor = taken.view.job, taken.view.successor
    if taken.move.kind not in {Kind.FAIL, Kind.CRASH} or job is None:
        return
    ended = taken.after.book.jobs[job.id]
    if job.held_key is None or successor is None or job.cancel_requested or job.attempt >= ATTEMPTS:
        return
    promoted = taken.after.book.jobs[successor.id]
    if could_not_merge(taken, job, successor):
        if ended.state is not State.RETRYABLE or promoted != successor:
            yield "two payloads that cannot be merged did not stay in order"
        return
    wait = SOON if taken.move.kind is Kind.FAIL else BACKOFF
    if ended.superseded_by != successor.id:
        yield "a failed holder with a successor did not end superseded"
    if promoted.held_key is None or promoted.run_at < taken.view.now + wait:
        yield "the successor does not run when the retry would have"


def could_not_merge(taken: Taken, older: Job, newer: Job) -> bool:
    """Tell whether a merge is asked for and impossible."""
    if taken.policy.merge is None:
        return False
    size = len(set(numbers(older)) | set(numbers(newer)))
    return older.chain_index > 0 or size > taken.policy.merge_cap


def rest_changes_nothing(taken: Taken) -> Iterator[str]:
    """Rule 2b: snooze and hand-back leave holder and successor as they are, and spend no attempt."""
    job = taken.view.job
    if taken.move.kind not in {Kind.HAND_BACK, Kind.SNOOZE} or job is None or job.cancel_requested:
        return
    rested = taken.after.book.jobs[job.id]
    if rested.held_key != job.held_key or rested.attempt != job.attempt - 1:
        yield "a rest changed the hold or spent an attempt"
    if [new.id for new in taken.changes.updates] != [job.id]:
        yield "a rest changed another job"


def hold_outlives_failure(taken: Taken) -> Iterator[str]:
    """Rule 2: retries and lease loss keep the hold."""
    job = taken.view.job
    if taken.move.kind in {Kind.FAIL, Kind.CRASH, Kind.MATURE} and job is not None:
        after = taken.after.book.jobs[job.id]
        if not after.is_terminal and after.held_key != job.held_key:
            yield f"{job.id} lost its hold by {taken.move.kind}"


def start_lets_go(taken: Taken) -> Iterator[str]:
    """Rule 2d: until="start" lets go at the lease; every other policy holds on."""
    job = taken.view.job
    if taken.move.kind is Kind.START and job is not None and taken.changes.answer is not None:
        releases = taken.policy.until == "start"
        if taken.after.book.jobs[job.id].held_key != (None if releases else job.held_key):
            yield f"{job.id} has the wrong hold after its start"


def hold_follows_chain(taken: Taken) -> Iterator[str]:
    """Rule 3: the hold and its window travel to the continuation."""
    job = taken.view.job
    if taken.move.kind is Kind.CONTINUE and job is not None and taken.changes.inserts:
        (following,) = taken.changes.inserts
        if (following.held_key, following.holds_until) != (job.held_key, job.holds_until):
            yield "the hold did not travel to the continuation"


def force_leaves_the_old_alone(taken: Taken) -> Iterator[str]:
    """Rule 5: after a force the older job runs on, only without its hold."""
    holder = taken.view.holder
    if taken.move.kind is Kind.FORCE and taken.admits and holder is not None:
        after = taken.after.book.jobs[holder.id]
        if after.held_key is not None or unheld(after) != unheld(holder):
            yield "a force did more to the older job than take its hold"


def replay_is_judged_as_keep(taken: Taken) -> Iterator[str]:
    """Rule 5: a replay is created, kept or stale; the last two leave the letter where it is."""
    if taken.move.kind is Kind.REPLAY:
        created = taken.verdict.outcome is Outcome.CREATED
        if taken.verdict.outcome not in {Outcome.CREATED, Outcome.KEPT, Outcome.STALE}:
            yield f"a replay was {taken.verdict.outcome}"
        if created != bool(taken.changes.updates):
            yield f"a replay that was {taken.verdict.outcome} wrote {len(taken.changes.updates)} jobs"


def promoted_in_turn(taken: Taken) -> Iterator[str]:
    """A successor gets in only when the holder before it has ended, or was released by hand."""
    successor, holder = taken.view.successor, taken.view.holder
    if successor is None or holder is None or taken.move.kind in {Kind.RELEASE, Kind.RELEASE_BY_FORCE}:
        return
    after = taken.after.book.jobs[successor.id]
    if after.next_key is None and not after.is_terminal and not taken.after.book.jobs[holder.id].is_terminal:
        yield f"{successor.id} was promoted while {holder.id} had not ended"


def discarded_for_a_reason(taken: Taken) -> Iterator[str]:
    """A job is a dead letter only after its last attempt, or when the handler says so."""
    job = taken.view.job
    if job is not None and taken.after.book.jobs[job.id].state is State.DISCARDED and not job.is_terminal:
        last = taken.move.kind in {Kind.FAIL, Kind.CRASH} and job.attempt >= ATTEMPTS
        if not last and taken.move.kind is not Kind.FAIL_FOR_GOOD:
            yield f"{job.id} was discarded by {taken.move.kind}"


def trailing_waits(taken: Taken) -> Iterator[str]:
    """A throttled request runs at the window's end."""
    holder = taken.view.holder
    if taken.move.kind is Kind.REQUEST and taken.admits and taken.policy.edges == "first+last":
        throttled = taken.verdict.outcome is Outcome.RERUN
        if throttled and (holder is None or taken.verdict.job.run_at < (holder.holds_until or EPOCH)):
            yield "a throttled request does not wait for the window's end"


def debounce_waits(taken: Taken) -> Iterator[str]:
    """A debounced job runs at min(now + wait, first request + max_wait)."""
    policy, job = taken.policy, taken.admits and taken.verdict.job
    if policy.wait is None or not job or job.state is State.RETRYABLE:
        return
    due = taken.view.now + cast("timedelta", policy.wait)
    if policy.max_wait is not None:
        due = min(due, job.created_at + cast("timedelta", policy.max_wait))
    if job.run_at != due and job.attempt == 0:
        yield f"a debounced job runs at {job.run_at}, not at {due}"


def nothing_is_lost(taken: Taken) -> Iterator[str]:
    """Every admitted payload is live, done, withdrawn, or overwritten by a newer one of which that is true."""
    live = carried(taken.after)
    for entry in taken.after.entries.values():
        if follow(taken.after, entry, live) is Fate.LOST:
            yield f"payload {entry.number} is lost"


def one_holder(taken: Taken) -> Iterator[str]:
    """A key has at most one holder and one successor."""
    for field in ("held_key", "next_key"):
        keys = Counter(getattr(job, field) for job in taken.after.jobs)
        for key, times in keys.items():
            if key is not None and times > 1:
                yield f"{times} jobs have the {field} {key!r}"


def nobody_is_stuck(taken: Taken) -> Iterator[str]:
    """Whoever waits behind a job waits behind one that can still end."""
    book = taken.after.book
    for job in taken.after.jobs:
        if (job.state is State.PENDING) != (job.next_key is not None):
            yield f"{job.id} is {job.state} with next_key {job.next_key!r}"
        if job.next_key is not None:
            holder = book.jobs.get(book.held.get(job.next_key, ""))
            if holder is None or holder.is_terminal or holder is job:
                yield f"{job.id} waits behind nobody"


def holds_are_due(taken: Taken) -> Iterator[str]:
    """An ended job holds its key only if its policy says so."""
    for job in taken.after.jobs:
        if job.held_key is not None and job.is_terminal:
            if job.state not in taken.policy.held_states or job.is_superseded:
                yield f"{job.id} is {job.state} and still holds its key"


def attempts_in_budget(taken: Taken) -> Iterator[str]:
    """The attempt is between nothing and the budget."""
    for job in taken.after.jobs:
        if not 0 <= job.attempt <= ATTEMPTS:
            yield f"{job.id} is at attempt {job.attempt} of {ATTEMPTS}"


def late_settlers_are_refused(taken: Taken) -> Iterator[str]:
    """A worker that lost its lease writes nothing."""
    for job in taken.after.jobs:
        old = job.token - (job.state is State.ACTIVE)
        if old > 0:
            view = taken.after.book.view(Step(lambda _view: Changes(), job.id), EPOCH)
            late = lifecycle.settle(view, token=old, result=lifecycle.Completed(b"null"))
            if late.answer is not None or late.updates or late.inserts or late.mark:
                yield f"a late completion of {job.id} was taken"


STEP_RULES: tuple[Rule, ...] = (
    answers,
    verdict_matches_writes,
    outcome_is_due,
    terminal_is_final,
    tokens_rise,
    starts_in_time,
    newest_runs_last,
    newest_version_stands,
    failure_yields,
    rest_changes_nothing,
    hold_outlives_failure,
    start_lets_go,
    hold_follows_chain,
    force_leaves_the_old_alone,
    replay_is_judged_as_keep,
    promoted_in_turn,
    discarded_for_a_reason,
    trailing_waits,
    debounce_waits,
)
WORLD_RULES: tuple[Rule, ...] = (
    nothing_is_lost,
    one_holder,
    nobody_is_stuck,
    holds_are_due,
    attempts_in_budget,
    late_settlers_are_refused,
)
