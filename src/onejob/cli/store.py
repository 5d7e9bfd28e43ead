"""`onejob stats`, `doctor` and `migrate`: the store as a whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command, redacted
from onejob.cli.options import STATES
from onejob.cli.output import emit, facts, paint, plain, table

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob stats shop:app")
async def stats(app: App, *, as_json: bool) -> None:
    """Count jobs by queue and state, and the requests that were absorbed."""
    found = await app.stats()
    if as_json:
        return emit(asdict(found))
    facts(
        {
            "waiting": f"{found.pending:,}",
            "running": f"{found.in_flight:,}",
            "dead": f"{found.dead:,}",
            "keys waiting": f"{found.unique_keys_waiting:,}",
        }
    )
    click.echo()
    rows = [(queue, *(states.values())) for queue, states in sorted(found.by_queue.items())]
    table(("QUEUE", *(state.upper() for state in STATES)), rows, empty="No jobs.")
    click.echo()
    absorbed = [
        (task, outcome, number)
        for task, outcomes in sorted(found.absorbed.items())
        for outcome, number in sorted(outcomes.items())
    ]
    return table(("TASK", "ABSORBED AS", "REQUESTS"), absorbed, empty="No request has been absorbed.")


@app_command(example="onejob doctor shop:app")
async def doctor(app: App, *, as_json: bool) -> int:
    """Look at the store and its jobs, and say what to do about what is wrong; nothing is changed."""
    findings = await app.doctor()
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        emit({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
        return int(failed)
    for finding in findings:
        click.echo(f"{paint(finding.level.ljust(4))}  {plain(finding.message)}")
        if finding.advice:
            click.echo(f"      {plain(finding.advice)}")
    return int(failed)


@app_command(example="onejob migrate shop:app --print-sql", makes_tables=True)
@click.option("--print-sql", is_flag=True, help="Print what would be run, and change nothing.")
@click.option("--status", is_flag=True, help="Tell the versions, and change nothing.")
async def migrate(app: App, *, print_sql: bool, status: bool, as_json: bool) -> None:
    """Make the tables, or bring them up to date. Using the app does the same."""
    if print_sql and status:
        raise click.UsageError("--print-sql and --status both change nothing: write one of them.")
    if print_sql:
        script = app.migration_sql()
        return emit({"sql": script}) if as_json else click.echo(script or "-- Nothing to do.", nl=not script)
    before = app.schema()
    schema = before if status else app.migrate()
    if as_json:
        return emit(asdict(schema) | {"current": schema.found == schema.known})
    return click.echo(f"{redacted(app.url)} {standing(before.found, schema.found, schema.known)}.")


def standing(before: int, found: int, known: int) -> str:
    """Say how the tables stand, or what was done to them."""
    if before != found:
        return (
            f"has been brought from schema {before} to {found}"
            if before
            else f"has been given schema {found}"
        )
    if found == known:
        return f"has schema {found}, the newest"
    return f"has {f'schema {found}' if found else 'no tables yet'}; this onejob knows schema {known}"
