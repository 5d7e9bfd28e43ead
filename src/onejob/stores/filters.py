"""What a filter means, for stores that have no query language to say it in."""

from __future__ import annotations

from datetime import datetime

import msgspec

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
        and (not wanted.blocked or _blocked(job))
        and (not wanted.awaits or (_blocked(job) and not awaited(job).isdisjoint(wanted.awaits)))
    )


def _blocked(job: Job) -> bool:
    return job.state is State.PENDING and job.blockers is not None


def awaited(job: Job) -> set[str]:
    """Name the chains that a job waits for, whether they have ended or not."""
    return set() if job.blockers is None else set(msgspec.json.decode(job.blockers, type=list[str]))


def _lease_ends(job: Job, by: datetime) -> bool:
    return job.state is State.ACTIVE and job.lease_until is not None and job.lease_until <= by


def _late(job: Job, by: datetime) -> bool:
    return job.state in UNSTARTED and job.expires_at is not None and job.expires_at <= by


def _ended(job: Job, before: datetime) -> bool:
    return job.is_terminal and job.finished_at is not None and job.finished_at < before
