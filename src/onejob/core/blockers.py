"""Blockers: how a job that waits for other chains changes when one of them ends.

A job names its blockers once, in order, and keeps beside them how each has ended. Nothing here reads another
job: the caller that ends a chain notifies its dependants, and notifying one twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from onejob.core.holds import add_error, finish, leave, ready
from onejob.core.job import Arrival, Job, State, Trait, alter, is_same
from onejob.core.step import NO_CHANGES, Changes, View
from onejob.core.text import one_line


class Ending(msgspec.Struct, frozen=True):
    """How a chain has ended, or the chain that took its work over."""

    arrival: bytes
    heir: str | None = None
    why: str = ""
    at: datetime | None = None


def ending(tail: Job) -> Ending | None:
    """Return how a chain has ended, by its last job; None while it goes on."""
    if not tail.is_terminal:
        return None
    if tail.superseded_by is not None:
        return Ending(Arrival.AWAITED, heir=tail.superseded_by)
    if tail.state is State.COMPLETED:
        return Ending(Arrival.COMPLETED, at=tail.finished_at)
    why = f"chain {tail.chain_id} ended {tail.state} ({tail.reason})"
    return Ending(Arrival.FAILED, why=why, at=tail.finished_at)


def encode_chains(chains: Iterable[str]) -> bytes:
    """Return the chains that a job waits for as JSON, each named once."""
    return msgspec.json.encode(list(dict.fromkeys(map(one_line, chains))))


def begin_arrivals(chains: Sequence[str]) -> bytes:
    """Return the digits of chains that have not ended yet."""
    return Arrival.AWAITED * len(chains)


def watch(view: View) -> Changes[Job | None]:
    """Mark a job's chain as awaited; answer the job as it is then."""
    job = view.job
    if job is None or job.is_terminal or job.traits & Trait.AWAITED:
        return Changes(job)
    noted = alter(job, traits=job.traits | Trait.AWAITED)
    return Changes(noted, updates=(noted,))


def notify(view: View, *, endings: Mapping[str, Ending]) -> Changes[Job | None]:
    """Record on a waiting job how chains have ended; answer it if that changes anything, else None."""
    job = view.job
    if job is None or job.state is not State.PENDING or not job.is_blocked:
        return NO_CHANGES
    notified = record(job, endings)
    if notified.traits & Trait.FAILS_WITH_BLOCKER and (dead := failures(notified, endings)):
        return fail(view, notified, "BlockerFailed", dead[0], reason="blocker failed")
    if is_same(notified, job):
        return NO_CHANGES
    return Changes(notified, updates=(notified,)) if notified.is_blocked else unblock(view, notified)


def record(job: Job, news: Mapping[str, Ending]) -> Job:
    """Return the job with how each chain has ended; a superseded chain is replaced by its heir.

    Its run time is not before the end of a chain, so that the times agree although each client estimates the
    store's clock.
    """
    chains, arrived, run_at = job.awaits, bytearray(job.arrived or b""), job.run_at
    for index, chain in enumerate(chains):
        end = news.get(chain)
        if end is None or arrived[index : index + 1] != Arrival.AWAITED:
            continue
        if end.heir is not None:
            chains[index] = end.heir
        elif end.arrival == Arrival.COMPLETED or job.traits & Trait.AFTER_ALL:
            arrived[index : index + 1] = end.arrival
            run_at = max(run_at, end.at or run_at)
    blockers = job.blockers if chains == job.awaits else msgspec.json.encode(chains)
    return alter(job, blockers=blockers, arrived=bytes(arrived), run_at=run_at)


def failures(job: Job, news: Mapping[str, Ending]) -> list[str]:
    """Return why blockers failed, for those that the job still waits for."""
    arrivals = zip(job.awaits, job.arrived or b"", strict=True)
    open_chains = [chain for chain, digit in arrivals if digit == Arrival.AWAITED[0]]
    return [news[chain].why for chain in open_chains if chain in news and news[chain].why]


def fail(view: View, job: Job, kind: str, why: str, *, reason: str) -> Changes[Job | None]:
    """End a job whose blocker has failed."""
    error = {"type": kind, "message": why, "traceback": ""}
    failed = alter(job, errors=add_error(job, error, view.now))
    return leave(view, finish(failed, State.DISCARDED, view.now, reason=reason))


def break_cycle(view: View) -> Changes[Job | None]:
    """End a job that waits for itself through other chains; answer it, or None if it no longer waits."""
    job = view.job
    if job is None or job.state is not State.PENDING or not job.is_blocked:
        return NO_CHANGES
    return fail(view, job, "BlockerCycle", "the job would wait for itself", reason="blocker cycle")


def unblock(view: View, job: Job) -> Changes[Job | None]:
    """Make a job ready whose blockers have all ended; it may still wait as a successor."""
    if job.traits & Trait.AFTER_FAILURE and Arrival.FAILED not in (job.arrived or b""):
        return leave(view, finish(job, State.CANCELLED, view.now, reason="nothing failed"))
    freed = alter(job, run_at=max(job.run_at, view.now))
    if not job.is_successor:
        freed = alter(freed, state=ready(freed, view.now))
    return Changes(freed, updates=(freed,))


def expect_again(job: Job) -> Job:
    """Return a replayed dead letter that waits again for the blockers that had failed it."""
    if job.arrived is None:
        return job
    return alter(job, arrived=job.arrived.replace(Arrival.FAILED, Arrival.AWAITED))
