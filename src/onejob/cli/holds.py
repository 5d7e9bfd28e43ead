"""`onejob holds` and `release`: which job holds which key."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.output import away, emit, table

if TYPE_CHECKING:
    from onejob import App, Job

ENDED = {"completed", "cancelled", "discarded"}
KEY = re.compile("[0-9a-f]{64}", re.IGNORECASE)
JOB_ID = re.compile(r"[0-9a-f-]+((…|\.\.\.)[0-9a-f]{4})?", re.IGNORECASE)  # or the beginning of one


@app_command(example="onejob holds shop:app")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="List at most this many."
)
async def holds(app: App, *, limit: int, as_json: bool) -> None:
    """List the jobs that hold a key, and the jobs that wait behind them."""
    found = await app.holds(limit=limit)
    absorbed = await app.absorbed()
    if as_json:
        return emit([hold_document(job, absorbed.get(job.id, 0)) for job in found])
    rows = [
        (job.id, role(job), job.state, job.task, frees(job), absorbed.get(job.id, 0), key(job))
        for job in found
    ]
    titles = ("JOB", "ROLE", "STATE", "TASK", "FREES", "ABSORBED", "KEY")
    return table(titles, rows, yields=("KEY", "TASK"), empty="No key is held.")


def hold_document(job: Job, absorbed: int) -> dict[str, object]:
    """Return a job and its role in the hold as JSON values."""
    return job.as_dict() | {"role": role(job), "absorbed": absorbed}


def role(job: Job) -> str:
    """Return whether a job is holder or successor."""
    return "successor" if job.is_successor else "holder"


def key(job: Job) -> str:
    """Return a job's key in hexadecimal."""
    return job.key.hex() if job.key is not None else ""


def frees(job: Job) -> str:
    """Return when a hold ends: by its window, by the job's state, or never by itself."""
    from onejob import State

    if job.is_successor:
        return "after the holder"
    if job.holds_until is not None:
        return away(job.holds_until)
    held = {state for position, state in enumerate(State) if job.holds >> position & 1}
    if State.ACTIVE not in held:
        return "at its start"
    if not held & ENDED:
        return "at its end"
    return "never" if job.is_terminal or State.DISCARDED in held else "if it fails"


@app_command(example="onejob release shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("which", metavar="KEY")
@click.option("--force", is_flag=True, help="Release it even while its holder runs.")
@click.option("--reason", default="", help="Why, for the audit log.")
async def release(app: App, *, which: str, force: bool, reason: str, as_json: bool) -> None:
    """Release KEY, given as its 64 hexadecimal digits or as the id of the job that holds it.

    The holder continues without it, and the job that waits behind the holder is promoted.
    """
    wanted, job_id = (which, None) if not is_job_id(which) else await held_by(app, which)
    freed = await app.release(wanted, job=job_id, force=force, reason=reason)
    if freed is None:
        raise click.ClickException(f"No job holds the key {wanted}.")
    if as_json:
        return emit({"key": wanted, "job": freed.id, "state": str(freed.state)})
    return click.echo(f"The key is free; job {freed.id}, which is {freed.state}, continues without it.")


def release_command(holder: Job, place: str) -> str:
    """Return the command that releases a key."""
    running = ["--force"] if holder.state == "active" else []
    return shlex.join(["onejob", "release", place, holder.id, *running])


def is_job_id(text: str) -> bool:
    """Return whether a text may be a job's id or the beginning of one, and is no key."""
    return bool(JOB_ID.fullmatch(text)) and not KEY.fullmatch(text)


async def held_by(app: App, job_id: str) -> tuple[str, str]:
    """Return the key that a job holds, and the job's whole id."""
    job = await app.job(job_id)
    if not job.is_holder or job.key is None:
        raise click.ClickException(f"Job {job.id} holds no key.")
    return job.key.hex(), job.id
