"""Jobs that others have just made, as they told everybody who listens: who idles may start one at once."""

from __future__ import annotations

from onejob.job import Job, State
from onejob.stores.contract import Lease

LONGEST = 2048  # bytes of a record that is told


def told(record: bytes, job: Job) -> bytes:
    """Tell what others shall hear of a new job: its record, if it may be started now and is short."""
    return record if job.state is State.AVAILABLE and len(record) <= LONGEST else b""


class Offers:
    """What was heard since a worker found nothing to start.

    As long as that is one new job, and nothing else has changed as far as is known, there is no better one.
    """

    def __init__(self) -> None:
        self._wanted: Lease | None = None  # what nothing was found for
        self._heard: list[bytes] = []

    def expect(self, wanted: Lease) -> None:
        """Note that there was nothing to start."""
        self._wanted, self._heard = wanted, []

    def hear(self, record: bytes) -> None:
        """Note a new job, or, if there is no record, that something else has changed."""
        if not record:
            self.forget()
        elif self._wanted is not None:
            self._heard.append(record)

    def forget(self) -> None:
        """Note that something has changed: who wants to know what must look."""
        self._wanted = None

    def take(self, wanted: Lease) -> bytes | None:
        """Give the one new job that there is for somebody who found nothing before."""
        known, self._wanted = self._wanted, None
        return self._heard[0] if known == wanted and len(self._heard) == 1 else None


def fits(job: Job, wanted: Lease) -> bool:
    """Tell whether a worker wants this job, and need not count others first."""
    return (
        job.namespace == wanted.namespace
        and job.task in wanted.tasks
        and wanted.queues.get(job.queue, 0) > 0
        and job.queue not in wanted.limited
    )
