"""A working copy of rows on which steps run: all rows of the memory store, or those that a store has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from onejob.core.holds import too_late
from onejob.core.job import UNSTARTED, Job, Mark, Stand
from onejob.core.leasing import Lease
from onejob.core.runs import start
from onejob.core.step import Changes, Step, View
from onejob.errors import OnejobError


class WorkingCopy:
    """Jobs by id and by key, and marks; the changes of a step are visible to the next one."""

    __slots__ = ("depths", "holders", "jobs", "marks", "successors")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.holders: dict[bytes, str] = {}
        self.successors: dict[bytes, str] = {}
        self.marks: dict[bytes, Mark] = {}
        self.depths: dict[tuple[str, str], int] = {}  # of the queues that steps name

    def put(self, job: Job) -> None:
        """Add a job, or replace it."""
        old = self.jobs.get(job.id)
        if old is not None:
            self._drop_stand(old)
        self.jobs[job.id] = job
        if job.stand is not None and job.key is not None:
            self._stands(job.stand)[job.key] = job.id

    def _stands(self, stand: int) -> dict[bytes, str]:
        return self.holders if stand == Stand.HOLDER else self.successors

    def _drop_stand(self, old: Job) -> None:
        if old.stand is None or old.key is None:
            return
        stands = self._stands(old.stand)
        if stands.get(old.key) == old.id:
            del stands[old.key]

    def remove(self, job_id: str) -> None:
        """Remove a job."""
        self._drop_stand(self.jobs.pop(job_id))

    def put_mark(self, mark: Mark) -> None:
        """Add a mark or replace it; a mark without a job is dropped."""
        if mark.job:
            self.marks[mark.key] = mark
        else:
            self.marks.pop(mark.key, None)

    def view(self, step: Step[Any], now: datetime) -> View:
        """Return the rows that a step concerns."""
        job = self.jobs.get(step.job_id) if step.job_id is not None else None
        key = job.key if job is not None else step.key
        depth = None if step.queue is None else self.depths.get(step.queue)
        if key is None:
            return View(now, job, depth=depth)
        mark = self.marks.get(key)
        return View(
            now,
            job,
            self.jobs.get(self.holders.get(key, "")),
            self.jobs.get(self.successors.get(key, "")),
            mark,
            self.jobs.get(mark.job) if mark is not None else None,
            depth,
        )

    def write(self, changes: Changes[Any]) -> None:
        """Write the changes of a step."""
        if self.depths:
            self._count(changes)
        for job in (*changes.updates, *changes.inserts):
            self.put(job)
        for job_id in changes.deletes:
            self.remove(job_id)
        if changes.mark is not None:
            self.put_mark(changes.mark)

    def _count(self, changes: Changes[Any]) -> None:
        """Adjust the number of waiting jobs of queues."""
        gone = [self.jobs[job.id] for job in changes.updates if job.id in self.jobs]
        for jobs, by in ((gone, -1), ((*changes.updates, *changes.inserts), 1)):
            for job in jobs:
                if job.state in UNSTARTED and (job.namespace, job.queue) in self.depths:
                    self.depths[job.namespace, job.queue] += by

    def run(self, step: Step[Any], now: datetime, record: Callable[[Changes[Any]], None]) -> Any:
        """Run one step; `record` gets its changes before they are written here."""
        changes = attempt(step, self.view(step, now))
        if not changes.is_empty:
            record(changes)
            self.write(changes)
        return changes.answer

    def start(
        self,
        chosen: Sequence[Job],
        wanted: Lease,
        now: datetime,
        record: Callable[[Changes[Any]], None],
    ) -> list[Job]:
        """Start chosen jobs, best first, up to one that ends instead or that promotes a successor.

        A job that becomes available then may be better than the next of the chosen. Neighbours that have
        expired end together.
        """
        act = partial(start, worker=wanted.worker, lease=wanted.duration)
        started: list[Job] = []
        late = False
        for job in chosen:
            if late and not too_late(job, now):
                break
            waiting = len(self.successors)
            leased = self.run(Step(act, job.id), now, record)
            started.extend([leased] if leased is not None else [])
            if leased is None and wanted.on_end is not None and self.jobs[job.id].is_terminal:
                wanted.on_end(self.jobs[job.id])
            late = leased is None and too_late(job, now)
            if not late and (leased is None or len(self.successors) < waiting):
                break
        return started


def attempt(step: Step[Any], view: View) -> Changes[Any]:
    """Run a step's act; an OnejobError that it raises is its answer and changes nothing."""
    try:
        return step.act(not_before_rows(view))
    except OnejobError as refusal:
        return Changes(refusal)


def not_before_rows(view: View) -> View:
    """Return the view with a time that is not before any of its jobs was created.

    Processes know the server's time to within half a round trip. Without this, a job that one of them has
    just created could lie in the future of another.
    """
    now = view.now
    for job in (view.job, view.holder, view.successor):
        if job is not None and job.created_at > now:
            now = job.created_at
    return view if now is view.now else msgspec.structs.replace(view, now=now)
