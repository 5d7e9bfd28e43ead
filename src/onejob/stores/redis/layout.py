"""Names of keys, and the entries of a job in the indexes.

All keys of a bucket share one hash tag, so that a cluster keeps them on one node and a script may use all of
them. A job lies in the bucket of its key. Names of namespaces, queues and tasks are written as a JSON list,
so that no character in them can make two names equal. Everything but the records is text.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from random import randbytes
from zlib import crc32

import msgspec

from onejob.core.job import TERMINAL, Job, State
from onejob.stores.columns import write_time
from onejob.stores.queries import TIMED

VERSION = 3  # of this layout
NAMES_KEPT = 8192
INDEX_DIGITS = 10  # of a continuation's index in its chain
RANK_DIGITS = 58  # before the id; take.lua knows it too
LARGEST_PRIORITY, EARLIEST_TIME, LARGEST_PLACE = 1 << 63, 10**17, 1 << 63  # offsets that make digits sort

TALLIES = ("tallies", "tallied", "tallied_first", "tallied_by")  # how often, when last, when first, by what
TALLIED_JOBS = "tallied_jobs"

Entries = dict[str, tuple[int, str]]
"""Name of a sorted set → score and member; a job has at most one member in each set."""


@lru_cache(maxsize=NAMES_KEPT)
def frame(*names: str) -> str:
    """Return names as one text from which they can be read back, whatever they contain."""
    return msgspec.json.encode(names).decode()


class Bucket:
    """The names of the keys of one bucket.

    `name` returns those of which there is one for each namespace, queue and so on:

    - state [namespace, state]: ids
    - timed, leased, expiring, kept, returning [namespace]: ids by run time, by the end of the lease, by when
      it is too late to start, by when they may be pruned, by when they are replayed
    - ended [namespace, state]: ids by the time when they ended
    - blocked [namespace]: ids of pending jobs that wait for chains
    - awaiting [chain]: ids of jobs that wait for a chain
    - due [namespace, queue, task]: available jobs, best first; shared: those with a partition, by partition
    - starts, turn, turn wanted [namespace, queue]: of limited queues
    - settings [namespace, kind], tallies, tallied, tallied_first, tallied_by [namespace]
    - tallied_jobs [namespace]: the names of the counters, by job
    - observations [namespace, kind]: records by id; observed [namespace, kind] and, of each subject,
      [namespace, kind, subject]: ids by time
    """

    def __init__(self, prefix: str, number: int) -> None:
        self.number = number
        self.tag = f"{{{prefix}:{number}}}:"
        self.jobs = self.tag + "jobs"  # id → record
        self.held = self.tag + "held"  # key → id of its holder
        self.next = self.tag + "next"  # key → id of its successor
        self.marks = self.tag + "marks"  # key → mark
        self.counts = self.tag + "counts"  # jobs by namespace, queue, task, state, held; active jobs
        self.keyed = self.tag + "keyed"  # key and id, in order
        self.chains = self.tag + "chains"  # chain, index and id of each continuation, in order
        self.fixed = (self.jobs, self.held, self.next, self.marks, self.counts)
        self.numbers = {name: number for number, name in enumerate(self.fixed, 1)}
        self.name = lru_cache(maxsize=NAMES_KEPT)(self._name)

    def _name(self, what: str, *names: str) -> str:
        return f"{self.tag}{what}:{frame(*names)}"


class Keyspace:
    """The buckets of a store, its channel, and the clock and time limit of its steps."""

    def __init__(
        self, prefix: str, buckets: int, clock: Callable[[], datetime], admission_timeout: float
    ) -> None:
        self.buckets = [Bucket(prefix, number) for number in range(buckets)]
        self.meta = self.buckets[0].tag + "meta"
        self.channel = f"{prefix}:changes"
        self.sender = randbytes(8).hex()  # noqa: S311 - a label, by which a process ignores its own messages
        self.clock = clock
        self.admission_timeout = admission_timeout
        self.is_single = buckets == 1  # so that a script sees everything
        self.absorbed = 0.0  # the share of duplicates among the last requests

    def home(self, token: bytes | str) -> Bucket:
        """Return the bucket of a key, or of a job by its id."""
        return self.buckets[0 if self.is_single else number(token) % len(self.buckets)]


def number(token: bytes | str) -> int:
    """Return the number by which a key or an id is placed: an id ends as its key begins."""
    if isinstance(token, bytes):
        return int.from_bytes(token[:2], "big")
    try:
        return int(token[-4:], 16)
    except ValueError:  # not an id that onejob made
        return crc32(token.encode())


# ── entries ───────────────────────────────────────────────────────────────────────────────────────


def rank(job: Job) -> str:
    """Return digits that sort as `core.leasing.rank` does, then the id."""
    priority, place = LARGEST_PRIORITY - job.priority, LARGEST_PLACE + job.place
    return f"{priority:020d}{EARLIEST_TIME + write_time(job.run_at):018d}{place:020d}{job.id}"


@lru_cache(maxsize=NAMES_KEPT)
def partition(name: str) -> str:
    """Return a partition's name as digits of one length; zeros for none."""
    return blake2b(name.encode(), digest_size=16).hexdigest() if name else "0" * 32


def entries(bucket: Bucket, job: Job) -> Entries:
    """Return the entries of a job that change with its state."""
    space, state, name = job.namespace, job.state, bucket.name
    found: Entries = {name("state", space, state): (0, job.id)}
    if state in TERMINAL:
        times = (("kept", job.kept_until), ("returning", job.returns_at))
        if job.finished_at is not None:
            found[name("ended", space, state)] = (write_time(job.finished_at), job.id)
    elif state is State.ACTIVE:
        times = (("leased", job.lease_until), ("timed", None))
    else:
        times = (("expiring", job.expires_at), ("timed", job.run_at if state in TIMED else None))
    for what, at in times:
        if at is not None:
            found[name(what, space)] = (write_time(at), job.id)
    if state is State.AVAILABLE:
        found |= due_entries(bucket, job)
    if job.blockers is not None and state not in TERMINAL:
        found |= {name("awaiting", chain): (0, job.id) for chain in job.awaits}
        if state is State.PENDING:
            found[name("blocked", space)] = (0, job.id)
    return found


def due_entries(bucket: Bucket, job: Job) -> Entries:
    """Return the entries of a job that can start."""
    position, due = rank(job), bucket.name("due", job.namespace, job.queue, job.task)
    if job.partition is None:
        return {due: (0, position)}
    own = partition(job.partition)
    shared = bucket.name("shared", job.namespace, job.queue, job.task)
    return {due: (0, f"{position}:{own}"), shared: (0, own + position)}


def lasting_entries(bucket: Bucket, job: Job) -> Entries:
    """Return the entries of a job that stay: by its key, and in its chain."""
    found: Entries = {}
    if job.key is not None:
        found[bucket.keyed] = (0, f"{job.key.hex()} {job.id}")
    if job.chain_index:
        found[bucket.chains] = (0, f"{job.chain_id} {job.chain_index:0{INDEX_DIGITS}d} {job.id}")
    return found


def changed_entries(bucket: Bucket, old: Job | None, new: Job | None) -> tuple[Entries, Entries]:
    """Return the entries before and after a change; None stands for absence."""
    before = {} if old is None else entries(bucket, old)
    after = {} if new is None else entries(bucket, new)
    if old is None and new is not None:
        after |= lasting_entries(bucket, new)
    if old is not None and new is None:
        before |= lasting_entries(bucket, old)
    return before, after


def counters(job: Job) -> tuple[str, ...]:
    """Return the counters that count a job: by state, and, while it is active, by queue and partition."""
    space, queue = job.namespace, job.queue
    own = frame(space, queue, job.task, job.state, "held" if job.is_holder else "")
    if job.state is not State.ACTIVE:
        return (own,)
    if not job.partition:
        return (own, frame(space, queue))
    return (own, frame(space, queue), frame(space, queue, partition(job.partition)))
