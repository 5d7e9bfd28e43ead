"""Admission: an optimistic insert of everything that may be new, in one round trip; then decide under locks.

The unique index on (key, stand) decides whether a key is free. A job that was inserted is admitted. A request
that finds its key taken, and changes nothing, is answered from the rows that came back. Everything else is
left to `steps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from onejob.core.job import Job
from onejob.core.step import Changes, Step, View
from onejob.stores.columns import read_job
from onejob.stores.flow import Flow, Query
from onejob.stores.postgres.errors import UNIQUE, is_busy, is_race, sqlstate
from onejob.stores.postgres.records import admissions
from onejob.stores.postgres.server import Server
from onejob.stores.postgres.steps import Answers, apply_group, without
from onejob.stores.sql.reading import array
from onejob.stores.working_copy import WorkingCopy, attempt

WAITS = object()
"""The answer of a step that another transaction delays: it must run alone."""


def waiting(answers: Sequence[Any]) -> list[int]:
    """Return the positions of the steps that must run alone."""
    return [index for index, answer in enumerate(answers) if answer is WAITS]


def apply(server: Server, steps: Sequence[Step[Any]]) -> Flow[list[Any]]:
    """Admit what one statement can, then run the other steps; WAITS is the answer of those that must wait."""
    answers = yield from admit(server, steps)
    if len(answers) < len(steps):
        answers |= yield from apply_group(server, without(dict(enumerate(steps)), answers))
    return [answers.get(index, WAITS) for index in range(len(steps))]


def admit(server: Server, steps: Sequence[Step[Any]]) -> Flow[Answers]:
    """Insert what is new and answer what changes nothing."""
    now = server.now()
    proposals = dict(propose(steps, now))
    if not proposals:
        return {}
    jobs = [changes.inserts[0] for changes in proposals.values()]
    refused = yield from insert(server, jobs)
    if any(job.id not in refused for job in jobs):
        server.changed()
    if not refused and len(proposals) == len(steps):
        return {index: changes.answer for index, changes in proposals.items()}
    copy, answers, known = WorkingCopy(), Answers(), set[bytes | None]()
    for index, changes in proposals.items():
        [job] = changes.inserts
        found = refused.get(job.id, [job])
        for other in found:
            copy.put(other)
        known |= {job.key} if found else set()  # otherwise the key has changed meanwhile
        if job.id in copy.jobs:
            answers[index] = changes.answer
    answer_unchanged(steps, now, copy, known, answers)
    return answers


def answer_unchanged(
    steps: Sequence[Step[Any]], now: datetime, copy: WorkingCopy, known: set[bytes | None], answers: Answers
) -> None:
    """Answer the steps on known keys that change nothing; what follows one that would write is not known."""
    for index, step in enumerate(steps):
        if index not in answers and step.key in known:
            changes = None if needs_locks(step) else attempt(step, copy.view(step, now))
            if changes is None or not changes.is_empty:
                known.discard(step.key)
            else:
                answers[index] = changes.answer


def insert(server: Server, jobs: Sequence[Job]) -> Flow[dict[str, list[Job]]]:
    """Insert jobs whose keys are free; return the others with the jobs that stand for their keys.

    If another transaction is in the way of one of them, halve the jobs until that one is alone.
    """
    try:
        return (yield from insert_together(server, jobs))
    except psycopg.Error as error:
        if sqlstate(error) == UNIQUE:  # one of them is there already: an earlier reply was lost
            return (yield from find_inserted(jobs))
        if not is_busy(error) and not is_race(error):
            raise
    if len(jobs) == 1:
        return {jobs[0].id: []}
    half = len(jobs) // 2
    first = yield from insert(server, jobs[:half])
    second = yield from insert(server, jobs[half:])
    return first | second


def insert_together(server: Server, jobs: Sequence[Job]) -> Flow[dict[str, list[Job]]]:
    """Insert jobs in one batch."""
    before = [server.briefly] if server.is_pooled else []
    statements = list(admissions(jobs))
    answers = yield [*before, *(query for query, _ in statements)]
    refused: dict[str, list[Job]] = {}
    for (query, group), rows in zip(statements, answers[len(before) :], strict=True):
        for row in rows:
            job_id, standing = (group[0].id, row) if query.name == "admit_job" else (row[0], row[1:])
            found = refused.setdefault(job_id, [])
            if standing[0] is not None:
                found.append(read_job(standing))
    return refused


def find_inserted(jobs: Sequence[Job]) -> Flow[dict[str, list[Job]]]:
    """Return, for each job, itself if an earlier attempt has stored it, else nothing."""
    [rows] = yield [Query("jobs", (array(job.id for job in jobs),))]
    there = {row[0] for row in rows}
    return {job.id: [job] if job.id in there else [] for job in jobs}


def propose(steps: Sequence[Step[Any]], now: datetime) -> Iterator[tuple[int, Changes[Any]]]:
    """Yield what the first step of each key would do if its key were free: insert one job."""
    seen: set[bytes] = set()
    for index, step in enumerate(steps):
        if step.key not in seen and not needs_locks(step):
            changes = attempt(step, View(now))
            if len(changes.inserts) == 1 and not changes.updates and changes.mark is None:
                yield index, changes
        if step.key is not None:
            seen.add(step.key)


def needs_locks(step: Step[Any]) -> bool:
    """Return whether a step concerns more than the jobs of its key."""
    return step.job_id is not None or step.marks or step.queue is not None
