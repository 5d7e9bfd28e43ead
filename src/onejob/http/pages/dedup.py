"""Dedup: the keys that are held, how many requests were absorbed, and which could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from onejob import AbsorbedRequest, App, Job
from onejob.http.pages.charts import draw_area
from onejob.http.pages.errors import BadRequest
from onejob.http.pages.render import render
from onejob.http.pages.same_work import same_work
from onejob.http.pages.samples import saved_words
from onejob.http.pages.state import app_of, state_of

OUTCOMES = ("kept", "updated", "rerun", "rejected", "stale")
TABS = {
    "keys": "Held keys",
    "log": "Absorbed requests",
    "tasks": "By task",
    "callers": "By caller",
    "advice": "Advice",
}
ENTRIES = 1000  # of the log, from which callers are counted
SHOWN = 50


async def dedup(request: Request) -> Response:
    """Show held keys, absorbed requests, counts by task or caller, or advice."""
    tab = request.query_params.get("by", "keys")
    if tab not in TABS:
        raise BadRequest(f"There is no view {tab!r}: choose one of {', '.join(TABS)}.")
    app, sampler = app_of(request), state_of(request).sampler
    sample = await sampler.sample()
    waiting = {job.key: job for job in sample.holds if job.is_successor}
    totals = count_served(sample.holders, waiting, sample.served)
    holders = sorted(sample.holders, key=lambda job: (-totals[job.id], job.id))
    entries = await app.activity.absorbed(limit=ENTRIES) if tab in {"log", "callers"} else []
    advice = await state_of(request).advisor.advice() if tab == "advice" else []
    return await render(
        request,
        "dedup",
        tab=tab,
        tabs=TABS,
        sample=sample,
        chart=draw_area(list(sampler.points)),
        holders=holders[:SHOWN],
        hidden=max(len(holders) - SHOWN, 0),
        work={job.id: same_work(app, job) for job in holders[:SHOWN]} if tab == "keys" else {},
        waiting=waiting,
        saved=saved_words(sample.stats),
        lately=sampler.rate(),
        counts_by_job=totals,
        oldest=min((job.held_at for job in holders if job.held_at), default=None),
        by_task=by_task(sample.stats.absorbed),
        outcomes=OUTCOMES,
        entries=entries[:SHOWN],
        callers=by_caller(entries),
        tasks=unique_tasks(app),
        advised=[one for one in advice if one.kind != "nothing"],
        unadvised=[one for one in advice if one.kind == "nothing"],
    )


def count_served(
    holders: list[Job], waiting: dict[bytes | None, Job], absorbed: Mapping[str, int]
) -> dict[str, int]:
    """Return how many requests each holder and its successor have absorbed together."""
    total = {}
    for job in holders:
        behind = waiting.get(job.key)
        total[job.id] = absorbed.get(job.id, 0) + (absorbed.get(behind.id, 0) if behind else 0)
    return total


def by_task(absorbed: Mapping[str, Mapping[str, int]]) -> list[tuple[str, dict[str, int], int]]:
    """Return the counts of each task by outcome, and their sum, the largest first."""
    counted = {
        task: {name: outcomes[name] for name in OUTCOMES if name in outcomes}
        for task, outcomes in absorbed.items()
    }
    rows = [(task, outcomes, sum(outcomes.values())) for task, outcomes in counted.items() if outcomes]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def by_caller(entries: list[AbsorbedRequest]) -> list[tuple[str, str, int]]:
    """Return which lines of code made the absorbed requests of the log, for which task, and how many."""
    totals = Counter[tuple[str, str]]()
    for entry in entries:
        totals[entry.line or "not recorded", entry.task] += entry.times
    return [(line, task, number) for (line, task), number in totals.most_common(SHOWN)]


def unique_tasks(app: App) -> list[str]:
    """Return the names of the app's tasks, for the hint on an empty page."""
    return sorted(app.tasks)
