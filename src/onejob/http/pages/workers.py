"""Workers: which are alive, what each serves, knows and runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from onejob.http.pages.render import render
from onejob.http.pages.state import app_of


async def workers(request: Request) -> Response:
    """List the workers, and the tasks of waiting jobs that none of them knows."""
    found = await app_of(request).activity.workers()
    alive = {one.name for one in found if one.alive}
    return await render(request, "workers", workers=found, alive=alive)
