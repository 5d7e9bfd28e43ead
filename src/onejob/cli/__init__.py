"""The command line: one small module per group of commands, loaded when one of them is named."""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from onejob import __version__
from onejob.errors import OnejobError

COMMANDS = {
    "demo": ("demo", "Watch duplicates being absorbed."),
    "worker": ("worker", "Run jobs until stopped."),
    "top": ("top", "Show queues, tasks, workers and held keys live in the terminal."),
    "tail": ("tail", "Follow what happens: requests, runs and how they end."),
    "serve": ("serve", "Show jobs, keys and queues in a browser."),
    "enqueue": ("enqueue", "Enqueue a call of a task, and print what happened to the request."),
    "why": ("why", "Explain what a request would meet, or why a job waits, or how it ended."),
    "jobs": ("jobs", "List jobs, newest first."),
    "job": ("jobs", "Show one job with its arguments, its hold and its errors."),
    "cancel": ("jobs", "Cancel a waiting job, or ask a running one to stop."),
    "reschedule": ("jobs", "Move waiting jobs to another time."),
    "run-now": ("jobs", "Make scheduled and retryable jobs available at once."),
    "chains": ("chains", "List chains, newest first, each with its last job."),
    "chain": ("chains", "Show a chain: its jobs, what it waits for, and what waits for it."),
    "dead": ("dead", "List dead letters, newest first, with the error that ended each."),
    "replay": ("dead", "Replay one dead letter or many, perhaps with other arguments."),
    "holds": ("holds", "List the jobs that hold a key, and the jobs that wait behind them."),
    "release": ("holds", "Release a key."),
    "queues": ("queues", "List queues with their waiting and running jobs, limits and pauses."),
    "pause": ("queues", "Start no jobs of a queue, on any worker, until it is resumed."),
    "resume": ("queues", "Let workers start jobs of a queue again."),
    "workers": ("workers", "List workers: whether they are alive, and what they run."),
    "advise": ("advise", "Say which policies would have absorbed repeated requests."),
    "cron": ("cron", "List and change schedules, and explain cron lines."),
    "stats": ("store", "Count jobs and absorbed requests, and show how long jobs wait and run."),
    "metrics": ("metrics", "Print the figures of the store in the text format of Prometheus."),
    "health": ("health", "Check whether jobs are started in time and end as usual."),
    "doctor": ("store", "Examine the store and its jobs."),
    "prune": ("prune", "Delete ended jobs whose retention is over."),
    "mcp": ("mcp", "Serve read-only tools to an assistant: why was my job dropped?"),
    "migrate": ("store", "Create the tables, or upgrade them."),
    "move": ("move", "Move waiting jobs, holds and dead letters to another store."),
    "completion": ("completion", "Print the script that completes commands and options in a shell."),
}
"""The module and the summary of each command, so that listing them loads no module."""


class LazyGroup(click.Group):
    """Loads a command's module when the command is needed, and prints errors as one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """Return commands in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands without loading their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"onejob.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the command; answer those of other systems."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from onejob.cli.foreign import refuse_option

            refuse_option(ctx, error)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named; if there is none, name the ones that are spelled alike."""
        if args and args[0] not in COMMANDS:
            from onejob.cli.foreign import refuse_command

            refuse_command(ctx, args[0])
            if near := get_close_matches(args[0], COMMANDS, n=3):
                ctx.fail(f"There is no command {args[0]!r}: did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of onejob ends it with a sentence, without a traceback."""
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
    "Commands that need no tasks take a URL as well, such as sqlite:///jobs.db. "
    "ID is a job's id, or a unique beginning of one.",
)
@click.version_option(__version__, prog_name="onejob")
def main() -> None:
    """Background jobs that run once.

    Example: onejob worker shop:app
    """
