"""`onejob mcp`: tools for assistants, over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import click

from onejob.cli.apps import AppCommand, import_option, load, namespace_option, refuse_empty


@click.command(cls=AppCommand, epilog="Example: onejob mcp shop:app")
@click.argument("app")
@import_option
@namespace_option
@click.option(
    "--show-arguments", is_flag=True, help="Show the values of arguments, metadata and results too."
)
def mcp(*, app: str, modules: tuple[str, ...], namespace: str | None, show_arguments: bool) -> None:
    """Serve read-only tools to an assistant: why, jobs, job, holds, stats, workers and doctor.

    It speaks the Model Context Protocol over standard input and output until the input ends, and changes
    nothing.
    """
    from onejob.integrations.mcp import require, serve

    require()
    with contextlib.redirect_stdout(sys.stderr):  # standard output has the protocol, and nothing else
        opened = load(app, namespace, modules=modules)
        refuse_empty(opened)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(opened, show_arguments=show_arguments))
