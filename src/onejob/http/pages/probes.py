"""`/health` and `/ready`: answers for load balancers and Kubernetes, without a token and for any host name.

Without a token they show which checks fail, but no name or number of a job, task, queue or worker.
"""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onejob.http.pages.state import state_of


async def health(_request: Request) -> Response:
    """Answer that this process answers; the store is not asked."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer with 200 if no check fails, else with 503; sentences are for those who may see the pages."""
    state = state_of(request)
    findings = await state.readiness.findings()
    failed = any(finding.level == "fail" for finding in findings)
    shows_all = state.rules.allows_host(request.headers.get("host", "")) and state.rules.admits(request)
    checks = [asdict(one) if shows_all else {"check": one.check, "level": one.level} for one in findings]
    return JSONResponse({"status": "fail" if failed else "ok", "checks": checks}, 503 if failed else 200)
