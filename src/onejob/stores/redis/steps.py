"""Apply steps: decide on the rows seen, and write only if they are unchanged.

A step is decided here and written by the script `commit`, which first compares the revisions of the rows.
What was seen may be a guess: a new request assumes that its key is free, the end of a run that its job is as
it was leased. A wrong guess costs one more round trip, because the script returns the current rows.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import field

from onejob.core.job import TERMINAL, UNSTARTED, WAITING, Job, Mark, Stand, State
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
MOSTLY, FADING = 0.75, 0.9  # share of duplicates from which a request looks first, and how soon that fades
JOBS, HELD, NEXT, MARKS = 1, 2, 3, 4  # numbers of the keys of a bucket
READ_ONLY = "?"  # expected by a group that only reads
encode = msgspec.json.Encoder().encode
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


class Rows(msgspec.Struct, frozen=True):
    """Jobs and a key as they were read, or as they are assumed to be."""

    jobs: dict[str, Job] = field(default_factory=dict)
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


class Group(msgspec.Struct, eq=False):
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
    listed: Sequence[tuple[str, int, str]] = ()  # sorted sets with a score and a member to add
    unlisted: Sequence[tuple[str, str]] = ()  # sorted sets with a member to remove
    expects: str | bytes | None = None  # instead of the revisions of the rows
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
            return list(decide_in_order([self], now, {})[self])
        changes = attempt(self.steps[0][1], self.rows.view(self.steps[0][1], now))
        self.answers = [changes.answer]
        return [] if changes.is_empty else [changes]

    def expected(self, new: int) -> str | bytes:
        """Return the revisions and ids that were seen, as the script writes them; `new` jobs have none."""
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

    def creates(self, changes: Sequence[Changes[Any]]) -> bool:
        """Return whether all that is written is one new job, of a key that is free as far as is known."""
        rows = self.rows
        if len(self.steps) != 1 or rows.jobs or rows.holder or rows.successor or rows.mark:
            return False
        if len(changes) != 1 or len(changes[0].inserts) != 1 or changes[0].updates or changes[0].deletes:
            return False
        [job] = changes[0].inserts
        return job.state in WAITING and not job.is_successor and changes[0].tally is None

    def started(self) -> list[Job]:
        """Return the jobs that a group of starts has started."""
        return [answer for answer in self.answers if isinstance(answer, Job)]


Decided = Mapping[Group, Sequence[Changes[Any]]]


def merged(one: Rows, other: Rows) -> Rows:
    """Return the rows of two jobs of one key."""
    known = other if other.were_read or not one.were_read else one
    holder, successor = known.holder or one.holder, known.successor or one.successor
    return Rows(one.jobs | other.jobs, holder, successor, known.mark, one.were_read and other.were_read)


def decide_in_order(groups: Sequence[Group], now: datetime, depths: dict[tuple[str, str], int]) -> Decided:
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


# ── the scripts that write ────────────────────────────────────────────────────────────────────────


class Turn(NamedTuple):
    """The turn to start jobs of a limited queue."""

    key: str
    wanted: str
    owner: str


class Writes(msgspec.Struct, omit_defaults=True):
    """What a group has seen and writes, as commit.lua reads it; lists are flat and name keys by number."""

    key: str = ""
    depth: int = 0
    ids: Sequence[str] = ()
    limited: bool = False
    wakes: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)  # ids of the jobs that are written
    hdel: list[Any] = field(default_factory=list)
    hset: list[Any] = field(default_factory=list)
    zrem: list[Any] = field(default_factory=list)
    zadd: list[Any] = field(default_factory=list)
    absorbed: list[Any] = field(default_factory=list)


class NewJob(msgspec.Struct, omit_defaults=True):
    """A new job, or a key that is looked at, as create.lua reads it."""

    id: str = ""
    key: str = ""
    holds: bool = False
    marks: bool = False
    mark: str = ""
    counter: str = ""
    wakes: bool = False
    zadd: list[Any] = field(default_factory=list)


class Script:
    """One call of a script that writes: every key is named once, and then known by its number."""

    name: ClassVar[str]

    def __init__(self, bucket: Bucket, *words: Any) -> None:
        self.bucket = bucket
        self.groups: list[Group] = []
        self._keys = dict(bucket.numbers)
        self._words: list[Any] = [*words]
        self._write = records.new_write()

    def _number(self, name: str) -> int:
        return self._keys.get(name) or self._keys.setdefault(name, len(self._keys) + 1)

    def add(self, group: Group, changes: Sequence[Changes[Any]]) -> None:
        """Add the changes of a group."""
        raise NotImplementedError

    def call(self) -> Call:
        """Return the call."""
        return Call(self.bucket.number, self._words, self.name, tuple(self._keys))


class Create(Script):
    """New jobs whose keys are free as far as is known."""

    name = "create"

    def __init__(self, space: Keyspace, bucket: Bucket) -> None:
        super().__init__(bucket, space.channel, space.sender)

    def add(self, group: Group, changes: Sequence[Changes[Any]]) -> None:
        """Write the new job of a group if its key is free."""
        [(_, step)] = group.steps
        job, mark = changes[0].inserts[0], changes[0].mark
        listed: list[Any] = []
        for name, entry in changed_entries(self.bucket, None, job)[1].items():
            listed += (self._number(name), *entry)
        new = NewJob(
            job.id,
            "" if step.key is None else step.key.hex(),
            job.is_holder,
            step.marks,
            "" if mark is None or not mark.job else write_stored_mark(mark),
            counters(job)[0],
            job.state in WAKING,
            listed,
        )
        self._words += (encode(new), write_record(job, self._write))
        self.groups.append(group)


class Commit(Script):
    """The changes of groups, each written if the rows that it has seen are unchanged."""

    name = "commit"

    def __init__(
        self,
        space: Keyspace,
        bucket: Bucket,
        *,
        grows: bool = False,
        deadline: int | str = "",
        turns: Sequence[Turn] = (),
    ) -> None:
        super().__init__(bucket, space.channel, space.sender, "1" if grows else "", deadline)
        numbered = [(self._number(turn.key), self._number(turn.wanted), turn.owner) for turn in turns]
        self._words.append(encode(numbered))

    def add(self, group: Group, changes: Sequence[Changes[Any]] = ()) -> None:
        """Write the changes of a group if the rows that it has seen are unchanged."""
        after, mark = written(changes)
        seen = group.rows.jobs
        new = [job_id for job_id in after if job_id not in seen]
        group.write, group.sent = self._write, group.ids + new
        self.groups.append(group)
        key = "" if group.key is None else group.key.hex()
        writes = Writes(key, group.depth, group.sent, group.limited)
        words: list[Any] = [b"", group.expected(len(new))]
        for job_id, job in after.items():
            self._change(writes, job_id, seen.get(job_id), job)
            if job is not None:
                words.append(write_record(job, self._write))
        if key and (after or mark):
            write_key(writes, seen, after, mark)
        for name, *entry in group.listed:
            writes.zadd += (self._number(name), *entry)
        for name, member in group.unlisted:
            writes.zrem += (self._number(name), member)
        for one in changes:
            if one.tally is not None:
                self._count(writes, one.tally)
        words[0] = encode(writes)
        self._words += words

    def _change(self, writes: Writes, job_id: str, old: Job | None, new: Job | None) -> None:
        """Add the record, the entries and the counters that change with a job."""
        before, after = changed_entries(self.bucket, old, new)
        for name, entry in before.items():
            if name not in after or after[name][1] != entry[1]:
                writes.zrem += (self._number(name), entry[1])
        for name, entry in after.items():
            if before.get(name) != entry:
                writes.zadd += (self._number(name), *entry)
        counts = writes.counts
        if old is not None:
            for name in counters(old):
                counts[name] = counts.get(name, 0) - 1
        if new is None:
            writes.hdel += (JOBS, job_id)
            return
        writes.records.append(job_id)
        writes.wakes = writes.wakes or new.state in WAKING
        for name in counters(new):
            counts[name] = counts.get(name, 0) + 1

    def _count(self, writes: Writes, tally: Tally) -> None:
        """Add one to a counter of absorbed requests."""
        assert tally.last_at is not None  # a step knows when it decides
        writes.absorbed += (self._number(self.bucket.name(what, tally.namespace)) for what in TALLIES[:3])
        writes.absorbed += (frame(tally.task, tally.outcome, tally.job_id), write_time(tally.last_at))


def written(changes: Sequence[Changes[Any]]) -> tuple[dict[str, Job | None], Mark | None]:
    """Return the jobs as they are after changes, None for those that are removed, and the mark."""
    after: dict[str, Job | None] = {}
    mark = None
    for one in changes:
        after |= {job.id: job for job in (*one.updates, *one.inserts)}
        after |= dict.fromkeys(one.deletes)
        mark = one.mark or mark
    return after, mark


def write_key(
    writes: Writes, seen: Mapping[str, Job], after: Mapping[str, Job | None], mark: Mark | None
) -> None:
    """Write which jobs hold a key and wait for it, and its mark."""
    for stand, number in ((Stand.HOLDER, HELD), (Stand.SUCCESSOR, NEXT)):
        old = next((i for i in after if i in seen and seen[i].stand == stand), None)
        new = next((i for i, job in after.items() if job is not None and job.stand == stand), None)
        if new is not None and new != old:
            writes.hset += (number, writes.key, new)
        elif old is not None and new is None:
            writes.hdel += (number, writes.key)
    if mark is not None and mark.job:
        writes.hset += (MARKS, writes.key, write_stored_mark(mark))
    elif mark is not None:
        writes.hdel += (MARKS, writes.key)


# ── applying ──────────────────────────────────────────────────────────────────────────────────────


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
