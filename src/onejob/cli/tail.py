"""`onejob tail`: follow what happens in a namespace, one line per event."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command, refuse_unknown_task
from onejob.cli.live import is_output_closed, through_outages, until_stopped
from onejob.cli.options import key_option, queue_option, task_option
from onejob.cli.output import GAP, number_of, paint, plain, rough, shorten

if TYPE_CHECKING:
    from onejob import App, Recent, RecentEvent

OUTCOMES = ("created", "kept", "updated", "rerun", "rejected", "stale")
PAUSE = 0.1  # seconds between two looks at least
WAIT = timedelta(seconds=1)  # between two looks at most
MOST = 10_000  # events of one look
KIND_WIDTH, TASK_WIDTH = len("deduplicated"), 16


@app_command(example="onejob tail shop:app --task send_invoice --outcome kept")
@task_option
@queue_option
@key_option
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only requests with this outcome.")
@click.option(
    "--limit", type=click.IntRange(0, 1000), default=20, show_default=True,
    help="Begin with this many of the last events.",
)  # fmt: skip
@click.option("--no-follow", is_flag=True, help="Print the last events and end.")
async def tail(
    app: App,
    *,
    task: str | None,
    queue: str | None,
    key: str | None,
    outcome: str | None,
    limit: int,
    no_follow: bool,
    as_json: bool,
) -> None:
    """Follow what happens to requests and jobs, in all processes, until Ctrl-C.

    Events are created, deduplicated, started, completed, retryable, cancelled and discarded. They are read
    from the store, so a run that starts and ends within a moment is shown by its end, with both times; a
    duplicate is shown within a second. Times are in UTC. With --json, each line is one object.
    """
    await refuse_unknown_task(app, task)
    read = partial(app.activity.recent, task=task, queue=queue, key=key, outcome=outcome)
    await until_stopped(follow(read, limit, Printer(as_json=as_json), ends=no_follow))


async def follow(
    read: Callable[..., Awaitable[Recent]], limit: int, printer: Printer, *, ends: bool = False
) -> None:
    """Print the last events, and all that follow."""
    look = await read(limit=limit)
    printer.show(look.events)
    while not ends and not is_output_closed():
        await asyncio.sleep(PAUSE)
        look = await through_outages(partial(read, since=look, wait=WAIT, limit=MOST))
        printer.show(look.events)
        if not look.is_complete:
            click.echo("More has happened than one look reads: some events are left out.", err=True)


class Printer:
    """Prints events, and the day when it changes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._day: date | None = None

    def show(self, events: Iterable[RecentEvent]) -> None:
        """Print events, one line each."""
        for event in events:
            click.echo(self._line(event))

    def _line(self, event: RecentEvent) -> str:
        if self._as_json:
            import msgspec

            return json.dumps(msgspec.to_builtins(event))
        day = event.at.astimezone(UTC).date()
        heading = "" if day == self._day else f"{click.style(f'{day} UTC', bold=True)}\n"
        self._day = day
        return heading + line(event)


def line(event: RecentEvent) -> str:
    """Return an event on one line; on a terminal it is as wide as that."""
    kind, task = event.kind.ljust(KIND_WIDTH), plain(event.task).ljust(TASK_WIDTH)
    start = GAP.join((clock(event.at), kind, task, event.job))
    details = plain(describe(event)).replace("\n", " ")
    if sys.stdout.isatty():
        details = shorten(details, max(shutil.get_terminal_size().columns - len(start) - len(GAP), 1))
    return GAP.join((clock(event.at), paint(kind), task, event.job, details)).rstrip()


def describe(event: RecentEvent) -> str:
    """Return what an event says beyond its kind, its task and its job."""
    match event.kind:
        case "created":
            key = f"key {event.key[:12]}…" if event.key else ""
            return ", ".join(part for part in (f"queue {event.queue}", key, event.reason) if part)
        case "deduplicated":
            return describe_duplicate(event)
        case "started":
            return f"{attempt(event)} on {event.worker}"
        case "retryable":
            again = "" if event.next_at is None else f"; again at {clock(event.next_at)}"
            return f"{attempt(event)} failed{run_time(event)}: {event.error}{again}"
        case "completed":
            return f"{attempt(event)}{run_time(event)}"
        case _:
            why = f"superseded by {event.superseded_by}" if event.superseded_by else event.reason
            return f"{why}{run_time(event)}" + (f": {event.error}" if event.error else "")


def describe_duplicate(event: RecentEvent) -> str:
    """Return the outcome of a duplicate, why, and where it was requested."""
    times = f" ({number_of(event.times, 'request')})" if event.times > 1 else ""
    differs = " Its payload differs." if event.payload_differs else ""
    caller = f" From {event.line}, process {event.process} on {event.host}." if event.host else ""
    return f"{event.outcome}{times}: {event.reason}{differs}{caller}"


def attempt(event: RecentEvent) -> str:
    """Return which attempt of how many an event is about."""
    return f"attempt {event.attempt} of {event.attempts}"


def run_time(event: RecentEvent) -> str:
    """Return when the run started that ended, and how long it took."""
    if event.started_at is None:
        return ""
    return f", started {clock(event.started_at)}, took {rough(event.at - event.started_at)}"


def clock(moment: datetime) -> str:
    """Return the time of day in UTC, with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[11:23]
