"""Where things lie: the names of keys, and the entries of a job in the indexes.

Everything of a bucket carries one hash tag, so that a cluster keeps it on one node and a script may touch
all of it. Names of namespaces, queues and tasks are framed as JSON, so that no character in them can make
two names one.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

import msgspec

from onejob.job import EPOCH, TERMINAL, UNSTARTED, Job, State
from onejob.limits import PAUSED

VERSION = 1  # of this layout
POSITION = 10  # digits of a continuation's place in its chain
MICROSECOND = timedelta(microseconds=1)
SIGN = 1 << 63
_rank = struct.Struct(">QQQ").pack
TIMED = frozenset({State.SCHEDULED, State.RETRYABLE})
NAMES = 4096  # kept ready
PARTITION = 16  # bytes

Entries = dict[tuple[bytes, bytes], bytes]
"""Sorted set and member → score."""


class Bucket:
    """The keys of one bucket. Scripts get the fixed ones, all hashes, then the sorted sets they need."""

    __slots__ = (
        "_names",
        "active",
        "blocked",
        "chains",
        "counts",
        "expiring",
        "fixed",
        "held",
        "jobs",
        "keyed",
        "leased",
        "marks",
        "next",
        "number",
        "numbers",
        "tag",
        "timed",
    )

    def __init__(self, prefix: str, number: int) -> None:
        self.number = number
        self.tag = b"{%b:%d}:" % (prefix.encode(), number)
        self.jobs = self.tag + b"jobs"  # id → record
        self.held = self.tag + b"held"  # key → id of its holder
        self.next = self.tag + b"next"  # key → id of its successor
        self.marks = self.tag + b"marks"  # key → mark
        self.counts = self.tag + b"counts"  # namespace, queue, task, state, held or not → number
        self.active = self.tag + b"active"  # namespace, queue → number
        self.keyed = self.tag + b"keyed"  # key and id, in order
        self.chains = self.tag + b"chains"  # chain, place in it and id of a continuation, in order
        self.blocked = self.tag + b"blocked"  # id of a job that waits for chains
        self.timed = self.tag + b"timed"  # id by run time
        self.expiring = self.tag + b"expiring"  # id by when it is too late to start
        self.leased = self.tag + b"leased"  # id by the end of its lease
        self.fixed = (self.jobs, self.held, self.next, self.marks, self.active, self.counts)
        self.numbers = {name: number for number, name in enumerate(self.fixed, 1)}
        self._names: dict[tuple[str, ...], bytes] = {}

    def beside(self, *names: str) -> bytes:
        """Name an index that there is one of per names."""
        name = self._names.get(names)
        if name is None:
            if len(self._names) > NAMES:
                self._names.clear()
            name = self._names[names] = b"%b%b:%b" % (self.tag, names[0].encode(), frame(*names[1:]))
        return name

    def due(self, namespace: str, queue: str, task: str) -> bytes:
        """Name the set of jobs that are available, best first."""
        return self.beside("due", namespace, queue, task)

    def shared(self, namespace: str, queue: str, task: str) -> bytes:
        """Name the set of available jobs that have a partition, by that and then best first."""
        return self.beside("shared", namespace, queue, task)

    def starts(self, namespace: str, queue: str) -> bytes:
        """Name the set of starts, by when they were, of a queue with a rate."""
        return self.beside("starts", namespace, queue)

    def paused(self, namespace: str) -> bytes:
        """Name the hash of the queues that are paused."""
        return self.beside("settings", namespace, PAUSED)

    def listed(self, namespace: str, state: State) -> bytes:
        """Name the set of jobs in a state, oldest first."""
        return self.beside("state", namespace, state)

    def awaiting(self, chain: str) -> bytes:
        """Name the set of jobs that wait for a chain."""
        return self.beside("awaiting", chain)

    def ended(self, namespace: str, task: str, state: State) -> bytes:
        """Name the set of a task's jobs that ended in a state, by when they did."""
        return self.beside("ended", namespace, task, state)

    def returning(self, namespace: str, task: str) -> bytes:
        """Name the set of a task's dead letters that come back by themselves, by when they do."""
        return self.beside("returning", namespace, task)

    def awaited(self, namespace: str) -> bytes:
        """Name the set of a namespace's jobs that wait for their time."""
        return self.beside("timed", namespace)

    def tallies(self, namespace: str) -> bytes:
        """Name the hash of absorbed requests."""
        return self.beside("tallies", namespace)

    def tallied_at(self, namespace: str) -> bytes:
        """Name the hash of when they were last counted."""
        return self.beside("tallied", namespace)


@lru_cache(maxsize=NAMES)
def frame(*names: str) -> bytes:
    """Write names so that they can be told apart whatever they contain."""
    return msgspec.json.encode(names)


def number(token: bytes | str) -> int:
    """Tell the two bytes by which a key or an id is placed: an id ends as its key begins."""
    if isinstance(token, bytes):
        return int.from_bytes(token[:2], "big")
    try:
        return int(token[-4:], 16)
    except ValueError:  # not an id that we made
        return crc32(token.encode())


def micros(time: datetime) -> int:
    """Write a time as microseconds since 1970; a score holds them exactly."""
    return (time - EPOCH) // MICROSECOND


def rank(job: Job) -> bytes:
    """Write `lifecycle.rank` so that bytes sort as it does."""
    return _rank(SIGN - job.priority, SIGN + micros(job.run_at), SIGN + job.place) + job.id.encode()


def entries(place: Bucket, job: Job) -> Entries:
    """List where a job stands in the sorted sets."""
    name = job.id.encode()
    found = {(place.listed(job.namespace, job.state), name): b"0"}
    if job.state is State.AVAILABLE:
        found |= in_line(place, job)
    elif job.state in TIMED:
        at = b"%d" % micros(job.run_at)
        found[place.timed, name] = found[place.awaited(job.namespace), name] = at
    elif job.state is State.ACTIVE and job.lease_until is not None:
        found[place.leased, name] = b"%d" % micros(job.lease_until)
    elif job.state in TERMINAL and job.finished_at is not None:
        found[place.ended(job.namespace, job.task, job.state), name] = b"%d" % micros(job.finished_at)
    if job.returns_at is not None:
        found[place.returning(job.namespace, job.task), name] = b"%d" % micros(job.returns_at)
    if job.expires_at is not None and job.state in UNSTARTED:
        found[place.expiring, name] = b"%d" % micros(job.expires_at)
    if job.key is not None:
        found[place.keyed, job.key + name] = b"0"
    if job.chain_index:
        found[place.chains, chained(job)] = b"0"
    if job.blockers is not None and job.state not in TERMINAL:
        found |= {(place.blocked, name): b"0"} if job.state is State.PENDING else {}
        found |= {(place.awaiting(chain), name): b"0" for chain in job.awaits}
    return found


def in_line(place: Bucket, job: Job) -> Entries:
    """List where an available job stands: in its queue, and in its partition if it has one."""
    queue = place.due(job.namespace, job.queue, job.task)
    if job.partition is None:
        return {(queue, rank(job)): b"0"}
    name, standing = partition(job.partition), rank(job)
    shared = place.shared(job.namespace, job.queue, job.task)
    return {(queue, standing + b"\0" + name): b"0", (shared, name + standing): b"0"}


@lru_cache(maxsize=NAMES)
def partition(name: str) -> bytes:
    """Write a partition so that all have one length; nobody's is zeros."""
    return blake2b(name.encode(), digest_size=PARTITION).digest() if name else bytes(PARTITION)


def share(namespace: str, queue: str, name: str) -> bytes:
    """Name the counter of a partition's active jobs."""
    return b"%b:%b" % (frame(namespace, queue), partition(name))


def chained(job: Job) -> bytes:
    """Write a continuation such that a chain's sort by their place in it; `tails` reads it, too."""
    return b"%b\0%0*d%b" % (job.chain_id.encode(), POSITION, job.chain_index, job.id.encode())


def counters(place: Bucket, job: Job) -> list[tuple[bytes, bytes]]:
    """List the counters in which a job counts."""
    held = "" if job.held_key is None else "held"
    kinds = [(place.counts, frame(job.namespace, job.queue, job.task, job.state, held))]
    if job.state is State.ACTIVE:
        kinds.append((place.active, frame(job.namespace, job.queue)))
        if job.partition:
            kinds.append((place.active, share(job.namespace, job.queue, job.partition)))
    return kinds


class Shift:
    """What changes in the indexes when jobs change."""

    __slots__ = ("_place", "added", "counted", "removed")

    def __init__(self, place: Bucket) -> None:
        self._place = place
        self.added: list[tuple[bytes, bytes, bytes]] = []
        self.removed: list[tuple[bytes, bytes]] = []
        self.counted: dict[tuple[bytes, bytes], int] = {}

    def note(self, old: Job | None, new: Job | None) -> None:
        """Take in one job's change; None stands for absence."""
        before = {} if old is None else entries(self._place, old)
        after = {} if new is None else entries(self._place, new)
        self.removed += [entry for entry in before if entry not in after]
        self.added += [(*entry, score) for entry, score in after.items() if before.get(entry) != score]
        for job, by in ((old, -1), (new, 1)):
            for counter in () if job is None else counters(self._place, job):
                self.counted[counter] = self.counted.get(counter, 0) + by
