"""A run: an attempt in this worker, from its lease until its result is written."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from onejob.core.job import Job
from onejob.core.runs import Failed, HandedBack, Result, Settled, extend, report
from onejob.core.step import Step
from onejob.engine.log_lines import about
from onejob.worker.attempt import Attempt, StopReason, describe

if TYPE_CHECKING:
    from onejob.worker.process_pool import Process

log = logging.getLogger("onejob")

HANDED_BACK = HandedBack()


@dataclass(slots=True, eq=False)
class Run:
    """An attempt, the task or process that runs it, and what the store knows of it."""

    attempt: Attempt
    lease_until: datetime | None  # None if the lease is lost
    task: asyncio.Task[None] | None = None
    process: Process | None = None  # which runs it, if it is not this process
    has_begun: bool = False
    stopped_for: StopReason | None = None
    was_cancelled: bool = False
    is_abandoned: bool = False  # its job was handed back while the handler went on
    stored_progress: bytes | None = None
    result: Result = HANDED_BACK  # once it has ended
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0  # how long it took, once it has ended

    @property
    def job(self) -> Job:
        """The job as it was last seen in the store."""
        return self.attempt.job

    def stop(self, why: StopReason) -> None:
        """Ask the handler to stop, and cancel it where it awaits.

        A plain function that is cancelled must notice by itself; a process is killed if it does not. A run
        that has not begun ends before its handler is called.
        """
        self.stopped_for = self.stopped_for or why
        self.attempt.is_stopping = True
        task = self.attempt.task
        if why == "cancelled" and self.process is not None:
            self.process.stop()
        elif why == "cancelled" and not task.is_async and not task.process:
            return
        elif self.has_begun and self.task is not None and not self.was_cancelled:
            self.was_cancelled = True
            self.task.cancel()

    def end(self, result: Result) -> None:
        """Keep the result, which is to be written, and how long the run took."""
        self.result, self.seconds = result, time.monotonic() - self.began

    def log_abandoned(self) -> None:
        """Log that the job is handed back while its handler goes on."""
        log.error(
            "job %s (%s) ignores its cancellation and is handed back",
            *(self.job.id, self.job.task),
            extra=about(self.job),
        )

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def unstored_progress(self) -> bytes | None:
        """The progress that the store does not have yet."""
        progress = self.attempt.progress
        return None if progress == self.stored_progress else progress

    def settle_step(self) -> Step[Settled | None]:
        """Return the step that writes the result."""
        return self.attempt.settle_step(self.result, self.unstored_progress, self.seconds)

    def renewal_step(self, lease: timedelta) -> Step[Job | None]:
        """Return the step that renews the lease."""
        job = self.job
        return Step(partial(extend, token=job.token, lease=lease), job.id, alone=True, seen=job)

    def progress_step(self, progress: bytes) -> Step[Job | None]:
        """Return the step that stores progress."""
        job = self.job
        return Step(partial(report, token=job.token, progress=progress), job.id, alone=True, seen=job)

    def reject_result(self, error: Exception) -> None:
        """Replace a result that cannot be written by a failure; raise if that cannot be written either."""
        if isinstance(self.result, Failed) and self.result.final:
            raise error
        log.error(
            "the result of job %s cannot be written", self.job.id, exc_info=error, extra=about(self.job)
        )
        self.result = Failed(describe(error), final=True)
