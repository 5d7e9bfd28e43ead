"""The executable specification of a store: every promise of the contract, in one process, under one lock."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import structs

from onejob.core.job import UNSTARTED, Job, State
from onejob.core.leasing import PAUSED, Capacity, Lease, Load, choose, next_due
from onejob.core.runs import mature
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.errors import OnejobError
from onejob.stores.contract import (
    SCHEDULES,
    Counts,
    Finding,
    Guarantees,
    Leased,
    Observation,
    Schema,
    Tally,
    utcnow,
)
from onejob.stores.queries import TIMED, Query, Stranded, matches, page
from onejob.stores.store_clock import Clock, StoreClock
from onejob.stores.wakeup import Wakeup
from onejob.stores.working_copy import WorkingCopy

T = TypeVar("T")


class MemoryStore:
    """A store that lives and dies with its process."""

    guarantees = Guarantees(
        store="memory",
        strength="strong",
        scope="one process",
        durability="none",
        not_promised="anything after the process ends",
    )

    def __init__(self, *, clock: Clock = utcnow) -> None:
        self.now = StoreClock(clock)
        self._lock = threading.Lock()
        self._rows = WorkingCopy()
        self._tallies: dict[tuple[str, str, str, str], Tally] = {}
        self._starts: defaultdict[tuple[str, str], deque[datetime]] = defaultdict(deque)
        self._settings: defaultdict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)
        self._observations: dict[tuple[str, str, str], Observation] = {}
        self._wakeup = Wakeup()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def apply_sync(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Run steps in order under the lock."""
        with self._lock:
            answers = [self._run(step) for step in steps]
        self._wakeup.notify()
        return answers

    async def apply(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Run steps in order under the lock."""
        return self.apply_sync(steps)

    def _run(self, step: Step[Any]) -> Any:
        if step.queue is not None:
            waiting = self._select(
                lambda job: job.state in UNSTARTED and (job.namespace, job.queue) == step.queue
            )
            self._rows.depths = {step.queue: len(waiting)}
        return self._rows.run(step, self.now(), self._record)

    def _record(self, changes: Changes[Any]) -> None:
        """Add to the counters what a step adds to them."""
        if changes.tally is not None:
            self._add_up(changes.tally)

    # ── leasing ───────────────────────────────────────────────────────────────────────────────────

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        """Run steps, then start due jobs, best first."""
        with self._lock:
            answers = [self._run(step) for step in after]
            now = self.now()
            for job in self._find_timed(wanted):
                self._rows.run(Step(mature, job.id), now, _ignore)
            started = self._start_best(wanted, now)
            due = None
            if len(started) < wanted.total:
                timed = min((job.run_at for job in self._find_timed(wanted)), default=None)
                due = next_due(wanted, self._load(wanted), now, timed)
        if after:
            self._wakeup.notify()
        return Leased(answers, started, due)

    def _start_best(self, wanted: Lease, now: datetime) -> list[Job]:
        started: list[Job] = []
        while True:
            capacity = Capacity(wanted, self._load(wanted), now, started)
            chosen = choose(self._available(wanted), capacity)
            if not chosen:
                return started
            begun = self._rows.start(chosen, wanted, now, _ignore)
            for job in begun:
                if job.queue in wanted.rates:
                    self._starts[job.namespace, job.queue].append(now)
            started += begun

    def _available(self, wanted: Lease) -> list[Job]:
        return self._select(
            lambda job: (
                job.state is State.AVAILABLE
                and job.namespace == wanted.namespace
                and job.task in wanted.tasks
                and job.queue in wanted.queues
            )
        )

    def _load(self, wanted: Lease) -> Load:
        active = self._select(lambda job: job.state is State.ACTIVE and job.namespace == wanted.namespace)
        return Load(
            Counter((job.queue, job.partition or "") for job in active),
            {queue: self._recent_starts(wanted, queue) for queue in wanted.rates},
            self._settings[wanted.namespace, PAUSED],
        )

    def _recent_starts(self, wanted: Lease, queue: str) -> Sequence[datetime]:
        starts, per = self._starts[wanted.namespace, queue], wanted.rates[queue].per
        while starts and starts[0] + per <= self.now():
            starts.popleft()
        return starts

    async def starts(self, namespace: str, queue: str, since: datetime) -> list[datetime]:
        """Return when jobs of a queue that has a rate have started."""
        with self._lock:
            return [at for at in self._starts[namespace, queue] if at > since]

    def _find_timed(self, wanted: Lease) -> list[Job]:
        return self._select(lambda job: job.state in TIMED and job.namespace == wanted.namespace)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Return the jobs and the mark of a key."""
        with self._lock:
            return self._rows.view(Step(_nothing, key=key), self.now())

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id."""
        with self._lock:
            return [self._rows.jobs.get(job_id) for job_id in ids]

    async def find(self, query: Query) -> list[Job]:
        """Return the jobs that a query names."""
        with self._lock:
            jobs = self._select(lambda job: matches(job, query))
            if isinstance(query, Stranded):
                jobs = [job for job in jobs if self._is_stranded(job)]
        return page(jobs, query)

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Return the last job of each chain."""
        with self._lock:
            members = sorted(self._select(lambda job: job.chain_id in set(chains)), key=_index)
        last = {job.chain_id: job for job in members}
        return [last.get(chain) for chain in chains]

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Return the settings of a kind."""
        with self._lock:
            return dict(self._settings[namespace, kind])

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write a setting, or remove it."""
        with self._lock:
            decided = self._settings[namespace, kind]
            decided.pop(name, None)
            decided |= {} if value is None else {name: value}
        self._wakeup.notify()

    def _is_stranded(self, successor: Job) -> bool:
        holder = self._rows.jobs.get(self._rows.holders.get(successor.key or b"", ""))
        return holder is None or holder.is_terminal

    def _select(self, condition: Callable[[Job], bool]) -> list[Job]:
        return [job for job in self._rows.jobs.values() if condition(job)]

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        with self._lock:
            jobs = self._select(lambda job: job.namespace == namespace)
        return count(jobs)

    # ── counters ──────────────────────────────────────────────────────────────────────────────────

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:  # noqa: ARG002 - no reply is lost
        """Add to the counters."""
        with self._lock:
            for entry in tallies:
                self._add_up(entry)

    def _add_up(self, entry: Tally) -> None:
        now = self.now()
        entry = structs.replace(entry, last_at=entry.last_at or now, first_at=entry.first_at or now)
        key = (entry.namespace, entry.task, entry.outcome, entry.job_id)
        known = self._tallies.get(key)
        self._tallies[key] = entry if known is None else known.plus(entry)

    async def tallies(self, namespace: str, jobs: Collection[str] | None = None) -> list[Tally]:
        """Return the counters."""
        with self._lock:
            found = [one for key, one in sorted(self._tallies.items()) if key[0] == namespace]
        return found if jobs is None else [one for one in found if one.job_id in jobs]

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job."""
        with self._lock:
            gone = [
                key
                for key in self._tallies
                if key[0] == namespace and key[3] and key[3] not in self._rows.jobs
                if not key[3].startswith(SCHEDULES)
            ]
            for key in gone:
                self._add_up(structs.replace(self._tallies.pop(key), job_id="", last_by=""))
        return len(gone)

    # ── observations ──────────────────────────────────────────────────────────────────────────────

    async def observe(self, observations: Sequence[Observation], most: int) -> None:
        """Write observations, and keep the newest of each subject."""
        self.observe_sync(observations, most)

    def observe_sync(self, observations: Sequence[Observation], most: int) -> None:
        """Write observations, and keep the newest of each subject."""
        with self._lock:
            for one in observations:
                self._observations[one.namespace, one.kind, one.id] = one
            for namespace, kind, subject in {(one.namespace, one.kind, one.subject) for one in observations}:
                self._drop(self._find_observations(namespace, kind, subject)[most:])

    async def observations(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Return observations, newest first."""
        return self.observations_sync(namespace, kind, subject=subject, limit=limit)

    def observations_sync(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Return observations, newest first."""
        with self._lock:
            return self._find_observations(namespace, kind, subject)[:limit]

    async def forget(self, namespace: str, kind: str, *, before: datetime, most: int) -> int:
        """Remove old observations, and those beyond the newest."""
        with self._lock:
            found = self._find_observations(namespace, kind)
            return self._drop([*found[most:], *(one for one in found[:most] if one.at < before)])

    def _find_observations(self, namespace: str, kind: str, subject: str | None = None) -> list[Observation]:
        found = [
            one
            for one in self._observations.values()
            if (one.namespace, one.kind) == (namespace, kind) and subject in {None, one.subject}
        ]
        return sorted(found, key=lambda one: (one.at, one.id), reverse=True)

    def _drop(self, observations: Sequence[Observation]) -> int:
        for one in observations:
            del self._observations[one.namespace, one.kind, one.id]
        return len(observations)

    def position(self) -> int:
        """Return how often something has changed."""
        return self._wakeup.count

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait for a change."""
        await self._wakeup.wait(timeout, self.position() if since is None else since)

    def use_clock(self, clock: Clock | None) -> Clock | None:
        """Take the time from another clock; return the one before."""
        return self.now.use(clock)

    async def clear(self, namespace: str) -> None:
        """Remove counters, observations, settings and recorded starts."""
        with self._lock:
            every: tuple[dict[Any, Any], ...] = (
                *(self._tallies, self._starts, self._settings, self._observations),
            )
            for rows in every:
                for key in [key for key in rows if key[0] == namespace]:
                    del rows[key]

    def schema(self) -> Schema:
        """Return the one version that a store without tables has."""
        return Schema(1, 1)

    def migrate(self) -> Schema:
        """Do nothing: there are no tables."""
        return self.schema()

    def migration_sql(self) -> str:
        """Return nothing: there are no tables."""
        return ""

    async def examine(self) -> list[Finding]:
        """Return nothing: there is nothing to examine."""
        return []

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def count(jobs: Iterable[Job]) -> Counts:
    """Count jobs by queue, task and state, and the keys that wait."""
    jobs = list(jobs)
    waiting = {
        job.key
        for job in jobs
        if job.key and job.stand is not None and not job.is_terminal and job.state is not State.ACTIVE
    }
    return Counts(Counter((job.queue, job.task, job.state) for job in jobs), len(waiting))


def _index(job: Job) -> int:
    return job.chain_index


def _ignore(_changes: Changes[Any]) -> None:
    """Record nothing: the working copy is the store."""


def _nothing(_view: View) -> Changes[None]:
    return NO_CHANGES
