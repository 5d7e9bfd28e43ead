"""Live updates: a stream of events that says when the numbers have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from html import escape

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from onejob.errors import OnejobError
from onejob.http.pages.samples import FRESH, Sample
from onejob.http.pages.state import app_of, state_of


async def live(request: Request) -> Response:
    """Return the stream; it ends when the browser leaves."""
    return StreamingResponse(
        events(request), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


async def events(request: Request) -> AsyncIterator[str]:
    """Yield `changed` when something happened, and the text of the foot every time."""
    before: object = None
    sampler = state_of(request).sampler
    while not sampler.stopping.is_set() and not await request.is_disconnected():
        try:
            sample = await sampler.sample()
            now = await fingerprint(request, sample)
            if before is not None and now != before:
                yield "event: changed\ndata: 1\n\n"
            before = now
            yield message(f"live · {datetime.now(UTC):%H:%M:%S} UTC")
        except OnejobError as error:
            yield message(f"the store does not answer: {error}")
        with suppress(TimeoutError):
            await asyncio.wait_for(sampler.stopping.wait(), FRESH)


async def fingerprint(request: Request, sample: Sample) -> object:
    """Return a value that changes when a page may look different."""
    newest = await app_of(request).jobs(limit=1)
    stats = sample.stats
    return (
        [(job.id, job.revision) for job in newest],
        stats.by_state,
        stats.absorbed,
        [job.id for job in sample.holds],
        sample.queues,
        sample.schedules,
    )


def message(text: str) -> str:
    """Return an event whose text replaces the foot's last line."""
    return f"data: {escape(text)}\n\n"
