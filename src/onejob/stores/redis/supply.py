"""Candidates for a lease, and the counts that its limits need, as the script `take` supplies them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from onejob.core.job import Job
from onejob.core.leasing import PAUSED, Capacity, Lease, Load, choose, next_due
from onejob.core.step import Changes, Step
from onejob.stores.columns import Unreadable, read_time, write_time
from onejob.stores.redis.groups import Call, Group, Rows, assumed, read_rows
from onejob.stores.redis.layout import RANK_DIGITS, Bucket, Keyspace, frame, partition
from onejob.stores.redis.records import REVISION, read_record, repair
from onejob.stores.redis.scripts import Turn

RIPEN = 1000  # jobs made available at once
SET_ASIDE = timedelta(seconds=5)  # how long a candidate is set aside for one worker
TURN = timedelta(seconds=2)  # how long a turn lasts at most
TURN_MILLISECONDS = TURN // timedelta(milliseconds=1)


class Damaged(NamedTuple):
    """A record that is missing or cannot be read, and where it is listed."""

    bucket: Bucket
    job_id: str
    record: bytes | None
    error: Unreadable | None = None
    listed: tuple[str, str] | None = None  # sorted set and member

    def discarding(self, now: datetime) -> Group:
        """Return the group that makes the job a dead letter; of a missing one it removes what lists it."""
        group = Group(None, self.bucket, [self.job_id], expects="-")
        group.unlisted = [] if self.listed is None else [self.listed]
        if self.record is not None and self.error is not None:
            job, discarded = repair(self.record, self.job_id, self.error, now)
            group.key, group.rows, group.expects = job.key, Rows({job.id: job}), self.record[:REVISION]
            changes = Changes(None, updates=(discarded,))
            group.steps.append((0, Step(lambda _view: changes, job.id, alone=True)))
        return group


class Candidate(NamedTuple):
    """An available job, where it is listed, and the rows that its start needs."""

    bucket: Bucket
    listed: tuple[str, str]
    job: Job
    rows: Rows

    def returning(self) -> Group:
        """Return the group that frees a candidate which was set aside and not started."""
        name, member = self.listed
        listed = [(name, 0, member)]
        return Group(self.job.key, self.bucket, [self.job.id], rows=assumed(self.job), listed=listed)


def places(job: Job, bucket: Bucket) -> tuple[str, str]:
    """Return the sets in which an available job can be listed."""
    own = job.namespace, job.queue, job.task
    return bucket.name("due", *own), bucket.name("shared", *own)


@dataclass(slots=True)
class Supply:
    """What the buckets have supplied."""

    candidates: dict[str, Candidate] = field(default_factory=dict)
    ripe: list[Job] = field(default_factory=list)  # timed jobs whose time has come
    damaged: list[Damaged] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    turns: Sequence[str] = ()  # the queues whose turn was granted
    waits_for_turn: bool = False
    earliest: datetime | None = None  # run time of a timed job
    deadline: int | str = ""  # of the turns, where they are not checked with the write

    def add(self, call: Call, reply: Sequence[Any], bucket: Bucket, namespace: str) -> None:
        """Add the jobs that a bucket has supplied."""
        earliest, ripe, _, candidates = reply
        if earliest is not None:
            at = read_time(int(earliest))
            self.earliest = min(at, self.earliest or at)
        for name, record in ripe:
            listed = (bucket.name("timed", namespace), name.decode())
            job = self._read(Damaged(bucket, listed[1], record, listed=listed))
            self.ripe += [] if job is None else [job]
        for number, member, record, *of_key in candidates:
            listed = (call.keys[number - 1], member.decode())
            job_id = listed[1][RANK_DIGITS:].partition(":")[0]
            job = self._read(Damaged(bucket, job_id, record, listed=listed))
            if job is not None and listed[0] not in places(job, bucket):
                error = Unreadable([job_id], ValueError(f"it is listed in {listed[0]}"))
                self.damaged.append(Damaged(bucket, job_id, record, error, listed))
            elif job is not None:
                rows = read_rows([[record], *of_key, None], [job_id]) if of_key else assumed(job)
                self.candidates[job_id] = Candidate(bucket, listed, job, rows)

    def _read(self, stored: Damaged) -> Job | None:
        """Return the job of a record; one that is missing or cannot be read is noted as damaged."""
        try:
            if stored.record is not None:
                return read_record(stored.record, stored.job_id)
        except Unreadable as error:
            stored = stored._replace(error=error)
        self.damaged.append(stored)
        return None

    def count(self, active: Mapping[str, Mapping[str, int]], starts: Mapping[str, Sequence[bytes]]) -> None:
        """Add the active jobs of queues by digits of the partition, "" for all, and the recent starts."""
        found: dict[tuple[str, str], int] = {}
        for queue, by_digits in active.items():
            jobs = [one.job for one in self.candidates.values() if one.job.queue == queue]
            own = {name: by_digits.get(partition(name), 0) for job in jobs if (name := job.partition)}
            found |= {(queue, name): number for name, number in own.items()}
            found[queue, ""] = by_digits.get("", 0) - sum(own.values())
        times = {queue: [read_time(int(at)) for at in some] for queue, some in starts.items()}
        self.load = Load(found, times)


class Leasing:
    """A lease under way."""

    def __init__(self, wanted: Lease, space: Keyspace) -> None:
        self.wanted, self.space = wanted, space
        self.owner = f"{random.getrandbits(48):012x}"
        self.started: list[Job] = []
        self.counted = 0  # how many of these the load includes
        self.ripen = RIPEN
        self.limited = frozenset(wanted.limited)

    def free(self, queue: str) -> int:
        """Return how many jobs of a queue this worker may still start."""
        begun = sum(job.queue == queue for job in self.started)
        return max(min(self.wanted.queues[queue] - begun, self.wanted.total - len(self.started)), 0)

    def choose(self, supply: Supply) -> list[Candidate]:
        """Return the candidates to start, by the rules of `core.leasing`."""
        capacity = Capacity(self.wanted, supply.load, self.space.clock(), self.started)
        chosen = choose((one.job for one in supply.candidates.values()), capacity)
        return [supply.candidates[job.id] for job in chosen]

    def name(self, what: str, queue: str) -> str:
        """Return the name of a key of a limited queue, which lies in the first bucket."""
        return self.space.buckets[0].name(what, self.wanted.namespace, queue)

    def turns(self, supply: Supply) -> list[Turn]:
        """Return the turns that this worker has."""
        return [Turn(self.name("turn", q), self.name("turn wanted", q), self.owner) for q in supply.turns]

    def noted_start(self, job: Job) -> tuple[str, int, str]:
        """Return where, when and what to note of a start in a queue with a rate."""
        return (
            self.name("starts", job.queue),
            write_time(job.started_at or job.run_at),
            f"{job.id}:{job.token}",
        )

    def next_due(self, supply: Supply) -> datetime | None:
        """Return when to lease again; None if as many jobs have started as the worker wanted."""
        if len(self.started) >= self.wanted.total:
            return None
        now = self.space.clock()
        times = [supply.earliest, now + TURN if supply.waits_for_turn else None]
        timed = min((at for at in times if at is not None), default=None)
        return next_due(self.wanted, supply.load, now, timed, self.started[self.counted :])


def taking(
    leasing: Leasing,
    bucket: Bucket,
    *,
    only_looks: bool = False,
    queues: Iterable[str] | None = None,
    running: Mapping[str, Mapping[str, int]] | None = None,
) -> Call:
    """Return the call that takes candidates from a bucket.

    Args:
        leasing: The lease under way.
        bucket: Where to take them from.
        only_looks: Set nothing aside and take no turns.
        queues: The queues, if not all that are wanted.
        running: Active jobs by queue and partition, if the bucket does not know all of them.
    """
    wanted, now, name = leasing.wanted, leasing.space.clock(), bucket.name
    space, tasks = wanted.namespace, list(wanted.tasks)
    lapses = "" if only_looks else write_time(now + SET_ASIDE)
    first = f"{random.getrandbits(128):032x}"
    words: list[Any] = [write_time(now), lapses, wanted.total - len(leasing.started), leasing.ripen]
    words += (leasing.owner, TURN_MILLISECONDS, first)
    keys = [*bucket.fixed, name("timed", space), name("settings", space, PAUSED)]
    for queue in wanted.queues if queues is None else queues:
        turns, share, rate = queue in leasing.limited, wanted.shares.get(queue, ""), wanted.rates.get(queue)
        if only_looks or not turns:
            turns = False
            if not leasing.free(queue):
                continue
        known = (running or {}).get(queue, {})
        words += (queue, frame(space, queue), leasing.free(queue), "1" if turns else "")
        words += (wanted.limits.get(queue, ""), share)
        words += ("", "") if rate is None else (rate.times, write_time(now - rate.per))
        words += (len(tasks), len(known), *(word for pair in known.items() for word in pair))
        if turns:
            keys += (leasing.name(what, queue) for what in ("turn", "turn wanted", "starts"))
        for task in tasks:
            keys.append(name("due", space, queue, task))
            keys += [] if share == "" else [name("shared", space, queue, task)]
    return Call(bucket.number, words, "take", keys)
