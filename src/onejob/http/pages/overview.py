"""Overview: what waits, runs, ended and was absorbed, per queue; what fails."""

from __future__ import annotations

from operator import itemgetter

from starlette.requests import Request
from starlette.responses import Response

from onejob.http.pages.charts import draw_area
from onejob.http.pages.render import render
from onejob.http.pages.samples import saved_words
from onejob.http.pages.state import app_of, state_of

ALERTS = {
    "lateness": "queues",
    "workers": "workers",
    "tasks": "workers",
    "holds": "dedup",
    "dead letters": "dead",
}
"""The page where more is said about a check that fails."""


async def overview(request: Request) -> Response:
    """Show the numbers of the whole."""
    app, sampler = app_of(request), state_of(request).sampler
    sample = await sampler.sample()
    return await render(
        request,
        "overview",
        sample=sample,
        alerts=ALERTS,
        stats=sample.stats,
        chart=draw_area(list(sampler.points)),
        queues=sample.queues,
        oldest=sample.stats.oldest_due,
        late=max(sample.stats.oldest_due.items(), key=itemgetter(1), default=None),
        saved=saved_words(sample.stats),
        times=sample.times,
        recent=await app.jobs(limit=8),
        failed=await app.dead.list(limit=5),
    )
