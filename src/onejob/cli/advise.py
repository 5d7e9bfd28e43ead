"""`onejob advise`: what recorded requests say about policies and keys."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.options import read_duration
from onejob.cli.output import emit, number_of, plain

if TYPE_CHECKING:
    from onejob import Advice, App


@app_command(example="onejob advise shop:app --task reindex --since 6h")
@click.option("--task", help="Only advice for this task.")
@click.option(
    "--since",
    type=read_duration,
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="How far back to look, up to a day.",
)
async def advise(app: App, *, task: str | None, since: timedelta, as_json: bool) -> None:
    """Say which policies would have absorbed repeated requests, and which keys match never or always.

    Recorded requests are replayed by the rules of deduplication. They have no values of arguments, and are
    sampled where there are very many: each sentence says how many were looked at.
    """
    found = await app.activity.advice(task=task, since=since)
    if as_json:
        import msgspec

        return emit(msgspec.to_builtins(found))
    if not found:
        what = "No request" if task is None else f"No request of {plain(task)}"
        return click.echo(f"{what} was recorded in this time: requests are, unless record_requests=False.")
    for index, one in enumerate(found):
        if index:
            click.echo()
        show(one)
    return None


def show(advice: Advice) -> None:
    """Print a task's advice: a title, its sentences, and the other policies that were tried."""
    title = click.style(plain(advice.task), bold=True)
    click.echo(f"{title}  {advice.policy}".rstrip())
    for sentence in advice.sentences:
        click.echo(f"  {plain(sentence)}")
    if advice.candidates:
        click.echo("  Other policies for the same key:")
    for other in advice.candidates:
        runs = f", {number_of(other.reruns, 'rerun')} among them" if other.reruns else ""
        click.echo(f"    {other.policy}  {other.absorbed:,} absorbed{runs}")
