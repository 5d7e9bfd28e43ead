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
from typing import Any
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

ZERO = b"0"

Entries = dict[bytes, tuple[bytes, bytes]]
"""Sorted set → score and member: of one job each set has one member at most."""

Counter = tuple[bytes, bytes]
"""Hash and field."""

Command = tuple[Any, ...]
"""A command, its key, and its words."""


class Lot:
    """The names that the jobs of one task in one queue share: of their indexes, and of their counters."""

    __slots__ = ("awaited", "counters", "due", "ended", "listed", "returning", "shared")

    def __init__(self, place: Bucket, namespace: str, queue: str, task: str) -> None:
        self.due = place.due(namespace, queue, task)
        self.shared = place.shared(namespace, queue, task)
        self.awaited = place.awaited(namespace)
        self.returning = place.returning(namespace, task)
        self.listed = {state: place.listed(namespace, state) for state in State}
        self.ended = {state: place.ended(namespace, task, state) for state in TERMINAL}
        self.counters: dict[tuple[State, bool], tuple[Counter, ...]] = {}
        for state in State:
            active = ((place.active, frame(namespace, queue)),) if state is State.ACTIVE else ()
            for held, word in ((False, ""), (True, "held")):
                counts = (place.counts, frame(namespace, queue, task, state, word))
                self.counters[state, held] = (counts, *active)


class Bucket:
    """The keys of one bucket. Scripts get the fixed ones, all hashes, then the sorted sets they need."""

    __slots__ = (
        "_lots",
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
        "standing",
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
        self.standing = self.fixed[:4]  # of a key
        self.numbers = {name: number for number, name in enumerate(self.fixed, 1)}
        self._names: dict[tuple[str, ...], bytes] = {}
        self._lots: dict[tuple[str, str, str], Lot] = {}

    def lot(self, namespace: str, queue: str, task: str) -> Lot:
        """Give the names that jobs of a task in a queue share."""
        names = (namespace, queue, task)
        lot = self._lots.get(names)
        if lot is None:
            if len(self._lots) > NAMES:
                self._lots.clear()
            lot = self._lots[names] = Lot(self, namespace, queue, task)
        return lot

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


def moving(place: Bucket, job: Job, name: bytes) -> Entries:
    """List where a job stands in the sorted sets as long as it is in this state."""
    lot, state = place.lot(job.namespace, job.queue, job.task), job.state
    found = {lot.listed[state]: (ZERO, name)}
    if state is State.AVAILABLE:
        if job.partition is None:
            found[lot.due] = (ZERO, rank(job))
        else:
            standing, own = rank(job), partition(job.partition)
            found[lot.due], found[lot.shared] = (ZERO, standing + b"\0" + own), (ZERO, own + standing)
    elif state is State.ACTIVE:
        if job.lease_until is not None:
            found[place.leased] = (b"%d" % micros(job.lease_until), name)
    elif state in TIMED:
        found[place.timed] = found[lot.awaited] = (b"%d" % micros(job.run_at), name)
    elif state in TERMINAL and job.finished_at is not None:
        found[lot.ended[state]] = (b"%d" % micros(job.finished_at), name)
        if state is State.DISCARDED and job.returns_at is not None:
            found[lot.returning] = (b"%d" % micros(job.returns_at), name)
    if job.expires_at is not None and state in UNSTARTED:
        found[place.expiring] = (b"%d" % micros(job.expires_at), name)
    if job.blockers is not None and state is State.PENDING:
        found[place.blocked] = (ZERO, name)
    return found


def waiting(place: Bucket, job: Job, name: bytes) -> Entries:
    """List where a job stands as long as it has not ended and waits, or has waited, for the same chains."""
    if job.blockers is None or job.state in TERMINAL:
        return {}
    return {place.awaiting(chain): (ZERO, name) for chain in job.awaits}


def entries(place: Bucket, job: Job, name: bytes) -> Entries:
    """List where a job stands in the sorted sets: also by its key and in its chain, which never change."""
    found = moving(place, job, name)
    if job.blockers is not None:
        found |= waiting(place, job, name)
    if job.key is not None:
        found[place.keyed] = (ZERO, job.key + name)
    if job.chain_index:
        found[place.chains] = (ZERO, chained(job))
    return found


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


def counters(place: Bucket, job: Job) -> tuple[Counter, ...]:
    """List the counters in which a job counts."""
    lot = place.lot(job.namespace, job.queue, job.task)
    kinds = lot.counters[job.state, job.held_key is not None]
    if job.partition and job.state is State.ACTIVE:
        kinds += ((place.active, share(job.namespace, job.queue, job.partition)),)
    return kinds


# ── what is written ───────────────────────────────────────────────────────────────────────────────


def moves(place: Bucket, old: Job | None, new: Job | None, name: bytes) -> list[Command]:
    """Write what changes in the indexes when a job comes, changes or goes; None stands for absence."""
    if old is not None and new is not None:
        before, after = moving(place, old, name), moving(place, new, name)
        blocked = old.blockers is not None or new.blockers is not None
        if blocked and (old.blockers != new.blockers or old.is_terminal != new.is_terminal):
            before |= waiting(place, old, name)
            after |= waiting(place, new, name)
    else:
        before = {} if old is None else entries(place, old, name)
        after = {} if new is None else entries(place, new, name)
    commands: list[Command] = [
        ("ZADD", index, *entry) for index, entry in after.items() if before.get(index) != entry
    ]
    for index, (_, member) in before.items():
        if index not in after or after[index][1] != member:
            commands.append(("ZREM", index, member))
    return commands
