"""Apply steps: decide on the rows seen, and write only if they are unchanged.

A step is decided here and written by the script `commit`, which first compares the revisions of the rows.
What was seen may be a guess: a new request assumes that its key is free, the end of a run that its job is as
it was leased. A wrong guess costs one more round trip, because the script returns the current rows.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import msgspec

from onejob.core.job import TERMINAL, UNSTARTED, WAITING, Job, Mark, State
from onejob.core.step import Changes, Step, Tally, View
from onejob.errors import AdmissionBusy
from onejob.stores.columns import write_time
from onejob.stores.queries import TIMED
from onejob.stores.redis import records
from onejob.stores.redis.layout import TALLIES, Bucket, Keyspace, changed_entries, counters, frame
from onejob.stores.redis.records import read_or_replace, read_stored_mark, write_record, write_stored_mark
from onejob.stores.working_copy import WorkingCopy, attempt

T = TypeVar("T")

WRITTEN, TURN_OVER = 1, 2  # answers of `commit`, besides rows
GROUPS = 100  # in one call of a script at most: the server does nothing else meanwhile
WAKING = TERMINAL | TIMED | {State.AVAILABLE}  # states that a worker or a caller may wait for
READ_ONLY = b"?"  # expected by a group that only reads
BUSY = "The key changes faster than this request can be decided: try again."


class Call(NamedTuple):
    """One call to a bucket: a script with its keys and arguments, or a plain command."""

    bucket: int
    words: Sequence[Any]
    script: str | None = None
    keys: Sequence[str] = ()


Flow = Generator[Iterable[Call], list[Any], T]
"""Yields calls, which are sent as they are made, and receives one reply per call."""


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


class Rows(msgspec.Struct):
    """Jobs and a key as they were read, or as they are assumed to be."""

    jobs: dict[str, Job] = msgspec.field(default_factory=dict)
    holder: str | None = None
    successor: str | None = None
    mark: str | None = None
    were_read: bool = False

    def view(self, step: Step[Any], now: datetime) -> View:
        """Return the rows that a step concerns."""
        find = self.jobs.get
        job = find(step.job_id or "")
        key = step.key if job is None else job.key
        if key is None:
            return View(now, job)
        holder, successor = find(self.holder or ""), find(self.successor or "")
        if self.mark is None:
            return View(now, job, holder, successor)
        mark = read_stored_mark(key, self.mark)
        return View(now, job, holder, successor, mark, find(mark.job))

    def copy_into(self, copy: WorkingCopy, key: bytes | None) -> None:
        """Add the rows, and the mark of their key, to a working copy."""
        for job in self.jobs.values():
            copy.put(job)
        if self.mark is not None and key is not None:
            copy.put_mark(read_stored_mark(key, self.mark))

    def revision(self, job_id: str | None) -> str:
        """Return the revision that a job is expected to have, as the script writes it."""
        job = self.jobs.get(job_id or "")
        return "-" if job is None else f"{job.revision:010d}"


NO_ROWS = Rows()  # never changed: what a new request assumes


def assumed(job: Job) -> Rows:
    """Return the rows that a step assumes which needs no other row than the job itself."""
    return Rows({job.id: job}, job.id if job.is_holder else None, job.id if job.is_successor else None)


def read_rows(reply: Sequence[Any], ids: Sequence[str] = ()) -> Rows:
    """Return the rows that a script has returned for jobs and a key."""
    stored, holder, holder_record, successor, successor_record, mark, marked_record = reply
    named = [(holder, holder_record), (successor, successor_record)]
    named += zip(map(str.encode, ids), stored, strict=True)
    if marked_record is not None:
        named.append((mark.partition(b":")[0], marked_record))
    jobs: dict[str, Job] = {}
    for name, record in named:
        if record is not None and (job_id := name.decode()) not in jobs:
            jobs[job_id] = read_or_replace(record, job_id)
    return Rows(
        jobs,
        holder and holder.decode(),
        successor and successor.decode(),
        mark and mark.decode(),
        were_read=True,
    )


# ── groups ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False, slots=True)
class Group:
    """Steps on one key or one job, decided together and written together."""

    key: bytes | None = None
    bucket: Bucket | None = None  # None until the id of the new job is known
    ids: list[str] = field(default_factory=list)
    steps: list[tuple[int, Step[Any]]] = field(default_factory=list)
    rows: Rows = NO_ROWS
    depth: int = 0  # of the rows that must be unchanged: see commit.lua
    answers: Sequence[Any] = ()
    grows: bool = False  # whether it may add jobs, which a full memory refuses
    limited: bool = False  # whether it needs the turn of its queue
    extra: Sequence[tuple[Any, ...]] = ()  # writes besides those of the changes
    expects: bytes | None = None  # instead of the revisions of the rows
    write: bytes = b""  # the id of the last write
    sent: Sequence[str] = ()  # the ids that were sent: also those of new jobs

    def add(self, position: int, step: Step[Any], rows: Rows | None = None) -> None:
        """Add a step, and the rows that were read or are assumed of its job."""
        self.steps.append((position, step))
        if step.job_id is None:
            self.grows = True
            self.depth = max(self.depth, 2 if step.marks else 1)
        else:
            self.ids += [] if step.job_id in self.ids else [step.job_id]
            if not step.needs_no_reading and not step.alone:
                self.depth = 2
        if len(self.steps) > 1 and self.key is not None:
            self.depth = 2
        if rows is not None:
            self.rows = rows if self.rows is NO_ROWS else merged(self.rows, rows)

    def decide(self, now: datetime) -> list[Changes[Any]]:
        """Run the steps on the rows, and return their changes."""
        if len(self.steps) != 1:
            return decide_in_order([self], now, {})[self]
        changes = attempt(self.steps[0][1], self.rows.view(self.steps[0][1], now))
        self.answers = [changes.answer]
        return [] if changes.is_empty else [changes]

    def expected(self, new: int) -> str | bytes:
        """Return the revisions and ids that were seen, as the script writes them; new jobs have none."""
        if self.expects is not None:
            return self.expects
        rows = self.rows
        parts = [rows.revision(job_id) for job_id in self.ids] + ["-"] * new
        if self.depth and self.key is not None:
            for other in (rows.holder, rows.successor):
                parts += (other or "-", rows.revision(other))
            if self.depth > 1:
                parts.append(rows.mark or "-")
        return " ".join(parts)

    def settle(self, answer: Any) -> bool:
        """Take the answer of `commit`, and return whether the group is done."""
        if answer == WRITTEN:
            return True
        if answer == TURN_OVER:
            self.answers = [None for _ in self.steps]
            return True
        if self.write and any(records.is_by(one, self.write) for one in (*answer[0], answer[2], answer[4])):
            return True  # the write was made before, and only its reply was lost
        self.rows, self.depth = read_rows(answer, self.sent), 2
        return self.expects is not None

    def started(self) -> list[Job]:
        """Return the jobs that a group of starts has started."""
        return [answer for answer in self.answers if isinstance(answer, Job)]


def merged(one: Rows, other: Rows) -> Rows:
    """Return the rows of two jobs of one key."""
    known = other if other.were_read or not one.were_read else one
    holder, successor = known.holder or one.holder, known.successor or one.successor
    return Rows(one.jobs | other.jobs, holder, successor, known.mark, one.were_read and other.were_read)


def decide_in_order(
    groups: Sequence[Group], now: datetime, depths: dict[tuple[str, str], int]
) -> dict[Group, list[Changes[Any]]]:
    """Run the steps of groups in order on one working copy, and return their changes."""
    copy, answers = WorkingCopy(), dict[int, Any]()
    changes: dict[Group, list[Changes[Any]]] = {group: [] for group in groups}
    for group in groups:
        group.rows.copy_into(copy, group.key)
    copy.depths = depths
    steps = [(position, step, group) for group in groups for position, step in group.steps]
    for position, step, group in sorted(steps, key=lambda one: one[0]):
        answers[position] = copy.run(step, now, changes[group].append)
    for group in groups:
        group.answers = [answers[position] for position, _ in group.steps]
    return changes


# ── the arguments of `commit` ─────────────────────────────────────────────────────────────────────


class Turn(NamedTuple):
    """The turn to start jobs of a limited queue."""

    key: str
    wanted: str
    owner: str


class Commit:
    """The arguments of one call of `commit`: every key is named once, and then known by its number."""

    def __init__(
        self,
        space: Keyspace,
        bucket: Bucket,
        *,
        grows: bool = False,
        turns: Sequence[Turn] = (),
        deadline: int | str = "",
    ) -> None:
        self._keys = dict(bucket.numbers)
        self.bucket = bucket
        self.groups: list[Group] = []
        self._words: list[Any] = [space.channel, space.sender, "1" if grows else "", deadline, len(turns)]
        for turn in turns:
            self._words += (self._number(turn.key), self._number(turn.wanted), turn.owner)

    def _number(self, name: str) -> int:
        return self._keys.get(name) or self._keys.setdefault(name, len(self._keys) + 1)

    def add(self, group: Group, changes: Sequence[Changes[Any]] = ()) -> None:
        """Write the changes of a group if the rows that it has seen are unchanged."""
        after, mark = written(changes)
        seen = group.rows.jobs
        new = [job_id for job_id in after if job_id not in seen]
        group.write = records.new_write()
        group.sent = group.ids + new
        self.groups.append(group)
        commands: list[tuple[Any, ...]] = [(one[0], self._number(one[1]), *one[2:]) for one in group.extra]
        counts: dict[str, int] = {}
        for job_id, job in after.items():
            commands += self._write_job(seen.get(job_id), job, job_id, group.write)
            for one, by in ((seen.get(job_id), -1), (job, 1)):
                for name in () if one is None else counters(one):
                    counts[name] = counts.get(name, 0) + by
        key = "" if group.key is None else group.key.hex()
        if key and (after or mark):
            commands += key_writes(key, seen, after, mark)
        commands += [self._count(one.tally) for one in changes if one.tally is not None]
        wakes = any(job is not None and job.state in WAKING for job in after.values())
        self._words += (key, group.depth, group.expected(len(new)), "1" if group.limited else "")
        self._words += ("1" if wakes else "", len(group.sent), *group.sent, len(counts))
        for words in (*counts.items(), (len(commands),), *commands):
            self._words += words

    def _write_job(
        self, old: Job | None, job: Job | None, job_id: str, write: bytes
    ) -> list[tuple[Any, ...]]:
        """Return the commands that write a job and its entries."""
        before, after = changed_entries(self.bucket, old, job)
        commands: list[tuple[Any, ...]] = [("HDEL", 1, job_id)]
        if job is not None:
            commands = [("HSET", 1, job_id, write_record(job, write))]
        for name, entry in before.items():
            if name not in after or after[name][1] != entry[1]:
                commands.append(("ZREM", self._number(name), entry[1]))
        for name, entry in after.items():
            if before.get(name) != entry:
                commands.append(("ZADD", self._number(name), *entry))
        return commands

    def _count(self, tally: Tally) -> tuple[Any, ...]:
        """Return the command that adds one to a counter; its times are in the two keys that follow."""
        numbers = [self._number(self.bucket.name(what, tally.namespace)) for what in TALLIES[:3]]
        at = tally.last_at
        assert at is not None  # a step knows when it decides
        return ("COUNT", numbers[0], frame(tally.task, tally.outcome, tally.job_id), write_time(at))

    def call(self) -> Call:
        """Return the call."""
        return Call(self.bucket.number, self._words, "commit", tuple(self._keys))


def written(changes: Sequence[Changes[Any]]) -> tuple[dict[str, Job | None], Mark | None]:
    """Return the jobs as they are after changes, None for those that are removed, and the mark."""
    after: dict[str, Job | None] = {}
    mark = None
    for one in changes:
        after |= {job.id: job for job in (*one.updates, *one.inserts)}
        after |= dict.fromkeys(one.deletes)
        mark = one.mark or mark
    return after, mark


def key_writes(
    key: str, seen: Mapping[str, Job], after: Mapping[str, Job | None], mark: Mark | None
) -> Iterator[tuple[Any, ...]]:
    """Return the commands that write which jobs hold a key and wait for it, and its mark."""
    for stand, number in ((0, 2), (1, 3)):  # in the hashes `held` and `next`
        old = next((i for i in after if i in seen and seen[i].stand == stand), None)
        new = next((i for i, job in after.items() if job is not None and job.stand == stand), None)
        if new is not None and new != old:
            yield ("HSET", number, key, new)
        elif old is not None and new is None:
            yield ("HDEL", number, key)
    if mark is not None:
        yield ("HSET", 4, key, write_stored_mark(mark)) if mark.job else ("HDEL", 4, key)


# ── applying ──────────────────────────────────────────────────────────────────────────────────────


def apply(steps: Sequence[Step[Any]], space: Keyspace) -> Flow[list[Any]]:
    """Run steps in order and write what they change."""
    if len(steps) == 1 and steps[0].job_id is None and steps[0].queue is None:
        return admit(steps[0], space)
    return apply_together(steps, space)


def admit(step: Step[Any], space: Keyspace) -> Flow[list[Any]]:
    """Run one request as if its key were free; if it is not, decide again on the rows of the key."""
    changes = attempt(step, View(space.clock()))
    if not is_creation(changes):
        return (yield from apply_together([step], space))
    [reply] = yield [creation(step, changes, space)]
    if reply == WRITTEN:
        return [changes.answer]
    rows = read_rows(reply)
    changes = attempt(step, rows.view(step, space.clock()))
    if changes.is_empty:
        return [changes.answer]
    group = Group(step.key, space.home(step.key or b""))
    group.add(0, step, rows)
    yield from commit([group], space)
    return list(group.answers)


def is_creation(changes: Changes[Any]) -> bool:
    """Return whether all that is written is one new job that waits behind no other."""
    if len(changes.inserts) != 1 or changes.updates or changes.deletes:
        return False
    return changes.inserts[0].state in WAITING and not changes.inserts[0].is_successor


def creation(step: Step[Any], changes: Changes[Any], space: Keyspace) -> Call:
    """Return the call that writes a new job if its key is free."""
    [job], mark = changes.inserts, changes.mark
    bucket = space.home(job.key or job.id)
    _, entries = changed_entries(bucket, None, job)
    words: list[Any] = [
        "" if step.key is None else step.key.hex(),
        "1" if step.marks else "",
        job.id,
        write_record(job, records.new_write()),
        "1" if job.is_holder else "",
        "" if mark is None or not mark.job else write_stored_mark(mark),
        counters(job)[0],
        space.channel,
        space.sender if job.state in WAKING else "",
    ]
    for entry in entries.values():
        words += entry
    return Call(bucket.number, words, "create", (*bucket.fixed, *entries))


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
    parts: list[Commit] = []
    replies = (yield calls_of(asked, space, parts)) if asked else []
    for one, answer in answered(parts, replies):
        one.settle(answer)
    for group, one in zip(groups, asked, strict=True):
        group.rows, group.depth = one.rows, 2


def read_key(key: bytes, space: Keyspace) -> Call:
    """Return the call that reads the rows of a key."""
    bucket = space.home(key)
    return Call(bucket.number, (key.hex(), "1"), "create", bucket.fixed)


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
        # Counted again each time, because what was not written does not count.
        depths = (yield from count_waiting(queues, space)) if queues else None
        parts: list[Commit] = []
        replies = yield calls_of(left, space, parts, depths)
        left = [group for group, answer in answered(parts, replies) if not group.settle(answer)]
        if monotonic() > ends:
            for group in left:
                group.answers = [AdmissionBusy(BUSY) for _ in group.steps]
            return


def answered(parts: Sequence[Commit], replies: Sequence[Any]) -> Iterator[tuple[Group, Any]]:
    """Return groups with the answers of `commit`."""
    for part, reply in zip(parts, replies, strict=True):
        yield from zip(part.groups, reply, strict=True)


def calls_of(
    groups: Sequence[Group],
    space: Keyspace,
    parts: list[Commit],
    depths: dict[tuple[str, str], int] | None = None,
) -> Iterator[Call]:
    """Decide groups, a part at a time: the server writes one part while the next is decided."""
    now = space.clock()
    decided = {} if depths is None else decide_in_order(groups, now, depths)
    at_once = GROUPS * len(space.buckets)
    for first in range(0, len(groups), at_once):
        some: dict[tuple[int, bool], Commit] = {}
        for group in groups[first : first + at_once]:
            changes = group.decide(now) if depths is None else decided[group]
            if not changes and group.rows.were_read and not group.extra:
                continue  # nothing to write, and nothing to prove
            inserted = [job.id for one in changes for job in one.inserts]
            bucket = group.bucket or space.home(inserted[0] if inserted else "")
            place = (bucket.number, group.grows)
            if place not in some:
                some[place] = Commit(space, bucket, grows=group.grows)
            some[place].add(group, changes)
        parts += some.values()
        yield from (part.call() for part in some.values())
