"""Serve the dashboard with uvicorn."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from onejob import App
from onejob.errors import InvalidCall
from onejob.http import LOOPBACK, dashboard, require

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette


def check_bind(host: str, token: str | None) -> None:
    """Raise InvalidCall for an address that others can reach, unless a token is asked for."""
    if not token and not is_loopback(host):
        raise InvalidCall(
            f"{host} can be reached by others, and no token is set: write --token, or --host 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_for(host: str, names: Collection[str]) -> frozenset[str]:
    """Return the names by which a server at an address may be addressed."""
    if is_loopback(host):
        return frozenset({*LOOPBACK, host, *names})
    return frozenset(names or {"*"})


def serve(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    token: str | None = None,
    read_only: bool = False,
    names: Collection[str] = (),
) -> None:
    """Serve the dashboard of an app until the process is asked to stop.

    Args:
        app: The app.
        host: The address to listen at.
        port: The port to listen at.
        token: The secret that a browser must present.
        read_only: Show everything and change nothing.
        names: The host names by which the server may be addressed; all if it is not a loopback address.

    Raises:
        InvalidCall: The address can be reached by others and no token is set, it is taken, or a package is
            missing.
    """
    require()
    check_bind(host, token)
    site = dashboard(app, token=token, read_only=read_only, hosts=hosts_for(host, names))
    with (
        listen(host, port) as listening,
        suppress(KeyboardInterrupt),
    ):  # uvicorn raises it when it has stopped
        make_server(site).run(sockets=[listening])
    app.close_sync()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise InvalidCall if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidCall(
            f"Nothing can listen at {host} port {port}: {error.strerror}. Write another --port or --host."
        ) from error


def make_server(site: Starlette) -> uvicorn.Server:
    """Return a server that ends the streams of live updates when it is asked to stop."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            site.state.dashboard.sampler.stopping.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(site, log_level="warning", server_header=False, timeout_graceful_shutdown=3)
    return Server(config)
