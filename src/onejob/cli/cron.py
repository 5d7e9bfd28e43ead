"""`onejob cron`: list and change schedules, and explain cron lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onejob.cli.apps import app_command, hide_password, is_app
from onejob.cli.arguments import Pair, make_call, task_arguments
from onejob.cli.options import json_option
from onejob.cli.output import away, emit, stamp, table

if TYPE_CHECKING:
    from onejob import App, Schedule, ScheduleStatus, Unique

F = TypeVar("F", bound=Callable[..., Any])

OVERLAPS = ("keep", "coalesce", "replace", "cancel", "allow")
MISSED = ("skip", "one", "all")

timezone_option = click.option(
    "--timezone", default="UTC", show_default=True, help="An IANA name: Europe/Berlin."
)


class CronGroup(click.Group):
    """The commands of `onejob cron`; answers an app that is written in the place of one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named."""
        if is_app(args[0]):
            shown = hide_password(args[0])
            ctx.fail(f"The command comes before the app: write onejob cron list {shown}.")
        return super().resolve_command(ctx, args)


@click.group(cls=CronGroup, epilog='Example: onejob cron next "0 9 * * MON-FRI" --timezone Europe/Berlin')
def cron() -> None:
    """List, add, pause, resume and remove schedules, and explain cron lines.

    Every command prints JSON with --json.
    """


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def line_command(*, example: str) -> Callable[[F], click.Command]:
    """Return a decorator for commands that read a line and need no app."""

    def decorate(work: F) -> click.Command:
        decorated = timezone_option(json_option(work))
        decorated = click.argument("line")(decorated)
        return cron.command(epilog=f"Example: {example}")(decorated)

    return decorate


def schedule_of(line: str, timezone: str) -> Schedule:
    """Return a schedule without a task."""
    from onejob import Schedule

    schedule = Schedule("", "", line, timezone)
    assert schedule.parsed  # raises InvalidSchedule for a line that cannot be read
    assert schedule.zone  # raises InvalidSchedule for an unknown time zone
    return schedule


@line_command(example='onejob cron next "0 9 * * MON-FRI" --timezone Europe/Berlin')
@click.option(
    "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many to print."
)
def next(*, line: str, timezone: str, count: int, as_json: bool) -> None:  # noqa: A001 - the command's name
    """Print when LINE ticks next, in its time zone."""
    schedule = schedule_of(line, timezone)
    ahead = schedule.upcoming(datetime.now(UTC), count)
    if as_json:
        return emit([moment.isoformat() for moment in ahead])
    for moment in ahead:
        click.echo(f"{moment:%a %Y-%m-%d %H:%M:%S %z}  {away(moment)}")
    return None


@line_command(example='onejob cron describe "*/15 9-17 * * MON-FRI"')
def describe(*, line: str, timezone: str, as_json: bool) -> None:
    """Print in English when LINE ticks."""
    schedule = schedule_of(line, timezone)
    if as_json:
        return emit({"line": schedule.parsed.text, "timezone": timezone, "description": schedule.description})
    return click.echo(schedule.description)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


@app_command(example="onejob cron list shop:app", needs_tasks=True)
async def list_(app: App, *, as_json: bool) -> None:
    """List schedules. Each has its next run and the number of ticks that made no job."""
    found = await app.schedules.list()
    if as_json:
        return emit([document(one) for one in found])
    rows = [
        (
            one.schedule.name,
            one.schedule.task,
            one.schedule.line,
            upcoming(one),
            count_skipped(one),
            one.schedule.description,
        )
        for one in found
    ]
    titles = ("NAME", "TASK", "LINE", "NEXT", "SKIPPED", "DESCRIPTION")
    return table(titles, rows, yields=("DESCRIPTION", "TASK"), empty="There are no schedules.")


def upcoming(one: ScheduleStatus) -> str:
    """Return when a schedule ticks next."""
    return "paused" if one.schedule.paused else away(one.next[0] if one.next else None)


def count_skipped(one: ScheduleStatus) -> int:
    """Return the number of ticks that made no job."""
    return sum(one.absorbed.values())


def document(one: ScheduleStatus) -> dict[str, Any]:
    """Return a schedule and its state as JSON values."""
    return schedule_document(one.schedule) | {
        "since": stamp(one.since),
        "next": [moment.isoformat() for moment in one.next],
        "absorbed": dict(one.absorbed),
    }


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON values."""
    return {
        "name": schedule.name,
        "task": schedule.task,
        "args": schedule.arguments,
        "line": schedule.line,
        "timezone": schedule.timezone,
        "description": schedule.description,
        "overlap": overlap_document(schedule.overlap),
        "missed": schedule.missed,
        "paused": schedule.paused,
        "declared": schedule.declared,
    }


def overlap_document(overlap: Unique | None) -> dict[str, str] | None:
    """Return what a tick does about a waiting and a running job; None if runs may overlap."""
    if overlap is None:
        return None
    return {"until": overlap.until, "on_conflict": overlap.on_conflict, "on_active": overlap.while_active}


@app_command(
    example='onejob cron add shop:app nightly send_report "0 2 * * *" --timezone Europe/Berlin',
    needs_tasks=True,
    may_be_empty=True,
)
@click.argument("name")
@click.argument("task")
@click.argument("line")
@task_arguments
@timezone_option
@click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    default="keep",
    show_default=True,
    help="What a tick does while an earlier job of the schedule is unfinished.",
)
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    default="one",
    show_default=True,
    help="What happens to ticks that were due while no worker ran.",
)
async def add(
    app: App,
    *,
    name: str,
    task: str,
    line: str,
    pairs: tuple[Pair, ...],
    given: dict[str, Any] | None,
    overlap: str,
    as_json: bool,
    **choices: Any,
) -> None:
    """Add the schedule NAME, or change it. It runs TASK by LINE.

    LINE is a cron line, a macro such as @daily, or @every 30s. Workers notice within five seconds.
    """
    call = make_call(app.task_named(task), pairs, given)
    added = await app.schedules.add(name, call, line, overlap=policy(overlap), **choices)
    report(added, "runs", as_json=as_json)


def policy(overlap: str) -> Unique | None:
    """Return the policy that a word names."""
    from onejob import Unique

    policies = {
        "keep": Unique(),
        "coalesce": Unique.coalesce(),
        "replace": Unique(on_conflict="replace"),
        "cancel": Unique(on_conflict="replace", on_active="cancel"),
        "allow": None,
    }
    return policies[overlap]


def report(schedule: Schedule, verb: str, *, as_json: bool) -> None:
    """Print a schedule after a change."""
    if as_json:
        emit(schedule_document(schedule))
    else:
        click.echo(f"{schedule.name} {verb}: {schedule.task}, {schedule.description}.")


@app_command(example="onejob cron pause shop:app nightly", needs_tasks=True, may_be_empty=True)
@click.argument("name")
async def pause(app: App, *, name: str, as_json: bool) -> None:
    """Pause the schedule NAME until it is resumed."""
    report(await app.schedules.pause(name), "is paused", as_json=as_json)


@app_command(example="onejob cron resume shop:app nightly", needs_tasks=True, may_be_empty=True)
@click.argument("name")
async def resume(app: App, *, name: str, as_json: bool) -> None:
    """Resume the schedule NAME. Ticks that were due while it was paused are not made."""
    report(await app.schedules.resume(name), "runs", as_json=as_json)


@app_command(example="onejob cron remove shop:app nightly", needs_tasks=True, may_be_empty=True)
@click.argument("name")
async def remove(app: App, *, name: str, as_json: bool) -> None:
    """Remove the schedule NAME; its jobs stay."""
    report(await app.schedules.remove(name), "is removed", as_json=as_json)


cron.add_command(list_, "list")
for command in (add, pause, resume, remove):
    cron.add_command(command)
