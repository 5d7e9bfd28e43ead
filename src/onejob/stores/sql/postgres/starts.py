"""What this process has started: jobs as their rows say them, and the transactions that wrote those rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onejob.job import Job

KEPT = 10_000  # jobs at most; one whose start is forgotten ends the long way


class Start(NamedTuple):
    """A job as it was started, and by which transaction."""

    job: Job
    transaction: str


class Starts:
    """Starts whose ends are still to come, by the ids of their jobs."""

    def __init__(self) -> None:
        self._by_id: dict[str, Start] = {}

    def note(self, jobs: Iterable[Job], transaction: str) -> None:
        """Remember starts; if there are too many, forget the older half."""
        self._by_id |= {job.id: Start(job, transaction) for job in jobs}
        if len(self._by_id) > KEPT:
            for job_id in list(self._by_id)[: -KEPT // 2]:
                self._by_id.pop(job_id, None)

    def take(self, job_id: str | None) -> Start | None:
        """Give a start, and forget it: whoever asks is about to write the job."""
        return None if job_id is None else self._by_id.pop(job_id, None)
