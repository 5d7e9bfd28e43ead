"""`onejob queues`, `pause` and `resume`: what waits where, and what may start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.output import emit, table

if TYPE_CHECKING:
    from onejob import App
    from onejob.app import QueueStatus


@app_command(example="onejob queues shop:app")
async def queues(app: App, *, as_json: bool) -> None:
    """List queues: how many jobs wait and run there, their limits, and which are paused.

    Limits are those that the app declares; with a URL in its place, none are known.
    """
    found = await app.list_queues()
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
    titles = ("QUEUE", "DEPTH", "ACTIVE", "LIMIT", "PER PARTITION", "RATE", "MAX DEPTH", "PAUSED")
    return table(titles, rows, yields=("QUEUE",), empty="There are no queues.")


def document(status: QueueStatus) -> dict[str, object]:
    """Write a queue as JSON."""
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


@app_command(example="onejob pause shop:app emails")
@click.argument("queue")
async def pause(app: App, *, queue: str, as_json: bool) -> None:
    """Let no worker start jobs of QUEUE until it is resumed.

    It takes new jobs all the same, and what runs finishes.
    """
    await app.pause(queue)
    if as_json:
        return emit({"queue": queue, "paused": True})
    return click.echo(f"Queue {queue} is paused: onejob resume APP {queue} lets it go on.")


@app_command(example="onejob resume shop:app emails")
@click.argument("queue")
async def resume(app: App, *, queue: str, as_json: bool) -> None:
    """Let workers start jobs of QUEUE again."""
    await app.resume(queue)
    if as_json:
        return emit({"queue": queue, "paused": False})
    return click.echo(f"Queue {queue} goes on.")
