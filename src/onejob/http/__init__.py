"""HTTP: the dashboard, an ASGI app; a later HTTP API becomes a second mount beside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from onejob import App

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def dashboard(
    app: App, *, token: str | None = None, read_only: bool = False, hosts: Collection[str] = LOOPBACK
) -> Starlette:
    """Return the dashboard of an app as an ASGI app, to be served or mounted.

    Args:
        app: The app whose jobs it shows.
        token: The secret that a browser must present; needed wherever others can reach the server.
        read_only: Show everything and change nothing.
        hosts: The host names by which it may be addressed; "*" allows all, and needs a token.

    Raises:
        InvalidCall: The packages of `onejob[dashboard]` are missing, or all hosts are allowed without a
            token.

    Examples:
        >>> site.mount("/jobs", dashboard(app, token=TOKEN, hosts=["ops.example.com"]))
    """
    require()
    from onejob.http.site import make_site

    return make_site(app, token=token, read_only=read_only, hosts=hosts)


def require() -> None:
    """Raise InvalidCall if a package that the dashboard needs is missing."""
    from importlib.util import find_spec

    from onejob.errors import InvalidCall

    if missing := [name for name in ("jinja2", "starlette", "uvicorn") if find_spec(name) is None]:
        raise InvalidCall(
            f"The dashboard needs {', '.join(missing)}: install it with pip install 'onejob[dashboard]'."
        )
