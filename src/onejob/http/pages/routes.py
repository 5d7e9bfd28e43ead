"""Which function answers which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from onejob.http.pages.chains import cancel_chain, chain, chains
from onejob.http.pages.cron import change_schedule, cron
from onejob.http.pages.dead import dead, replay_group
from onejob.http.pages.dedup import dedup
from onejob.http.pages.job import cancel_job, delete_job, job, replay_job
from onejob.http.pages.jobs import act_on_many, confirm, jobs
from onejob.http.pages.key import force, key, release
from onejob.http.pages.live import live
from onejob.http.pages.metrics import metrics
from onejob.http.pages.overview import overview
from onejob.http.pages.probes import health, ready
from onejob.http.pages.queues import change_queue, queues
from onejob.http.pages.sign_in import sign_in
from onejob.http.pages.state import state_of
from onejob.http.pages.system import system
from onejob.http.pages.why import why
from onejob.http.pages.workers import workers

STATIC = Path(__file__).with_name("static")
Endpoint = Callable[[Request], Awaitable[Response]]


def live_page(path: str, endpoint: Endpoint) -> Route:
    """Return the route of a page that notes what was known before it read the store, for live updates."""

    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        request.state.seen = state_of(request).sampler.seen
        return await endpoint(request)

    return Route(path, answer)


ROUTES: list[BaseRoute] = [
    live_page("/", overview),
    live_page("/jobs", jobs),
    Route("/jobs/confirm", confirm),
    Route("/jobs/act", act_on_many, methods=["POST"]),
    live_page("/jobs/{job_id}", job),
    Route("/jobs/{job_id}/cancel", cancel_job, methods=["POST"]),
    Route("/jobs/{job_id}/delete", delete_job, methods=["POST"]),
    Route("/jobs/{job_id}/replay", replay_job, methods=["POST"]),
    live_page("/dedup", dedup),
    live_page("/keys/{key}", key),
    Route("/keys/{key}/release", release, methods=["POST"]),
    Route("/keys/{key}/force", force, methods=["POST"]),
    live_page("/why", why),
    live_page("/chains", chains),
    live_page("/chains/{chain_id}", chain),
    Route("/chains/{chain_id}/cancel", cancel_chain, methods=["POST"]),
    live_page("/queues", queues),
    Route("/queues", change_queue, methods=["POST"]),
    live_page("/workers", workers),
    live_page("/cron", cron),
    Route("/cron", change_schedule, methods=["POST"]),
    live_page("/dead", dead),
    Route("/dead/replay", replay_group, methods=["POST"]),
    live_page("/system", system),
    Route("/live", live),
    Route("/metrics", metrics),
    Route("/health", health),
    Route("/ready", ready),
    Route("/sign-in", sign_in, methods=["GET", "POST"]),
    Mount("/static", StaticFiles(directory=STATIC)),
]
