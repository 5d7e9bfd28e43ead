"""Timings: how long jobs waited and ran, as workers measure it by the minute, and how long due jobs wait.

A worker keeps a histogram per task, queue and minute, and writes the minutes that have changed with its
heartbeat. What a worker has measured since its last heartbeat is lost if it is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from onejob.core.histogram import Histogram, add_up, bucket_of
from onejob.core.job import Job
from onejob.core.leasing import longest_due
from onejob.engine.engine import Engine
from onejob.stores.contract import Observation
from onejob.stores.queries import Overdue

KIND = "timings"
MINUTE = timedelta(minutes=1)
WINDOWS = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1)}
KEPT_FOR = timedelta(hours=2)
PER_WORKER = KEPT_FOR // MINUTE  # rows that a worker keeps, one for each minute
MOST = 6000  # rows that a namespace keeps: those of 100 workers in an hour
MOST_PAIRS = 100  # pairs of task and queue that a worker measures in a minute; further ones are left out

Pair = tuple[str, str]
"""A task and a queue."""


class Measured(msgspec.Struct, array_like=True):
    """How long jobs of a task in a queue waited, from due to started, and ran, from started to ended."""

    task: str
    queue: str
    waits: Histogram = msgspec.field(default_factory=dict)
    runs: Histogram = msgspec.field(default_factory=dict)

    @property
    def pair(self) -> Pair:
        """The task and the queue."""
        return self.task, self.queue


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


class Recorder:
    """Measures the jobs of one worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._minutes: dict[datetime, dict[Pair, Measured]] = {}
        self._pairs: dict[Pair, Measured] = {}  # those of the newest minute: earlier ones do not change
        self._minute = self._ends = datetime.min.replace(tzinfo=UTC)  # when the newest minute ends
        self._changed: set[datetime] = set()  # the minutes that are to be written
        self._writing: set[datetime] = set()  # those that are being written

    def start(self, job: Job) -> None:
        """Count how long a job that has just started had been due."""
        started_at = job.started_at
        if started_at is None or (measured := self._measure(job, started_at)) is None:
            return
        bucket = bucket_of((started_at - job.due_since).total_seconds())
        measured.waits[bucket] = measured.waits.get(bucket, 0) + 1

    def end(self, job: Job, seconds: float, now: datetime) -> None:
        """Count how long a run took that has ended by now."""
        if (measured := self._measure(job, now)) is not None:
            bucket = bucket_of(seconds)
            measured.runs[bucket] = measured.runs.get(bucket, 0) + 1

    def _measure(self, job: Job, now: datetime) -> Measured | None:
        if now >= self._ends:
            self._begin(now.replace(second=0, microsecond=0))
        self._changed.add(self._minute)
        measured = self._pairs.get((job.task, job.queue))
        if measured is None and len(self._pairs) < MOST_PAIRS:
            measured = self._pairs[job.task, job.queue] = Measured(job.task, job.queue)
        return measured

    def _begin(self, minute: datetime) -> None:
        """Begin a minute; drop those that are written, and keep the newest while the store is away."""
        kept = sorted(self._changed | self._writing)[-PER_WORKER:]
        self._changed &= set(kept)
        self._pairs = {}
        self._minutes = {old: self._minutes[old] for old in kept} | {minute: self._pairs}
        self._minute, self._ends = minute, minute + MINUTE

    def take(self, namespace: str) -> list[Observation]:
        """Return the rows of the minutes that have changed; call `written` or `keep` afterwards."""
        self._writing, self._changed = self._changed & self._minutes.keys(), set()
        return [self._row(namespace, minute) for minute in sorted(self._writing)]

    def _row(self, namespace: str, minute: datetime) -> Observation:
        data = msgspec.json.encode(list(self._minutes[minute].values())).decode()
        name = f"{self._worker} {minute.isoformat()}"
        return Observation(namespace, KIND, name, self._worker, minute, data)

    def written(self) -> None:
        """Note that the rows are in the store."""
        self._writing = set()

    def keep(self) -> None:
        """Note that the rows must be written again."""
        self._changed |= self._writing & self._minutes.keys()
        self._writing = set()


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def read_timings(engine: Engine) -> dict[str, list[Measured]]:
    """Return what all workers have measured in each window, added up by task and queue."""
    rows = await engine.store.observations(engine.namespace, KIND, limit=MOST)
    now = engine.store.now()
    return {name: total(row for row in rows if now - row.at < length) for name, length in WINDOWS.items()}


async def read_longest_due(engine: Engine) -> dict[str, Job]:
    """Return the job of each queue that has been due longest and has not started, by queue."""
    now = engine.store.now()
    found = await engine.find(Overdue(namespace=engine.namespace, by=now))
    return longest_due(found, now)


def total(rows: Iterable[Observation]) -> list[Measured]:
    """Return the sums of rows by task and queue."""
    found: dict[Pair, list[Measured]] = {}
    for row in rows:
        for measured in msgspec.json.decode(row.data, type=list[Measured]):
            found.setdefault(measured.pair, []).append(measured)
    return [
        Measured(*pair, add_up(one.waits for one in some), add_up(one.runs for one in some))
        for pair, some in sorted(found.items())
    ]


def group(measured: Iterable[Measured], *, by_queue: bool) -> Mapping[str, Sequence[Measured]]:
    """Return measurements by queue, or by task."""
    found: dict[str, list[Measured]] = {}
    for one in measured:
        found.setdefault(one.queue if by_queue else one.task, []).append(one)
    return found


async def forget_timings(engine: Engine) -> None:
    """Remove the rows of minutes that no window reaches."""
    before = engine.store.now() - KEPT_FOR
    await engine.store.forget(engine.namespace, KIND, before=before, most=MOST)
