"""Chains: those with more than one job or with blockers, and each of them drawn."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from onejob import App
from onejob.errors import UnknownJob
from onejob.http.pages.charts import draw_graph
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import go, render
from onejob.http.pages.state import app_of, state_of

SHOWN = 100
MOST_JOBS = 60  # of one chain in the drawing


async def chains(request: Request) -> Response:
    """List the chains among the newest jobs."""
    sample = await state_of(request).sampler.sample()
    return await render(request, "chains", chains=sample.chains[:SHOWN], looked_at=len(sample.newest))


async def chain(request: Request) -> Response:
    """Show one chain: its jobs, what it waits for, and what waits for it."""
    app, chain_id = app_of(request), request.path_params["chain_id"].lower()
    one = app.chain(chain_id)
    status, jobs, dependants = await one.status(), await one.jobs(), await one.dependants(limit=20)
    blockers = [await blocker(app, name) for name in (jobs[0].awaits if jobs else [])[:20]]
    return await render(
        request,
        "chain",
        chain_id=one.id,
        phase=status,
        jobs=jobs,
        dependants=dependants,
        graph=draw_graph(jobs[-MOST_JOBS:], blockers, dependants),
        hidden=max(len(jobs) - MOST_JOBS, 0),
    )


async def blocker(app: App, chain_id: str) -> tuple[str, str, str]:
    """Return a chain with its last task and its state."""
    try:
        last = await app.chain(chain_id).last()
    except UnknownJob:
        return chain_id, "gone", "cancelled"
    return chain_id, last.task, str(await app.chain(chain_id).status())


async def cancel_chain(request: Request) -> Response:
    """Cancel a chain: no further job of it starts."""
    await form_of(request)
    chain_id = request.path_params["chain_id"]
    one = app_of(request).chain(chain_id)
    last = await one.cancel()
    return go(request, f"/chains/{one.id}", f"The chain is cancelled; its last job is {last.state}.")
