"""Commands and options of other job systems: what to write instead."""

from __future__ import annotations

import click

COMMANDS = {
    "beat": "every worker makes the ticks of schedules; write onejob cron to list and change them",
    "scheduler": "every worker makes the ticks of schedules; write onejob cron to list and change them",
    "schedules": "write onejob cron list",
    "flower": "write onejob serve, or onejob top",
    "monitor": "write onejob top, or onejob tail",
    "events": "write onejob tail",
    "inspect": "write onejob workers, or onejob queues",
    "status": "write onejob stats, or onejob workers",
    "info": "write onejob stats",
    "list": "write onejob jobs",
    "call": "write onejob enqueue",
    "requeue": "write onejob replay",
    "revoke": "write onejob cancel",
    "purge": "write onejob cancel for jobs that wait, or onejob prune for jobs that have ended",
    "empty": "write onejob cancel for jobs that wait, or onejob prune for jobs that have ended",
    "guarantees": "write onejob doctor",
    "help": "write onejob --help, or onejob worker --help",
    "version": "write onejob --version",
}
TICKS = "leave it out: every worker makes the ticks of schedules"
OPTIONS = {
    **dict.fromkeys(("-A", "--app"), "write onejob worker shop:app"),
    **dict.fromkeys(("-u", "--url", "--broker"), "write the URL in the place of APP"),
    "--json": "write it after the command",
}
OF_WORKERS = {
    **dict.fromkeys(("-c", "-t", "--threads"), "write --concurrency"),
    **dict.fromkeys(("-Q", "-q", "--queue"), "write --queues"),
    **dict.fromkeys(("-l", "-v", "--loglevel", "--log-level"), "write --verbose, or leave it out"),
    **dict.fromkeys(("-B", "--beat", "--with-scheduler"), TICKS),
    **dict.fromkeys(("-P", "--pool"), "leave it out: write def, async def or @app.task(process=True)"),
    **dict.fromkeys(("-p", "-w", "--workers", "--autoscale"), "write --processes"),
    **dict.fromkeys(("-b", "--burst"), "write --drain"),
    **dict.fromkeys(("-n", "--hostname", "--name"), "leave it out: each worker names itself"),
    "--watch": "write --reload",
}


def refuse_command(context: click.Context, name: str) -> None:
    """Raise UsageError for a command that other systems have."""
    if name in COMMANDS:
        context.fail(f"There is no command {name!r}: {COMMANDS[name]}.")


def refuse_option(context: click.Context, error: click.NoSuchOption) -> None:
    """Raise UsageError for an option that other systems have."""
    options = OPTIONS | OF_WORKERS if context.info_name == "worker" else OPTIONS
    if error.option_name in options:
        context.fail(f"There is no option {error.option_name}: {options[error.option_name]}.")
