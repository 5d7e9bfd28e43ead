"""Which function answers which path."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from onejob.http.pages.chains import cancel_chain, chain, chains
from onejob.http.pages.cron import change_schedule, cron
from onejob.http.pages.dead import dead, replay_group
from onejob.http.pages.dedup import dedup
from onejob.http.pages.job import cancel_job, delete_job, job, replay_job
from onejob.http.pages.jobs import act_on_many, confirm, jobs
from onejob.http.pages.key import key, release
from onejob.http.pages.live import live
from onejob.http.pages.metrics import metrics
from onejob.http.pages.overview import overview
from onejob.http.pages.probes import health, ready
from onejob.http.pages.queues import change_queue, queues
from onejob.http.pages.sign_in import sign_in
from onejob.http.pages.system import system
from onejob.http.pages.why import why
from onejob.http.pages.workers import workers

STATIC = Path(__file__).with_name("static")

ROUTES: list[BaseRoute] = [
    Route("/", overview),
    Route("/jobs", jobs),
    Route("/jobs/confirm", confirm),
    Route("/jobs/act", act_on_many, methods=["POST"]),
    Route("/jobs/{job_id}", job),
    Route("/jobs/{job_id}/cancel", cancel_job, methods=["POST"]),
    Route("/jobs/{job_id}/delete", delete_job, methods=["POST"]),
    Route("/jobs/{job_id}/replay", replay_job, methods=["POST"]),
    Route("/dedup", dedup),
    Route("/keys/{key}", key),
    Route("/keys/{key}/release", release, methods=["POST"]),
    Route("/why", why),
    Route("/chains", chains),
    Route("/chains/{chain_id}", chain),
    Route("/chains/{chain_id}/cancel", cancel_chain, methods=["POST"]),
    Route("/queues", queues),
    Route("/queues", change_queue, methods=["POST"]),
    Route("/workers", workers),
    Route("/cron", cron),
    Route("/cron", change_schedule, methods=["POST"]),
    Route("/dead", dead),
    Route("/dead/replay", replay_group, methods=["POST"]),
    Route("/system", system),
    Route("/live", live),
    Route("/metrics", metrics),
    Route("/health", health),
    Route("/ready", ready),
    Route("/sign-in", sign_in, methods=["GET", "POST"]),
    Mount("/static", StaticFiles(directory=STATIC)),
]
