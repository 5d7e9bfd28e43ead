"""`onejob move`: from one store to another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_command, hide_password, load
from onejob.cli.output import emit, number_of

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob move sqlite:///jobs.db postgresql://jobs@db.example/jobs")
@click.argument("target")
@click.option("--history", is_flag=True, help="Also move jobs that have ended and hold no key.")
async def move(app: App, target: str, *, history: bool, as_json: bool) -> int:
    """Move waiting jobs, holds and dead letters from the store of APP to that of TARGET.

    Stop the workers of the old store first. A move that was interrupted is completed by running it again.
    """
    async with load(target) as other:
        with progress(hidden=as_json) as bar:
            done = await app.maintenance.move_to(other, history=history, report=bar)
        place = hide_password(other.url)
    if as_json:
        emit(asdict(done))
        return int(done.taken > 0)
    are = "is" if done.moved == 1 else "are"
    click.echo(f"{number_of(done.moved, 'job')} {are} in {place} now.")
    if done.left:
        click.echo(
            f"Left in the old store: {number_of(done.left, 'ended job')}. --history moves ended jobs, too."
        )
    if done.taken:
        click.echo(f"{done.taken:,} could not be moved: the new store has another job for their key.")
    return int(done.taken > 0)


@contextmanager
def progress(*, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; its length is known after the first step."""
    shown: Any = click.progressbar(length=0, label="moving", file=sys.stderr, hidden=hidden)
    with shown as bar:

        def report(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield report
