"""Jobs: search, page, and act on many at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from onejob import App, Job, State
from onejob.errors import OnejobError, StoreUnavailable
from onejob.http.pages.errors import BadRequest
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import go, render
from onejob.http.pages.search import FACTS, GROUPS, Found, Search, find, read_search, with_state
from onejob.http.pages.state import app_of, state_of
from onejob.http.pages.text import plural

MOST = 1000  # jobs that one action changes


async def cancel(app: App, job: Job) -> bool:
    """Cancel a job."""
    return (await app.cancel(job.id)).id == job.id


async def replay(app: App, job: Job) -> bool:
    """Replay a dead letter; its key may be held, then it stays where it is."""
    return not (await app.dead.replay(job.id)).deduplicated


async def delete(app: App, job: Job) -> bool:
    """Delete a job."""
    return (await app.delete(job.id)).id == job.id


ACTIONS: dict[str, tuple[str, Callable[[Job], bool], Callable[[App, Job], Awaitable[bool]]]] = {
    "cancel": ("cancelled", lambda job: not job.is_terminal, cancel),
    "replay": ("replayed", lambda job: job.state is State.DISCARDED, replay),
    "delete": ("deleted", lambda job: job.state is not State.ACTIVE, delete),
}
"""What can be done to many jobs: its participle, the jobs that allow it, and how."""


async def jobs(request: Request) -> Response:
    """List the jobs that a search finds, or say why it cannot be read."""
    text, cursor = request.query_params.get("q", ""), request.query_params.get("before")
    app = app_of(request)
    sample = await state_of(request).sampler.sample()
    problem, status = "", 200
    search, found = Search(), Found([], None, 0, cut_short=False)
    try:
        search = read_search(text)
        found = await find(app, search, cursor)
    except BadRequest as error:
        problem, status = str(error), 400
    return await render(
        request,
        "jobs",
        status=status,
        q=text,
        cursor=cursor,
        found=found,
        problem=problem,
        states=[(state, sample.stats.by_state[state]) for state in State],
        chosen=search.states,
        with_state=with_state,
        words=completions(app, sorted(sample.stats.by_queue)),
        next=urlencode({"q": text, "before": found.cursor}) if found.cursor else None,
        may=what_may_be_done(found.jobs),
    )


def completions(app: App, queues: list[str]) -> list[str]:
    """Return terms that the search box offers."""
    return [
        *(f"state:{name}" for name in (*State, *GROUPS)),
        *(f"task:{name}" for name in app.tasks),
        *(f"queue:{name}" for name in queues),
        *(f"is:{name}" for name in FACTS),
    ]


def what_may_be_done(found: list[Job]) -> list[str]:
    """Return the actions that change at least one of the jobs."""
    states = {job.state for job in found}
    may = {
        "cancel": any(not job.is_terminal for job in found),
        "replay": State.DISCARDED in states,
        "delete": any(job.is_terminal for job in found),
    }
    return [name for name, possible in may.items() if possible]


async def confirm(request: Request) -> Response:
    """Ask before many jobs are changed; the question says how many."""
    query = request.query_params
    act, text, ids = query.get("act", ""), query.get("q", ""), query.getlist("id")
    if act not in ACTIONS:
        raise BadRequest(f"{act!r} is no action: choose one of {', '.join(ACTIONS)}.")
    found, more = await choose(app_of(request), text, ids)
    participle, allows, _ = ACTIONS[act]
    chosen = [job for job in found if allows(job)]
    return await render(
        request,
        "jobs_confirm",
        act=act,
        participle=participle,
        q=text,
        ids=ids,
        chosen=chosen,
        left=len(found) - len(chosen),
        more=more,
        most=MOST,
        live=False,
    )


async def choose(app: App, text: str, ids: list[str]) -> tuple[list[Job], bool]:
    """Return the selected jobs, or all that a search finds up to a limit, and whether there are more."""
    if ids:
        return [await app.job(job_id) for job_id in ids[:MOST]], len(ids) > MOST
    search, found, cursor = read_search(text), list[Job](), None
    while len(found) <= MOST:
        page = await find(app, search, cursor, limit=200)
        found += page.jobs
        cursor = page.cursor
        if cursor is None or page.cut_short:
            break
    return found[:MOST], len(found) > MOST or cursor is not None


async def act_on_many(request: Request) -> Response:
    """Change many jobs; those that have changed meanwhile are left alone and counted."""
    form = await form_of(request)
    act, text, ids = form.one("act"), form.one("q"), form.all("id")
    if act not in ACTIONS:
        raise BadRequest(f"{act!r} is no action: choose one of {', '.join(ACTIONS)}.")
    app = app_of(request)
    participle, allows, change = ACTIONS[act]
    chosen, _ = await choose(app, text, ids)
    done, first_error = 0, ""
    for job in chosen:
        try:
            done += allows(job) and await change(app, job)
        except StoreUnavailable:
            raise
        except OnejobError as error:
            first_error = first_error or f" {error}"
    left = (
        f" {plural(len(chosen) - done, 'job')} did not allow it.{first_error}" if done < len(chosen) else ""
    )
    path = f"/jobs?{urlencode({'q': text})}" if text else "/jobs"
    return go(request, path, f"{plural(done, 'job')} {participle}.{left}", good=not left)
