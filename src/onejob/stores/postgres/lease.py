"""Leasing on PostgreSQL: settle runs that ended and start due jobs in one transaction.

The rules are those of `core.leasing`. This module supplies candidates, which no other worker can lease
meanwhile, and counts. Queues with a limit are locked first: one worker at a time counts and fills them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from onejob.core.job import Job, Trait
from onejob.core.leasing import Capacity, Lease, Load, choose, next_due
from onejob.core.step import Step
from onejob.errors import AdmissionBusy
from onejob.stores.columns import read_job, read_time, write_time
from onejob.stores.contract import Leased
from onejob.stores.flow import Flow, Query, Row
from onejob.stores.postgres.connection import BEGIN, COMMIT
from onejob.stores.postgres.errors import is_busy
from onejob.stores.postgres.server import Server
from onejob.stores.postgres.steps import (
    Answers,
    Moved,
    Steps,
    Transaction,
    decide,
    find_unread,
    load_keys,
    retry,
    without,
    write_unread,
    writes,
)
from onejob.stores.sql.draft import Draft
from onejob.stores.sql.reading import array
from onejob.stores.working_copy import WorkingCopy

MATURED_AT_ONCE = 1000
FENCED = Trait.MARKED | Trait.HAS_SUCCESSOR


def lease(server: Server, wanted: Lease, after: Sequence[Step[Any]]) -> Flow[Leased]:
    """Apply steps, then start due jobs; a step that another transaction delays is answered AdmissionBusy."""
    ends, steps = time.monotonic() + server.admission_timeout, dict(enumerate(after))
    delayed = busy(server)
    while True:
        try:
            answers, jobs, due = yield from lease_once(server, wanted, steps)
        except (AdmissionBusy, Moved, psycopg.Error) as error:
            if after and is_busy(error):
                return Leased([delayed for _ in after], [], None)
            yield from retry(server, error, ends)
        else:
            if answers:
                server.changed()
            return Leased([answers.get(index, delayed) for index in steps], jobs, due)


def busy(server: Server) -> AdmissionBusy:
    """Return the answer of a step that another transaction delays."""
    return AdmissionBusy(f"{server.place}: another open transaction relies on this job; try again.")


def lease_once(
    server: Server, wanted: Lease, steps: Steps
) -> Flow[tuple[Answers, list[Job], datetime | None]]:
    """Settle and lease in one transaction, in two round trips if all runs ended as usual."""
    transaction = Transaction(BEGIN)
    if wanted.limited:
        transaction.add(server.patiently)
        transaction.add(*(Query("lock_queue", (wanted.namespace, queue)) for queue in wanted.limited))
    if wanted.limited or steps or server.is_pooled:
        transaction.add(server.briefly)
    unread, queries = find_unread(steps, server.now()), survey(server, wanted)
    answers, found = yield from write_unread(transaction, unread, *queries)
    if left := without(steps, answers):
        decided, draft = yield from decide(transaction, server.now, left, skips_locked=True)
        answers |= decided
        transaction.add(*writes(draft))
        found = yield from transaction.send(*queries)  # they may have freed capacity
    jobs, due = yield from start_best(server, transaction, wanted, queries, found)
    return answers, jobs, due


# ── candidates and counts ─────────────────────────────────────────────────────────────────────────


def survey(server: Server, wanted: Lease) -> list[Query]:
    """Return the statements that find candidates and counts."""
    now, namespace = server.now(), wanted.namespace
    counted = sorted(wanted.limits.keys() | wanted.shares.keys())
    return [
        Query("mature", (namespace, write_time(now), MATURED_AT_ONCE)),
        Query("paused", (namespace,)),
        *([Query("active", (namespace, array(counted)))] if counted else []),
        *(
            Query("recent_starts", (namespace, queue, write_time(now - rate.per)))
            for queue, rate in wanted.rates.items()
        ),
        *candidates(wanted),
    ]


def candidates(wanted: Lease) -> Iterator[Query]:
    """Yield the statements that find the best jobs of each queue: as many as could start if nothing ran."""
    tasks = array(sorted(wanted.tasks))
    for queue, number in wanted.queues.items():
        most = min(number, wanted.total, wanted.limits.get(queue, number))
        if queue in wanted.rates:
            most = min(most, wanted.rates[queue].times)
        if most > 0:
            given = (wanted.namespace, queue, tasks)
            if queue in wanted.shares:  # a partition that is full must not hide the others
                yield Query("available_in_shares", (*given, wanted.shares[queue], most))
                yield Query("available_without_partition", (*given, most))
            else:
                yield Query("available", (*given, most))


def read_survey(queries: Sequence[Query], rows: Sequence[Sequence[Row]]) -> tuple[Collection[Job], Load]:
    """Return the candidates and counts that the statements of `survey` have found."""
    found: dict[str, Job] = {}
    active: dict[tuple[str, str], int] = {}
    starts: dict[str, list[datetime]] = {}
    paused: list[str] = []
    for query, some in zip(queries, rows, strict=True):
        match query.name:
            case "paused":
                paused = [name for (name,) in some]
            case "active":
                active = {(queue, partition): number for queue, partition, number in some}
            case "recent_starts":
                starts[query.parameters[1]] = [read_time(at) for (at,) in some]
            case _:  # candidates; `mature` returns nothing
                found |= {row[0]: read_job(row) for row in some}
    return found.values(), Load(active, starts, paused)


# ── starting ──────────────────────────────────────────────────────────────────────────────────────


def start_best(
    server: Server,
    transaction: Transaction,
    wanted: Lease,
    queries: Sequence[Query],
    rows: Sequence[Sequence[Row]],
) -> Flow[tuple[list[Job], datetime | None]]:
    """Start the best candidates until nothing is left or no capacity is free, and commit."""
    started: list[Job] = []
    begun: list[Job]
    now = server.now()
    while True:
        (found, load), begun = read_survey(queries, rows), []
        chosen = choose(found, Capacity(wanted, load, now, started))
        if not chosen:
            break
        begun, is_whole = yield from begin(transaction, chosen, wanted, now)
        transaction.add(*note_starts(begun, wanted, now))
        started += begun
        if is_whole:
            break
        rows = yield from transaction.send(*queries)  # a job that was promoted may be better than the rest
    if len(started) >= wanted.total:
        yield from transaction.send(COMMIT)
        return started, None
    [[run_at]], _ = yield from transaction.send(Query("next_due", (wanted.namespace,)), COMMIT)
    return started, next_due(wanted, load, now, None if run_at is None else read_time(run_at), begun)


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
