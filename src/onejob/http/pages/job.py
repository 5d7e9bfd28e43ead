"""Job: its state and why, what happened when, arguments, result, attempts, hold; cancel, replay, delete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onejob import App, Job, State
from onejob.errors import OnejobError
from onejob.http.pages.errors import BadRequest
from onejob.http.pages.forms import Form, form_of
from onejob.http.pages.render import base_of, go, refuse, render
from onejob.http.pages.state import app_of, state_of
from onejob.http.pages.text import arguments, decode_json, pretty


@dataclass(frozen=True)
class Event:
    """Something that happened to a job."""

    at: datetime
    what: str
    state: str  # gives the colour
    detail: str = ""


async def job(request: Request) -> Response:
    """Show one job; a unique beginning of its id leads to it."""
    wanted = request.path_params["job_id"].lower()
    app = app_of(request)
    found = await app.job(wanted)
    if found.id != wanted:
        return RedirectResponse(f"{base_of(request)}/jobs/{found.id}", 303)
    chain = await app.chain(found.chain_id).jobs() if found.chain_index or found.following else []
    return await render(
        request,
        "job",
        job=found,
        story=(await app.why(found.id)).sentences,
        events=timeline(found),
        failures=found.failures[::-1],
        progress=decode_json(found.progress),
        result=decode_json(found.result),
        holding=app.is_holding(found),
        absorbed=(await state_of(request).sampler.sample()).served.get(found.id, 0),
        chain=chain,
        holder=await other_holder(app, found),
        editable=pretty(arguments(found)) if may_edit(app, found) else "",
    )


async def other_holder(app: App, job: Job) -> Job | None:
    """Return the job that keeps a dead letter from being replayed, because it holds the key."""
    if job.state is not State.DISCARDED or job.key is None:
        return None
    others = await app.jobs(key=job.key, limit=20)
    return next((one for one in others if one.id != job.id and app.is_holding(one)), None)


def may_edit(app: App, job: Job) -> bool:
    """Return whether a dead letter's arguments can be changed: its task is known, and they can be read."""
    return (
        job.state is State.DISCARDED and job.task in app.tasks and not job.is_sealed and not job.is_tombstone
    )


def timeline(job: Job) -> list[Event]:
    """Return what happened to a job, oldest first."""
    events = [Event(job.created_at, "created", "available", f"in queue {job.queue}")]
    if job.held_at is not None and job.held_at != job.created_at:
        events.append(Event(job.held_at, "got the key", "pending"))
    for failure in job.failures:
        at = datetime.fromisoformat(failure["at"])
        events.append(Event(at, f"attempt {failure['attempt']} failed", "retryable", str(failure["type"])))
    if job.started_at is not None:
        worker = f"by {job.worker}" if job.worker else ""
        events.append(Event(job.started_at, f"attempt {job.attempt} started", "active", worker))
    if job.finished_at is not None:
        events.append(Event(job.finished_at, str(job.state), str(job.state), job.reason or ""))
    elif job.state in {State.SCHEDULED, State.RETRYABLE}:
        events.append(Event(job.run_at, "is due", str(job.state)))
    return sorted(events, key=lambda event: event.at)


async def cancel_job(request: Request) -> Response:
    """Cancel a job, perhaps with the one that waits behind it."""
    form, job_id = await form_of(request), request.path_params["job_id"]
    before = await app_of(request).job(job_id)
    after = await app_of(request).cancel(job_id, successors=bool(form.one("successors")))
    if before.is_terminal:
        return go(request, f"/jobs/{job_id}", f"The job had already ended: it is {after.state}.", good=False)
    said = (
        "The job runs and has been asked to stop." if after.state is State.ACTIVE else "The job is cancelled."
    )
    return go(request, f"/jobs/{job_id}", said)


async def delete_job(request: Request) -> Response:
    """Delete a job that does not run."""
    await form_of(request)
    job_id = request.path_params["job_id"]
    try:
        await app_of(request).delete(job_id)
    except OnejobError as error:
        return refuse(request, f"/jobs/{job_id}", error)
    return go(request, "/jobs", f"Job {job_id} is deleted.")


async def replay_job(request: Request) -> Response:
    """Replay a dead letter, perhaps with other arguments; if its key is held, say by which job."""
    form, job_id = await form_of(request), request.path_params["job_id"]
    app = app_of(request)
    try:
        letter = await app.job(job_id)
        args = read_changes(letter, form.one("args"))
        answer = await app.dead.replay(job_id, args=args)
        if answer.deduplicated and await make_way(app, letter, form):
            answer = await app.dead.replay(job_id, args=args)
    except OnejobError as error:
        return refuse(request, f"/jobs/{job_id}", error)
    if answer.deduplicated:
        return go(request, f"/jobs/{job_id}", f"Not replayed: {answer.reason}", good=False)
    return go(request, f"/jobs/{answer.job.id}", "The dead letter is replayed.")


async def make_way(app: App, letter: Job, form: Form) -> bool:
    """Take the key from the job that the page named, if the form says so; return whether that was done."""
    choice, holder = form.one("conflict"), form.one("holder")
    reason = form.one("reason")
    if choice not in {"cancel", "release"} or letter.key is None:
        return False
    if not reason:
        raise BadRequest("Not replayed: give a reason for taking the key from another job.")
    standing = await other_holder(app, letter)
    if standing is None or standing.id != holder:
        raise BadRequest("Not replayed: another job holds the key by now. Look again.")
    if choice == "cancel":
        return (await app.cancel(holder, reason=reason)).state is State.CANCELLED
    return await app.release(letter.key, job=holder, force=True, reason=reason) is not None


def read_changes(job: Job, text: str) -> dict[str, Any] | None:
    """Return the arguments of an edited form that differ from the job's; None if none do."""
    if not text:
        return None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"The arguments are not JSON: {error}.") from None
    if not isinstance(given, dict):
        raise BadRequest("The arguments are not a JSON object: write the names and values in braces.")
    known = arguments(job)
    return {name: value for name, value in given.items() if name not in known or known[name] != value} or None
