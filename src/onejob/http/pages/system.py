"""System: what the store guarantees, and what the doctor finds."""

from __future__ import annotations

import platform
import re
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from onejob.http.pages.render import render
from onejob.http.pages.state import app_of

LEVELS = ("fail", "warn", "ok")
WORDS = {"ok": "completed", "warn": "retryable", "fail": "discarded"}


async def system(request: Request) -> Response:
    """Show the guarantees; the findings too if they are asked for, because a large store takes a while."""
    app = app_of(request)
    findings = await app.doctor() if "examine" in request.query_params else None
    return await render(
        request,
        "system",
        guarantees=app.guarantees(),
        schema=app.maintenance.schema(),
        findings=findings and sorted(findings, key=lambda one: LEVELS.index(one.level)),
        live=False,
        words=WORDS,
        url=hide_password(app.url),
        python=platform.python_version(),
        tasks=sorted(app.tasks),
    )


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    password = urlsplit(url).password
    shown = url.replace(f":{password}@", ":…@", 1) if password else url
    return re.sub(r"(?<=[?&]password=)[^&]*", "…", shown)
