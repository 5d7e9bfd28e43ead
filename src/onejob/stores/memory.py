"""The executable specification: every promise of the contract, in one process, under one lock."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any

from onejob.errors import ForeignConnection, NoTransactions
from onejob.job import UNSTARTED, Changes, Job, State, View
from onejob.lifecycle import mature, rank, start
from onejob.limits import PAUSED, Rate
from onejob.stores.bell import Bell
from onejob.stores.book import Book
from onejob.stores.contract import (
    SCHEDULES,
    Counts,
    Filter,
    Finding,
    Guarantees,
    Lease,
    Schema,
    Step,
    Tally,
    utcnow,
)
from onejob.stores.filters import matches, page

NO_TRANSACTIONS = "The memory store has no transactions: use SQLite or PostgreSQL for this task."
TIMED = {State.SCHEDULED, State.RETRYABLE}


class MemoryStore:
    """A store that lives and dies with its process."""

    guarantees = Guarantees(
        store="memory",
        strength="strong",
        scope="one process",
        durability="none",
        not_promised="anything after the process ends",
    )

    def __init__(self, *, clock: Callable[[], datetime] = utcnow) -> None:
        self.now = clock
        self._lock = threading.Lock()
        self._book = Book()
        self._tallies: Counter[tuple[str, str, str, str]] = Counter()
        self._tallied_at: dict[tuple[str, str, str, str], datetime] = {}
        self._starts: defaultdict[tuple[str, str], deque[datetime]] = defaultdict(deque)
        self._settings: defaultdict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)
        self._bell = Bell()

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in order under the lock."""
        with self._lock:
            answers = [self._run(step) for step in steps]
        self._bell.ring()
        return answers

    def _run(self, step: Step) -> Any:
        if step.queue is not None:
            waiting = self._select(
                lambda job: job.state in UNSTARTED and (job.namespace, job.queue) == step.queue
            )
            self._book.depths = {step.queue: len(waiting)}
        return self._book.run(step, self.now(), _forget)

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in order under the lock."""
        return self.apply_now(steps)

    def apply_within_now(self, connection: Any, steps: Sequence[Step]) -> list[Any]:  # noqa: ARG002 - the contract's
        """Refuse: there is no transaction to join."""
        raise ForeignConnection("The memory store has no transactions: leave connection= out.")

    async def apply_within(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Refuse: there is no transaction to join."""
        return self.apply_within_now(connection, steps)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Refuse: a rollback would have nothing to roll back."""
        raise NoTransactions(NO_TRANSACTIONS)

    def transaction_now(self) -> AbstractContextManager[Any]:
        """Refuse: a rollback would have nothing to roll back."""
        raise NoTransactions(NO_TRANSACTIONS)

    async def lease(self, wanted: Lease) -> list[Job]:
        """Start due jobs, best first."""
        with self._lock:
            now = self.now()
            for job in self._select(lambda job: job.state in TIMED and job.run_at <= now):
                self._book.run(Step(mature, job.id), now, _forget)
            act = partial(start, worker=wanted.worker, lease=wanted.duration)
            started: list[Job] = []
            while len(started) < wanted.total and (due := self._due(wanted, started)):
                best = min(due, key=rank)  # anew each time: one that gives way may let its successor in
                leased = self._book.run(Step(act, best.id), now, _forget)
                if leased is not None:
                    started.append(leased)
                    self._starts[leased.namespace, leased.queue] += (
                        [now] if leased.queue in wanted.rates else []
                    )
            return started

    async def turn(self, steps: Sequence[Step], wanted: Lease) -> tuple[list[Any], list[Job]]:
        """Run steps, then start due jobs."""
        return await self.apply(steps), await self.lease(wanted)

    def _due(self, wanted: Lease, started: Sequence[Job]) -> list[Job]:
        open_queues = {queue for queue in wanted.queues if self._has_room(queue, wanted, started)}
        active = Counter(
            (job.queue, job.partition)
            for job in self._select(
                lambda job: job.state is State.ACTIVE and job.namespace == wanted.namespace
            )
        )
        return self._select(
            lambda job: (
                job.state is State.AVAILABLE
                and job.namespace == wanted.namespace
                and job.task in wanted.tasks
                and job.queue in open_queues
                and (
                    not job.partition
                    or job.queue not in wanted.shares
                    or active[job.queue, job.partition] < wanted.shares[job.queue]
                )
            )
        )

    def _has_room(self, queue: str, wanted: Lease, started: Sequence[Job]) -> bool:
        if sum(job.queue == queue for job in started) >= wanted.queues[queue]:
            return False
        if queue in self._settings[wanted.namespace, PAUSED]:
            return False
        if (
            queue in wanted.rates
            and self._next_start(wanted.namespace, queue, wanted.rates[queue]) is not None
        ):
            return False
        active = len(self._select(lambda job: _active_in(job, wanted.namespace, queue)))
        return active < wanted.limits.get(queue, active + 1)

    def _next_start(self, namespace: str, queue: str, rate: Rate) -> datetime | None:
        """Tell when a queue may start a job again; None if it may now."""
        starts, now = self._starts[namespace, queue], self.now()
        while starts and starts[0] + rate.per <= now:
            starts.popleft()
        return None if len(starts) < rate.times else starts[len(starts) - rate.times] + rate.per

    async def look(self, key: bytes) -> View:
        """Show who stands for a key."""
        with self._lock:
            return self._book.view(Step(_nothing, key=key), self.now())

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs by id."""
        with self._lock:
            return [self._book.jobs.get(job_id) for job_id in ids]

    async def find(self, wanted: Filter) -> list[Job]:
        """List jobs."""
        with self._lock:
            jobs = self._select(lambda job: matches(job, wanted) and self._stranded(job, wanted))
        return page(jobs, wanted)

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Read the last job of each chain."""
        with self._lock:
            members = sorted(self._select(lambda job: job.chain_id in set(chains)), key=_index)
        last = {job.chain_id: job for job in members}
        return [last.get(chain) for chain in chains]

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Read what was decided at run time."""
        with self._lock:
            return dict(self._settings[namespace, kind])

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write one such decision, or take it back."""
        with self._lock:
            decided = self._settings[namespace, kind]
            decided.pop(name, None)
            decided |= {} if value is None else {name: value}
        self._bell.ring()

    def _stranded(self, job: Job, wanted: Filter) -> bool:
        if not wanted.stranded:
            return True
        if job.next_key is None or job.state is not State.PENDING:
            return False
        holder = self._book.jobs.get(self._book.held.get(job.next_key, ""))
        return holder is None or holder.is_terminal

    def _select(self, condition: Callable[[Job], bool]) -> list[Job]:
        return [job for job in self._book.jobs.values() if condition(job)]

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        with self._lock:
            jobs = self._select(lambda job: job.namespace == namespace)
        return count(jobs)

    def tally_within_now(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Do nothing: there was no transaction to join."""

    async def tally_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Do nothing: there was no transaction to join."""

    def tally(self, tallies: Sequence[Tally]) -> None:
        """Add to the counters."""
        with self._lock:
            for entry in tallies:
                key = (entry.namespace, entry.task, entry.outcome, entry.job_id)
                self._tallies[key] += entry.count
                self._tallied_at[key] = self.now()

    async def tallies(self, namespace: str) -> list[Tally]:
        """Read the counters."""
        with self._lock:
            return [
                Tally(*key, times, self._tallied_at[key])
                for key, times in sorted(self._tallies.items())
                if key[0] == namespace
            ]

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job."""
        with self._lock:
            gone = [
                key
                for key in self._tallies
                if key[0] == namespace and key[3] and key[3] not in self._book.jobs
                if not key[3].startswith(SCHEDULES)
            ]
            for key in gone:
                total, at = (*key[:3], ""), self._tallied_at.pop(key)
                self._tallies[total] += self._tallies.pop(key)
                self._tallied_at[total] = max(at, self._tallied_at.get(total, at))
        return len(gone)

    async def next_due(self, namespace: str, rates: Mapping[str, Rate] | None = None) -> datetime | None:
        """Tell when the next timed job is due, or a queue may start one again."""
        with self._lock:
            timed = self._select(lambda job: job.state in TIMED and job.namespace == namespace)
            opens = [self._next_start(namespace, queue, rate) for queue, rate in (rates or {}).items()]
        return min((*(job.run_at for job in timed), *(at for at in opens if at is not None)), default=None)

    def pulse(self) -> int:
        """Note how often something has changed."""
        return self._bell.rings

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait for a change."""
        await self._bell.wait(timeout, self.pulse() if since is None else since)

    def schema(self) -> Schema:
        """Tell that there are no tables to be of any version."""
        return Schema(1, 1)

    def migrate(self) -> Schema:
        """Do nothing: there are no tables."""
        return self.schema()

    def migration_sql(self) -> str:
        """Write nothing: there are no tables."""
        return ""

    async def examine(self) -> list[Finding]:
        """Find nothing: there is nothing beneath."""
        return []

    async def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


def count(jobs: Iterable[Job]) -> Counts:
    """Count jobs by queue, task and state, and the keys that wait."""
    jobs = list(jobs)
    waiting = {
        job.key
        for job in jobs
        if job.key
        and (job.held_key or job.next_key)
        and not job.is_terminal
        and job.state is not State.ACTIVE
    }
    return Counts(Counter((job.queue, job.task, job.state) for job in jobs), len(waiting))


def _active_in(job: Job, namespace: str, queue: str) -> bool:
    return job.state is State.ACTIVE and job.namespace == namespace and job.queue == queue


def _index(job: Job) -> int:
    return job.chain_index


def _forget(changes: Changes) -> None:
    """Record nothing: the book is all there is."""


def _nothing(_view: View) -> Changes:
    return Changes()
