"""Errors as a sentence on a page, with the right status and without a traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onejob.errors import InvalidCall, InvalidPolicy, OnejobError, StoreError, UnknownJob
from onejob.http.guard import HEADERS as SECURITY_HEADERS
from onejob.http.pages.render import render

log = logging.getLogger("onejob")

ADVICE = {
    503: "This page works again as soon as the store answers.",
}
GONE = "Ids and keys of other namespaces are unknown here."


class BadRequest(OnejobError):
    """The request cannot be understood."""


async def show_onejob_error(request: Request, error: Exception) -> Response:
    """Return the page for an error of onejob."""
    status = 500
    if isinstance(error, UnknownJob):
        return await sentence(request, str(error), 404, GONE)
    if isinstance(error, InvalidCall | InvalidPolicy | BadRequest):
        status = 400
    elif isinstance(error, StoreError):
        status = 503
    return await sentence(request, str(error), status)


async def show_http_error(request: Request, error: Exception) -> Response:
    """Return the page for an unknown path or a form that is not ours."""
    assert isinstance(error, HTTPException)
    text = "There is no such page." if error.status_code == 404 else error.detail  # noqa: PLR2004 - not found
    return await sentence(request, text, error.status_code)


async def show_unexpected(request: Request, error: Exception) -> Response:
    """Return the page for an error that is a bug; the log has the traceback."""
    log.error("the dashboard failed at %s", request.url.path, exc_info=error)
    response = await sentence(request, "Something went wrong here; the server's log says what.", 500)
    response.headers.update(SECURITY_HEADERS)  # the guard is not around this handler
    return response


async def sentence(request: Request, text: str, status: int, advice: str = "") -> Response:
    """Return a page with one sentence, and what to do about it."""
    advice = advice or ADVICE.get(status, "")
    return await render(request, "error", status=status, sentence=text, advice=advice, code=status)


HANDLERS: Mapping[Any, Any] = {
    OnejobError: show_onejob_error,
    HTTPException: show_http_error,
    Exception: show_unexpected,
}
