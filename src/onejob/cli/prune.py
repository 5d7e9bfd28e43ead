"""`onejob prune`: forget what has ended and is old enough."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.output import emit, number_of
from onejob.retention import Pruned

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob prune shop:app --dry-run", needs_tasks=True)
@click.option("--dry-run", is_flag=True, help="Tell what would go, and change nothing.")
async def prune(app: App, *, dry_run: bool, as_json: bool) -> None:
    """Forget ended jobs past their retention. Workers do the same, about once a minute.

    Jobs go a few at a time, with pauses, so that workers are not held up; it may be interrupted at any time.
    """
    progress = Progress()
    await app.prune(dry_run=dry_run, tell=progress)
    progress.end()
    done = progress.done
    if as_json:
        return emit({"dry_run": dry_run, **asdict(done)})
    return click.echo(summary(done, dry_run=dry_run))


def summary(done: Pruned, *, dry_run: bool) -> str:
    """Say what a pass came to."""
    if not done.looked_at:
        return "Nothing has ended that is old enough to be forgotten."
    gone = f"{number_of(done.deleted, 'job')} {'would be forgotten' if dry_run else 'forgotten'}"
    if not done.emptied:
        return f"{gone}."
    rest = "would stay" if dry_run else "left"
    kept = f"{number_of(done.emptied, 'record')} {rest} without payload"
    return f"{gone}; {kept}, for a key that is still held or a version that must be known."


class Progress:
    """Shows how far a pass is, on a terminal, and keeps the last that it was told."""

    def __init__(self) -> None:
        self.done = Pruned()
        self._shown = sys.stderr.isatty()

    def __call__(self, done: Pruned) -> None:
        """Hear how far it is."""
        self.done = done
        if self._shown:
            click.echo(f"\rLooked at {done.looked_at:,}, forgot {done.deleted:,}", nl=False, err=True)

    def end(self) -> None:
        """Leave the line to what comes."""
        if self._shown and self.done.looked_at:
            click.echo(err=True)
