"""Apply steps: decide on the rows seen, and write only if they are unchanged.

A step is decided here and written by a script, which first compares the revisions of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

import msgspec

from onejob.core.job import UNSTARTED
from onejob.core.step import Changes, Step
from onejob.errors import AdmissionBusy
from onejob.stores.redis.groups import (
    NO_ROWS,
    Call,
    Decided,
    Flow,
    Group,
    Rows,
    assumed,
    decide_in_order,
    read_rows,
)
from onejob.stores.redis.layout import Bucket, Keyspace
from onejob.stores.redis.scripts import Commit, Create, NewJob, Script, Turn, encode

GROUPS = 100  # in one call of a script at most: the server does nothing else meanwhile
MOSTLY, FADING = 0.75, 0.9  # share of duplicates from which a request looks first, and how soon that fades
READ_ONLY = "?"  # expected by a group that only reads
BUSY = "The key changes faster than this request can be decided: try again."


def apply(steps: Sequence[Step[Any]], space: Keyspace) -> Flow[list[Any]]:
    """Run steps in order and write what they change."""
    if len(steps) == 1 and steps[0].job_id is None and steps[0].queue is None:
        return admit(steps[0], space)
    return apply_together(steps, space)


def admit(step: Step[Any], space: Keyspace) -> Flow[list[Any]]:
    """Run one request as if its key were free; if it is not, decide again on the rows of the key."""
    group = Group(step.key)
    group.add(0, step)
    if step.key is not None and space.absorbed > MOSTLY:
        group.rows, group.depth = (yield from read_key(step.key, space)), 2
    changes = group.decide(space.clock())
    if group.creates(changes):
        create = Create(space, home_of(group, changes, space))
        create.add(group, changes)
        [[answer]] = yield [create.call()]
        if group.settle(answer):
            space.absorbed *= FADING
            return list(group.answers)
        changes = group.decide(space.clock())
    if changes or not group.rows.were_read:
        yield from commit([group], space)
    else:
        space.absorbed = space.absorbed * FADING + 1 - FADING
    return list(group.answers)


def apply_together(steps: Sequence[Step[Any]], space: Keyspace) -> Flow[list[Any]]:
    """Apply steps; those on one key or one job are one group."""
    groups = yield from arrange(steps, space)
    queues = {step.queue for step in steps if step.queue is not None}
    if queues:  # a wrong guess would take another request's place in a queue
        yield from read([group for group in groups if group.rows is NO_ROWS and group.key], space)
    yield from commit(groups, space, queues)
    return answers_of(groups)


def answers_of(groups: Iterable[Group]) -> list[Any]:
    """Return the answers of groups in the order of their steps."""
    answers = {
        position: answer
        for group in groups
        for (position, _), answer in zip(group.steps, group.answers, strict=True)
    }
    return [answers[position] for position in range(len(answers))]


def arrange(steps: Sequence[Step[Any]], space: Keyspace) -> Flow[list[Group]]:
    """Group the steps that share a key or a job; read the jobs of which no row is known."""
    unknown = [step.job_id for step in steps if step.job_id is not None and not step.needs_no_reading]
    unread = {job_id: Group(bucket=space.home(job_id), ids=[job_id]) for job_id in unknown}
    yield from read(list(unread.values()), space)
    groups: dict[Any, Group] = {}
    for position, step in enumerate(steps):
        known = unread.get(step.job_id or "")
        rows = known.rows if known is not None else assumed(step.seen) if step.seen is not None else None
        job = None if rows is None else rows.jobs.get(step.job_id or "")
        key = step.key if job is None else job.key
        home = key or step.job_id
        group = groups.setdefault(home or position, Group(key, space.home(home) if home else None))
        group.add(position, step, rows)
    return list(groups.values())


def read(groups: Sequence[Group], space: Keyspace) -> Flow[None]:
    """Read the jobs of groups and the rows of their keys."""
    asked = [Group(group.key, group.bucket, group.ids, expects=READ_ONLY) for group in groups]
    scripts: list[Script] = []
    replies = (yield calls_of(asked, space, scripts, dict.fromkeys(asked, ()))) if asked else []
    for one, answer in answered(scripts, replies):
        one.settle(answer)
    for group, one in zip(groups, asked, strict=True):
        group.rows, group.depth = one.rows, 2


def read_key(key: bytes, space: Keyspace) -> Flow[Rows]:
    """Return the rows of a key."""
    bucket = space.home(key)
    nothing = encode(NewJob(key=key.hex(), marks=True))
    [[reply]] = yield [Call(bucket.number, ("", "", nothing, ""), "create", bucket.fixed)]
    return read_rows(reply)


def count_waiting(queues: Collection[tuple[str, str]], space: Keyspace) -> Flow[dict[tuple[str, str], int]]:
    """Count the jobs that wait in queues."""
    waiting = dict.fromkeys(queues, 0)
    for reply in (yield [Call(bucket.number, ("HGETALL", bucket.counts)) for bucket in space.buckets]):
        for name, number in zip(reply[::2], reply[1::2], strict=True):
            namespace, queue, *rest = msgspec.json.decode(name)
            if len(rest) > 1 and (namespace, queue) in waiting and rest[1] in UNSTARTED:
                waiting[namespace, queue] += int(number)
    return waiting


def commit(groups: Sequence[Group], space: Keyspace, queues: Collection[tuple[str, str]] = ()) -> Flow[None]:
    """Decide and write groups until each is written as it was decided, or time is up."""
    left, ends = groups, monotonic() + space.admission_timeout
    while left:
        decided: Decided = {}
        if queues:  # counted again each time, because what was not written does not count
            decided = decide_in_order(left, space.clock(), (yield from count_waiting(queues, space)))
        scripts: list[Script] = []
        replies = yield calls_of(left, space, scripts, decided)
        left = [group for group, answer in answered(scripts, replies) if not group.settle(answer)]
        if monotonic() > ends:
            for group in left:
                group.answers = [AdmissionBusy(BUSY) for _ in group.steps]
            return


def answered(scripts: Sequence[Script], replies: Sequence[Any]) -> Iterator[tuple[Group, Any]]:
    """Return groups with the answers of the scripts that write them."""
    for script, reply in zip(scripts, replies, strict=True):
        yield from zip(script.groups, reply, strict=True)


def calls_of(
    groups: Sequence[Group],
    space: Keyspace,
    scripts: list[Script],
    decided: Decided,
    *,
    turns: Sequence[Turn] = (),
    deadline: int | str = "",
) -> Iterator[Call]:
    """Decide groups, a part at a time: the server writes one part while the next is decided.

    Args:
        groups: The groups.
        space: Where they are written.
        scripts: Gets the scripts, in the order of their calls.
        decided: The changes of groups that are decided already.
        turns: What the groups need that are limited, on a single server. The call gives it back.
        deadline: When the turns are over, in microseconds, where a script cannot check them.
    """
    now, at_once = space.clock(), GROUPS * len(space.buckets)
    firsts = [0] if turns else range(0, len(groups), at_once)
    for first in firsts:
        some: dict[tuple[int, str], Script] = {}
        if turns:
            some[0, "commit"] = Commit(space, space.buckets[0], turns=turns)
        for group in groups if turns else groups[first : first + at_once]:
            changes = decided[group] if group in decided else group.decide(now)
            if not changes and group.rows.were_read and not group.listed:
                continue  # nothing to write, and nothing to prove
            bucket = home_of(group, changes, space)
            kind = "create" if group.creates(changes) else "grow" if group.grows else "commit"
            script = some.get((bucket.number, kind))
            if script is None:
                script = Commit(space, bucket, grows=group.grows, deadline=deadline)
                script = some[bucket.number, kind] = Create(space, bucket) if kind == "create" else script
            script.add(group, changes)
        scripts += some.values()
        yield from (script.call() for script in some.values())


def home_of(group: Group, changes: Sequence[Changes[Any]], space: Keyspace) -> Bucket:
    """Return the bucket in which a group is written; a job without a key is placed by its id."""
    if group.bucket is not None:
        return group.bucket
    inserted = (job.id for one in changes for job in one.inserts)
    return space.home(group.key or next(inserted, ""))
