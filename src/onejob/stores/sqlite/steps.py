"""Steps on a SQLite file: read what they concern, run them in order, write what they changed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from onejob.core.job import Job, Stand
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.stores.columns import read_job, read_mark
from onejob.stores.sql.draft import Draft
from onejob.stores.sql.reading import array
from onejob.stores.sqlite.counters import count
from onejob.stores.sqlite.rows import Parameters, insertion, mark_row, revision
from onejob.stores.sqlite.session import Session
from onejob.stores.working_copy import WorkingCopy, attempt


class RowChanged(Exception):
    """A row is no longer as the caller of a step last saw it."""


def run_steps(session: Session, steps: Sequence[Step[Any]]) -> list[Any]:
    """Run steps in order and write what they changed.

    Raises:
        RowChanged: The session trusts the jobs that callers saw, and one of them has changed since.
    """
    copy = load(session, steps)
    draft = Draft(copy)
    answers = [_run_step(session, step, draft) for step in steps]
    write(session, draft)
    return answers


def _run_step(session: Session, step: Step[Any], draft: Draft) -> Any:
    changes = attempt(step, draft.copy.view(step, session.now))
    if not changes.is_empty:
        draft.add(changes)
        draft.copy.write(changes)
    if session.trusting and step.job_id not in draft.before and step.needs_no_reading:
        raise RowChanged  # its row would not be written, so no fence would tell whether it is as it was
    return changes.answer


def foresee(session: Session, step: Step[Any]) -> Changes[Any]:
    """Return what a step would change, without writing it."""
    return attempt(step, load(session, [step]).view(step, session.now))


def depends_on_key_alone(step: Step[Any]) -> bool:
    """Return whether the holder and the successor of its key, if it has one, are all that a step concerns."""
    return step.job_id is None and step.queue is None and (step.key is None or not step.marks)


def show_key(rows: Iterable[Sequence[Any]], now: datetime) -> View:
    """Return the view of a step that depends on its key alone, by the rows of `standing`."""
    holder = successor = None
    for row in rows:
        job = read_job(row)
        if job.stand == Stand.HOLDER:
            holder = job
        else:
            successor = job
    return View(now, None, holder, successor)


def guarded_insert(step: Step[Any], changes: Changes[Any]) -> Job | None:
    """Return the job that a step inserts, if the table's unique index alone makes sure that it may.

    If a step that depends on its key alone does nothing but insert the holder of that key, the insert fails
    if the key is not free any more.
    """
    if len(changes.inserts) != 1 or changes.updates or changes.deletes or changes.mark is not None:
        return None
    job = changes.inserts[0]
    guarded = job.key == step.key and (job.key is None or job.stand == Stand.HOLDER)
    return job if guarded and job.blockers is None and depends_on_key_alone(step) else None


def run_guarded(session: Session, step: Step[Any], changes: Changes[Any]) -> list[Any]:
    """Write what a step was seen to change, or run it again if it may have to change something else."""
    job = guarded_insert(step, changes)
    if job is not None:
        with contextlib.suppress(sqlite3.IntegrityError):
            name, row = insertion(job)
            session.write(name, [row])
            return [changes.answer]
    return run_steps(session, [step])


def view_key(session: Session, key: bytes) -> View:
    """Return the jobs and the mark of a key."""
    step = Step(lambda _view: NO_CHANGES, key=key)
    return load(session, [step]).view(step, session.now)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def load(session: Session, steps: Sequence[Step[Any]]) -> WorkingCopy:
    """Read the rows that steps concern."""
    copy = WorkingCopy()
    unread = [step.seen for step in steps if step.needs_no_reading] if session.trusting else []
    if unread and len(unread) == len(steps):
        _trust(copy, unread)
        return copy
    read = [step for step in steps if not step.needs_no_reading] if unread else steps
    load_jobs(session, copy, {step.job_id for step in read if step.job_id is not None})
    keys: dict[bytes, bool] = {}  # and whether the mark is needed
    for step in read:
        if step.key is not None:
            keys[step.key] = step.marks or keys.get(step.key, False)
        elif step.job_id is not None and not step.alone and step.job_id in copy.jobs:
            key = copy.jobs[step.job_id].key
            keys |= {} if key is None else {key: True}
    load_keys(session, copy, keys)
    load_marks(session, copy, [key for key, marked in keys.items() if marked])
    for queue in {step.queue for step in read if step.queue is not None}:
        [[copy.depths[queue]]] = session.rows("depth", queue)
    _trust(copy, unread)
    return copy


def _trust(copy: WorkingCopy, unread: Iterable[Job | None]) -> None:
    """Add jobs as their callers last saw them."""
    for job in unread:
        assert job is not None  # a step that needs no reading has seen its job
        known = copy.jobs.setdefault(job.id, job)
        if known is job:
            copy.put(job)
        elif known.revision != job.revision:
            raise RowChanged


def load_jobs(session: Session, copy: WorkingCopy, ids: Collection[str]) -> None:
    """Read jobs by id."""
    missing = [job_id for job_id in ids if job_id not in copy.jobs]
    if len(missing) == 1:
        _put(copy, session.rows("job", missing))
    elif missing:
        _put(copy, session.rows("jobs", (array(missing),)))


def load_keys(session: Session, copy: WorkingCopy, keys: Collection[bytes]) -> None:
    """Read the holders and successors of keys."""
    if len(keys) == 1:
        _put(copy, session.rows("standing", list(keys)))
    elif keys:
        _put(copy, session.rows("standing_for_all", (b"".join(keys), len(keys))))


def load_marks(session: Session, copy: WorkingCopy, keys: Collection[bytes]) -> None:
    """Read the marks of keys, and the jobs that they name."""
    if not keys:
        return
    for row in session.rows("marks", (b"".join(keys), len(keys))):
        copy.put_mark(read_mark(row))
    load_jobs(session, copy, {mark.job for mark in copy.marks.values()})


def _put(copy: WorkingCopy, rows: Iterable[Sequence[Any]]) -> None:
    for row in rows:
        if row[0] not in copy.jobs:
            copy.put(read_job(row))


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def write(session: Session, draft: Draft) -> None:
    """Write all changes; a key is released before another job takes it.

    Raises:
        RowChanged: A row does not have the revision that was read.
    """
    deleted, updated, inserted = draft.rows()
    _fenced(session, "delete_job", [(job.id, job.revision) for job in deleted])
    for name, rows in _updates(updated).items():
        _fenced(session, name, rows)
    for name, rows in _by_statement(map(insertion, inserted)).items():
        session.write(name, rows)
    _write_waits(session, draft)
    for mark in draft.marks.values():
        if mark.job:
            session.write("write_mark", [mark_row(mark)])
        else:
            session.write("delete_mark", [(mark.key,)])
    if draft.tallies:
        count(session, draft.tallies)


def _updates(jobs: list[tuple[Job, Job]]) -> dict[str, list[Parameters]]:
    """Return the rows of each statement: first `complete_job`, which releases keys, then by stand."""
    ordered = sorted(jobs, key=_stand) if len(jobs) > 1 else jobs
    found = _by_statement(revision(old, new) for old, new in ordered)
    return {"complete_job": found.pop("complete_job", [])} | found


def _by_statement(written: Iterable[tuple[str, Parameters]]) -> dict[str, list[Parameters]]:
    found: dict[str, list[Parameters]] = {}
    for name, row in written:
        found.setdefault(name, []).append(row)
    return found


def _stand(change: tuple[Job, Job]) -> int:
    """Return the order of an update: no key, holder, successor."""
    stand = change[1].stand
    return -1 if stand is None else stand


def _fenced(session: Session, name: str, rows: Sequence[Parameters]) -> None:
    if rows and session.write(name, rows) != len(rows):
        raise RowChanged


def _write_waits(session: Session, draft: Draft) -> None:
    """Keep the table of jobs that wait for chains equal to the jobs' blockers."""
    for job_id, old in draft.before.items():
        new = draft.copy.jobs.get(job_id)
        before, after = old and old.blockers, new and new.blockers
        if before == after:
            continue
        if before:
            session.write("delete_waits", [(job_id,)])
        if after:
            session.write("insert_waits", [(job_id, after.decode())])
