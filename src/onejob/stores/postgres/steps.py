"""Steps on PostgreSQL: unread and fenced by revision where that is enough, otherwise decided under locks.

Deciding under locks: lock the rows, read them in the next statement (a statement that waited keeps its old
snapshot), run the steps in order on a working copy, write the differences.

Locks are taken in one order, so that no two transactions wait for each other: the jobs that are named (the
holder before the job that waits behind it), then running holders, then other holders and successors, then
marks; by id or key within each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg

from onejob.core.job import EPOCH, Job
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.errors import AdmissionBusy
from onejob.stores.columns import INDEX, read_job, read_mark, write_mark
from onejob.stores.flow import Flow, Query, Row
from onejob.stores.postgres.connection import BEGIN, COMMIT, ROLLBACK
from onejob.stores.postgres.errors import is_busy, is_race, translated
from onejob.stores.postgres.records import joined, position, tally_records, updates, write_row
from onejob.stores.postgres.server import Server
from onejob.stores.sql.draft import Draft
from onejob.stores.sql.reading import array
from onejob.stores.working_copy import WorkingCopy, attempt

REVISION = INDEX["revision"]
Steps = Mapping[int, Step[Any]]
"""Steps by their position."""
Answers = dict[int, Any]
"""Answers by the position of their step; a step without one must be waited for."""


def without(steps: Steps, answers: Answers) -> Steps:
    """Return the steps that have no answer yet."""
    return {index: step for index, step in steps.items() if index not in answers}


class Moved(Exception):
    """A key changed between locking and reading: lock again."""


class Transaction:
    """The statements of one transaction; those whose rows are not needed wait for the next batch."""

    def __init__(self, *first: Query) -> None:
        self._pending = list(first)

    def add(self, *queries: Query) -> None:
        """Add statements to the next batch."""
        self._pending += queries

    def send(self, *queries: Query) -> Flow[list[list[Row]]]:
        """Send a batch, if there is anything to ask, and return the rows of these statements."""
        if not queries:
            return []
        pending, self._pending = self._pending, []
        answers = yield [*pending, *queries]
        return answers[len(pending) :]


# ── applying steps ────────────────────────────────────────────────────────────────────────────────


def apply_group(server: Server, steps: Steps) -> Flow[Answers]:
    """Run steps without waiting long for other transactions; steps that must wait have no answer.

    What needs no reading is one batch, which commits by itself and can be repeated: if its reply is lost, the
    rows have other revisions, and the steps find their own results by reading.
    """
    answers: Answers = {}
    try:
        if unread := find_unread(steps, server.now()):
            answers |= written(unread, (yield fenced(unread)))
        if answers:
            server.changed()
        if left := without(steps, answers):
            answers |= yield from decide_again(server, left, server.briefly, skips_locked=True)
    except (AdmissionBusy, psycopg.Error) as error:  # which step it concerns shows when each runs alone
        if not is_busy(error) and not is_race(error):
            raise
    return answers


def apply_alone(server: Server, step: Step[Any]) -> Flow[Any]:
    """Run one step; wait for other transactions as long as the app allows, then answer AdmissionBusy."""
    try:
        return (yield from decide_again(server, {0: step}, server.patiently))[0]
    except (AdmissionBusy, psycopg.Error) as error:
        if is_busy(error):
            return translated(error, server.place)
        raise


def decide_again(server: Server, steps: Steps, wait: Query, *, skips_locked: bool = False) -> Flow[Answers]:
    """Decide steps in a transaction of their own, and again while others change what they rely on."""
    ends = time.monotonic() + server.admission_timeout
    while True:
        try:
            transaction = Transaction(BEGIN, wait)
            answers, draft = yield from decide(transaction, server.now, steps, skips_locked=skips_locked)
            queries = writes(draft)
            yield from transaction.send(*queries, COMMIT)
        except (Moved, psycopg.Error) as race:
            yield from retry(server, race, ends)
        else:
            if queries:
                server.changed()
            return answers


def retry(server: Server, race: Exception, ends: float) -> Flow[None]:
    """Roll back, so that another can begin; raise errors that are no race, and races that last too long."""
    if not isinstance(race, Moved) and not is_race(race) and not is_busy(race):
        raise race
    yield [ROLLBACK]
    if is_busy(race):  # the caller may go on with other steps, or with a lease
        raise race
    if time.monotonic() > ends:
        message = f"{server.place}: the key changes faster than it can be read; try again."
        raise AdmissionBusy(message) from race


# ── without reading: the caller has seen the job, and the write is fenced by its revision ─────────


Unread = Mapping[int, tuple[Job, Changes[Any]]]
"""By the position of its step: a job as the caller saw it, and the changes that follow from that."""


def find_unread(steps: Steps, now: datetime) -> Unread:
    """Return the steps that need no reading, but none that comes after a step that may concern its key."""
    found: dict[int, tuple[Job, Changes[Any]]] = {}
    concerned: set[bytes | str | None] = set()
    for index, step in steps.items():
        seen = step.seen
        if seen is None:
            if step.job_id is not None:
                break  # its key is unknown, so it may concern any of those that follow
            concerned.add(step.key)
            continue
        key = seen.id if seen.key is None else seen.key
        if key not in concerned and seen.id not in concerned and step.needs_no_reading:
            changes = attempt(step, View(now, seen, seen if seen.is_holder else None))
            if changes_alone(seen, changes):
                found[index] = (seen, changes)
        concerned |= {key, seen.id}
    return found


def changes_alone(job: Job, changes: Changes[Any]) -> bool:
    """Return whether changes change this job, and add at most others."""
    updates = changes.updates
    return len(updates) == 1 and updates[0].id == job.id and not changes.deletes and changes.mark is None


def fenced(unread: Unread) -> list[Query]:
    """Return the statements that write steps where a row has the revision that was seen."""
    return [
        *updates([(seen, changes.updates[0]) for seen, changes in unread.values()]),
        *(insert(job, seen.token) for seen, changes in unread.values() for job in changes.inserts),
    ]


def written(unread: Unread, answers: Sequence[Sequence[Row]]) -> Answers:
    """Return the answers of the steps that the statements of `fenced` have written."""
    ids = {job_id for rows in answers for some, _ in rows for job_id in some or ()}
    return {index: changes.answer for index, (seen, changes) in unread.items() if seen.id in ids}


def insert(job: Job, token: int | None = None) -> Query:
    """Return the statement that inserts a job; with a token, if that run has completed the job before it."""
    return Query("insert_job", (*write_row(job), token))


# ── under locks ───────────────────────────────────────────────────────────────────────────────────


def decide(
    transaction: Transaction, now: Callable[[], datetime], steps: Steps, *, skips_locked: bool = False
) -> Flow[tuple[Answers, Draft]]:
    """Lock and read what the steps name, and run them in order; return what is to be written, too.

    The time is read after the locks were waited for, because another transaction may just have written the
    rows. With `skips_locked`, steps whose job is locked have no answer.
    """
    copy = WorkingCopy()
    shared = yield from load(transaction, copy, steps, skips_locked=skips_locked)
    if skips_locked:
        steps = yield from leave_out(transaction, copy, steps)
    draft, moment = Draft(copy), now()
    answers = {index: copy.run(step, moment, draft.add) for index, step in steps.items()}
    yield from claim(transaction, draft, shared)
    return answers, draft


def claim(transaction: Transaction, draft: Draft, shared: Collection[str]) -> Flow[None]:
    """Lock running holders that will be written, which were only kept from ending; raise Moved if changed."""
    seen = {job_id: job for job_id, job in draft.before.items() if job is not None and job_id in shared}
    if not seen:
        return
    [rows] = yield from transaction.send(Query("lock_jobs_alone", (array(seen),)))
    if {row[0]: row[REVISION] for row in rows} != {job.id: job.revision for job in seen.values()}:
        raise Moved


def leave_out(transaction: Transaction, copy: WorkingCopy, steps: Steps) -> Flow[Steps]:
    """Return the steps without those whose job is gone or locked, and those that follow on its key."""
    absent = {step.job_id for step in steps.values() if step.job_id is not None} - copy.jobs.keys()
    if not absent:
        return steps
    [rows] = yield from transaction.send(Query("keys_of", (array(absent),)))
    keys: dict[str | None, bytes | None] = {job_id: job.key for job_id, job in copy.jobs.items()}
    keys |= {job_id: key for job_id, key in rows}  # noqa: C416 - a row is not a pair to the type checker
    left, delayed = dict[int, Step[Any]](), set[bytes | None]()
    for index, step in steps.items():
        key = step.key if step.job_id is None else keys.get(step.job_id)
        if step.job_id in absent or (key is not None and key in delayed):
            delayed.add(key)
        else:
            left[index] = step
    return left


def load(transaction: Transaction, copy: WorkingCopy, steps: Steps, *, skips_locked: bool) -> Flow[set[str]]:
    """Lock and read jobs, keys and depths; return the running holders that were only kept from ending."""
    named = {step.job_id for step in steps.values() if step.job_id is not None and not step.alone}
    alone = {step.job_id for step in steps.values() if step.job_id is not None} - named
    if named and not skips_locked:
        transaction.add(Query("lock_predecessors", (array(sorted(named)),)))
    free = "_free" if skips_locked else ""
    locks = [(f"lock{free}_jobs_alone", alone), (f"lock{free}_jobs", named)]
    for rows in (
        yield from transaction.send(*(Query(name, (array(sorted(ids)),)) for name, ids in locks if ids))
    ):
        put(copy, rows)
    keys = {copy.jobs[job_id].key: True for job_id in named if job_id in copy.jobs}
    for step in steps.values():
        if step.job_id is None:
            keys[step.key] = step.marks or keys.get(step.key, False)
    keys.pop(None, None)
    shared = yield from load_keys(transaction, copy, named, keys)  # type: ignore[arg-type] # without None
    queues = list({step.queue for step in steps.values() if step.queue is not None})
    depths = yield from transaction.send(*(Query("depth", queue) for queue in queues))
    copy.depths = {queue: number for queue, [[number]] in zip(queues, depths, strict=True)}
    return shared


def put(copy: WorkingCopy, rows: Sequence[Row]) -> None:
    """Read rows into a working copy."""
    for row in rows:
        copy.put(read_job(row))


def load_keys(
    transaction: Transaction, copy: WorkingCopy, locked: Collection[str], keys: Mapping[bytes, bool]
) -> Flow[set[str]]:
    """Lock and read the other jobs of keys, and the marks of those keys that need them.

    While a holder is locked against all writers, no successor can be added behind it, so that its successor
    can be locked and read in one statement. Of other keys, locking and reading are two statements, and the
    marks are locked in between: who waits for the mark of a free key may find that a job has taken the key.
    """
    held = sorted(key for key in keys if copy.holders.get(key) in locked)
    others = sorted(key for key in keys if key not in held)
    marked = sorted(key for key, marks in keys.items() if marks)
    mine = set(copy.jobs)
    questions = {
        "lock_holders": (others, joined(others)),
        "lock_standing": (others, joined(others)),
        "lock_successors": (held, joined(held)),
        "lock_marks": (marked, joined(marked)),
        "standing": (others, (*joined(others), array(mine))),
    }
    asked = {name: Query(name, parameters) for name, (some, parameters) in questions.items() if some}
    answers = yield from transaction.send(*asked.values())
    found = {name: list[Row]() for name in questions} | dict(zip(asked, answers, strict=True))
    shared = {row[0] for row in found["lock_holders"]} - mine
    safe = shared | {row[0] for row in found["lock_standing"]}
    if any(row[0] not in safe for row in found["standing"]):
        raise Moved
    put(copy, found["standing"])
    put(copy, found["lock_successors"])
    yield from load_marks(transaction, copy, found["lock_marks"])
    return shared


def load_marks(transaction: Transaction, copy: WorkingCopy, rows: Sequence[Row]) -> Flow[None]:
    """Read marks, and the jobs that they name, into a working copy; raise Moved if one of those stands."""
    for row in rows:
        copy.put_mark(read_mark(row))
    missing = {mark.job for mark in copy.marks.values()} - copy.jobs.keys()
    for named in (yield from transaction.send(*([Query("jobs", (array(missing),))] if missing else []))):
        put(copy, named)
        if any(copy.jobs[row[0]].stand is not None for row in named):
            raise Moved  # it has taken the key meanwhile, and is not locked


def writes(draft: Draft, *, counting: str = "count_decided") -> list[Query]:
    """Return the statements that write a draft; keys are released before they are taken.

    The counters come last, so that their rows are locked for a short time; `counting` names the statement.
    """
    deleted, updated, inserted = draft.rows()
    taking = [pair for pair in updated if takes_stand(*pair)]
    others = [pair for pair in updated if not takes_stand(*pair)]
    return [
        *([Query("delete_jobs", (array(sorted(job.id for job in deleted)),))] if deleted else []),
        *updates(others, must=True),
        *updates(taking, must=True),
        *(insert(job) for job in sorted(inserted, key=position)),
        *(write_mark_of(draft, key) for key in sorted(draft.marks)),
        *([Query(counting, (tally_records(draft.tallies, EPOCH),))] if draft.tallies else []),
    ]


def write_mark_of(draft: Draft, key: bytes) -> Query:
    """Return the statement that writes the mark of a key."""
    mark = draft.marks[key]
    if not mark.job:
        return Query("drop_mark", (key,))
    return Query("update_mark" if key in draft.marked else "insert_mark", write_mark(mark))


def takes_stand(old: Job, new: Job) -> bool:
    """Return whether a job becomes the holder or the successor of its key."""
    return new.stand is not None and new.stand != old.stand


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


def look(key: bytes, now: datetime) -> Flow[View]:
    """Return the jobs and the mark of a key."""
    standing, marks = yield [Query("standing", (key, 1, "[]")), Query("marks", (key, 1))]
    copy = WorkingCopy()
    put(copy, standing)
    for row in marks:
        copy.put_mark(read_mark(row))
    missing = {mark.job for mark in copy.marks.values()} - copy.jobs.keys()
    if missing:
        put(copy, (yield [Query("jobs", (array(missing),))])[0])
    return copy.view(Step(lambda _view: NO_CHANGES, key=key), now)
