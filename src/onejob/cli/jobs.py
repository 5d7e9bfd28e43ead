"""`onejob jobs`, `job` and `cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_command
from onejob.cli.options import STATES
from onejob.cli.output import (
    away,
    compact,
    decoded,
    emit,
    facts,
    job_document,
    number_of,
    plain,
    readable,
    table,
    when,
)

if TYPE_CHECKING:
    from onejob import App, Job


@app_command(example="onejob jobs shop:app --state discarded --limit 20")
@click.option("--state", type=click.Choice(STATES), multiple=True, help="In this state; may be repeated.")
@click.option("--task", help="Of this task.")
@click.option("--queue", help="In this queue.")
@click.option("--key", help="Of this key, in hexadecimal digits.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
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
    found = await app.jobs(state=state, task=task, queue=queue, key=key, limit=limit)
    if as_json:
        return emit([job_document(job) for job in found])
    rows = [
        (job.id, job.state, job.task, job.queue, tries(job), away(job.created_at), readable(job.arguments))
        for job in found
    ]
    titles = ("ID", "STATE", "TASK", "QUEUE", "TRIES", "CREATED", "ARGUMENTS")
    return table(titles, rows, yields=("ARGUMENTS", "TASK"), empty="No such jobs.")


@app_command(example="onejob job shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("job_id", metavar="ID")
@click.option("--reveal", is_flag=True, help="Show in clear what the app's codec has sealed.")
async def job(app: App, *, job_id: str, reveal: bool, as_json: bool) -> None:
    """Show all about one job, its arguments included."""
    found = await app.job(job_id)
    found = app.reveal(found) if reveal else found
    absorbed = await app.absorbed(found)
    if as_json:
        return emit(job_document(found) | {"holding": app.holding(found), "absorbed": absorbed})
    facts(about(found))
    facts(about_hold(found, absorbed, holding=app.holding(found)))
    return show_failures(found)


def about(job: Job) -> dict[str, object]:
    """Collect what a job is, where it stands and what came of it."""
    return {
        "job": job.id,
        "state": job.state,
        "reason": job.reason,
        "superseded by": job.superseded_by,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "arguments": readable(job.arguments) if not job.is_tombstone else "pruned",
        "meta": compact(job.metadata) if job.metadata else None,
        "created": when(job.created_at),
        "due": when(job.run_at),
        "started": when(job.started_at),
        "finished": when(job.finished_at),
        "attempts": f"{job.attempt} of {job.retry.attempts}",
        "replays": job.replays or None,
        "comes back": when(job.returns_at),
        "worker": job.worker,
        "lease until": when(job.lease_until),
        "told to stop": "yes" if job.cancel_requested else None,
        "progress": progress(decoded(job.progress)),
        "result": readable(decoded(job.result)) if job.result is not None else None,
        "chain": f"{job.chain_id}, job {job.chain_index + 1}" if job.chain_index else None,
        "enqueued by": job.parent_id,
    }


def about_hold(job: Job, absorbed: int, *, holding: bool) -> dict[str, object]:
    """Collect what a job holds, or waits for, and whom it stood for."""
    if job.key is None:
        return {"key": "none: not unique"}
    return {
        "key": job.key.hex(),
        "hold": hold(job, holding=holding),
        "version": job.version,
        "absorbed": number_of(absorbed, "request"),
    }


def hold(job: Job, *, holding: bool) -> str:
    """Tell whether a job holds its key, and how long."""
    if job.next_key is not None:
        return "waits behind the present holder"
    if not holding:
        return "none"
    return f"since {when(job.held_at)}" + (f", until {when(job.holds_until)}" if job.holds_until else "")


def progress(told: dict[str, Any] | None) -> str | None:
    """Tell how far a run is."""
    return None if told is None else f"{told['fraction']:.0%} {told['message']}".strip()


def show_failures(job: Job) -> None:
    """Print the error history, oldest first."""
    for failure in job.failures:
        click.echo()
        click.secho(plain(f"attempt {failure['attempt']} at {failure['at']}: {failure['type']}"), bold=True)
        click.echo(plain(failure["traceback"] or failure["message"]).rstrip())


@app_command(example="onejob cancel shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("job_id", metavar="ID")
@click.option("--successors", is_flag=True, help="Cancel the job that waits behind it too.")
async def cancel(app: App, *, job_id: str, successors: bool, as_json: bool) -> None:
    """End a waiting job, or tell a running one to stop."""
    before = await app.job(job_id)
    if before.state in {"completed", "discarded"}:
        raise click.ClickException(f"Job {job_id} has already ended: it is {before.state}.")
    after = await app.cancel(job_id, successors=successors)
    if as_json:
        return emit(job_document(after))
    told = "is running and has been told to stop" if after.state == "active" else f"is {after.state}"
    return click.echo(f"Job {job_id} {told}.")


def tries(job: Job) -> str:
    """Tell how many attempts were made, of how many."""
    return f"{job.attempt}/{job.retry.attempts}"
