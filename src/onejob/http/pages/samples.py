"""The numbers of every page, counted at most every two seconds, and their history while the server runs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

from onejob import App, DeadGroup, Finding, Job, QueueStatus, Stats, Times, WorkerStatus
from onejob.errors import OnejobError
from onejob.http.pages.text import span

log = logging.getLogger("onejob")

FRESH = 2.0  # seconds for which a sample is shown
EVERY = 5.0  # seconds between the points of the chart
HISTORY = timedelta(hours=1)
LATELY = 12  # points: a minute
MOST_HOLDS = 500
MOST_NEW = 500  # jobs that are read to count those that were created since the last point
WITHOUT_JOB = ("kept", "updated", "rejected", "stale")  # absorbed requests that have no job of their own
ABSORBED = (*WITHOUT_JOB, "rerun")
MOST_LETTERS = 1000  # dead letters that are grouped, the newest
MOST_LINKED = 500  # jobs among which chains are looked for, the newest
QUICK = 0.25  # seconds; what takes no longer is read again when a page needs it
OLD = timedelta(seconds=10)  # figures that are older say so
PATIENCE = 20  # a count that takes long is repeated after this many times as long


@dataclass(frozen=True)
class Requests:
    """How many requests were received, created a job of their own, or were absorbed (ADR 0044).

    A rerun is absorbed although it makes a job, so `received` is the sum of the other two.
    """

    received: int
    absorbed: int

    @property
    def created(self) -> int:
        """How many requests created, forced or replaced a job."""
        return self.received - self.absorbed

    def share(self, number: int) -> str:
        """Return a number as a percentage of the received requests, and nothing if there are none."""
        return f"{100 * number / self.received:.0f} %" if self.received else ""


def count_requests(stats: Stats) -> Requests:
    """Count requests by their outcome; shadow outcomes and missed ticks are no requests of their own."""
    totals = {name: sum(one.get(name, 0) for one in stats.absorbed.values()) for name in ABSORBED}
    without_job = sum(totals[name] for name in WITHOUT_JOB)
    return Requests(sum(stats.by_state.values()) + without_job, sum(totals.values()))


def saved(stats: Stats) -> float:
    """Return for how many seconds absorbed requests would have run, by the median of the last hour."""
    times = stats.timings["1h"].by_task
    return sum(
        times[task].run.p50 * sum(outcomes.get(name, 0) for name in WITHOUT_JOB)
        for task, outcomes in stats.absorbed.items()
        if task in times and times[task].run.count
    )


def saved_words(stats: Stats) -> str:
    """Return how long absorbed requests would have run, as the end of a line; empty if it is very short."""
    return f" · {span(seconds)} of runs saved" if (seconds := saved(stats)) >= 1 else ""


@dataclass(frozen=True)
class Letters:
    """The newest dead letters, newest first, and their groups, the largest first."""

    total: int  # how many dead letters there were, the older ones included
    newest: list[Job]
    errors: list[str]  # the type of the last error of each of them; empty for one that never ran
    groups: list[DeadGroup]
    messages: Mapping[str, str]  # of the newest dead letter of each group, by its id


@dataclass(frozen=True)
class Sample:
    """An app in numbers, at one time."""

    at: datetime
    stats: Stats
    holds: list[Job]  # holders and successors, at most MOST_HOLDS
    queues: list[QueueStatus]
    schedules: int
    served: Mapping[str, int]  # how many requests each job has absorbed
    workers: list[WorkerStatus]
    letters: Letters
    newest: list[Job]  # at most MOST_LINKED
    failing: list[Finding]  # the checks of the app's health that fail

    @property
    def is_old(self) -> bool:
        """Whether these are not the present numbers, because counting takes long."""
        return datetime.now(UTC) - self.at > OLD

    @property
    def chains(self) -> list[Job]:
        """The last jobs of the chains among the newest jobs, of those that are more than a chain of one."""
        found: dict[str, Job] = {}
        for job in self.newest:
            if job.chain_index or job.following or job.blockers:
                found.setdefault(job.chain_id, job)
        return list(found.values())

    @property
    def holders(self) -> list[Job]:
        """The jobs that hold a key."""
        return [job for job in self.holds if job.is_holder]

    @property
    def requests(self) -> Requests:
        """How many requests were received, created a job or were absorbed."""
        return count_requests(self.stats)

    @property
    def alive(self) -> set[str]:
        """The names of the workers that are alive."""
        return {one.name for one in self.workers if one.alive}

    @property
    def throughput(self) -> float:
        """How many runs ended per minute, in the last 5 minutes."""
        return sum(times.run.count for times in self.times.values()) / 5

    @property
    def times(self) -> Mapping[str, Times]:
        """How long jobs of each queue waited and ran, in the last 5 minutes."""
        return self.stats.timings["5m"].by_queue


@dataclass(frozen=True)
class Point:
    """What happened in the time before a moment."""

    at: datetime
    seconds: float
    created: float
    absorbed: float
    depths: Mapping[str, int]  # how many jobs wait in each queue


class Sampler:
    """Counts an app's jobs when a page needs it, and regularly while the server runs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._sample: Sample | None = None
        self._good_until = 0.0
        self._took = 0.0  # seconds that the last count took
        self._changes = 0
        self._runs = False
        self._newest: str | None = None
        self._failed: tuple[float, Exception] | None = None  # when the last count failed, and why
        self._look = asyncio.Lock()
        self._looked_until = 0.0
        self.seen = ""  # the last fingerprint
        self.stopping = asyncio.Event()  # set when the server stops, so that streams end
        self.points: deque[Point] = deque(maxlen=int(HISTORY.total_seconds() / EVERY))

    async def sample(self) -> Sample:
        """Return the numbers: those of the regular count, or new ones if there is none or it is too old."""
        if self._sample is not None and self._runs:
            return self._sample
        return await self._refresh()

    async def _refresh(self) -> Sample:
        """Count unless the last count is still good; a count that takes long stays good for longer.

        Callers that waited for a count that failed get its error, and do not try one after the other.
        """
        asked = monotonic()
        async with self._lock:
            if self._failed is not None and self._failed[0] > asked:
                raise self._failed[1]
            while self._sample is None or monotonic() > self._good_until:
                began, changes = monotonic(), self._changes
                try:
                    sample = await count(self._app, self._sample)
                except OnejobError as error:
                    self._failed = monotonic(), error
                    raise
                self._took = monotonic() - began
                if changes == self._changes:  # else it may not show what was changed meanwhile
                    self._sample = sample
                    self._good_until = monotonic() + max(FRESH, PATIENCE * self._took)
            return self._sample

    def rate(self) -> float | None:
        """Return how many requests a minute were made lately; None before the first point."""
        points = list(self.points)[-LATELY:]
        seconds = sum(point.seconds for point in points)
        return 60 * sum(point.created + point.absorbed for point in points) / seconds if seconds else None

    async def fingerprint(self) -> str:
        """Return a digest that changes when a page may look different; the store is asked once for all."""
        async with self._look:
            if monotonic() > self._looked_until:
                newest = [(job.id, job.revision) for job in await self._app.jobs(limit=1)]
                self.seen = digest(newest, await self.sample())
                self._looked_until = monotonic() + FRESH / 2
            return self.seen

    def forget(self) -> None:
        """Count again because something was changed: for the next page, or beside it if that takes long."""
        self._changes += 1
        self._good_until = 0.0
        if self._took <= QUICK or not self._runs:
            self._sample = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count regularly, so that no page waits for it, and add a point to the history every few seconds."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._runs = False
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        before: Sample | None = None
        while True:
            try:
                now = await self._refresh()
                self._runs = True
                if before is None or (now.at - before.at).total_seconds() >= EVERY:
                    await self._add_point(before, now)
                    before = now
            except OnejobError as error:
                self._runs = False  # so that pages ask the store themselves, and show its error
                log.warning("the dashboard could not count jobs: %s", error)
            except Exception:
                self._runs = False
                log.exception("the dashboard could not count jobs")
            await asyncio.sleep(FRESH)

    async def _add_point(self, before: Sample | None, now: Sample) -> None:
        created = await self._count_created(before)
        if before is not None:
            seconds = (now.at - before.at).total_seconds()
            absorbed = max(now.requests.absorbed - before.requests.absorbed, 0)
            depths = {one.queue.name: one.depth for one in now.queues}
            self.points.append(Point(now.at, seconds, created, absorbed, depths))

    async def _count_created(self, before: Sample | None) -> float:
        """Return how many jobs were created since the last point; above MOST_NEW, estimated by their rate."""
        known, newest = self._newest, await self._app.jobs(limit=1)
        self._newest = newest[0].id if newest else known or ""
        if known is None or before is None or self._newest == known:
            return 0.0
        jobs = await self._app.jobs(limit=MOST_NEW)
        fresh = [job for job in jobs if job.id > known]
        if len(fresh) < MOST_NEW:
            return float(len(fresh))
        span = (fresh[0].created_at - fresh[-1].created_at).total_seconds()
        gone = (datetime.now(UTC) - before.at).total_seconds()
        return len(fresh) * max(gone / span, 1.0) if span > 0 else float(len(fresh))


async def count(app: App, before: Sample | None = None) -> Sample:
    """Count an app's jobs, held keys, queues, schedules and workers."""
    at = datetime.now(UTC)
    stats, queues = await app.stats(), await app.queues.list()
    holds, schedules = await app.activity.held(limit=MOST_HOLDS), await app.schedules.all()
    served, workers = await app.absorbed(), await app.activity.workers()
    letters = await read_letters(app, stats.dead, None if before is None else before.letters)
    newest = await app.jobs(limit=MOST_LINKED)
    failing = [one for one in await app.maintenance.health() if one.level == "fail"]
    return Sample(at, stats, holds, queues, len(schedules), served, workers, letters, newest, failing)


async def read_letters(app: App, total: int, before: Letters | None) -> Letters:
    """Return the newest dead letters; those that are known, unless one has come or gone since."""
    newest = await app.dead.list(limit=1)
    if before is not None and (before.total, before.newest[:1]) == (total, newest):
        return before
    letters = await app.dead.list(limit=MOST_LETTERS)
    errors = [str(job.failures[-1]["type"]) if job.failures else "" for job in letters]
    groups = await app.dead.groups(limit=MOST_LETTERS)
    examples = {group.example for group in groups}
    messages = {
        job.id: str(job.failures[-1]["message"]) for job in letters if job.failures and job.id in examples
    }
    return Letters(total, letters, errors, groups, messages)


def digest(newest: object, sample: Sample) -> str:
    """Return a short name of what pages show."""
    stats, alive = sample.stats, sample.alive
    workers = [(one.name, one.name in alive, len(one.running)) for one in sample.workers]
    holds = [job.id for job in sample.holds]
    shown = (
        newest,
        stats.by_state,
        stats.absorbed,
        stats.lost,
        holds,
        sample.queues,
        sample.schedules,
        workers,
        [one.check for one in sample.failing],
    )
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]
