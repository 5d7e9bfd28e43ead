"""Recent events, read from the store: what happened to jobs and requests since an earlier look.

No process reports events to another one, and no store has a list of them. They follow from rows: the newest
jobs, those that run, those that ended last, and those that an earlier look has seen waiting. Each list has an
index and a limit, so a look costs the same however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from onejob.core.job import TERMINAL, Job, State
from onejob.engine.absorbed_log import KIND, AbsorbedRequest, read_entry
from onejob.engine.engine import Engine
from onejob.engine.events import ENDS, Kind
from onejob.stores.contract import Observation
from onejob.stores.queries import ByKey, Ended, Expired, Listed

PAGE = 200  # rows of each list that a look reads at first
MOST = 1000  # rows of each list that a look reads at most
WATCHED = 500  # jobs that have not ended and are read again by their id
REMEMBERED = 20_000  # jobs and entries whose last look is remembered
OVERLAP = timedelta(seconds=5)  # how much later than its time an event may be committed
ALWAYS = datetime(9999, 1, 1, tzinfo=UTC)
REPLAYED = {
    State.AVAILABLE,
    State.PENDING,
    State.ACTIVE,
}  # in others the run time is no longer that of the replay
ORDER: Mapping[Kind, int] = {"created": 0, "deduplicated": 1, "started": 2}  # of events at the same time


class RecentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job or to a request, as the store shows it.

    Attributes:
        at: When it happened, by the store's clock.
        kind: "created", "deduplicated", "started", "completed", "retryable", "cancelled" or "discarded".
        job: The id of the job; for a duplicate, of the job that serves the request.
        task: The name of the task; for a duplicate, the task of the request.
        queue: The queue of the job; empty if the job is gone.
        key: The key in hexadecimal; empty if there is none.
        outcome: The outcome of a duplicate, such as "kept"; "created" for a new job.
        reason: Why a request had this outcome, or why a job was cancelled or discarded.
        attempt: The number of the attempt that started or ended.
        attempts: How many attempts the job has in all.
        started_at: When the run started that ended.
        next_at: When the job is tried again.
        worker: The worker that started the job.
        error: The type and the message of the error.
        superseded_by: The id of the job that took the work over.
        times: How many requests alike a duplicate stands for.
        payload_differs: Whether a duplicate had another payload than the holder of its key.
        host: The machine that made a duplicate request; empty if callers are not recorded.
        process: The id of the process that made it.
        line: The file and line that made it.
    """

    at: datetime
    kind: Kind
    job: str
    task: str
    queue: str = ""
    key: str = ""
    outcome: str = ""
    reason: str = ""
    attempt: int = 0
    attempts: int = 0
    started_at: datetime | None = None
    next_at: datetime | None = None
    worker: str = ""
    error: str = ""
    superseded_by: str = ""
    times: int = 1
    payload_differs: bool = False
    host: str = ""
    process: int = 0
    line: str = ""


class Sighting(NamedTuple):
    """How a job was when it was last seen."""

    at: datetime
    state: State
    token: int
    replays: int = 0
    failed_at: datetime | None = None  # when its last error happened
    finished_at: datetime | None = None


@dataclass(frozen=True)
class Memory:
    """What later looks need to know of earlier ones."""

    floor: datetime | None = None  # of a job that was never seen, events up to then are not reported
    position: Any = None  # of the store, before the look
    jobs: Mapping[str, Sighting] = field(default_factory=dict)
    entries: Mapping[str, None] = field(default_factory=dict)  # ids of the log of absorbed requests


@dataclass(frozen=True)
class Recent:
    """The answer of `app.activity.recent`.

    Attributes:
        events: What happened, oldest first.
        is_complete: Whether everything was read; False if more has happened than one look reads.
        at: When it was read, by the store's clock.
        memory: What the next look needs to know of this one.
    """

    events: list[RecentEvent]
    is_complete: bool
    at: datetime
    memory: Memory = field(repr=False)


@dataclass(frozen=True)
class Filters:
    """Which events are returned; None stands for all."""

    task: str | None = None
    queue: str | None = None
    key: bytes | None = None
    outcome: str | None = None

    def match(self, event: RecentEvent) -> bool:
        """Return whether an event is wanted."""
        return (
            self.task in {None, event.task}
            and self.queue in {None, event.queue}
            and (self.key is None or self.key.hex() == event.key)
            and self.outcome in {None, event.outcome}
        )


async def read_recent(
    engine: Engine, filters: Filters, since: Recent | None, limit: int, wait: timedelta
) -> Recent:
    """Return what happened since an earlier look, after waiting for a change; or the last events."""
    memory = Memory() if since is None else since.memory
    if wait:
        await engine.store.wait(wait.total_seconds(), memory.position)
    engine.counters.flush()
    position, now = engine.store.position(), engine.store.now()
    look = Look(engine, filters, memory)
    jobs, entries = await look.jobs(), await look.entries()
    served = await look.find_serving(jobs, entries)
    found = [
        *(event for job in jobs.values() for event in events_of(job, memory.jobs.get(job.id), memory.floor)),
        *(duplicate(read_entry(one), served) for one in entries),
    ]
    chosen = sorted(filter(filters.match, found), key=lambda one: (one.at, ORDER.get(one.kind, 3), one.job))
    kept = chosen[len(chosen) - min(limit, len(chosen)) :]
    is_complete = look.is_complete and (since is None or len(kept) == len(chosen))
    return Recent(kept, is_complete, now, remember(memory, jobs.values(), entries, now, position))


class Look:
    """One look at the lists of a store."""

    def __init__(self, engine: Engine, filters: Filters, memory: Memory) -> None:
        self._engine = engine
        self._filters = filters
        self._memory = memory
        self._first = PAGE if memory.floor is not None or filters == Filters() else MOST
        self.is_complete = True

    async def jobs(self) -> dict[str, Job]:
        """Return the jobs to which something may have happened, by id."""
        namespace, find = self._engine.namespace, self._engine.find
        if self._filters.key is not None:
            of_key = await find(ByKey(namespace=namespace, key=self._filters.key, limit=MOST))
            return {job.id: job for job in of_key}
        found = {job.id: job for job in await self._newest()}
        running = await find(Expired(namespace=namespace, by=ALWAYS, limit=MOST))
        found |= {job.id: job for job in running}
        for state in TERMINAL:
            found |= {job.id: job for job in await self._find_ended(state)}
        waiting = [
            job_id
            for job_id, seen in reversed(list(self._memory.jobs.items()))
            if seen.state not in TERMINAL and job_id not in found
        ]
        again = await self._engine.get(waiting[:WATCHED]) if waiting else []
        return found | {job.id: job for job in again if job is not None}

    async def _newest(self) -> list[Job]:
        """Return the newest jobs, down to those that an earlier look has seen."""
        found: list[Job] = []
        limit = self._first
        while len(found) < MOST:
            before = found[-1].id if found else None
            page = await self._engine.find(
                Listed(namespace=self._engine.namespace, before=before, limit=limit)
            )
            found += page
            if self._is_enough(page, limit):
                return found
        self.is_complete = False
        return found

    async def _find_ended(self, state: State) -> list[Job]:
        """Return the jobs that ended last in a state, back to those that an earlier look has seen ended."""
        found: list[Job] = []
        limit = self._first
        while len(found) < MOST:
            last = found[-1] if found else None
            after = None if last is None or last.finished_at is None else (last.finished_at, last.id)
            query = Ended(namespace=self._engine.namespace, state=state, after=after, limit=limit)
            page = await self._engine.find(query)
            found += page
            if self._is_enough(page, limit, state):
                return found
        self.is_complete = False
        return found

    def _is_enough(self, page: Sequence[Job], limit: int, state: State | None = None) -> bool:
        """Return whether the list ends with a page, or an earlier look has seen how it goes on."""
        if len(page) < limit or self._memory.floor is None:
            return True
        seen = self._memory.jobs.get(page[-1].id)
        return seen is not None and state in {None, seen.state}

    async def entries(self) -> list[Observation]:
        """Return the entries of the log of absorbed requests that no earlier look has seen."""
        subject = None if self._filters.key is None else self._filters.key.hex()
        limit = self._first
        while True:
            found = await self._engine.store.observations(
                self._engine.namespace, KIND, subject=subject, limit=limit
            )
            new = [one for one in found if self._is_new(one)]
            if len(new) < limit or limit == MOST or self._memory.floor is None:
                self.is_complete &= len(new) < MOST
                return new
            limit = MOST

    def _is_new(self, entry: Observation) -> bool:
        floor = self._memory.floor
        return entry.id not in self._memory.entries and (floor is None or entry.at > floor)

    async def find_serving(self, jobs: Mapping[str, Job], entries: Iterable[Observation]) -> dict[str, Job]:
        """Return the jobs that serve absorbed requests, by id; they say in which queue that is."""
        ids = {read_entry(one).job for one in entries}
        further = await self._engine.get(sorted(ids - jobs.keys())) if ids - jobs.keys() else []
        found = [*(jobs[job_id] for job_id in ids & jobs.keys()), *further]
        return {job.id: job for job in found if job is not None}


def remember(
    memory: Memory, jobs: Iterable[Job], entries: Iterable[Observation], now: datetime, position: Any
) -> Memory:
    """Return what the next look needs to know; what was seen longest ago is forgotten first."""
    seen = dict(memory.jobs)
    for job in jobs:
        seen.pop(job.id, None)  # so that it is the last one
        seen[job.id] = Sighting(now, job.state, job.token, job.replays, failed_at(job), job.finished_at)
    floor = memory.floor or now - OVERLAP
    for job_id in list(seen)[: max(len(seen) - REMEMBERED, 0)]:
        floor = max(floor, seen.pop(job_id).at)
    logged = [*memory.entries, *(one.id for one in entries)][-REMEMBERED:]
    return Memory(floor, position, seen, dict.fromkeys(logged))


# ── from rows to events ───────────────────────────────────────────────────────────────────────────


def events_of(job: Job, before: Sighting | None, floor: datetime | None) -> Iterator[RecentEvent]:
    """Yield what happened to a job since it was last seen; if it never was, since a time.

    A run that started and ended since then is shown by its end.
    """
    if before is not None:
        yield from _new_events(job, before)
        return
    created = _event(job, "created", job.created_at, outcome="created")
    for event in (created, *_new_events(job, Sighting(job.created_at, State.PENDING, 0))):
        if floor is None or event.at > floor:
            yield event


def _new_events(job: Job, before: Sighting) -> Iterator[RecentEvent]:
    if job.replays > before.replays and job.state in REPLAYED:
        yield _event(job, "created", job.run_at, outcome="created", reason="It was replayed.")
    for failure in job.failures:
        is_new = before.failed_at is None or at_of(failure) > before.failed_at
        if is_new and not _ended_with(job, failure):
            yield _retryable(job, failure)
    if job.state is State.ACTIVE and job.token > before.token and job.started_at is not None:
        yield _event(job, "started", job.started_at, attempt=job.attempt, worker=job.worker or "")
    if job.is_terminal and job.finished_at is not None and job.finished_at != before.finished_at:
        yield _end(job, job.finished_at)


def _ended_with(job: Job, failure: Mapping[str, Any]) -> bool:
    """Return whether a job ended with a failure: then its end reports it."""
    return job.finished_at is not None and at_of(failure) >= job.finished_at


def _retryable(job: Job, failure: Mapping[str, Any]) -> RecentEvent:
    is_last = at_of(failure) == failed_at(job) and job.state is State.RETRYABLE
    return _event(
        job,
        "retryable",
        at_of(failure),
        attempt=failure["attempt"],
        error=f"{failure['type']}: {failure['message']}",
        started_at=job.started_at if is_last else None,
        next_at=job.run_at if is_last else None,
    )


def _end(job: Job, at: datetime) -> RecentEvent:
    last = job.failures[-1:]
    error = f"{last[0]['type']}: {last[0]['message']}" if last and _ended_with(job, last[0]) else ""
    return _event(
        job,
        ENDS[job.state],
        at,
        attempt=job.attempt,
        reason=job.reason or "",
        error=error,
        started_at=job.started_at,
        superseded_by=job.superseded_by or "",
    )


def _event(job: Job, kind: Kind, at: datetime, **facts: Any) -> RecentEvent:
    key = "" if job.key is None else job.key.hex()
    return RecentEvent(
        at=at,
        kind=kind,
        job=job.id,
        task=job.task,
        queue=job.queue,
        key=key,
        attempts=job.retry.attempts,
        **facts,
    )


def duplicate(entry: AbsorbedRequest, served: Mapping[str, Job]) -> RecentEvent:
    """Return an entry of the log of absorbed requests as an event."""
    job = served.get(entry.job)
    return RecentEvent(
        at=entry.at,
        kind="deduplicated",
        job=entry.job,
        task=entry.task,
        queue="" if job is None else job.queue,
        key=entry.key,
        outcome=entry.outcome,
        reason=entry.reason,
        times=entry.times,
        payload_differs=entry.payload_differs,
        host=entry.host,
        process=entry.process,
        line=entry.line,
    )


def failed_at(job: Job) -> datetime | None:
    """Return when a job's last error happened; None if it has none."""
    last = job.failures[-1:]
    return at_of(last[0]) if last else None


def at_of(failure: Mapping[str, Any]) -> datetime:
    """Return when an error happened."""
    return datetime.fromisoformat(failure["at"])
