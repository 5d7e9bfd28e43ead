"""`onejob queues`, `pause` and `resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command, app_named
from onejob.cli.output import emit, table

if TYPE_CHECKING:
    from onejob import App, QueueStatus


@app_command(example="onejob queues shop:app")
async def queues(app: App, *, as_json: bool) -> None:
    """List queues with their waiting and running jobs, their limits and pauses.

    Limits are those that the app declares; with a URL instead of an app, none are known.
    """
    found = await app.queues.list()
    if as_json:
        return emit([document(status) for status in found])
    rows = [
        (
            status.queue.name,
            status.depth,
            status.active,
            status.queue.concurrency or "",
            status.queue.partition_concurrency or "",
            str(status.queue.rate or ""),
            status.queue.max_depth or "",
            "paused" if status.paused else "",
        )
        for status in found
    ]
    titles = ("QUEUE", "WAITING", "RUNNING", "LIMIT", "PER PARTITION", "RATE", "MAX DEPTH", "PAUSED")
    return table(titles, rows, yields=("QUEUE",), empty="There are no queues.")


def document(status: QueueStatus) -> dict[str, object]:
    """Return a queue as JSON values."""
    queue = status.queue
    return {
        "queue": queue.name,
        "depth": status.depth,
        "active": status.active,
        "paused": status.paused,
        "concurrency": queue.concurrency,
        "partition_concurrency": queue.partition_concurrency,
        "rate": None if queue.rate is None else str(queue.rate),
        "max_depth": queue.max_depth,
    }


@app_command(example="onejob pause shop:app emails", may_be_empty=True)
@click.argument("queue")
async def pause(app: App, *, queue: str, as_json: bool) -> None:
    """Start no jobs of QUEUE, on any worker, until it is resumed.

    It still accepts new jobs, and running jobs finish.
    """
    await app.queues.pause(queue)
    if as_json:
        return emit({"queue": queue, "paused": True})
    return click.echo(f"Queue {queue} is paused; to resume it: onejob resume {app_named()} {queue}")


@app_command(example="onejob resume shop:app emails", may_be_empty=True)
@click.argument("queue")
async def resume(app: App, *, queue: str, as_json: bool) -> None:
    """Let workers start jobs of QUEUE again."""
    await app.queues.resume(queue)
    if as_json:
        return emit({"queue": queue, "paused": False})
    return click.echo(f"Queue {queue} is resumed.")
