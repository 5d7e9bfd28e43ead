"""Leasing on PostgreSQL: settle runs that ended and start due jobs in one transaction.

Without limits over all workers, one statement chooses and starts jobs as `core.leasing` and `core.runs` do.
Otherwise their rules run here, on candidates, which no other worker can lease meanwhile, and counts. Queues
with a limit are locked first: one worker at a time counts and fills them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from onejob.core.job import Job, Trait
from onejob.core.leasing import Capacity, Lease, Load, choose, next_due, rank
from onejob.core.step import Step
from onejob.errors import AdmissionBusy, StoreError
from onejob.stores.columns import MICROSECOND, Unreadable, read_job, read_time, write_time
from onejob.stores.contract import Leased
from onejob.stores.flow import Flow, Query, Row
from onejob.stores.postgres.connection import BEGIN, COMMIT
from onejob.stores.postgres.errors import ConnectionLost, is_busy, is_race
from onejob.stores.postgres.records import storable
from onejob.stores.postgres.server import Server
from onejob.stores.postgres.steps import (
    Answers,
    Moved,
    Steps,
    Transaction,
    Unread,
    apply_group,
    fenced,
    find_unread,
    load_keys,
    retry,
    without,
    writes,
    written,
)
from onejob.stores.postgres.upkeep import set_aside
from onejob.stores.sql.draft import Draft
from onejob.stores.sql.reading import array
from onejob.stores.working_copy import WorkingCopy

MATURED_AT_ONCE = 1000
Started = tuple[list[Job], datetime | None]
"""Jobs that have started, best first, and when to lease again."""
FENCED = Trait.MARKED | Trait.HAS_SUCCESSOR


def lease(server: Server, wanted: Lease, after: Sequence[Step[Any]]) -> Flow[Leased]:
    """Apply steps, then start due jobs; a step that another transaction delays is answered AdmissionBusy."""
    steps, answers, started, delayed = dict(enumerate(after)), Answers(), None, busy(server)
    unread = {} if wanted.limited else find_unread(steps, server.now())
    if not wanted.limited and len(unread) == len(steps):
        answers, started = yield from lease_at_once(server, wanted, unread)
    if left := without(steps, answers):
        apply = apply_group if started is None else apply_left
        answers |= yield from apply(server, left)
    try:
        started = started or (yield from lease_by_rules(server, wanted))
    except (AdmissionBusy, psycopg.Error) as error:
        if not answers or not is_busy(error):
            raise
        started = [], None  # what was written must be answered
    if answers:
        server.changed()
    return Leased([answers.get(index, delayed) for index in steps], *started)


def busy(server: Server) -> AdmissionBusy:
    """Return the answer of a step that another transaction delays."""
    return AdmissionBusy(f"{server.place}: another open transaction relies on this job; try again.")


# ── without limits: one batch, in which the server chooses ────────────────────────────────────────


def lease_at_once(server: Server, wanted: Lease, unread: Unread) -> Flow[tuple[Answers, Started | None]]:
    """Write runs that ended and start the best jobs, if none of those is special; otherwise return None."""
    now, settling = server.now(), fenced(unread)
    limits = [server.briefly] if server.is_pooled else []
    try:
        answers = yield [*limits, *settling, mature(wanted, now), start_available(wanted, now)]
    except psycopg.Error as error:
        if is_race(error) or is_busy(error):  # such as a continuation that an earlier attempt has inserted
            return {}, None
        raise
    *ended, [[run_at]], rows = answers[len(limits) :]
    found = written(unread, ended)
    if rows and rows[-1][0] is None:
        return found, None
    jobs = yield from read_started(server, rows)
    return found, (jobs, None if len(jobs) >= wanted.total or run_at is None else read_time(run_at))


def start_available(wanted: Lease, now: datetime) -> Query:
    """Return the statement that starts the best jobs of queues without limits."""
    queues = wanted.queues
    given = (array(queues), array(queues.values()), array(wanted.tasks), wanted.total)
    run = (write_time(now), storable(wanted.worker), wanted.duration // MICROSECOND)
    return Query("start_available", (wanted.namespace, *given, *run))


def read_started(server: Server, rows: Sequence[Row]) -> Flow[list[Job]]:
    """Return jobs that have started, best first, and set aside those whose rows cannot be read."""
    jobs: list[Job] = []
    for row in rows:
        try:
            jobs.append(read_job(row))
        except Unreadable as damage:
            yield from set_aside(damage, set(), server.now())
    return sorted(jobs, key=rank)


def apply_left(server: Server, steps: Steps) -> Flow[Answers]:
    """Apply steps after jobs have started, which no error of the store may lose: it is the steps' answer."""
    try:
        return (yield from apply_group(server, steps))
    except StoreError as error:
        return dict.fromkeys(steps, error)
    except (ConnectionLost, psycopg.Error):  # before a commit
        return {}


# ── with limits, or special jobs: in a transaction, by the rules of `core.leasing` ────────────────


def lease_by_rules(server: Server, wanted: Lease) -> Flow[Started]:
    """Lease in a transaction, and again while others change what is relied on."""
    ends = time.monotonic() + server.admission_timeout
    while True:
        transaction, queries = Transaction(BEGIN), survey(server, wanted)
        if wanted.limited:
            transaction.add(server.patiently)
            transaction.add(*(Query("lock_queue", (wanted.namespace, queue)) for queue in wanted.limited))
        transaction.add(server.briefly)
        try:
            found = yield from transaction.send(*queries)
            return (yield from start_best(server, transaction, wanted, queries, found))
        except (AdmissionBusy, Moved, psycopg.Error) as error:
            yield from retry(server, error, ends)


# ── candidates and counts ─────────────────────────────────────────────────────────────────────────


def survey(server: Server, wanted: Lease) -> list[Query]:
    """Return the statements that find candidates and counts."""
    now, namespace = server.now(), wanted.namespace
    counted = sorted(wanted.limits.keys() | wanted.shares.keys())
    return [
        mature(wanted, now),
        Query("paused", (namespace,)),
        *([Query("active", (namespace, array(counted)))] if counted else []),
        *(
            Query("recent_starts", (namespace, queue, write_time(now - rate.per)))
            for queue, rate in wanted.rates.items()
        ),
        *candidates(wanted),
    ]


def mature(wanted: Lease, now: datetime) -> Query:
    """Return the statement that makes timed jobs available, and finds the time of the next one."""
    return Query("mature", (wanted.namespace, write_time(now), MATURED_AT_ONCE))


def candidates(wanted: Lease) -> Iterator[Query]:
    """Yield the statements that find the best jobs of each queue: as many as could start if nothing ran."""
    tasks = array(sorted(wanted.tasks))
    for queue, number in wanted.queues.items():
        rate = wanted.rates.get(queue)
        most = min(number, wanted.total, wanted.limits.get(queue, number), rate.times if rate else number)
        if most > 0:
            given = (wanted.namespace, queue, tasks)
            if queue in wanted.shares:  # a partition that is full must not hide the others
                yield Query("available_in_shares", (*given, wanted.shares[queue], most))
                yield Query("available_without_partition", (*given, most))
            else:
                yield Query("available", (*given, most))


def read_survey(
    queries: Sequence[Query], rows: Sequence[Sequence[Row]]
) -> tuple[Collection[Job], Load, datetime | None]:
    """Return the candidates, the counts and the next time that the statements of `survey` have found."""
    found = defaultdict[str, list[Row]](list)
    starts: dict[str, list[datetime]] = {}
    for query, some in zip(queries, rows, strict=True):
        if query.name == "recent_starts":
            starts[query.parameters[1]] = [read_time(at) for (at,) in some]
        else:
            found[query.name] += some
    [[timed]], paused, running = (found.pop(name, []) for name in ("mature", "paused", "active"))
    active = {(queue, partition): number for queue, partition, number in running}
    jobs = {row[0]: read_job(row) for some in found.values() for row in some}
    load = Load(active, starts, [name for (name,) in paused])
    return jobs.values(), load, None if timed is None else read_time(timed)


# ── starting ──────────────────────────────────────────────────────────────────────────────────────


def start_best(
    server: Server,
    transaction: Transaction,
    wanted: Lease,
    queries: Sequence[Query],
    rows: Sequence[Sequence[Row]],
) -> Flow[Started]:
    """Start the best candidates until nothing is left or no capacity is free, and commit."""
    started: list[Job] = []
    begun: list[Job]
    now = server.now()
    while True:
        (found, load, timed), begun = read_survey(queries, rows), []
        chosen = choose(found, Capacity(wanted, load, now, started))
        if not chosen:
            break
        begun, is_whole = yield from begin(transaction, chosen, wanted, now)
        transaction.add(*note_starts(begun, wanted, now))
        started += begun
        if is_whole:
            break
        rows = yield from transaction.send(*queries)  # a job that was promoted may be better than the rest
    yield from transaction.send(COMMIT)
    if len(started) >= wanted.total:
        return started, None
    return started, next_due(wanted, load, now, timed, begun)


def begin(
    transaction: Transaction, chosen: Sequence[Job], wanted: Lease, now: datetime
) -> Flow[tuple[list[Job], bool]]:
    """Start chosen jobs; return them, and whether all started and no job became available by that."""
    copy = WorkingCopy()
    for job in chosen:
        copy.put(job)
    keys = {job.key: True for job in chosen if job.key is not None and job.traits & FENCED}
    yield from load_keys(transaction, copy, set(copy.jobs), keys)
    draft, waiting = Draft(copy), len(copy.successors)
    started = copy.start(chosen, wanted, now, draft.add)
    transaction.add(*writes(draft))
    return started, len(started) == len(chosen) and len(copy.successors) == waiting


def note_starts(begun: Sequence[Job], wanted: Lease, now: datetime) -> list[Query]:
    """Return the statements that store when jobs of queues with a rate have started."""
    numbers = Counter(job.queue for job in begun)
    return [
        Query("note_starts", (wanted.namespace, queue, write_time(now - rate.per), write_time(now), number))
        for queue, rate in wanted.rates.items()
        if (number := numbers[queue])
    ]
