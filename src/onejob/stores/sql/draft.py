"""What steps have changed in a working copy, for both dialects: each job is written once."""

from __future__ import annotations

from typing import Any, NamedTuple

from onejob.core.job import Job, Mark
from onejob.core.step import Changes, Tally
from onejob.stores.working_copy import WorkingCopy


class Rows(NamedTuple):
    """Jobs to delete, jobs to update as they were and as they are now, and jobs to insert."""

    deleted: list[Job]
    updated: list[tuple[Job, Job]]
    inserted: list[Job]


class Draft:
    """What steps have changed: each job as it was before; the working copy has it as it is after them.

    Besides jobs it has the marks that they write, and what they add to the counters.
    """

    def __init__(self, copy: WorkingCopy) -> None:
        self.copy = copy
        self.before: dict[str, Job | None] = {}
        self.marks: dict[bytes, Mark] = {}
        self.tallies: list[Tally] = []
        self.marked = frozenset(copy.marks)  # keys that had a mark before

    def add(self, changes: Changes[Any]) -> None:
        """Add the changes of a step, before the working copy has them."""
        before, jobs = self.before, self.copy.jobs
        for some in (changes.updates, changes.inserts):
            for job in some:
                if job.id not in before:
                    before[job.id] = jobs.get(job.id)
        for job_id in changes.deletes:
            before.setdefault(job_id, jobs.get(job_id))
        if changes.mark is not None:
            self.marks[changes.mark.key] = changes.mark
        if changes.tally is not None:
            self.tallies.append(changes.tally)

    def rows(self) -> Rows:
        """Return what is to be written."""
        pairs = [(old, self.copy.jobs.get(job_id)) for job_id, old in self.before.items()]
        return Rows(
            [old for old, new in pairs if old and new is None],
            [(old, new) for old, new in pairs if old and new],
            [new for old, new in pairs if old is None and new],
        )
