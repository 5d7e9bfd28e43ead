"""Log lines about runs: how each ended, for operators; never with arguments."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from onejob.core.durations import spell
from onejob.core.job import Job, State
from onejob.core.runs import Failed, HandedBack, Result
from onejob.core.text import one_line
from onejob.engine.log_lines import about
from onejob.errors import NotCommitted

if TYPE_CHECKING:
    from onejob.worker.run import Run

log = logging.getLogger("onejob")

LOST, HANDED_BACK = "lost", "handed back"
UNFINISHED = {LOST, HANDED_BACK}


def name_end(result: Result, settled: Job | None) -> str:
    """Return how a run ended: the job's state, or "handed back", or "lost"."""
    if settled is None:
        return LOST
    handed_back = isinstance(result, HandedBack) and not settled.is_terminal
    return HANDED_BACK if handed_back else str(settled.state)


def log_end(run: Run, end: str, settled: Job | None, now: datetime) -> None:
    """Log how a run ended.

    Args:
        run: The run.
        end: The name of its end.
        settled: The job as its result has left it; None if another worker owns it.
        now: The store's time.
    """
    job, result = run.job, run.result
    if settled is not None and not isinstance(result, Failed) and not log.isEnabledFor(logging.DEBUG):
        return
    fields = about(job, duration=round(run.seconds, 6))
    if settled is None:
        log.warning("job %s was taken over; its result is dropped", job.id, extra=fields)
    elif isinstance(result, Failed) and settled.state is State.COMPLETED:
        log_late_failure(job, result, fields)
    elif isinstance(result, Failed):
        sealed = run.attempt.engine.sealer is not None  # then the words of an error may not be shown
        exception = None if sealed else run.attempt.exception
        log_failure(job, result, settled, fields, now=now, exception=exception)
    else:
        log_plain_end(job, end, fields)


def log_plain_end(job: Job, end: str, fields: dict[str, object]) -> None:
    """Log the end of a run that did not fail."""
    log.debug(
        "job %s (%s), attempt %d: %s after %.3f s",
        *(job.id, job.task, job.attempt, end, fields["duration"]),
        extra=fields,
    )


def log_late_failure(job: Job, failed: Failed, fields: dict[str, object]) -> None:
    """Log that a handler raised after its transaction had completed the job."""
    if failed.error["type"] == NotCommitted.__name__:  # the caller's own commit came first after all
        log_plain_end(job, "completed", fields)
        return
    log.error(
        "job %s (%s) raised after its transaction had completed it, which stands:\n%s",
        job.id,
        job.task,
        traceback_of(failed),
        extra=fields,
    )


def log_failure(
    job: Job,
    failed: Failed,
    settled: Job,
    fields: dict[str, object],
    *,
    now: datetime,
    exception: BaseException | None,
) -> None:
    """Log a failed attempt: a retry is a warning, a dead letter is an error with its traceback."""
    what = f"{failed.error['type']}: {one_line(failed.error['message'])}"
    if settled.state is State.RETRYABLE:
        log.warning(
            "job %s (%s) failed, attempt %d of %d: %s; again in %s",
            *(job.id, job.task, job.attempt, job.retry.attempts, what, until(settled.run_at, now)),
            extra=fields,
        )
    elif settled.state is State.DISCARDED:
        log_dead_letter(job, failed, what, fields, exception)
    else:
        log.info(
            "job %s (%s) failed, attempt %d, and ended %s (%s): %s",
            *(job.id, job.task, job.attempt, settled.state, settled.reason, what),
            extra=fields,
        )


def log_dead_letter(
    job: Job, failed: Failed, what: str, fields: dict[str, object], exception: BaseException | None
) -> None:
    """Log the last failure of a job; a run in another process has its traceback as text only."""
    elsewhere = exception is None and "\n" in failed.error["traceback"]
    log.error(
        "job %s (%s, key %s) ended %s after %s and %.3f s: %s%s",
        job.id,
        job.task,
        fields["key"] or "none",
        State.DISCARDED,
        "1 attempt" if job.attempt == 1 else f"{job.attempt} attempts",
        fields["duration"],
        what,
        f"\n{traceback_of(failed)}" if elsewhere else "",
        exc_info=exception,
        extra=fields,
    )


def traceback_of(failed: Failed) -> str:
    """Return a failure's traceback, indented and escaped: none of its lines looks like a line of the log."""
    text = failed.error["traceback"] or failed.error["type"]
    return "\n".join(f"    {one_line(line)}" for line in text.splitlines())


def until(at: datetime, now: datetime) -> str:
    """Return how long it is until a time, such as "2 s" or "5m"."""
    left = max(at - now, timedelta())
    if left < timedelta(minutes=2):
        return f"{left.total_seconds():.2g} s"
    return spell(timedelta(minutes=round(left / timedelta(minutes=1))))


def describe_stop(running: int, grace: float, *, hurried: bool) -> str:
    """Return what becomes of the jobs that run when a worker is asked to stop."""
    if not running:
        return "no job is running"
    jobs = "1 running job" if running == 1 else f"{running} running jobs"
    when = "at once" if hurried else f"after {grace:g} s, or at a second signal"
    return f"{jobs}, handed back {when}"
