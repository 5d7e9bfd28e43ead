"""The explorer's ledger: what every step means for the payloads that were admitted."""

from __future__ import annotations

import msgspec

from onejob.core.decide import Outcome
from onejob.core.job import INCOMPLETE, Job, State
from tests.unit.explorer_world import CONTINUED, Entry, Fate, Kind, Taken, World, described, numbers, read


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
    key = wanted.job.key
    assert key is not None  # the explorer's requests all have one
    (number,) = read(wanted.job.args)
    entry = Entry(number, key, wanted.job.version or 0, next_order(world), wanted.job.task)
    world = msgspec.structs.replace(world, entries=world.entries | {number: entry})
    if holder is None:
        return msgspec.structs.replace(world, unordered=world.unordered | {key}) if wanted.force else world
    if wanted.force or (verdict.holder is not None and verdict.outcome is Outcome.CREATED):
        world = left_alone(world, holder, key) if not holder.is_terminal else world
    if world.book.jobs[holder.id].cancel_requested and not holder.cancel_requested:
        world = msgspec.structs.replace(world, told=(*world.told, (holder.id, number)))
    return world


def replayed(taken: Taken, world: World) -> World:
    """Enter a dead letter's payload again; its version is the newest then, its place in the order is not."""
    job = taken.view.job
    assert job is not None  # there is a verdict
    entries = dict(world.entries)
    for number in numbers(job):
        entries[number] = entries[number]._replace(withdrawn=False, overwritten_by=None, started=False)
    for number in {number for one in numbers(job) for number in entries if (number - one) % CONTINUED == 0}:
        if taken.policy.version is not None:
            entries[number] = entries[number]._replace(order=next_order(world))
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


def withdrawn(world: World, entry: Entry) -> bool:
    """Return whether a request, or the one that overwrote it, ended cancelled or discarded with its chain."""
    live = carried(world)
    while not entry.done and entry.number not in live and entry.overwritten_by is not None:
        entry = world.entries[entry.overwritten_by]
    chain = (other for other in world.entries.values() if (other.number - entry.number) % CONTINUED == 0)
    return any(follow(world, other, live) is Fate.WITHDRAWN for other in chain)


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
