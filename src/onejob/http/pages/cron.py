"""Cron: schedules in words, their last and next ticks; pause and resume."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from onejob.errors import OnejobError
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import go, refuse, render
from onejob.http.pages.state import app_of


async def cron(request: Request) -> Response:
    """List the schedules."""
    return await render(request, "cron", schedules=await app_of(request).schedules.list())


async def change_schedule(request: Request) -> Response:
    """Pause or resume a schedule."""
    form, app = await form_of(request), app_of(request)
    name, act = form.one("schedule"), form.one("act")
    try:
        await (app.schedules.pause(name) if act == "pause" else app.schedules.resume(name))
    except OnejobError as error:
        return refuse(request, "/cron", error)
    return go(
        request, "/cron", f"Schedule {name} is paused." if act == "pause" else f"Schedule {name} runs again."
    )
