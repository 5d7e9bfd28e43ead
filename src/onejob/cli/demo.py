"""`onejob demo`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from onejob.cli.options import json_option

if TYPE_CHECKING:
    from onejob import App


@click.command(epilog="Example: onejob demo")
@json_option
@click.option("--serve", "serves", is_flag=True, help="Leave the dashboard open on the demo's jobs.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="The dashboard's port."
)
def demo(*, as_json: bool, serves: bool, port: int) -> None:
    """Watch duplicates being absorbed, in a minute, on a temporary database."""
    from onejob.demo import main

    if as_json and serves:
        raise click.UsageError("--json and --serve exclude each other: write one of them.")
    show = partial(serve_demo, port=port) if serves else None
    if serves:
        from onejob.http import require

        require()
    if code := main(json=as_json, show=show):
        raise click.exceptions.Exit(code)


def serve_demo(app: App, port: int) -> None:
    """Serve the dashboard of the demo's app until it is stopped."""
    from onejob.cli.serve import address
    from onejob.http.serve import serve

    click.echo(f"\nDashboard: {address('127.0.0.1', port)}  (stop it with Ctrl-C)")
    serve(app, port=port)
