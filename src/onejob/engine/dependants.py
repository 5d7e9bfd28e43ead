"""Notify the jobs that wait for a chain when it ends.

A job that begins to wait marks the chain as awaited, after the job was admitted; a caller that ends an
awaited chain notifies its dependants, after the end was written. So one of the two always sees the other,
without a lock that spans both. If a process dies in between, the sweep notifies the dependants.

Everything here is a flow: a generator that yields what it asks of the engine, so that it runs on an event
loop, from blocking code and inside a caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain as joined
from typing import Any, Literal, NamedTuple

from onejob.core.blockers import Ending, break_cycle, ending, notify, watch
from onejob.core.job import Arrival, Job, Trait
from onejob.core.step import Step
from onejob.errors import UnknownJob
from onejob.stores.flow import Flow
from onejob.stores.queries import Awaiting, Blocked

PAGE = 500


class Ask(NamedTuple):
    """One question to the engine; the answer is a list."""

    verb: Literal["apply", "count", "find", "get", "look", "tails"]
    given: Any


# ── when a chain has ended ────────────────────────────────────────────────────────────────────────


def endings(tails: Iterable[Job | None]) -> dict[str, Ending]:
    """Return how chains have ended, by their last jobs; chains that go on are left out."""
    return {tail.chain_id: end for tail in tails if tail is not None and (end := ending(tail)) is not None}


def notify_dependants(ended: Mapping[str, Ending], namespace: str) -> Flow[int]:
    """Notify the jobs that wait for ended chains, and the dependants of those that end by it.

    Return how many jobs that has changed.
    """
    changed = 0
    while ended and (waiting := (yield from find_dependants(ended, namespace))):
        answers = yield Ask("apply", [Step(partial(notify, endings=ended), job.id) for job in waiting])
        notified = [job for job in answers if isinstance(job, Job)]
        changed += len(notified)
        heirs = {end.heir for end in ended.values() if end.heir is not None} if notified else set()
        over = yield from mark_awaited(heirs)
        tails = (yield Ask("tails", over)) if over else []
        ended = endings([*tails, *(job for job in notified if is_awaited(job))])
    return changed


def find_dependants(chains: Iterable[str], namespace: str) -> Flow[list[Job]]:
    """Return all jobs that wait for one of these chains."""
    found: list[Job] = []
    while True:
        query = Awaiting(namespace=namespace, chains=list(chains), limit=PAGE, offset=len(found))
        page = yield Ask("find", query)
        found += page
        if len(page) < PAGE:
            return found


# ── when a job begins to wait ─────────────────────────────────────────────────────────────────────


def begin_to_wait(job: Job, own: Mapping[str, Job]) -> Flow[Job | None]:
    """Let a job that was admitted wait for its chains; return it if that changes it.

    A job that waits for this job's chain may have been admitted at the same moment, so that the two closed a
    cycle before either saw the other. So the job looks once more when the other can see it: one of them finds
    the cycle.
    """
    changed = yield from expect(job.id, job.awaits, own)
    if not is_awaited(job) or not (yield from waits_for_itself(changed or job, own)):
        return changed
    [ended] = yield Ask("apply", [Step(break_cycle, job.id)])
    if not isinstance(ended, Job):
        return changed
    yield from notify_dependants(endings([ended]), job.namespace)
    return ended


def waits_for_itself(job: Job, own: Mapping[str, Job]) -> Flow[bool]:
    """Return whether a job's blockers wait for the job itself, as far as they are visible."""
    try:
        return job.chain_id in (yield from reachable_chains(open_blockers(job), own))
    except UnknownJob:  # a chain of the caller's open transaction
        return False


def expect(job_id: str, chains: Sequence[str], own: Mapping[str, Job]) -> Flow[Job | None]:
    """Mark chains as awaited and record on the job which of them have ended; return it if that changes it.

    `own` are jobs of the caller's own transaction, which other readers cannot see.
    """
    over = yield from mark_awaited(chains, own)
    if not over:
        return None
    ended = endings((yield Ask("tails", over)))
    [answer] = yield Ask("apply", [Step(partial(notify, endings=ended), job_id)])
    heirs = [end.heir for end in ended.values() if end.heir is not None]
    if heirs:
        later = yield from expect(job_id, heirs, own)
        answer = later or answer
    return answer if isinstance(answer, Job) else None


def mark_awaited(chains: Iterable[str], own: Mapping[str, Job] | None = None) -> Flow[list[str]]:
    """Mark chains as awaited; return those that have ended."""
    ended: list[str] = []
    left = list(dict.fromkeys(chains))
    while left:
        tails = yield Ask("tails", left)
        known = [tail or (own or {}).get(name) for name, tail in zip(left, tails, strict=True)]
        ended += [tail.chain_id for tail in known if tail is not None and tail.is_terminal]
        fresh = [tail for tail in known if tail is not None and not tail.is_terminal and not is_awaited(tail)]
        steps = [Step(watch, tail.id, alone=True) for tail in fresh]
        answers = (yield Ask("apply", steps)) if steps else []
        moved = zip(fresh, answers, strict=True)
        left = [tail.chain_id for tail, job in moved if isinstance(job, Job) and job.is_terminal]
    return ended


def is_awaited(job: Job) -> bool:
    """Return whether a job waits, or has waited, for this job's chain."""
    return bool(job.traits & Trait.AWAITED)


# ── cycles ────────────────────────────────────────────────────────────────────────────────────────


def reachable_chains(chains: Sequence[str], own: Mapping[str, Job]) -> Flow[frozenset[str]]:
    """Return these chains and all chains that they wait for; raise UnknownJob for one that does not exist."""
    found: set[str] = set()
    left = list(chains)
    while left:
        found.update(left)
        tails = yield Ask("tails", left)
        known = [tail or own.get(name) for name, tail in zip(left, tails, strict=True)]
        for name, tail in zip(left, known, strict=True):
            if tail is None and name in chains:
                raise UnknownJob(
                    f"after= names chain {name!r}, which does not exist; it may have been pruned."
                )
        beyond = yield from awaited_by([tail for tail in known if tail is not None])
        left = [name for name in dict.fromkeys(beyond) if name not in found]
    return frozenset(found)


def awaited_by(jobs: Sequence[Job]) -> Flow[list[str]]:
    """Return what jobs wait for: their blockers, their predecessors, the jobs that superseded them."""
    found = list(joined.from_iterable(open_blockers(job) for job in jobs))
    found += [job.superseded_by for job in jobs if job.superseded_by is not None]
    for job in jobs:
        if job.is_successor:
            [view] = yield Ask("look", job.key)
            found += [] if view.holder is None else [view.holder.chain_id]
    return found


def open_blockers(job: Job) -> list[str]:
    """Return the blockers that a job still waits for."""
    arrivals = zip(job.awaits, job.arrived or b"", strict=True)
    return [name for name, digit in arrivals if digit == Arrival.AWAITED[0] and not job.is_terminal]


# ── when a process died in between ────────────────────────────────────────────────────────────────


def notify_late(offset: int, namespace: str) -> Flow[tuple[int, int]]:
    """Notify a page of waiting jobs of chains that ended; return how many were looked at and changed."""
    jobs = yield Ask("find", Blocked(namespace=namespace, limit=PAGE, offset=offset))
    chains = dict.fromkeys(joined.from_iterable(open_blockers(job) for job in jobs))
    over = yield from mark_awaited(chains)
    tails = (yield Ask("tails", over)) if over else []
    changed = yield from notify_dependants(endings(tails), namespace)
    return len(jobs), changed
