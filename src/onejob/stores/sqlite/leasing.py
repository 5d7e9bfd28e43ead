"""Leasing on a SQLite file: candidates and counts for the rules of `core.leasing`, and the write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from onejob.core.job import Job
from onejob.core.leasing import PAUSED, Capacity, Lease, Load, choose, next_due
from onejob.core.runs import mature
from onejob.core.step import NO_CHANGES, Step
from onejob.stores.columns import read_job, read_time, write_time
from onejob.stores.contract import Leased
from onejob.stores.sql.draft import Draft
from onejob.stores.sql.reading import array
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.steps import load_keys, load_marks, run_steps, write
from onejob.stores.working_copy import WorkingCopy

MATURED_AT_ONCE = 1000
LOOKED_PAST = 30  # jobs of full partitions at the head of a queue, before the partitions are read one by one


def lease(session: Session, wanted: Lease, after: Sequence[Step[Any]]) -> Leased:
    """Run steps, make due jobs available, and start the best."""
    answers = run_steps(session, after) if after else []
    make_available(session, wanted.namespace)
    jobs = start_best(session, wanted)
    if len(jobs) >= wanted.total:
        return Leased(answers, jobs, None)
    return Leased(answers, jobs, when_next(session, wanted, count(session, wanted)))


def foresee(session: Session, wanted: Lease) -> Leased | None:
    """Return the answer of a lease that would start nothing, or None if it would write."""
    due = session.rows("timed_due", (wanted.namespace, write_time(session.now), 1))
    load = count(session, wanted)
    capacity = Capacity(wanted, load, session.now)
    if due or choose(candidates(session, wanted, capacity), capacity):
        return None
    return Leased([], [], when_next(session, wanted, load))


def when_next(session: Session, wanted: Lease, load: Load) -> datetime | None:
    """Return when to lease again."""
    [[run_at]] = session.rows("next_timed", (wanted.namespace,))
    return next_due(wanted, load, session.now, None if run_at is None else read_time(run_at))


def make_available(session: Session, namespace: str) -> None:
    """Make scheduled and retryable jobs available whose time has come."""
    rows = session.rows("timed_due", (namespace, write_time(session.now), MATURED_AT_ONCE))
    if not rows:
        return
    copy = WorkingCopy()
    draft = Draft(copy)
    for job in map(read_job, rows):
        copy.put(job)
        copy.run(Step(mature, job.id), session.now, draft.add)
    write(session, draft)


def start_best(session: Session, wanted: Lease) -> list[Job]:
    """Start the best available jobs until there is no capacity or no job left."""
    started: list[Job] = []
    while len(started) < wanted.total:
        capacity = Capacity(wanted, count(session, wanted), session.now, started)
        chosen = choose(candidates(session, wanted, capacity), capacity)
        if not chosen:
            break
        started += start(session, chosen, wanted)
    return started


def start(session: Session, chosen: Sequence[Job], wanted: Lease) -> list[Job]:
    """Start chosen jobs and return those that run."""
    copy = WorkingCopy()
    for job in chosen:
        copy.put(job)
    keys = [job.key for job in chosen if job.key is not None and _concerns_others(job)]
    load_keys(session, copy, keys)
    load_marks(session, copy, keys)
    draft = Draft(copy)
    begun = copy.start(chosen, wanted, session.now, draft.add)
    write(session, draft)
    if wanted.rates:
        note_starts(session, begun, wanted)
    return begun


def _concerns_others(job: Job) -> bool:
    """Return whether starting a job may depend on, or change, another row of its key."""
    return not Step(lambda _view: NO_CHANGES, job.id, seen=job).needs_no_reading


# ── counts ────────────────────────────────────────────────────────────────────────────────────────


def count(session: Session, wanted: Lease) -> Load:
    """Count what limits the queues of a lease."""
    counted = wanted.limits or wanted.shares
    active = session.rows("active_in_shares", (wanted.namespace,)) if counted else ()
    return Load(
        {(queue, partition): number for queue, partition, number in active},
        {queue: recent_starts(session, wanted, queue) for queue in wanted.rates},
        [name for name, _ in session.rows("settings", (wanted.namespace, PAUSED))],
    )


def recent_starts(session: Session, wanted: Lease, queue: str) -> list[datetime]:
    """Return the starts within the span of a queue's rate, oldest first."""
    since = write_time(session.now - wanted.rates[queue].per)
    return [read_time(at) for (at,) in session.rows("recent_starts", (wanted.namespace, queue, since))]


def note_starts(session: Session, begun: Sequence[Job], wanted: Lease) -> None:
    """Write when jobs of queues with a rate started; delete starts that the rate counts no more."""
    for job in begun:
        if job.queue in wanted.rates:
            session.write("insert_start", [(job.namespace, job.queue, write_time(session.now))])
    for queue in {job.queue for job in begun} & wanted.rates.keys():
        ended = write_time(session.now - wanted.rates[queue].per)
        session.write("delete_starts", [(wanted.namespace, queue, ended)])


# ── candidates ────────────────────────────────────────────────────────────────────────────────────


def candidates(session: Session, wanted: Lease, capacity: Capacity) -> list[Job]:
    """Return the best available jobs of every queue, as many as may start."""
    tasks = array(sorted(wanted.tasks))
    found: list[Job] = []
    for queue in wanted.queues:
        if capacity.free(queue) > 0:
            read = _in_shares if queue in wanted.shares else _in_queue
            found += read(session, wanted, queue, capacity, tasks)
    return found


def _in_queue(session: Session, wanted: Lease, queue: str, capacity: Capacity, tasks: str) -> list[Job]:
    given = (wanted.namespace, queue, tasks, capacity.free(queue))
    return [read_job(row) for row in session.rows("available_in_queue", given)]


def _in_shares(session: Session, wanted: Lease, queue: str, capacity: Capacity, tasks: str) -> list[Job]:
    """Return the best jobs whose partition has capacity.

    Most often they are at the head of the queue. If full partitions have filled the head, the best jobs of
    each partition are read, so that jobs of full partitions need not be read one by one.
    """
    free, most = capacity.free(queue), wanted.shares[queue]
    ahead = 2 * free + LOOKED_PAST
    head = [
        read_job(row) for row in session.rows("available_in_queue", (wanted.namespace, queue, tasks, ahead))
    ]
    by_partition = Counter(job.partition for job in head)
    room = {partition: capacity.free_of(queue, partition) for partition in by_partition}
    usable = sum(min(number, room[partition]) for partition, number in by_partition.items())
    if usable >= free or len(head) < ahead:
        return head
    active = session.rows("active_in_shares", (wanted.namespace,))
    full = [name for at, name, number in active if at == queue and name and number >= most]
    taken = sum(number for at, name, number in active if at == queue and 0 < number < most and name)
    given = (wanted.namespace, queue, tasks)
    rows = [
        *session.rows("available_in_shares", (*given, array(full), most, free + taken)),
        *session.rows("available_without_partition", (*given, free)),
    ]
    return [read_job(row) for row in rows]
