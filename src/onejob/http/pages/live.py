"""Live updates: a stream of events that says when a page may look different."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from html import escape

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from onejob import Job
from onejob.errors import InvalidCall, OnejobError, UnknownJob
from onejob.http.pages.samples import FRESH
from onejob.http.pages.state import app_of, state_of
from onejob.http.pages.text import stamp


async def live(request: Request) -> Response:
    """Return the stream; it ends when the browser leaves or hides the page."""
    return StreamingResponse(
        events(request), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


async def events(request: Request) -> AsyncIterator[str]:
    """Yield `changed` when something happened, and the text of the foot every time.

    The page says what it has seen, and so does a browser that connects again: what changed while it did not
    listen is an event too.
    """
    seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")
    sampler = state_of(request).sampler
    while not sampler.stopping.is_set() and not await request.is_disconnected():
        try:
            now = await sampler.fingerprint() + await of_job(request)
            if now != seen:
                yield f"event: changed\nid: {now}\ndata: 1\n\n"
            seen = now
            moment = datetime.now(UTC)
            yield f'data: live · <time datetime="{stamp(moment)}">now</time>\n\n'
        except OnejobError as error:
            yield f"data: {escape(f'the store does not answer: {error}')}\n\n"
        with suppress(TimeoutError):
            await asyncio.wait_for(sampler.stopping.wait(), FRESH)


async def of_job(request: Request) -> str:
    """Return what changes with the job whose page it is; empty on other pages."""
    job_id = request.query_params.get("job")
    if not job_id:
        return ""
    try:
        return mark(await app_of(request).job(job_id))
    except (InvalidCall, UnknownJob):
        return "-gone"


def mark(job: Job) -> str:
    """Return a word that changes with a job's state and progress."""
    return f"-{job.state}-{job.attempt}-{zlib.crc32(job.progress or b'')}"
