"""`onejob holds` and `release`: who occupies which key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.output import away, emit, job_document, table

if TYPE_CHECKING:
    from onejob import App, Job

JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@app_command(example="onejob holds shop:app")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
async def holds(app: App, *, limit: int, as_json: bool) -> None:
    """List the jobs that hold a key, and those that wait behind them."""
    found = await app.holds(limit=limit)
    absorbed = await app.absorbed_by_job()
    if as_json:
        return emit([hold_document(job, absorbed.get(job.id, 0)) for job in found])
    rows = [
        (job.id, role(job), job.state, job.task, frees(job), absorbed.get(job.id, 0), key(job))
        for job in found
    ]
    titles = ("JOB", "ROLE", "STATE", "TASK", "FREES", "ABSORBED", "KEY")
    return table(titles, rows, yields=("KEY", "TASK"), empty="No key is held.")


def hold_document(job: Job, absorbed: int) -> dict[str, object]:
    """Write a job with its part in the hold."""
    return job_document(job) | {"role": role(job), "absorbed": absorbed}


def role(job: Job) -> str:
    """Tell a holder from a successor."""
    return "holder" if job.next_key is None else "successor"


def key(job: Job) -> str:
    """Write a key in full."""
    return job.key.hex() if job.key is not None else ""


def frees(job: Job) -> str:
    """Tell when a hold ends: by its window, by the job's progress, or never by itself."""
    from onejob.job import TERMINAL, unmask

    if job.next_key is not None:
        return "after the holder"
    if job.holds_until is not None:
        return away(job.holds_until)
    held = unmask(job.holds)
    if "active" not in held:
        return "at its start"
    if not held & TERMINAL:
        return "at its end"
    return "never" if job.is_terminal or "discarded" in held else "if it fails"


@app_command(example="onejob release shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("which", metavar="KEY")
@click.option("--force", is_flag=True, help="Even while the holder runs.")
async def release(app: App, *, which: str, force: bool, as_json: bool) -> None:
    """Free KEY by hand: its digits, or the id of the job that holds it.

    The holder goes on alone, and the job that waits behind it gets in.
    """
    wanted = await held_by(app, which) if JOB_ID.fullmatch(which) else which
    freed = await app.release(wanted, force=force)
    if freed is None:
        raise click.ClickException(f"Nobody holds the key {wanted}.")
    if as_json:
        return emit({"key": wanted, "job": freed.id, "state": str(freed.state)})
    return click.echo(f"The key is free; job {freed.id}, which is {freed.state}, goes on without it.")


async def held_by(app: App, job_id: str) -> str:
    """Tell which key a job holds."""
    job = await app.job(job_id)
    if job.held_key is None:
        raise click.ClickException(f"Job {job_id} holds no key.")
    return job.held_key.hex()
