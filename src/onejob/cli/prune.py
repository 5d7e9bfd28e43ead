"""`onejob prune`: delete ended jobs whose retention is over."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob import Pruned
from onejob.cli.apps import app_command
from onejob.cli.output import emit, number_of

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob prune shop:app --dry-run", needs_tasks=True)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
async def prune(app: App, *, dry_run: bool, as_json: bool) -> None:
    """Delete ended jobs whose retention is over. Workers do so about once a minute.

    Jobs are deleted in small batches with pauses, so that workers are not delayed. It may be interrupted at
    any time.
    """
    progress = Progress()
    await app.maintenance.prune(dry_run=dry_run, report=progress)
    progress.end()
    done = progress.done
    if as_json:
        return emit({"dry_run": dry_run, **asdict(done)})
    return click.echo(summary(done, dry_run=dry_run))


def summary(done: Pruned, *, dry_run: bool) -> str:
    """Return what a pass has done, in one sentence."""
    if not done.looked_at:
        return "No ended job is old enough to be deleted."
    gone = f"{number_of(done.deleted, 'job')} {'would be deleted' if dry_run else 'deleted'}"
    if not done.emptied:
        return f"{gone}."
    rest = "would stay" if dry_run else "left"
    kept = f"{number_of(done.emptied, 'record')} {rest} without payload"
    return f"{gone}; {kept}, because its key is still held or its version must be kept."


class Progress:
    """Shows the progress of a pass on a terminal, and keeps the last report."""

    def __init__(self) -> None:
        self.done = Pruned()
        self._shown = sys.stderr.isatty()

    def __call__(self, done: Pruned) -> None:
        """Take a report."""
        self.done = done
        if self._shown:
            click.echo(f"\rLooked at {done.looked_at:,}, deleted {done.deleted:,}", nl=False, err=True)

    def end(self) -> None:
        """End the line of the progress."""
        if self._shown and self.done.looked_at:
            click.echo(err=True)
