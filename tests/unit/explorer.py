"""Every order of events within small bounds, breadth first, over the real decisions.

A World is what a store would hold, plus a ledger of what was promised to whom. A Move is one atomic step:
a request, a worker's act, a user's act, or the passing of time. `explore` makes every move in every world,
checks each step and each world against DESIGN.md §3, and raises Refuted with the shortest way to break it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from onejob.core import decide as decisions
from onejob.core import manual, replay, runs
from onejob.core.decide import Request, Verdict
from onejob.core.job import EPOCH, INCOMPLETE, Job, State, alter, fingerprint
from onejob.core.policy import Unique
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.errors import InvalidCall
from onejob.stores.working_copy import WorkingCopy
from tests.unit.explorer_ledger import Broken, account
from tests.unit.explorer_rules import STEP_RULES, WORLD_RULES, Rule
from tests.unit.explorer_world import (
    CONTINUED,
    EVENTS,
    KEYS,
    RETRY,
    SOON,
    TASKS,
    WORKERS,
    Bounds,
    Kind,
    Move,
    Taken,
    World,
    described,
    later,
    numbers,
    payload,
    scrubbed,
)


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
    first = World(WorkingCopy(), bounds.requests, bounds.events, {})
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
    changes: Changes[Any]


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


def take(world: World, move: Move, policy: Unique) -> tuple[Taken, str | None]:
    """Make a move and say which rule it breaks, if any."""
    view = world.book.view(move.step, EPOCH)
    changes, broken = NO_CHANGES, None
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


def succeed(world: World, move: Move, changes: Changes[Any]) -> World:
    """Write what a step asks for into a copy of the world."""
    left = list(world.left)
    if move.request is not None and move.request.job.key is not None:
        left[KEYS.index(move.request.job.key)] -= 1
    events = world.events - (move.kind in EVENTS)
    book = world.book
    if move.passed:
        changes = Changes(None, updates=tuple(later(job, move.passed) for job in world.jobs))
    if changes.updates or changes.inserts or changes.mark:
        book = copied(book)
        book.write(
            Changes(
                None,
                updates=tuple(map(scrubbed, changes.updates)),
                inserts=tuple(map(scrubbed, changes.inserts)),
                mark=changes.mark and msgspec.structs.replace(changes.mark, touched_at=EPOCH),
            )
        )
    return msgspec.structs.replace(world, book=book, left=tuple(left), events=events)


def copied(book: WorkingCopy) -> WorkingCopy:
    """Copy what a book holds; jobs and marks are values."""
    copy = WorkingCopy()
    for name in WorkingCopy.__slots__:
        setattr(copy, name, dict(getattr(book, name)))
    return copy


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
        for task in tasks(policy) if left else ():
            yield request(world, policy, key, Kind.REQUEST, newest_version(world, key) + 1, task)
    busy = sum(job.state is State.ACTIVE for job in world.jobs) >= WORKERS
    for job in world.jobs:
        if job.state is State.AVAILABLE and not busy:
            yield act(Kind.START, job, start)
        elif job.state is State.ACTIVE:
            yield settling(Kind.COMPLETE, job, runs.Completed(b"null"), policy)
            if job.cancel_requested:
                yield settling(Kind.STOP, job, runs.Stopped("cancelled"), policy)
        elif job.state in {State.SCHEDULED, State.RETRYABLE} and job.run_at <= EPOCH:
            yield act(Kind.MATURE, job, mature)
    yield from tick(world, policy)


def events(world: World, policy: Unique) -> Iterator[Move]:
    """List what the bounds count."""
    for key, left in zip(KEYS, world.left, strict=False):
        if left:
            yield from odd_requests(world, policy, key)
        if key in world.book.holders:
            yield Move(Kind.RELEASE, f"release {key.decode()}", Step(release, key=key))
            yield Move(
                Kind.RELEASE_BY_FORCE, f"release {key.decode()} by force", Step(release_by_force, key=key)
            )
    for job in world.jobs:
        if job.state is State.ACTIVE:
            yield from run_events(job, policy)
        yield from user_events(world, job)


def newest_version(world: World, key: bytes) -> int:
    """Return the highest version that was admitted."""
    return max((entry.version for entry in world.entries.values() if entry.key == key), default=0)


def odd_requests(world: World, policy: Unique, key: bytes) -> Iterator[Move]:
    """List the requests for a key that are not plain ones with the next version."""
    newest = newest_version(world, key)
    for task in tasks(policy):
        yield request(world, policy, key, Kind.FORCE, newest + 1, task)
        if policy.version is not None and newest:
            yield request(world, policy, key, Kind.OLDER, newest - 1, task)
            yield request(world, policy, key, Kind.EQUAL, newest, task)
        for job in world.jobs:
            if job.state is State.ACTIVE and job.key == key:
                yield request(world, policy, key, Kind.INSIDE, newest + 1, task, job.chain_id)


def tasks(policy: Unique) -> tuple[str, ...]:
    """Name the tasks whose requests share a key."""
    return TASKS if policy.family is not None else TASKS[:1]


def request(
    world: World,
    policy: Unique,
    key: bytes,
    kind: Kind,
    version: int,
    task: str,
    inside: str | None = None,
) -> Move:
    """Make the next request of a task; its number is its payload."""
    number = 1 + sum(entry.number < CONTINUED for entry in world.entries.values())
    args = payload([number])
    job = alter(
        asked(f"job{number}-{key.decode()}", task, args),
        place=number,
        priority=number if policy.bump else 0,
        key=key,
        version=version if policy.version is not None else None,
    )
    wanted = Request(job, policy, force=kind is Kind.FORCE, running_chain=inside)
    if "time" in policy.fields:
        wanted = msgspec.structs.replace(wanted, delay=SOON * (number - 1))
    where = f" {inside}" if inside else ""
    what = f" as version {version}" if policy.version is not None else ""
    what += f" of {task}" if policy.family is not None else ""
    label = f"{kind}{where} for {key.decode()} with payload {number}{what}"
    return Move(kind, label, Step(partial(decide, wanted=wanted), key=key), wanted)


def run_events(job: Job, policy: Unique) -> Iterator[Move]:
    """List how a run can end otherwise than well."""
    yield settling(Kind.CONTINUE, job, runs.Completed(b"null", continuation(job)), policy)
    yield settling(Kind.FAIL, job, runs.Failed({}, after=SOON), policy)
    yield settling(Kind.FAIL_FOR_GOOD, job, runs.Failed({}, final=True), policy)
    yield settling(Kind.HAND_BACK, job, runs.HandedBack(), policy)
    yield settling(Kind.SNOOZE, job, runs.Snoozed(SOON), policy)
    yield act(Kind.CRASH, job, partial(expire, merge=merging(policy)))


def user_events(world: World, job: Job) -> Iterator[Move]:
    """List what a user can do to a job."""
    if job.state in INCOMPLETE and not job.cancel_requested:
        yield act(Kind.CANCEL, job, cancel)
    if job.is_holder and job.key in world.book.successors:
        yield act(Kind.CANCEL_BOTH, job, cancel_both)
    if job.state is State.DISCARDED or (job.state is State.CANCELLED and not job.is_superseded):
        yield act(Kind.REPLAY, job, bring_back)


def act(kind: Kind, job: Job, function: Callable[[View], Changes[Any]]) -> Move:
    """Make the move that applies a function to a job."""
    return Move(kind, f"{kind} {job.id}", Step(function, job.id))


def settling(kind: Kind, job: Job, result: runs.Result, policy: Unique) -> Move:
    """Make the move that ends a run."""
    return act(kind, job, partial(settle, token=job.token, result=result, merge=merging(policy)))


# The functions under test are called by their modules, so that a mutant can take their place.


def decide(view: View, *, wanted: Request) -> Changes[Any]:
    """Make a request."""
    return decisions.decide(wanted, view)


def bring_back(view: View) -> Changes[Any]:
    """Replay a dead letter."""
    return replay.replay(view)


def start(view: View) -> Changes[Any]:
    """Lease a job, with a lease that may be lost at any time."""
    return runs.start(view, worker="w", lease=timedelta(0))


def mature(view: View) -> Changes[Any]:
    """Make a job available whose time has come."""
    return runs.mature(view)


def settle(view: View, *, token: int, result: runs.Result, merge: runs.Merge) -> Changes[Any]:
    """End a run."""
    return runs.settle(view, token=token, result=result, merge=merge)


def expire(view: View, *, merge: runs.Merge) -> Changes[Any]:
    """Take a lease back."""
    return runs.expire(view, merge=merge)


def cancel(view: View) -> Changes[Any]:
    """Cancel a job."""
    return manual.cancel(view)


def cancel_both(view: View) -> Changes[Any]:
    """Cancel a job and the one behind it."""
    return manual.cancel(view, successors=True)


def release(view: View) -> Changes[Any]:
    """Free a key, unless its holder runs."""
    try:
        return manual.release(view)
    except InvalidCall:  # its holder is running: nothing happens
        return NO_CHANGES


def release_by_force(view: View) -> Changes[Any]:
    """Free a key."""
    return manual.release(view, force=True)


def continuation(job: Job) -> Job:
    """Make the job that a run asks to follow it; its payload is no request's."""
    args = payload([CONTINUED + max(numbers(job))])
    wanted = asked(f"{job.chain_id}+{job.chain_index + 1}", "next", args)
    return decisions.make(Request(wanted), EPOCH)


def asked(job_id: str, task: str, args: bytes) -> Job:
    """Make a job as a request asks for it."""
    return Job(
        id=job_id,
        namespace="",
        task=task,
        queue="default",
        state=State.AVAILABLE,
        priority=0,
        run_at=EPOCH,
        place=0,
        created_at=EPOCH,
        args=args,
        meta=b"{}",
        payload_digest=fingerprint(args, b"{}"),
        retry=RETRY,
        chain_id=job_id,
    )


def tick(world: World, policy: Unique) -> Iterator[Move]:
    """Let time pass until something comes due or lapses."""
    moments = [moment for job in world.jobs for moment in moments_of(job) if moment > EPOCH]
    if policy.wait is not None and any(world.left) and any(job.run_at > EPOCH for job in world.jobs):
        moments.append(EPOCH + SOON)
    if moments:
        passed = min(moments) - EPOCH
        label = f"{Kind.TICK} {passed.total_seconds():g}s"
        yield Move(Kind.TICK, label, Step(lambda _view: NO_CHANGES), passed=passed)


def moments_of(job: Job) -> Iterator[datetime]:
    """Name the moments at which the passing of time changes what is decided about a job."""
    if job.state in {State.SCHEDULED, State.RETRYABLE}:
        yield job.run_at
    if job.is_holder and job.holds_until is not None:
        yield job.holds_until


def merging(policy: Unique) -> runs.Merge:
    """Make the merge that a worker passes to `settle`."""
    return lambda older, newer: decisions.merge_payloads(older, newer, policy)
