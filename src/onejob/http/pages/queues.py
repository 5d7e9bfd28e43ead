"""Queues: depth, running jobs and limits; pause and resume."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from onejob.errors import OnejobError
from onejob.http.pages.charts import depths, draw_sparks
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import go, refuse, render
from onejob.http.pages.state import app_of, state_of


async def queues(request: Request) -> Response:
    """List the queues."""
    sampler = state_of(request).sampler
    sample, points = await sampler.sample(), list(sampler.points)
    return await render(
        request,
        "queues",
        queues=sample.queues,
        by_queue=sample.stats.by_queue,
        oldest=sample.stats.oldest_due,
        times=sample.times,
        sparks=draw_sparks(points),
        rows=depths(points)[::-1],
    )


async def change_queue(request: Request) -> Response:
    """Pause or resume a queue."""
    form, app = await form_of(request), app_of(request)
    name = form.one("queue")
    try:
        if form.one("act") == "pause":
            await app.queues.pause(name)
            said = f"Queue {name} is paused: running jobs finish, and no further job of it starts."
        else:
            await app.queues.resume(name)
            said = f"Queue {name} runs again."
    except OnejobError as error:
        return refuse(request, "/queues", error)
    return go(request, "/queues", said)
