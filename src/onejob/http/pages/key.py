"""Key: what a new request would meet, the jobs that held the key on a time line, and the guarded release."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response

from onejob import App, Explanation, Job, State
from onejob.errors import OnejobError, UnknownJob
from onejob.http.pages.charts import draw_lanes
from onejob.http.pages.errors import BadRequest
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import go, refuse, render
from onejob.http.pages.same_work import call_like, same_work
from onejob.http.pages.search import KEY
from onejob.http.pages.state import app_of

log = logging.getLogger("onejob")

SHOWN = 12  # jobs on the time line
SHOWN_ENTRIES = 20  # of the log of absorbed requests, and of releases
TICKS = 100  # entries of the log on the time line
WOULD = {
    "created": "start a job",
    "forced": "start a job",
    "replaced": "replace the waiting job",
    "kept": "not start a job",
    "updated": "not start a job, but update the waiting one",
    "rerun": "not start a job now, but become one more run",
    "rejected": "be rejected",
    "stale": "be stale",
}
"""What would happen to a new request, by its outcome."""


async def key(request: Request) -> Response:
    """Show a key."""
    name = key_name(request)
    app = app_of(request)
    jobs = await app.jobs(key=name, limit=SHOWN)
    if not jobs:
        raise UnknownJob("No job of this namespace has this key: it was never held, or its jobs were pruned.")
    holder = next((job for job in jobs if app.is_holding(job)), None)
    successor = next((job for job in jobs if job.is_successor), None)
    answer = await app.why(name)
    counted = answer.counted
    absorbed = {job_id: one.count for job_id, one in counted.items()}
    entries = await app.activity.absorbed(key=name, limit=TICKS)
    newest = successor or holder or jobs[0]
    return await render(
        request,
        "key",
        key=name,
        jobs=jobs,
        newest=newest,
        work=same_work(app, newest),
        repeatable=call_like(app, newest) is not None,
        holder=holder,
        successor=successor,
        standing=standing(holder) if holder else "",
        would=would(newest, answer.explanation),
        policy=answer.explanation.policy if answer.explanation else "",
        lanes=draw_lanes(jobs, absorbed, entries, holder),
        counted=counted,
        total=sum(absorbed.get(job.id, 0) for job in jobs),
        full=len(jobs) == SHOWN,
        entries=entries[:SHOWN_ENTRIES],
        ticks=TICKS if len(entries) == TICKS else None,
        releases=await app.activity.releases(key=name, limit=SHOWN_ENTRIES),
    )


def key_name(request: Request) -> str:
    """Return the key of the URL; raise BadRequest if it is none."""
    name: str = request.path_params["key"].lower()
    if not KEY.fullmatch(name):
        raise BadRequest("A key has 64 hexadecimal digits: copy it whole from a job's page.")
    return name


async def release(request: Request) -> Response:
    """Release a key, if the job that the page showed still holds it and a reason is given."""
    name, form = key_name(request), await form_of(request)
    path, app = f"/keys/{name}", app_of(request)
    reason, job_id = form.one("reason"), form.one("job")
    if not reason:
        return go(request, path, "Not released: give a reason.", good=False)
    holder = await holder_of(app, name)
    if holder is None:
        return go(request, path, "The key is already free.", good=False)
    if holder.id != job_id:
        said = f"Not released: job {holder.id}, which is {holder.state}, holds the key now. Look again."
        return go(request, path, said, good=False)
    try:
        await app.release(name, job=job_id, force=bool(form.one("force")), reason=reason)
    except OnejobError as error:
        return refuse(request, path, error, "Not released: ")
    log.warning("key %s was released from job %s in the dashboard: %s", name, job_id, reason)
    return go(request, path, "The key is free; the job continues without it.")


async def force(request: Request) -> Response:
    """Start another job with the newest arguments of a key, although the key may be held."""
    await form_of(request)
    name, app = key_name(request), app_of(request)
    jobs = await app.jobs(key=name, limit=SHOWN)
    newest = next((job for job in jobs if job.is_successor), jobs[0] if jobs else None)
    call = None if newest is None else call_like(app, newest, force=True)
    if call is None:
        said = "Not started: this dashboard cannot make a request with this key from the jobs that are left."
        return go(request, f"/keys/{name}", said, good=False)
    try:
        answer = await call.enqueue()
    except OnejobError as error:
        return refuse(request, f"/keys/{name}", error, "Not started: ")
    log.warning("job %s was started in the dashboard although key %s may have been held", answer.job.id, name)
    return go(request, f"/keys/{name}", f"Job {answer.job.id} is admitted, and holds the key.")


async def holder_of(app: App, name: str) -> Job | None:
    """Return the job that holds a key."""
    jobs = await app.jobs(key=name, limit=SHOWN)
    return next((job for job in jobs if app.is_holding(job)), None)


def would(newest: Job, explanation: Explanation | None) -> str:
    """Return what would happen to a request like the newest one; empty if that cannot be said."""
    if explanation is None or explanation.key is None or newest.version is not None:
        return ""
    return WOULD[explanation.outcome]


def standing(job: Job) -> str:
    """Return a holder's state as an adjective of a sentence."""
    return "running" if job.state is State.ACTIVE else str(job.state)
