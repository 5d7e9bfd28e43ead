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

PAGE = 50
SEARCHES_FOR = 0.008  # seconds for which jobs are compared, per page
SEARCHES_ON_FOR = 1.0  # seconds, if the reader asks for older jobs after such a page
MOST_COMPARED = 1_000_000  # jobs, per page
MOST = 1000  # jobs that one action changes
COMPARED = 10_000  # jobs that are compared to find them
COMPARES_FOR = 60.0  # seconds; long, so that a question and its action find the same jobs


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
    seconds = SEARCHES_ON_FOR if request.query_params.get("on") else SEARCHES_FOR
    problem, status = "", 200
    search, found = Search(), Found([], None, 0, cut_short=False)
    try:
        search = read_search(text)
        found = await find(app, search, cursor, limit=PAGE, seconds=seconds, most=MOST_COMPARED)
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
        next=following(text, found),
        may=what_may_be_done(found.jobs),
    )


def following(text: str, found: Found) -> str | None:
    """Return the query of the next page; a search that was cut short goes on for longer."""
    if found.cursor is None:
        return None
    return urlencode({"q": text, "before": found.cursor} | ({"on": "1"} if found.cut_short else {}))


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
    found = await choose(app_of(request), text, ids)
    participle, allows, _ = ACTIONS[act]
    chosen = [job for job in found.jobs if allows(job)]
    return await render(
        request,
        "jobs_confirm",
        act=act,
        participle=participle,
        q=text,
        ids=ids,
        chosen=chosen,
        left=len(found.jobs) - len(chosen),
        found=found,
        most=MOST,
        live=False,
    )


async def choose(app: App, text: str, ids: list[str]) -> Found:
    """Return the selected jobs, or all that a search finds up to a limit, and whether there are more."""
    if ids:
        more = ids[MOST] if len(ids) > MOST else None
        return Found([await app.job(job_id) for job_id in ids[:MOST]], more, len(ids), cut_short=False)
    return await find(app, read_search(text), None, limit=MOST, seconds=COMPARES_FOR, most=COMPARED)


async def act_on_many(request: Request) -> Response:
    """Change many jobs; those that have changed meanwhile are left alone and counted."""
    form = await form_of(request)
    act, text, ids = form.one("act"), form.one("q"), form.all("id")
    if act not in ACTIONS:
        raise BadRequest(f"{act!r} is no action: choose one of {', '.join(ACTIONS)}.")
    app = app_of(request)
    participle, allows, change = ACTIONS[act]
    chosen = (await choose(app, text, ids)).jobs
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
