"""Lease jobs: the script `take` supplies candidates and counts, `core.leasing` chooses, `commit` starts.

Candidates of queues without limits are set aside for a moment. A limited queue has a turn: only the worker
that has it may start jobs of the queue, so that counts stay exact and the order is strict. `take` grants the
turn if there is capacity and a candidate; `commit` gives it back and wakes the worker that waits for it.

In a cluster no script sees all buckets. There, candidates are only looked at, and a worker that loses the
race for a job looks again. Turns and recent starts lie in the first bucket. A turn is asked for only if jobs
of its queue can start, and `commit` refuses starts after the turn's deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from onejob.core.leasing import Lease
from onejob.core.runs import mature, start
from onejob.core.step import Changes, Step
from onejob.stores.columns import write_time
from onejob.stores.contract import Leased
from onejob.stores.redis import steps
from onejob.stores.redis.groups import Call, Flow, Group, assumed
from onejob.stores.redis.layout import Keyspace
from onejob.stores.redis.scripts import Commit, Script
from onejob.stores.redis.supply import RIPEN, TURN_MILLISECONDS, Candidate, Leasing, Supply, taking
from onejob.stores.working_copy import WorkingCopy

TURN_USED = 1_500_000  # microseconds of a turn in which jobs are started, where it is not checked

Starts = Mapping[Group, Sequence[Changes[Any]]]


def lease(wanted: Lease, after: Sequence[Step[Any]], space: Keyspace) -> Flow[Leased]:
    """Apply steps, then start due jobs, best first."""
    leasing = Leasing(wanted, space)
    groups = (yield from steps.arrange(after, space)) if after else []
    supply = yield from take(leasing, groups)
    while supply.ripe:
        leasing.ripen = RIPEN if len(supply.ripe) >= RIPEN else 0
        supply = yield from take(leasing, maturing(supply, leasing))
    while (yield from start_chosen(leasing, supply)):
        leasing.counted = len(leasing.started)
        supply = yield from take(leasing)
    return Leased(steps.answers_of(groups), leasing.started, leasing.next_due(supply))


def maturing(supply: Supply, leasing: Leasing) -> list[Group]:
    """Return the groups that make jobs available whose time has come."""
    groups = [one.discarding(leasing.space.clock()) for one in supply.damaged]
    for job in supply.ripe:
        group = Group(job.key, leasing.space.home(job.key or job.id))
        group.add(0, Step(mature, job.id, alone=True, seen=job), assumed(job))
        groups.append(group)
    return groups


# ── starting ──────────────────────────────────────────────────────────────────────────────────────


def start_chosen(leasing: Leasing, supply: Supply) -> Flow[bool]:
    """Start the best candidates, and return whether another round may start more."""
    chosen = leasing.choose(supply)
    starts = group_starts(chosen, leasing)
    refused = yield from write(leasing, starts, supply)
    again = [group for group in refused if not group.limited]
    yield from steps.commit(again, leasing.space)  # they are still set aside for this worker
    done = [group for group in starts if group not in refused or group in again]
    begun = {job.id: job for group in done for job in group.started()}
    leasing.started += [begun[one.job.id] for one in chosen if one.job.id in begun]
    missed = len(begun) < len(chosen) or supply.damaged
    return bool(missed and (done or supply.damaged)) and len(leasing.started) < leasing.wanted.total


def group_starts(chosen: Sequence[Candidate], leasing: Leasing) -> Starts:
    """Start chosen jobs on a working copy, and return the changes, grouped by key or job."""
    copy, decided = WorkingCopy(), list[Changes[Any]]()
    for one in chosen:
        one.rows.copy_into(copy, one.job.key)
    copy.start([one.job for one in chosen], leasing.wanted, leasing.space.clock(), decided.append)
    changes = {one.updates[0].id: one for one in decided}
    act = partial(start, worker=leasing.wanted.worker, lease=leasing.wanted.duration)
    groups: dict[Any, Group] = {}
    starts: dict[Group, list[Changes[Any]]] = {}
    for one in chosen:
        job = one.job
        if job.id in changes:
            group = groups.setdefault(job.key or job.id, Group(job.key, one.bucket))
            step = Step(act, job.id, seen=None if one.rows.were_read else job)
            group.add(len(group.steps), step, one.rows)
            group.limited = group.limited or job.queue in leasing.limited
            group.answers = [*group.answers, changes[job.id].answer]
            starts.setdefault(group, []).append(changes[job.id])
    return starts


def write(leasing: Leasing, starts: Starts, supply: Supply) -> Flow[list[Group]]:
    """Write starts, return other candidates, give back the turns; return the starts that were refused."""
    space, turns, scripts = leasing.space, leasing.turns(supply), list[Script]()
    others = [one.discarding(space.clock()) for one in supply.damaged]
    noted = {group: notes(group, leasing) for group in starts}
    before: list[Call] = []
    if space.is_single:
        others += returned(starts, supply, leasing)
        for group, some in noted.items():
            group.listed = some
    else:
        before = [Call(0, ("ZADD", *note)) for some in noted.values() for note in some]
    held = turns if space.is_single else ()
    calls = steps.calls_of([*starts, *others], space, scripts, starts, turns=held, deadline=supply.deadline)
    replies = yield chain(before, calls)
    pairs = list(steps.answered(scripts, replies[len(before) :]))
    refused = [group for group, answer in pairs if group in starts and not group.settle(answer)]
    if not space.is_single:
        unused = [note for g in starts if g in refused or not g.started() for note in noted[g]]
        back = [Call(0, ("ZREM", name, member)) for name, _, member in unused]
        yield [*back, *([Commit(space, space.buckets[0], turns=turns).call()] if turns else [])]
    return refused


def notes(group: Group, leasing: Leasing) -> list[tuple[str, int, str]]:
    """Return what to note of the starts of a group in queues with a rate."""
    return [leasing.noted_start(job) for job in group.started() if job.queue in leasing.wanted.rates]


def returned(starts: Starts, supply: Supply, leasing: Leasing) -> list[Group]:
    """Return the groups that free candidates which were set aside and are not started."""
    started = {job_id for group in starts for job_id in group.ids}
    idle = [one for job_id, one in supply.candidates.items() if job_id not in started]
    return [one.returning() for one in idle if one.job.queue not in leasing.limited]


# ── taking candidates ─────────────────────────────────────────────────────────────────────────────


def take(leasing: Leasing, groups: Sequence[Group] = ()) -> Flow[Supply]:
    """Commit groups, then take candidates, and the turns of limited queues that have some."""
    if leasing.space.is_single:
        return take_from_one(leasing, groups)
    return take_from_many(leasing, groups)


def take_from_one(leasing: Leasing, groups: Sequence[Group]) -> Flow[Supply]:
    """Commit groups and take candidates in one round trip."""
    space, scripts, supply = leasing.space, list[Script](), Supply()
    call = taking(leasing, space.buckets[0])
    *replies, reply = yield chain(steps.calls_of(groups, space, scripts, {}), [call])
    left = [group for group, answer in steps.answered(scripts, replies) if not group.settle(answer)]
    yield from steps.commit(left, space)
    supply.add(call, reply, space.buckets[0], leasing.wanted.namespace)
    active, starts = dict[str, dict[str, int]](), dict[str, Sequence[bytes]]()
    for name, turn, total, times, *by_digits in reply[2]:
        queue = name.decode()
        pairs = zip(by_digits[::2], by_digits[1::2], strict=True)
        active[queue] = {"": total, **{digits.decode(): number for digits, number in pairs}}
        starts[queue] = times
        supply.turns = [*supply.turns, queue] if turn == b"granted" else supply.turns
        supply.waits_for_turn = supply.waits_for_turn or turn == b"taken"
    supply.count(active, starts)
    return supply


def take_from_many(leasing: Leasing, groups: Sequence[Group]) -> Flow[Supply]:
    """Commit groups, look at all buckets, and take the turns of limited queues whose jobs can start."""
    yield from steps.commit(groups, leasing.space)
    supply = yield from look(leasing, leasing.wanted.queues)
    needed = sorted({one.job.queue for one in leasing.choose(supply)} & leasing.limited)
    if supply.ripe or not needed:
        return supply
    options = ("PX", TURN_MILLISECONDS)
    asks = [Call(0, ("SET", leasing.name("turn", q), leasing.owner, "NX", *options)) for q in needed]
    time, *replies = yield [Call(0, ("TIME",)), *asks]
    granted = [queue for queue, reply in zip(needed, replies, strict=True) if reply is not None]
    refused = [queue for queue in needed if queue not in granted]
    yield [Call(0, ("SET", leasing.name("turn wanted", queue), "1", *options)) for queue in refused]
    closed = leasing.limited - set(granted)
    supply = yield from look(leasing, [queue for queue in leasing.wanted.queues if queue not in closed])
    supply.turns, supply.waits_for_turn = granted, bool(refused)
    supply.deadline = int(time[0]) * 1_000_000 + int(time[1]) + TURN_USED
    return supply


def look(leasing: Leasing, queues: Iterable[str]) -> Flow[Supply]:
    """Look at the candidates of queues in all buckets, and count what is active and has started."""
    queues, space, namespace = list(queues), leasing.space, leasing.wanted.namespace
    limited = [queue for queue in queues if queue in leasing.limited]
    rated = [queue for queue in limited if queue in leasing.wanted.rates]
    calls = [Call(bucket.number, ("HGETALL", bucket.counts)) for bucket in space.buckets if limited]
    for queue in rated:
        since = write_time(space.clock() - leasing.wanted.rates[queue].per)
        words = ("ZRANGEBYSCORE", leasing.name("starts", queue), f"({since}", "+inf", "WITHSCORES")
        calls.append(Call(0, words))
    replies = yield calls
    active: dict[str, dict[str, int]] = {queue: {} for queue in limited}
    for reply in replies[: len(calls) - len(rated)]:
        for name, number in zip(reply[::2], reply[1::2], strict=True):
            owner, queue, *rest = msgspec.json.decode(name)
            if owner == namespace and queue in active and len(rest) <= 1:  # not a counter by state
                digits = "".join(rest)
                active[queue][digits] = active[queue].get(digits, 0) + int(number)
    takes = [taking(leasing, one, only_looks=True, queues=queues, running=active) for one in space.buckets]
    supply, taken = Supply(), (yield takes)
    for call, reply in zip(takes, taken, strict=True):
        supply.add(call, reply, space.buckets[call.bucket], namespace)
    times = replies[len(calls) - len(rated) :]
    supply.count(active, {queue: reply[1::2] for queue, reply in zip(rated, times, strict=True)})
    return supply
