"""The command line: one small module per group of commands, loaded when one of them is named."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from onejob import __version__
from onejob.errors import OnejobError

COMMANDS = {
    "demo": ("demo", "Watch duplicates being absorbed."),
    "worker": ("worker", "Run jobs until told to stop."),
    "enqueue": ("enqueue", "Ask for a call of a task, and print what became of the request."),
    "why": ("why", "Tell what a request would meet, or why a job waits or how it ended."),
    "jobs": ("jobs", "List jobs, newest first."),
    "job": ("jobs", "Show all about one job, its arguments included."),
    "cancel": ("jobs", "End a waiting job, or tell a running one to stop."),
    "chains": ("chains", "List chains, newest first, each by the job that it has come to."),
    "chain": ("chains", "Show a chain: its jobs, what it waits for, and who waits for it."),
    "dead": ("dead", "List dead letters, newest first, with the error that ended each."),
    "replay": ("dead", "Bring a dead letter back to life, or many, perhaps with other arguments."),
    "holds": ("holds", "List the jobs that hold a key, and those that wait behind them."),
    "release": ("holds", "Free a key by hand."),
    "queues": ("queues", "List queues: what waits and runs there, their limits, and which are paused."),
    "pause": ("queues", "Let no worker start jobs of a queue until it is resumed."),
    "resume": ("queues", "Let workers start jobs of a queue again."),
    "cron": ("cron", "Run tasks by the clock: list and change schedules, and read cron lines."),
    "stats": ("store", "Count jobs by queue and state, and the requests that were absorbed."),
    "doctor": ("store", "Look at the store and its jobs, and say what is wrong."),
    "prune": ("prune", "Forget ended jobs past their retention."),
    "migrate": ("store", "Make the tables, or bring them up to date."),
    "move": ("move", "Carry waiting jobs, holds and dead letters to another store."),
}
"""The module and the summary of each command, so that the list of them loads none."""


class LazyGroup(click.Group):
    """Loads a command's module when the command is needed, and says errors in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """List commands in the order in which people meet them."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"onejob.cli.{COMMANDS[cmd_name][0]}")
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
