"""The ASGI app: routes, guards and error pages put together; the dashboard is its first mount."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware

from onejob import App
from onejob.errors import InvalidCall
from onejob.http.guard import Guard, Rules
from onejob.http.pages.advice import Advisor
from onejob.http.pages.errors import HANDLERS
from onejob.http.pages.figures import Figures
from onejob.http.pages.readiness import Readiness
from onejob.http.pages.routes import ROUTES
from onejob.http.pages.samples import Sampler
from onejob.http.pages.state import Dashboard


def make_site(app: App, *, token: str | None, read_only: bool, hosts: Collection[str]) -> Starlette:
    """Return the ASGI app; raise InvalidCall if all hosts are allowed and no token is asked for."""
    if "*" in hosts and not token:
        raise InvalidCall("A dashboard that answers to every host name needs a token: give token=.")
    rules = Rules(token=token, read_only=read_only, hosts=frozenset(name.lower() for name in hosts))
    sampler = Sampler(app)

    @asynccontextmanager
    async def lifespan(_site: Starlette) -> AsyncIterator[None]:
        async with sampler.running():
            yield

    site = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Guard, rules=rules)],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    site.state.dashboard = Dashboard(app, rules, sampler, Advisor(app), Readiness(app), Figures(app))
    return site
