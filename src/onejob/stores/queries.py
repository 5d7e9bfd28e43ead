"""Named queries: the ways in which jobs are looked for, each with an index in every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from onejob.core.job import UNSTARTED, Job, State

Cursor = tuple[datetime, str]
"""Time and id of the last job of the page before."""

TIMED = frozenset({State.SCHEDULED, State.RETRYABLE})
LARGEST_ID = "\U0010ffff"  # sorts after every id
LISTED = TIMED | {State.PENDING, State.CANCELLED, State.DISCARDED}
"""States whose jobs an index has in the order of their ids; most jobs never are in one of them (ADR 0051)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Jobs by state, queue and task, newest first unless said otherwise; all namespaces if it is None."""

    namespace: str | None
    states: Collection[State] = ()
    queue: str | None = None
    task: str | None = None
    held: bool = False  # only holders and successors
    before: str | None = None  # only jobs with a smaller id, which are older
    since: str | None = None  # only the job with this id and those with a larger one
    limit: int = 100
    offset: int = 0
    newest_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ByKey:
    """Jobs of a key, newest first."""

    namespace: str
    key: bytes
    states: Collection[State] = ()
    queue: str | None = None
    task: str | None = None
    before: str | None = None  # only jobs with a smaller id, which are older
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPrefix:
    """Jobs whose id begins with some characters, newest first."""

    namespace: str
    prefix: str
    limit: int = 100

    @property
    def end(self) -> str:
        """A text that sorts after all these ids."""
        return self.prefix + LARGEST_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class OfChain:
    """Jobs of a chain, first to last."""

    namespace: str
    chain_id: str
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Active jobs whose lease has ended by a time, earliest first."""

    namespace: str
    by: datetime
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Jobs that have not started and expire by a time, earliest first."""

    namespace: str
    by: datetime
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """Jobs that are due by a time and have not started: of each queue and priority the earliest, in order.

    The cost depends on the number of queues and priorities, not on the number of jobs. So a store reads at
    most the 200 lowest priorities of a queue, and at most 1000 scheduled and retryable jobs in all, because
    workers make these available as soon as they are due.
    """

    namespace: str
    by: datetime
    limit: int = 10  # of each queue and priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Jobs that ended in one state, latest first, after the cursor in that order."""

    namespace: str
    state: State
    task: str | None = None
    before: datetime | None = None  # only jobs that ended before this time
    after: Cursor | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """Ended jobs whose retention is over by a time, earliest first, after the cursor in that order."""

    namespace: str
    by: datetime
    after: Cursor | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """Dead letters whose automatic replay is due by a time, earliest first."""

    namespace: str
    by: datetime
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Successors whose predecessor has ended or is gone."""

    namespace: str
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaiting:
    """Jobs that have not ended and have one of these chains among their blockers, oldest first."""

    namespace: str
    chains: Sequence[str]
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Pending jobs that have blockers, oldest first."""

    namespace: str
    limit: int = 100
    offset: int = 0


Query = (
    Listed
    | ByKey
    | ByPrefix
    | OfChain
    | Expired
    | Late
    | Overdue
    | Ended
    | Prunable
    | Returning
    | Stranded
    | Awaiting
    | Blocked
)


# ── what they mean, for stores without a query language ───────────────────────────────────────────


def matches(job: Job, query: Query) -> bool:  # noqa: C901, PLR0912 - one case per query
    """Return whether a job is among those that a query finds; a store checks `Stranded` further."""
    if query.namespace is not None and job.namespace != query.namespace:
        return False
    match query:
        case Listed():
            return (
                _is_listed(job, query)
                and (not query.held or job.stand is not None)
                and job.id >= (query.since or "")
            )
        case ByKey():
            return job.key == query.key and _is_listed(job, query)
        case ByPrefix():
            return job.id.startswith(query.prefix)
        case OfChain():
            return job.chain_id == query.chain_id
        case Expired():
            return job.state is State.ACTIVE and job.lease_until is not None and job.lease_until <= query.by
        case Late():
            return job.state in UNSTARTED and job.expires_at is not None and job.expires_at <= query.by
        case Overdue():
            return job.state is State.AVAILABLE or (job.state in TIMED and job.run_at <= query.by)
        case Ended():
            return _has_ended(job, query)
        case Prunable():
            return job.kept_until is not None and job.kept_until <= query.by and _is_after(job, query)
        case Returning():
            return job.returns_at is not None and job.returns_at <= query.by
        case Stranded():
            return job.is_successor and job.state is State.PENDING
        case Awaiting():
            return not job.is_terminal and not set(job.awaits).isdisjoint(query.chains)
        case Blocked():
            return job.state is State.PENDING and job.blockers is not None
        case _:
            assert_never(query)


def _is_listed(job: Job, query: Listed | ByKey) -> bool:
    return (
        (not query.states or job.state in query.states)
        and query.queue in {None, job.queue}
        and query.task in {None, job.task}
        and (query.before is None or job.id < query.before)
    )


def _has_ended(job: Job, query: Ended) -> bool:
    if job.state is not query.state or job.finished_at is None or query.task not in {None, job.task}:
        return False
    if query.before is not None and job.finished_at >= query.before:
        return False
    return query.after is None or (job.finished_at, job.id) < query.after


def _is_after(job: Job, query: Prunable) -> bool:
    return query.after is None or (job.kept_until is not None and (job.kept_until, job.id) > query.after)


def page(jobs: Collection[Job], query: Query) -> list[Job]:
    """Return a query's page of the jobs that match it, in its order."""
    backwards = isinstance(query, Ended | ByKey | ByPrefix) or (
        isinstance(query, Listed) and query.newest_first
    )
    ordered = sorted(jobs, key=lambda job: _position(job, query), reverse=backwards)
    if isinstance(query, Overdue):
        return _heads(ordered, query.limit)
    offset: int = getattr(query, "offset", 0)
    return ordered[offset : offset + query.limit]


def _heads(ordered: Sequence[Job], most: int) -> list[Job]:
    """Return the first jobs of each queue and priority."""
    taken: Counter[tuple[str, int]] = Counter()
    heads = []
    for job in ordered:
        taken[job.queue, job.priority] += 1
        if taken[job.queue, job.priority] <= most:
            heads.append(job)
    return heads


def _position(job: Job, query: Query) -> tuple[object, ...]:
    match query:
        case Expired():
            return (job.lease_until, job.id)
        case Late():
            return (job.expires_at, job.id)
        case Ended():
            return (job.finished_at, job.id)
        case Prunable():
            return (job.kept_until, job.id)
        case Returning() | Overdue():
            return (job.run_at, job.id)
        case OfChain():
            return (job.chain_index,)
        case _:
            return (job.id,)
