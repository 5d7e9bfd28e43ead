"""Calls, rows, and groups: steps on one key or one job, which are decided together.

What a group has seen may be a guess: a new request assumes that its key is free, the end of a run that its
job is as it was leased. A wrong guess costs one more round trip, because the script returns the current rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import field

from onejob.core.job import WAITING, Job
from onejob.core.step import Changes, Step, View
from onejob.stores.redis import records
from onejob.stores.redis.layout import Bucket
from onejob.stores.redis.records import read_or_replace, read_stored_mark
from onejob.stores.working_copy import WorkingCopy, attempt

T = TypeVar("T")

WRITTEN, TURN_OVER = 1, 2  # answers of the scripts that write, besides rows


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
        if len(self.steps) > 1 and self.key is not None and not self.needs_no_reading:
            self.depth = 2
        if rows is not None:
            self.rows = rows if self.rows is NO_ROWS else merged(self.rows, rows)

    @property
    def needs_no_reading(self) -> bool:
        """Whether each step needs only the job that its caller saw; then nothing is assumed of the key."""
        return all(step.needs_no_reading for _, step in self.steps)

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
