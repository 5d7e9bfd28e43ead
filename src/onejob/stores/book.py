"""The working copy on which steps run: everything in memory, or the rows that a SQL store has read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from onejob.errors import OnejobError
from onejob.job import UNSTARTED, Changes, Job, Mark, View
from onejob.stores.contract import Step


class Book:
    """Jobs and marks by id and key; a step's changes are seen by the next step."""

    __slots__ = ("depths", "held", "jobs", "marks", "nexts")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.held: dict[bytes, str] = {}
        self.nexts: dict[bytes, str] = {}
        self.marks: dict[bytes, Mark] = {}
        self.depths: dict[tuple[str, str], int] = {}  # of the queues that steps name

    def put(self, job: Job) -> None:
        """Take in a job as it is now."""
        old = self.jobs.get(job.id)
        if old is not None:
            self._unlist(old)
        self.jobs[job.id] = job
        if job.held_key is not None:
            self.held[job.held_key] = job.id
        if job.next_key is not None:
            self.nexts[job.next_key] = job.id

    def _unlist(self, old: Job) -> None:
        if old.held_key is not None and self.held.get(old.held_key) == old.id:
            del self.held[old.held_key]
        if old.next_key is not None and self.nexts.get(old.next_key) == old.id:
            del self.nexts[old.next_key]

    def remove(self, job_id: str) -> None:
        """Drop a job."""
        self._unlist(self.jobs.pop(job_id))

    def note(self, mark: Mark) -> None:
        """Take in a mark; one without a job is dropped."""
        if mark.job:
            self.marks[mark.key] = mark
        else:
            self.marks.pop(mark.key, None)

    def view(self, step: Step, now: datetime) -> View:
        """Show a step what it names."""
        job = self.jobs.get(step.job_id) if step.job_id is not None else None
        key = job.key if job is not None else step.key
        depth = None if step.queue is None else self.depths.get(step.queue)
        if key is None:
            return View(now, job, depth=depth)
        mark = self.marks.get(key)
        return View(
            now,
            job,
            self.jobs.get(self.held.get(key, "")),
            self.jobs.get(self.nexts.get(key, "")),
            mark,
            self.jobs.get(mark.job) if mark is not None else None,
            depth,
        )

    def write(self, changes: Changes) -> None:
        """Take in what a step asks for, in the order in which a store writes it."""
        if self.depths:
            self._count(changes)
        for job in changes.updates:
            self.put(job)
        for job in changes.inserts:
            self.put(job)
        for job_id in changes.deletes:
            self.remove(job_id)
        if changes.mark is not None:
            self.note(changes.mark)

    def _count(self, changes: Changes) -> None:
        """Let the depths of queues follow what a step changes."""
        gone = [self.jobs[job.id] for job in changes.updates if job.id in self.jobs]
        for jobs, by in ((gone, -1), ((*changes.updates, *changes.inserts), 1)):
            for job in jobs:
                if job.state in UNSTARTED and (job.namespace, job.queue) in self.depths:
                    self.depths[job.namespace, job.queue] += by

    def run(self, step: Step, now: datetime, record: Callable[[Changes], None]) -> Any:
        """Run one step."""
        changes = attempt(step, self.view(step, now))
        if not changes.is_empty:
            record(changes)  # first, so that it can see what was there before
            self.write(changes)
        return changes.answer


def attempt(step: Step, view: View) -> Changes:
    """Let a step act; a refusal changes nothing and is the answer."""
    try:
        return step.act(view)
    except OnejobError as refusal:
        return Changes(refusal)
