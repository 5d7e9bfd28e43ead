"""`onejob stats`, `doctor` and `migrate`: the store as a whole."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command, hide_password
from onejob.cli.live import is_output_closed, print_in_place, through_outages, until_stopped
from onejob.cli.options import STATES, read_duration
from onejob.cli.output import brief, emit, facts, print_findings, stamp, table

if TYPE_CHECKING:
    from onejob import App, Percentiles, Stats

TIMES = (
    *("OF", "LAST", "RUNS"),
    *("WAIT P50", "WAIT P95", "WAIT P99", "RUN P50", "RUN P95", "RUN P99"),
)


@app_command(example="onejob stats shop:app --watch 5")
@click.option(
    "--watch",
    type=read_duration,
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Look again at this interval, 2 seconds if left out, until Ctrl-C.",
)
async def stats(app: App, *, watch: timedelta | None, as_json: bool) -> None:
    """Count jobs by queue and state, and absorbed requests; show how long jobs wait and run."""
    if watch is not None:
        return await until_stopped(watch_stats(app, watch.total_seconds(), as_json=as_json))
    found = await app.stats()
    return emit(found.as_dict()) if as_json else show_stats(found)


async def watch_stats(app: App, pause: float, *, as_json: bool) -> None:
    """Print the numbers again and again: in place on a terminal, else one after the other."""
    found, is_first = await app.stats(), True
    while not is_output_closed():
        if as_json:
            click.echo(json.dumps(found.as_dict(), default=str))
        elif sys.stdout.isatty():
            print_in_place(partial(show_stats, found), is_first=is_first)
        else:
            click.echo(f"{stamp(datetime.now(UTC))}")
            show_stats(found)
            click.echo()
        await asyncio.sleep(pause)
        found, is_first = await through_outages(app.stats), False


def show_stats(found: Stats) -> None:
    """Print the numbers."""
    oldest = ", ".join(f"{queue} {brief(seconds)}" for queue, seconds in found.oldest_due.items())
    facts(
        {
            "waiting": f"{found.waiting:,}",
            "running": f"{found.running:,}",
            "dead": f"{found.dead:,}",
            "keys waiting": f"{found.keys_waiting:,}",
            "oldest due": oldest or "none",
            "lost": f"{found.lost:,}",
        }
    )
    click.echo()
    rows = [(queue, *(states.values())) for queue, states in sorted(found.by_queue.items())]
    table(("QUEUE", *(state.upper() for state in STATES)), rows, empty="No jobs.")
    click.echo()
    table(TIMES, times_of(found), empty="No run has ended within the last hour.")
    click.echo()
    absorbed = [
        (task, outcome, number)
        for task, outcomes in sorted(found.absorbed.items())
        for outcome, number in sorted(outcomes.items())
    ]
    return table(("TASK", "ABSORBED AS", "REQUESTS"), absorbed, empty="No request has been absorbed.")


def times_of(found: Stats) -> list[tuple[object, ...]]:
    """Return how long jobs waited and ran: a line per window and queue, then one per window and task."""
    return [
        (
            f"{kind} {name}",
            window,
            times.run.count,
            *shares(times.wait),
            *shares(times.run),
        )
        for kind in ("queue", "task")
        for window, timings in found.timings.items()
        for name, times in (timings.by_queue if kind == "queue" else timings.by_task).items()
    ]


def shares(of: Percentiles) -> list[str]:
    """Return the three percentiles; nothing where nothing was measured."""
    return [brief(seconds) if of.count else "" for seconds in (of.p50, of.p95, of.p99)]


@app_command(example="onejob doctor shop:app", may_be_empty=True)
async def doctor(app: App, *, as_json: bool) -> int:
    """Examine the store and its jobs, and print advice; nothing is changed."""
    return print_findings(await app.doctor(), as_json=as_json)


@app_command(example="onejob migrate shop:app --print-sql", may_be_empty=True)
@click.option("--print-sql", is_flag=True, help="Print the statements, and change nothing.")
@click.option("--status", is_flag=True, help="Print the versions, and change nothing.")
async def migrate(app: App, *, print_sql: bool, status: bool, as_json: bool) -> None:
    """Create the tables, or upgrade them. Using the app does the same."""
    if print_sql and status:
        raise click.UsageError("--print-sql and --status both change nothing: write one of them.")
    if print_sql:
        script = app.maintenance.migration_sql()
        return emit({"sql": script}) if as_json else click.echo(script or "-- Nothing to do.", nl=not script)
    before = app.maintenance.schema()
    schema = before if status else app.maintenance.migrate()
    if as_json:
        return emit(asdict(schema) | {"current": schema.found == schema.known})
    return click.echo(f"{hide_password(app.url)} {describe(before.found, schema.found, schema.known)}.")


def describe(before: int, found: int, known: int) -> str:
    """Return the version of the tables, or what was done to them, in words."""
    if before != found:
        return (
            f"was upgraded from schema {before} to {found}" if before else f"was set up with schema {found}"
        )
    if found == known:
        return f"has schema {found}, the newest"
    return f"has {f'schema {found}' if found else 'no tables yet'}; this onejob knows schema {known}"
