"""Every order of events within small bounds, breadth first, over the real decisions.

A World is what a store would hold, plus a ledger of what was promised to whom. A Move is one atomic step:
a request, a worker's act, a user's act, or the passing of time. `explore` makes every move in every world,
checks each step and each world against DESIGN.md §3, and raises Refuted with the shortest way to a broken one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import msgspec

from onejob import lifecycle, unique
from onejob.errors import MergeFailed, OnejobError
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
from onejob.unique import Outcome, Request, Unique, Verdict

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


@dataclass(frozen=True, slots=True)
class World:
    """What a store holds at one moment, and the ledger of what it owes."""

    now: datetime
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
            self.now,
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
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """One step as it was made: what it saw, what it wrote, what it answered."""

    move: Move
    policy: Unique
    before: World
    view: View
    changes: Changes
    refusal: OnejobError | None
    after: World

    @property
    def verdict(self) -> Verdict:
        """The answer to a request or a replay."""
        return cast("Verdict", self.changes.answer)

    @property
    def admits(self) -> bool:
        """Whether a request's payload was taken in."""
        if self.move.request is None or self.refusal is not None:
            return False
        bumped = self.policy.bump and self.verdict.outcome is Outcome.UPDATED
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
        name: value
        for name, value in vars(policy).items()
        if value != getattr(plain, name) and name not in {"by", "key"}
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
    first = World(EPOCH, Book(), bounds.requests, bounds.events, {})
    parents: dict[Hashable, tuple[Hashable, str] | None] = {first.identity(): None}
    layer = [(first, first.identity())]
    count = 0
    while layer:
        following: list[tuple[World, Hashable]] = []
        for world, identity in layer:
            for move in moves(world, policy, bounds):
                count += 1
                taken, broken = take(world, move, policy)
                if broken is not None:
                    raise Refuted(broken, [*trace(parents, identity), told(taken)], policy)
                reached = taken.after.identity()
                if reached not in parents:
                    parents[reached] = (identity, told(taken))
                    following.append((taken.after, reached))
        layer = following
    return Report(len(parents), count)


def trace(parents: dict[Hashable, tuple[Hashable, str] | None], identity: Hashable) -> list[str]:
    """Walk back to the first world."""
    labels: list[str] = []
    while (parent := parents[identity]) is not None:
        identity, label = parent
        labels.append(label)
    return labels[::-1]


def told(taken: Taken) -> str:
    """Say what a move was and what it changed."""
    answer = taken.changes.answer
    outcome = f" → {answer.outcome}" if isinstance(answer, Verdict) else ""
    refused = f" → {type(taken.refusal).__name__}" if taken.refusal else ""
    written = ", ".join(described(job) for job in (*taken.changes.updates, *taken.changes.inserts))
    return f"{taken.move.label}{outcome}{refused}  [{written}]"


def described(job: Job) -> str:
    """Say in a few words how a job stands."""
    role = " holds" if job.held_key else " waits behind" if job.next_key else ""
    by = f" by {job.superseded_by}" if job.superseded_by else ""
    return f"{job.id}{list(numbers(job))} {job.state}{by}{role}"


def take(world: World, move: Move, policy: Unique) -> tuple[Taken, str | None]:
    """Make a move and say which rule it breaks, if any."""
    now = move.until or world.now
    view = world.book.view(move.step, now)
    changes, refusal, broken = Changes(), None, None
    try:
        changes = move.step.act(view)
    except MergeFailed as error:
        refusal = error
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
        broken = f"{move.kind} raised {type(error).__name__}: {error}"
    after = succeed(world, move, changes, now)
    taken = Taken(move, policy, world, view, changes, refusal, after)
    if broken is not None:
        return taken, broken
    try:
        taken = replace(taken, after=account(taken))
    except Broken as rule:
        return taken, str(rule)
    rules = (*STEP_RULES, *WORLD_RULES)
    return taken, next((broken for rule in rules for broken in rule(taken)), None)


def succeed(world: World, move: Move, changes: Changes, now: datetime) -> World:
    """Write what a step asks for into a copy of the world."""
    left = list(world.left)
    if move.request is not None and move.request.key is not None:
        left[KEYS.index(move.request.key)] -= 1
    events = world.events - (move.kind in EVENTS)
    if not (changes.updates or changes.inserts or changes.mark):
        return replace(world, now=now, left=tuple(left), events=events)
    book = Book()
    for name in Book.__slots__:
        setattr(book, name, dict(getattr(world.book, name)))
    book.write(
        Changes(
            updates=tuple(map(scrubbed, changes.updates)),
            inserts=tuple(map(scrubbed, changes.inserts)),
            mark=changes.mark and msgspec.structs.replace(changes.mark, touched_at=EPOCH),
        )
    )
    return replace(world, now=now, book=book, left=tuple(left), events=events)


def scrubbed(job: Job) -> Job:
    """Forget what no decision reads, so that more worlds are the same."""
    return alter(
        job, errors=b"[]", started_at=None, finished_at=None, lease_until=job.lease_until and EPOCH, worker=None
    )


# ── what can happen ───────────────────────────────────────────────────────────────────────────────


def moves(world: World, policy: Unique, bounds: Bounds) -> Iterator[Move]:
    """List all that can happen next."""
    for kind, made in all_moves(world, policy):
        if kind in NATURAL or (world.events and kind in bounds.kinds):
            yield from made


def all_moves(world: World, policy: Unique) -> Iterator[tuple[Kind, Iterable[Move]]]:
    """List all that can happen next by kind, whether the bounds allow it or not."""
    for place, key in enumerate(KEYS[: len(world.left)]):
        if world.left[place]:
            yield from request_moves(world, policy, key)
        yield from release_moves(world, key)
    busy = sum(job.state is State.ACTIVE for job in world.jobs) >= WORKERS
    for job in world.jobs:
        yield from job_moves(world, policy, job, busy=busy)
    yield Kind.TICK, tick(world, policy)


def request_moves(world: World, policy: Unique, key: bytes) -> Iterator[tuple[Kind, Iterable[Move]]]:
    """List the requests that can come for a key."""
    newest = max((e.version for e in world.entries.values() if e.key == key), default=0)
    yield Kind.REQUEST, [request(world, policy, key, Kind.REQUEST, newest + 1)]
    yield Kind.FORCE, [request(world, policy, key, Kind.FORCE, newest + 1)]
    if policy.version is not None and newest:
        yield Kind.OLDER, [request(world, policy, key, Kind.OLDER, newest - 1)]
        yield Kind.EQUAL, [request(world, policy, key, Kind.EQUAL, newest)]
    for job in world.jobs:
        if job.state is State.ACTIVE and job.key == key:
            yield Kind.INSIDE, [request(world, policy, key, Kind.INSIDE, newest + 1, job.chain_id)]


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
    return Move(kind, label, Step(partial(unique_decide, wanted), key=key), wanted)


def unique_decide(wanted: Request, view: View) -> Changes:
    """Call the function under test by its module, so that a mutant can take its place."""
    return unique.decide(wanted, view)


def job_moves(world: World, policy: Unique, job: Job, *, busy: bool) -> Iterator[tuple[Kind, Iterable[Move]]]:
    """List what can happen to a job."""
    if job.state is State.AVAILABLE and not busy:
        yield act(Kind.START, job, lambda view: lifecycle.start(view, worker="w", lease=timedelta(0)))
    if job.state in {State.SCHEDULED, State.RETRYABLE} and job.run_at <= world.now:
        yield act(Kind.MATURE, job, lambda view: lifecycle.mature(view))
    if job.state is State.ACTIVE:
        yield from run_moves(world, policy, job)
    if job.state in INCOMPLETE and not job.cancel_requested:
        yield act(Kind.CANCEL, job, lambda view: lifecycle.cancel(view))
    if job.held_key is not None and job.held_key in world.book.nexts and not job.is_terminal:
        yield act(Kind.CANCEL_BOTH, job, lambda view: lifecycle.cancel(view, successors=True))
    if job.state is State.DISCARDED or (job.state is State.CANCELLED and not job.is_superseded):
        yield act(Kind.REPLAY, job, lambda view: unique.replay(view))


def run_moves(world: World, policy: Unique, job: Job) -> Iterator[tuple[Kind, Iterable[Move]]]:
    """List how a run can end."""
    merge = merging(policy)
    results: list[tuple[Kind, lifecycle.Result]] = [
        (Kind.COMPLETE, lifecycle.Completed(b"null")),
        (Kind.CONTINUE, lifecycle.Completed(b"null", continuation(world, job))),
        (Kind.FAIL, lifecycle.Failed({}, after=SOON)),
        (Kind.FAIL_FOR_GOOD, lifecycle.Failed({}, final=True)),
        (Kind.HAND_BACK, lifecycle.HandedBack()),
        (Kind.SNOOZE, lifecycle.Snoozed(SOON)),
    ]
    if job.cancel_requested:
        results.append((Kind.STOP, lifecycle.Stopped("cancelled")))
    for kind, result in results:
        yield act(kind, job, partial(settle, token=job.token, result=result, merge=merge))
    yield act(Kind.CRASH, job, lambda view: lifecycle.expire(view, merge=merge))


def settle(view: View, *, token: int, result: lifecycle.Result, merge: lifecycle.Merge) -> Changes:
    """Call the function under test by its module, so that a mutant can take its place."""
    return lifecycle.settle(view, token=token, result=result, merge=merge)


def act(kind: Kind, job: Job, function: Act) -> tuple[Kind, list[Move]]:
    """Make the move that applies a function to a job."""
    return kind, [Move(kind, f"{kind} {job.id}", Step(function, job.id))]


def continuation(world: World, job: Job) -> Job:
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
    return unique.make(wanted, world.now)


def release_moves(world: World, key: bytes) -> Iterator[tuple[Kind, Iterable[Move]]]:
    """List how a key can be freed by hand."""
    if key in world.book.held:
        for kind, force in ((Kind.RELEASE, False), (Kind.RELEASE_BY_FORCE, True)):
            step = Step(partial(lifecycle.release, force=force), key=key)
            yield kind, [Move(kind, f"{kind} {key.decode()}", step)]


def tick(world: World, policy: Unique) -> Iterator[Move]:
    """Let time pass until something comes due or lapses."""
    moments = [moment for job in world.jobs for moment in moments_of(job, policy) if moment > world.now]
    if policy.wait is not None and any(world.left) and any(job.state in WAITING for job in world.jobs):
        moments.append(world.now + SOON)
    if moments:
        until = min(moments)
        label = f"{Kind.TICK} to {(until - EPOCH).total_seconds():g}s"
        yield Move(Kind.TICK, label, Step(lambda _view: Changes()), until=until)


def moments_of(job: Job, policy: Unique) -> Iterator[datetime]:
    """Name the moments at which the passing of time changes what is decided about a job."""
    if job.state in {State.SCHEDULED, State.RETRYABLE}:
        yield job.run_at
    if job.held_key is not None and job.holds_until is not None:
        yield job.holds_until
    if job.next_key is not None and policy.within is not None:
        yield job.created_at + cast("timedelta", policy.within)


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
        world = replace(world, asked=world.asked | ended)
    if move.kind in {Kind.RELEASE, Kind.RELEASE_BY_FORCE} and move.step.key is not None:
        assert taken.view.holder is not None  # release wrote something
        world = left_alone(world, taken.view.holder, move.step.key)
    if taken.admits:
        world = admitted(taken, world)
    if move.kind is Kind.REPLAY and taken.verdict.outcome is Outcome.CREATED:
        world = replayed(taken, world)
    entries = dict(world.entries)
    world = replace(world, entries=entries)
    for job in (*changes.updates, *changes.inserts):
        compare(taken, world, taken.before.book.jobs.get(job.id), world.book.jobs[job.id])
    return world


def left_alone(world: World, job: Job, key: bytes) -> World:
    """Note that a chain lost its hold, and that its key has no order any more."""
    return replace(world, alone=world.alone | {job.chain_id}, unordered=world.unordered | {key})


def admitted(taken: Taken, world: World) -> World:
    """Enter a new payload, and whom it left without a hold or told to stop."""
    wanted, verdict, holder = taken.move.request, taken.verdict, taken.view.holder
    assert wanted is not None  # taken.admits says so
    assert wanted.key is not None  # the explorer's requests all have one
    (number,) = read(wanted.args)
    entry = Entry(number, wanted.key, wanted.version or 0, next_order(world))
    world = replace(world, entries=world.entries | {number: entry})
    if holder is None:
        return replace(world, unordered=world.unordered | {wanted.key}) if wanted.force else world
    if wanted.force or (verdict.holder is not None and verdict.outcome is Outcome.CREATED):
        world = left_alone(world, holder, wanted.key) if not holder.is_terminal else world
    if world.book.jobs[holder.id].cancel_requested and not holder.cancel_requested:
        world = replace(world, told=(*world.told, (holder.id, number)))
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
    return replace(world, entries=entries, unordered=unordered, asked=world.asked - {job.id})


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
    live = carried(world)
    while True:
        if entry.done:
            return Fate.DONE
        if entry.number in live:
            return Fate.LIVE
        if entry.withdrawn:
            return Fate.WITHDRAWN
        if entry.overwritten_by is None:
            return Fate.LOST
        entry = world.entries[entry.overwritten_by]


# ── the rules: each yields a sentence for every way in which it is broken ─────────────────────────


Rule = Callable[[Taken], Iterator[str]]


def answers(taken: Taken) -> Iterator[str]:
    """Nothing is undefined: what can happen writes something, and a request is always answered."""
    move, changes = taken.move, taken.changes
    if move.kind in REQUESTS | {Kind.REPLAY} and taken.refusal is None:
        if not isinstance(changes.answer, Verdict):
            yield f"{move.kind} was not answered with a verdict"
    elif move.kind in {Kind.TICK, Kind.RELEASE, Kind.RELEASE_BY_FORCE}:
        return
    elif not changes.updates and taken.refusal is None:
        yield f"{move.kind} changed nothing"


def verdict_matches_writes(taken: Taken) -> Iterator[str]:
    """A duplicate writes no job and names one that exists; an admission writes the job that it names."""
    if taken.move.request is None or taken.refusal is not None:
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
    if taken.move.request is None or taken.refusal is not None:
        return
    due = expected(taken.move.request, taken)
    got = taken.verdict.shadow or taken.verdict.outcome
    if got is not due:
        yield f"a request was {got}, but should be {due}"
    if taken.policy.shadow and taken.verdict.outcome not in {Outcome.CREATED, Outcome.FORCED}:
        yield f"a shadow policy answered {taken.verdict.outcome}"


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
    if view.holder and view.holder.chain_id == wanted.running_chain and not view.holder.is_terminal:
        return Outcome.UPDATED if view.successor else Outcome.RERUN
    if view.successor and out_of_range(view, policy):
        return Outcome.CREATED
    if policy.edges == "first+last":
        ahead = standing.held_at is not None and standing.held_at > view.now
        return Outcome.UPDATED if view.successor or ahead else Outcome.RERUN
    return BY_CONFLICT[situation(standing, view)](policy, standing, wanted)


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


def out_of_range(view: View, policy: Unique) -> bool:
    """Tell whether the newcomer's own states or window exclude a key with a successor."""
    assert view.holder is not None  # a successor waits behind somebody
    assert view.successor is not None  # as the caller says
    age = view.now - view.successor.created_at
    if policy.states is not None and stage(view.holder) not in policy.states:
        return True
    return policy.within is not None and age >= cast("timedelta", policy.within)


def situation(standing: Job, view: View) -> str:
    """Tell which row of the table applies."""
    if standing is view.successor or stage(standing) in WAITING or stage(standing) is State.RETRYABLE:
        return "waiting"
    return "ended" if standing.is_terminal else "active"


def against_waiting(policy: Unique, standing: Job, wanted: Request) -> Outcome:
    """Read the row of `on_conflict`."""
    if policy.on_conflict == "keep":
        return Outcome.UPDATED if policy.bump and wanted.priority > standing.priority else Outcome.KEPT
    return {"reject": Outcome.REJECTED, "update": Outcome.UPDATED, "replace": Outcome.REPLACED}[
        policy.on_conflict
    ]


def against_active(policy: Unique, standing: Job, _wanted: Request) -> Outcome:
    """Read the row of `on_active`; a chain between two jobs has nothing to stop."""
    if policy.while_active == "cancel":
        return Outcome.RERUN if standing.state is State.ACTIVE else Outcome.REPLACED
    return {"keep": Outcome.KEPT, "reject": Outcome.REJECTED, "rerun": Outcome.RERUN}[policy.while_active]


def against_ended(policy: Unique, _standing: Job, _wanted: Request) -> Outcome:
    """Read the row of the terminal holder."""
    return {"keep": Outcome.KEPT, "reject": Outcome.REJECTED}.get(policy.on_conflict, Outcome.CREATED)


BY_CONFLICT = {"waiting": against_waiting, "active": against_active, "ended": against_ended}


def terminal_is_final(taken: Taken) -> Iterator[str]:
    """Only a replay leaves a terminal state; others may at most take the hold away."""
    for new in taken.changes.updates:
        old = taken.before.book.jobs.get(new.id)
        if old is not None and old.is_terminal and taken.move.kind is not Kind.REPLAY:
            kept = alter(taken.after.book.jobs[new.id], held_key=old.held_key, traits=old.traits)
            if kept != old:
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
    if taken.move.kind is Kind.FORCE and holder is not None:
        after = taken.after.book.jobs[holder.id]
        if alter(after, held_key=holder.held_key, traits=holder.traits) != holder or after.held_key:
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
    for entry in taken.after.entries.values():
        if fate(taken.after, entry) is Fate.LOST:
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
            view = taken.after.book.view(Step(lambda _view: Changes(), job.id), taken.after.now)
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
