"""`onejob chains` and `chain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.options import STATES, limit_option
from onejob.cli.output import arguments_of, away, emit, facts, number_of, table

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob chains shop:app --state active")
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="Only in this state; active lasts from the first start to the end.",
)
@limit_option
async def chains(app: App, *, state: str | None, limit: int, as_json: bool) -> None:
    """List chains, newest first, each with its last job."""
    found = await app.chains(state=state, limit=limit)
    if as_json:
        return emit([job.as_dict() for job in found])
    rows = [
        (
            job.chain_id,
            job.state,
            job.task,
            job.chain_index + 1,
            away(job.created_at),
            arguments_of(job),
        )
        for job in found
    ]
    titles = ("CHAIN", "STATE", "TASK", "JOBS", "CREATED", "ARGUMENTS")
    return table(titles, rows, yields=("ARGUMENTS", "TASK"), empty="No such chains.")


@app_command(example="onejob chain shop:app 01990c3e-5c1f-7000-8a55-3f1c6e0d9b42")
@click.argument("chain_id", metavar="ID")
@click.option("--cancel", is_flag=True, help="Cancel it: no further job of it starts.")
async def chain(app: App, *, chain_id: str, cancel: bool, as_json: bool) -> None:
    """Show a chain: its jobs, what it waits for, and what waits for it."""
    one = app.chain(chain_id)
    if cancel:
        await one.cancel()
    status, jobs, waiting = await one.status(), await one.jobs(), await one.dependants()
    if as_json:
        document = {"chain": one.id, "status": status, "jobs": [job.as_dict() for job in jobs]}
        return emit(document | {"awaited_by": [job.id for job in waiting]})
    facts(
        {
            "chain": one.id,
            "status": status,
            "waits for": ", ".join(jobs[-1].awaits) if jobs[-1].is_blocked else None,
            "awaited by": number_of(len(waiting), "job") if waiting else None,
        }
    )
    rows = [(job.chain_index, job.id, job.state, job.task, arguments_of(job)) for job in jobs]
    return table(("", "ID", "STATE", "TASK", "ARGUMENTS"), rows, yields=("ARGUMENTS", "TASK"), empty="")
