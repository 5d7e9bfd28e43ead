"""Starlette and FastAPI: a lifespan that closes the app, perhaps with a worker, and a dependency."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from onejob import App

STATE = "onejob"

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(app: App, *, worker: bool | Mapping[str, Any] = False, dashboard: Any = None) -> Lifespan:
    """Return a lifespan for `FastAPI(lifespan=…)` or `Starlette(lifespan=…)`.

    Args:
        app: The app, which is closed when the server stops.
        worker: Whether to run a worker in the server's process; or the arguments of `app.worker`.
        dashboard: A mounted `onejob.http.dashboard(app)`, whose counts run while the server does; the
            lifespan of a mounted app is not run by Starlette.

    Examples:
        >>> site = FastAPI(lifespan=lifespan(app, worker={"concurrency": 4}))
    """

    @asynccontextmanager
    async def run(_site: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            if worker is not False:
                options = {} if worker is True else dict(worker)
                await stack.enter_async_context(app.worker(**options))
            if dashboard is not None:
                await stack.enter_async_context(dashboard.router.lifespan_context(dashboard))
            yield {STATE: app}

    return run


def get_app(connection: HTTPConnection) -> App:
    """Return the app of the lifespan; a dependency: `Annotated[App, Depends(get_app)]`.

    Raises:
        LookupError: The site has no lifespan of onejob.
    """
    app: App | None = getattr(connection.state, STATE, None)
    if app is None:
        raise LookupError(
            "No onejob App is open: write lifespan=onejob.integrations.starlette.lifespan(app)."
        )
    return app
