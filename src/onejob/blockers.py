"""Waiting for other chains: what a job makes of the news that one of them has ended.

A job's blockers are chains, named once and kept in order; beside them stands what has become of each.
Nothing here reads another job: whoever ends a chain brings the news, and bringing it twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from onejob.job import Arrival, Changes, Job, State, Trait, View, alter
from onejob.lifecycle import finish, leave, ready, remember


class Ending(msgspec.Struct, frozen=True):
    """How a chain has ended: its arrival, or the chain that took its work over."""

    arrival: bytes
    heir: str | None = None
    why: str = ""


def ending(tail: Job) -> Ending | None:
    """Tell how a chain has ended by its last job; None while it goes on."""
    if not tail.is_terminal:
        return None
    if tail.superseded_by is not None:
        return Ending(Arrival.AWAITED, heir=tail.superseded_by)
    if tail.state is State.COMPLETED:
        return Ending(Arrival.COMPLETED)
    return Ending(Arrival.FAILED, why=f"chain {tail.chain_id} ended {tail.state} ({tail.reason})")


def named(chains: Iterable[str]) -> bytes:
    """Write the chains that a job waits for; each is named once."""
    return msgspec.json.encode(list(dict.fromkeys(chains)))


def awaited(chains: Sequence[str]) -> bytes:
    """Write that none of them has ended yet."""
    return Arrival.AWAITED * len(chains)


def watch(view: View) -> Changes:
    """Note on a job that somebody waits for its chain; answer the job as it is then."""
    job = view.job
    if job is None or job.is_terminal or job.traits & Trait.AWAITED:
        return Changes(answer=job)
    noted = alter(job, traits=job.traits | Trait.AWAITED)
    return Changes(answer=noted, updates=(noted,))


def hear(view: View, *, news: Mapping[str, Ending]) -> Changes:
    """Tell a waiting job how chains have ended; answer it if that changes anything, else None."""
    job = view.job
    if job is None or job.state is not State.PENDING or not job.is_blocked:
        return Changes()
    told = take_in(job, news)
    if told.traits & Trait.FAILS_WITH_BLOCKER and (dead := failures(told, news)):
        return fail(view, told, "BlockerFailed", dead[0], reason="blocker failed")
    if told == job:
        return Changes()
    return Changes(answer=told, updates=(told,)) if told.is_blocked else let_go(view, told)


def take_in(job: Job, news: Mapping[str, Ending]) -> Job:
    """Note what has become of each chain; one that was superseded hands its place to its heir."""
    chains, arrived = job.awaits, bytearray(job.arrived or b"")
    for index, chain in enumerate(chains):
        end = news.get(chain)
        if end is None or arrived[index : index + 1] != Arrival.AWAITED:
            continue
        if end.heir is not None:
            chains[index] = end.heir
        elif end.arrival == Arrival.COMPLETED or job.traits & Trait.AFTER_ALL:
            arrived[index : index + 1] = end.arrival
    blockers = job.blockers if chains == job.awaits else msgspec.json.encode(chains)
    return alter(job, blockers=blockers, arrived=bytes(arrived))


def failures(job: Job, news: Mapping[str, Ending]) -> list[str]:
    """List why blockers failed, as far as the job still waits for them."""
    arrivals = zip(job.awaits, job.arrived or b"", strict=True)
    open_chains = [chain for chain, digit in arrivals if digit == Arrival.AWAITED[0]]
    return [news[chain].why for chain in open_chains if chain in news and news[chain].why]


def fail(view: View, job: Job, kind: str, why: str, *, reason: str) -> Changes:
    """End a job whose blocker will not come."""
    error = {"type": kind, "message": why, "traceback": ""}
    failed = alter(job, errors=remember(job, error, view.now))
    return leave(view, finish(failed, State.DISCARDED, view.now, reason=reason))


def break_circle(view: View) -> Changes:
    """End a job that has come to wait for itself; answer it, or None if it waits no more."""
    job = view.job
    if job is None or job.state is not State.PENDING or not job.is_blocked:
        return Changes()
    return fail(view, job, "BlockerCycle", "the job would wait for itself", reason="blocker cycle")


def let_go(view: View, job: Job) -> Changes:
    """Let a job run whose blockers have all come; it queues from now on, and may still be a successor."""
    if job.traits & Trait.AFTER_FAILURE and Arrival.FAILED not in (job.arrived or b""):
        return leave(view, finish(job, State.CANCELLED, view.now, reason="nothing failed"))
    freed = alter(job, run_at=max(job.run_at, view.now))
    if job.next_key is None:
        freed = alter(freed, state=ready(freed, view.now))
    return Changes(answer=freed, updates=(freed,))


def expect_again(job: Job) -> Job:
    """Let a dead letter that comes back wait again for the blockers that had failed it."""
    if job.arrived is None:
        return job
    return alter(job, arrived=job.arrived.replace(Arrival.FAILED, Arrival.AWAITED))
