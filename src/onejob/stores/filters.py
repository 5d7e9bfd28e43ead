"""What a filter means, for stores that have no query language to say it in."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from onejob.job import UNSTARTED, Job, State
from onejob.stores.contract import Filter


def matches(job: Job, wanted: Filter) -> bool:
    """Tell whether a job is what a filter looks for."""
    return (
        (wanted.namespace is None or job.namespace == wanted.namespace)
        and (not wanted.states or job.state in wanted.states)
        and (wanted.queue is None or job.queue == wanted.queue)
        and (wanted.task is None or job.task == wanted.task)
        and (wanted.key is None or job.key == wanted.key)
        and (not wanted.held or job.held_key is not None or job.next_key is not None)
        and (wanted.chain_id is None or job.chain_id == wanted.chain_id)
        and (wanted.leased_until is None or _lease_ends(job, wanted.leased_until))
        and (wanted.ended_before is None or _ended(job, wanted.ended_before))
        and (wanted.late_by is None or _late(job, wanted.late_by))
        and (wanted.beyond is None or _lies_beyond(job, wanted.beyond, newest=wanted.newest_first))
        and job.task not in wanted.besides
        and (wanted.returns_by is None or _returns(job, wanted.returns_by))
        and (not wanted.blocked or _blocked(job))
        and (not wanted.awaits or _awaits(job, wanted.awaits))
    )


def page(jobs: Iterable[Job], wanted: Filter) -> list[Job]:
    """Sort jobs as a filter wants them, and cut its page out."""
    timed = any(time is not None for time in (wanted.leased_until, wanted.returns_by, wanted.late_by))
    ordered = sorted(jobs, key=lambda job: position(job, wanted), reverse=wanted.newest_first and not timed)
    return ordered[wanted.offset : wanted.offset + wanted.limit]


def position(job: Job, wanted: Filter) -> tuple[Any, ...]:
    """Tell where a job stands in the order of what a filter finds."""
    if wanted.leased_until is not None:
        return (job.lease_until, job.id)
    if wanted.returns_by is not None:
        return (job.run_at, job.id)
    if wanted.late_by is not None:
        return (job.expires_at, job.id)
    return (job.finished_at, job.id) if wanted.ended_before is not None else (job.id,)


def _lies_beyond(job: Job, beyond: tuple[datetime, str], *, newest: bool) -> bool:
    if job.finished_at is None:
        return False
    here = (job.finished_at, job.id)
    return here < beyond if newest else here > beyond


def _awaits(job: Job, chains: Collection[str]) -> bool:
    return not job.is_terminal and not set(job.awaits).isdisjoint(chains)


def _blocked(job: Job) -> bool:
    return job.state is State.PENDING and job.blockers is not None


def _returns(job: Job, by: datetime) -> bool:
    return job.returns_at is not None and job.returns_at <= by


def _lease_ends(job: Job, by: datetime) -> bool:
    return job.state is State.ACTIVE and job.lease_until is not None and job.lease_until <= by


def _late(job: Job, by: datetime) -> bool:
    return job.state in UNSTARTED and job.expires_at is not None and job.expires_at <= by


def _ended(job: Job, before: datetime) -> bool:
    return job.is_terminal and job.finished_at is not None and job.finished_at < before
