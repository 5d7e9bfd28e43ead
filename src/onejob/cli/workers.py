"""`onejob workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.cli.apps import app_command
from onejob.cli.output import away, emit, table

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob workers shop:app")
async def workers(app: App, *, as_json: bool) -> None:
    """List workers, those seen last first.

    A worker reports every 5 seconds. One that is silent for more than 10 seconds is shown as dead, for a day.
    """
    found = await app.activity.workers()
    if as_json:
        import msgspec

        return emit(msgspec.to_builtins(found))
    rows = [
        (
            one.name,
            "alive" if one.alive else "dead",
            away(one.seen_at),
            f"{len(one.running)}/{one.concurrency}",
            " ".join(f"{queue}:{most}" for queue, most in one.queues.items()),
            len(one.tasks),
            away(one.started_at),
            one.version,
        )
        for one in found
    ]
    titles = ("WORKER", "STATE", "SEEN", "RUNNING", "QUEUES", "TASKS", "STARTED", "VERSION")
    return table(titles, rows, yields=("QUEUES", "WORKER"), empty="No worker has reported.")
