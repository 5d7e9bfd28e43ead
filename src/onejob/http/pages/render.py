"""Render a page: the template, the side bar's numbers, and what every page needs."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from onejob import Job, __version__
from onejob.errors import OnejobError, StoreUnavailable, UnknownJob
from onejob.http.pages.live import mark
from onejob.http.pages.samples import MOST_HOLDS, MOST_LINKED, Sample
from onejob.http.pages.state import Note, state_of
from onejob.http.pages.text import FILTERS, number

NAVIGATION = (
    (("", "Overview", "o"), ("jobs", "Jobs", "j"), ("dedup", "Dedup", "d"), ("why", "Why?", "w")),
    (
        ("chains", "Chains", "c"),
        ("queues", "Queues", "q"),
        ("cron", "Cron", "n"),
        ("dead", "Dead letters", "x"),
    ),
    (("workers", "Workers", "k"), ("system", "System", "s")),
)
"""The pages by group: path, title, and the key that follows g."""

PLACES = {"job": "jobs", "jobs_confirm": "jobs", "key": "dedup", "chain": "chains"}
"""Pages that are below another one in the side bar."""


@cache
def environment() -> Environment:
    """Return the templates; every value is escaped."""
    made = Environment(
        loader=PackageLoader("onejob.http.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals.update(navigation=NAVIGATION, version=__version__)
    return made


async def render(request: Request, page: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page as HTML; `page` is the name of its template and of its place in the side bar."""
    dashboard = state_of(request)
    context: dict[str, Any] = {
        "base": base_of(request),
        "page": page,
        "counts": {},
        "counted_at": None,
        "store": dashboard.app.url.partition(":")[0],
        "strength": "",
        "namespace": dashboard.app.namespace,
        "read_only": dashboard.rules.read_only,
        "has_token": dashboard.rules.token is not None,
        "csrf": dashboard.rules.sign("form"),
        "note": dashboard.notes.get(request.query_params.get("note", "")),
        "here": here(request),
        "stream": stream(request, values.get("job") if page == "job" else None),
        "now": datetime.now(UTC),
        "place": PLACES.get(page, page),
        "live": True,
    }
    if page != "error":  # the store may be the reason for the error
        sample = await dashboard.sampler.sample()
        context |= {"counts": counts(sample), "strength": strength(request)}
        context["counted_at"] = sample.at if sample.is_old else None
    html = environment().get_template(f"{page}.html").render(context | values)
    return HTMLResponse(html, status)


def counts(sample: Sample) -> dict[str, str]:
    """Return the numbers of the side bar, by path; a plus says that there may be more."""
    held = number(min(len(sample.holders), MOST_HOLDS)) + ("+" if len(sample.holds) >= MOST_HOLDS else "")
    linked, is_all = len(sample.chains), len(sample.newest) < MOST_LINKED
    return {
        "jobs": number(sum(sample.stats.by_state.values())),
        "dedup": held,
        "chains": number(linked) if is_all else f"{number(linked)}+" if linked else "",
        "queues": number(len(sample.queues)),
        "cron": number(sample.schedules),
        "workers": number(len(sample.alive)),
        "dead": number(sample.stats.dead),
    }


def strength(request: Request) -> str:
    """Return how strong uniqueness is on this store; empty if it cannot say."""
    try:
        return str(state_of(request).app.guarantees().strength)
    except OnejobError:
        return ""


def base_of(request: Request) -> str:
    """Return the path under which the dashboard is mounted."""
    return str(request.scope.get("root_path", ""))


def here(request: Request) -> str:
    """Return the present URL without the note, for live updates."""
    pairs = [(name, value) for name, value in request.query_params.multi_items() if name != "note"]
    path: str = request.scope["path"]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def stream(request: Request, job: Job | None) -> str:
    """Return the query of live updates: what the page has seen, and the job whose progress it shows."""
    seen = getattr(request.state, "seen", "")
    return urlencode({"seen": seen + mark(job), "job": job.id} if job else {"seen": seen})


def refuse(request: Request, path: str, error: Exception, said: str = "") -> Response:
    """Redirect to a page that says why nothing was done; raise an error that this page would meet again."""
    if isinstance(error, StoreUnavailable | UnknownJob):
        raise error
    return go(request, path, f"{said}{error}", good=False)


def go(request: Request, path: str, note: str, *, good: bool = True) -> Response:
    """Redirect to a page that says what was done."""
    state = state_of(request)
    state.sampler.forget()
    joint = "&" if "?" in path else "?"
    return RedirectResponse(f"{base_of(request)}{path}{joint}note={state.keep(Note(note, good))}", 303)
