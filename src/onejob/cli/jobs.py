"""`onejob jobs`, `job`, `cancel`, `reschedule` and `run-now`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_command, refuse_unknown_task
from onejob.cli.options import (
    STATES,
    key_option,
    limit_option,
    queue_option,
    read_duration,
    read_time,
    task_option,
)
from onejob.cli.output import (
    arguments_of,
    away,
    compact,
    decode_json,
    emit,
    facts,
    number_of,
    plain,
    readable,
    rough,
    table,
    when,
)

if TYPE_CHECKING:
    from onejob import App, Job


NOT_WAITING = {"active", "completed", "cancelled", "discarded"}


@app_command(example="onejob jobs shop:app --state discarded --limit 20")
@click.option(
    "--state", type=click.Choice(STATES), multiple=True, help="Only in this state; may be repeated."
)
@task_option
@queue_option
@key_option
@limit_option
async def jobs(
    app: App,
    *,
    state: Sequence[str],
    task: str | None,
    queue: str | None,
    key: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    await refuse_unknown_task(app, task)
    found = await app.jobs(state=state, task=task, queue=queue, key=key, limit=limit)
    if as_json:
        return emit([job.as_dict() for job in found])
    rows = [
        (job.id, state_of(job), job.task, job.queue, tries(job), away(job.created_at), arguments_of(job))
        for job in found
    ]
    titles = ("ID", "STATE", "TASK", "QUEUE", "TRIES", "CREATED", "ARGUMENTS")
    return table(titles, rows, yields=("ARGUMENTS", "TASK"), empty="No such jobs.")


@app_command(example="onejob job shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("job_id", metavar="ID")
@click.option("--reveal", is_flag=True, help="Show in clear text what the app's codec has sealed.")
async def job(app: App, *, job_id: str, reveal: bool, as_json: bool) -> None:
    """Show one job with its arguments, its hold and its errors."""
    found = await app.job(job_id)
    found = app.reveal(found) if reveal else found
    absorbed = (await app.absorbed()).get(found.id, 0)
    if as_json:
        return emit(found.as_dict() | {"holding": app.is_holding(found), "absorbed": absorbed})
    facts(about(found) | about_hold(found, absorbed, holding=app.is_holding(found)))
    return show_failures(found)


def about(job: Job) -> dict[str, object]:
    """Return what a job is, its state and its result."""
    return {
        "job": job.id,
        "state": job.state,
        "reason": job.reason,
        "superseded by": job.superseded_by,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "arguments": arguments_of(job) if not job.is_tombstone else "pruned",
        "meta": compact(job.metadata) if job.metadata else None,
        "created": when(job.created_at),
        "due": when(job.run_at),
        "expires": when(job.expires_at),
        "partition": job.partition or None,
        "waits for": ", ".join(job.awaits) or None,
        "started": when(job.started_at),
        "finished": when(job.finished_at),
        "took": took(job),
        "attempts": f"{job.attempt} of {job.retry.attempts}",
        "replays": job.replays or None,
        "comes back": when(job.returns_at),
        "worker" if job.state == "active" else "last worker": job.worker,
        "lease until": when(job.lease_until),
        "asked to stop": "yes" if job.cancel_requested else None,
        "progress": progress(decode_json(job.progress)),
        "result": readable(decode_json(job.result)) if job.result is not None else None,
        "chain": f"{job.chain_id}, job {job.chain_index + 1}" if job.chain_index else None,
        "enqueued by": job.parent_id,
    }


def about_hold(job: Job, absorbed: int, *, holding: bool) -> dict[str, object]:
    """Return what a job holds or waits for, and how many requests it absorbed."""
    if job.key is None:
        return {"key": "none: not unique"}
    return {
        "key": job.key.hex(),
        "hold": hold(job, holding=holding),
        "version": job.version,
        "absorbed": number_of(absorbed, "request"),
    }


def hold(job: Job, *, holding: bool) -> str:
    """Return whether a job holds its key, and how long."""
    if job.is_successor:
        return "waits behind the present holder"
    if not holding:
        return "none"
    return f"since {when(job.held_at)}" + (f", until {when(job.holds_until)}" if job.holds_until else "")


def took(job: Job) -> str | None:
    """Return how long the last run took."""
    if job.started_at is None or job.finished_at is None:
        return None
    return rough(job.finished_at - job.started_at)


def state_of(job: Job) -> str:
    """Return a job's state; of a run that reports its progress, also how far it is."""
    report = decode_json(job.progress) if job.state == "active" else None
    return str(job.state) if report is None else f"{job.state} {report['fraction']:.0%}"


def progress(report: dict[str, Any] | None) -> str | None:
    """Return how far a run is."""
    return None if report is None else f"{report['fraction']:.0%} {report['message']}".strip()


def show_failures(job: Job) -> None:
    """Print the error history, oldest first."""
    for failure in job.failures:
        click.echo()
        at = when(datetime.fromisoformat(failure["at"]))
        click.secho(plain(f"attempt {failure['attempt']}, {at}: {failure['type']}"), bold=True)
        click.echo(plain(failure["traceback"] or failure["message"]).rstrip())


@app_command(example="onejob cancel shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("job_id", metavar="ID")
@click.option("--successors", is_flag=True, help="Cancel the job that waits behind it too.")
async def cancel(app: App, *, job_id: str, successors: bool, as_json: bool) -> None:
    """Cancel a waiting job, or ask a running one to stop."""
    before = await app.job(job_id)
    if before.state in {"completed", "discarded"}:
        raise click.ClickException(f"Job {before.id} has already ended: it is {before.state}.")
    after = await app.cancel(before.id, successors=successors)
    if as_json:
        return emit(after.as_dict())
    state = "is running and has been asked to stop" if after.state == "active" else f"is {after.state}"
    return click.echo(f"Job {after.id} {state}.")


@app_command(example="onejob reschedule shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42 --delay 2h")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--delay", type=read_duration, metavar="DURATION", help="Run after this time, such as 30m.")
@click.option(
    "--at", type=read_time, metavar="TIME", help="Run at this time, such as 2026-01-31T09:00:00+01:00."
)
async def reschedule(
    app: App, *, ids: Sequence[str], delay: timedelta | None, at: datetime | None, as_json: bool
) -> int:
    """Move waiting jobs to another time."""
    if (delay is None) == (at is None):
        raise click.UsageError("Say when: --delay 30m, or --at 2026-01-31T09:00:00+01:00.")
    return show_moved(await app.reschedule(list(ids), at=at, delay=delay), as_json=as_json)


@app_command(example="onejob run-now shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
async def run_now(app: App, *, ids: Sequence[str], as_json: bool) -> int:
    """Make scheduled and retryable jobs available at once."""
    return show_moved(await app.run_now(list(ids)), as_json=as_json)


def show_moved(jobs: Sequence[Job], *, as_json: bool) -> int:
    """Print jobs that were moved to another time; return 1 if one could not be."""
    stayed = [job for job in jobs if job.state in NOT_WAITING]
    if as_json:
        emit([job.as_dict() for job in jobs])
        return int(bool(stayed))
    for job in jobs:
        told = "so it cannot be moved" if job in stayed else f"due {when(job.run_at)}"
        click.echo(f"Job {job.id} is {job.state}, {told}.")
    return int(bool(stayed))


def tries(job: Job) -> str:
    """Return how many attempts were made, of how many."""
    return f"{job.attempt}/{job.retry.attempts}"
