"""System: what the store guarantees, and what the doctor finds."""

from __future__ import annotations

import platform
import re
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from onejob.http.pages.render import render
from onejob.http.pages.state import app_of, state_of

LEVELS = ("fail", "warn", "ok")
EXAMINED_UNASKED = 100_000  # jobs; the examination of more takes seconds, and is made when it is asked for
WORDS = {"ok": "completed", "warn": "retryable", "fail": "discarded"}


async def system(request: Request) -> Response:
    """Show the guarantees; the findings too if they are asked for, because a large store takes a while."""
    app = app_of(request)
    findings = await app.doctor() if "examine" in request.query_params else None
    jobs = sum((await state_of(request).sampler.sample()).stats.by_state.values())
    return await render(
        request,
        "system",
        guarantees=app.guarantees(),
        schema=app.maintenance.schema(),
        findings=findings and sorted(findings, key=lambda one: LEVELS.index(one.level)),
        live=False,
        jobs=jobs,
        unasked=jobs <= EXAMINED_UNASKED,
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
