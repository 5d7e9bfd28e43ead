"""The command line: one small module per group of commands, loaded when one of them is named."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from onejob import __version__
from onejob.errors import OnejobError

COMMANDS = {
    "demo": "demo",
    "worker": "worker",
    "enqueue": "enqueue",
    "why": "why",
    "jobs": "jobs",
    "job": "jobs",
    "cancel": "jobs",
    "dead": "dead",
    "replay": "dead",
    "holds": "holds",
    "release": "holds",
    "stats": "store",
    "doctor": "store",
    "migrate": "store",
}


class LazyGroup(click.Group):
    """Loads a command's module when the command is needed, and says errors in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List commands in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"onejob.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what onejob refuses ends it with a sentence, never with a traceback."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except OnejobError as error:
            raise click.ClickException(str(error)) from error


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="APP is module:attribute, such as shop:app; set ONEJOB_APP to leave it out. "
    "Commands that need no tasks take a URL as well, such as sqlite:///jobs.db.",
)
@click.version_option(__version__, prog_name="onejob")
def main() -> None:
    """Background jobs that run once.

    Example: onejob worker shop:app
    """
