"""Run the jobs that are due, and raise what their tasks raised."""

from __future__ import annotations

from onejob.app.app import App
from onejob.core.job import Job
from onejob.core.runs import Failed
from onejob.errors import JobFailed
from onejob.testing.inside import engine_of
from onejob.worker.run import Run
from onejob.worker.worker import Worker


async def drain(app: App, *, concurrency: int = 8, raises: bool = False) -> None:
    """Run all due jobs, and the jobs that become due by it, then return.

    Args:
        app: The app.
        concurrency: How many jobs to run at once.
        raises: Raise the first exception that a task raised, after the drain: the exception itself, with its
            traceback and a note that names the job. Otherwise failures are only stored and logged.
    """
    engine_of(app)  # or a task in the place of the app would be asked for a worker
    raise_failure(await run_due(app.worker(concurrency=concurrency, drain=True)), raises=raises)


def drain_sync(app: App, *, concurrency: int = 8, raises: bool = False) -> None:
    """Blocking variant of `drain`."""
    failure = engine_of(app).run_sync(run_due(app.worker(concurrency=concurrency, drain=True)))
    raise_failure(failure, raises=raises)


async def run_due(worker: Worker) -> Run | None:
    """Run a draining worker to its end, and return its first failed run.

    It raises nothing of what tasks raise: SystemExit would end the event loop of blocking callers.
    """
    await worker.run()
    return worker.first_failure


def raise_failure(failure: Run | None, *, raises: bool) -> None:
    """Raise what a task raised; JobFailed for a task that ran in another process."""
    if failure is None or not raises:
        return
    job, result = failure.job, failure.result
    assert isinstance(result, Failed)  # or the worker would not have kept it
    error = failure.attempt.exception or JobFailed(
        f"Job {job.id} ({job.task}) failed: {result.error['type']}: {result.error['message']}"
    )
    error.add_note(note_on(job))
    raise error


def note_on(job: Job) -> str:
    """Return which run raised an exception."""
    return f"Raised by job {job.id} ({job.task}), attempt {job.attempt}."
