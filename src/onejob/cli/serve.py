"""`onejob serve`: the dashboard."""

from __future__ import annotations

import click

from onejob.cli.apps import (
    URL,
    AppCommand,
    hide_password,
    import_option,
    load,
    namespace_option,
    refuse_empty,
)
from onejob.cli.options import json_option
from onejob.cli.output import emit

TOKEN_VARIABLE = "ONEJOB_TOKEN"  # noqa: S105 - the name of a variable


@click.command(cls=AppCommand, epilog="Example: onejob serve shop:app --port 8080")
@click.argument("app")
@import_option
@namespace_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="The port to listen at."
)
@click.option("--read-only", is_flag=True, help="Show everything and change nothing.")
@click.option(
    "--token", envvar=TOKEN_VARIABLE, help=f"The secret that browsers present; also {TOKEN_VARIABLE}."
)
@click.option("--name", "names", multiple=True, help="A host name of this server; may be repeated.")
@json_option
def serve(
    *,
    app: str,
    modules: tuple[str, ...],
    namespace: str | None,
    host: str,
    port: int,
    read_only: bool,
    token: str | None,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show jobs, keys and queues in a browser, and let people act on them."""
    from onejob.http import require
    from onejob.http.serve import check_bind
    from onejob.http.serve import serve as run

    require()
    check_bind(host, token)
    opened = load(app, namespace, modules=modules)
    if URL.fullmatch(app):
        refuse_empty(opened)
    if as_json:
        emit({"url": address(host, port)})
    else:
        click.echo(f"Dashboard of {hide_password(app)}: {address(host, port)}  (stop it with Ctrl-C)")
    run(opened, host=host, port=port, token=token, read_only=read_only, names=names)


def address(host: str, port: int) -> str:
    """Return the URL that a browser opens."""
    shown = "127.0.0.1" if host in {"", "0.0.0.0", "::"} else host  # noqa: S104 - shown, not bound
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
