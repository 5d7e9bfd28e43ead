"""The arguments of the scripts that write: `create` for new jobs, `commit` for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import field

from onejob.core.job import TERMINAL, Job, Mark, Stand, State
from onejob.core.step import Changes, Tally
from onejob.stores.columns import write_time
from onejob.stores.queries import TIMED
from onejob.stores.redis import records
from onejob.stores.redis.groups import Call, Group
from onejob.stores.redis.layout import (
    TALLIED_JOBS,
    TALLIES,
    Bucket,
    Keyspace,
    changed_entries,
    counters,
    frame,
)
from onejob.stores.redis.records import write_record, write_stored_mark

WAKING = TERMINAL | TIMED | {State.AVAILABLE}  # states that a worker or a caller may wait for
JOBS, HELD, NEXT, MARKS = 1, 2, 3, 4  # numbers of the keys of a bucket
encode = msgspec.json.Encoder().encode


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
        group.sent = ()  # an earlier call of commit may have sent ids, of which this call returns no rows
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
        kinds = (*TALLIES[:3], TALLIED_JOBS)
        writes.absorbed += (self._number(self.bucket.name(what, tally.namespace)) for what in kinds)
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
        old = new = None
        for job_id, job in after.items():
            old = job_id if job_id in seen and seen[job_id].stand == stand else old
            new = job_id if job is not None and job.stand == stand else new
        if new is not None and new != old:
            writes.hset += (number, writes.key, new)
        elif old is not None and new is None:
            writes.hdel += (number, writes.key)
    if mark is not None and mark.job:
        writes.hset += (MARKS, writes.key, write_stored_mark(mark))
    elif mark is not None:
        writes.hdel += (MARKS, writes.key)
