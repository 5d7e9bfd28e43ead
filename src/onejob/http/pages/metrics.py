"""`/metrics`: the figures of the store for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onejob.errors import InvalidCall
from onejob.http.pages.state import state_of

FORMAT = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(request: Request) -> Response:
    """Return the figures as text; 501 if the package that renders them is missing."""
    try:
        text = await state_of(request).figures.text()
    except InvalidCall as error:
        return PlainTextResponse(str(error), 501)
    return PlainTextResponse(text, media_type=FORMAT)
