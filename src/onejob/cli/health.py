"""`onejob health`: whether jobs are started in time and end as usual, or whether a worker makes progress."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import AppCommand, import_option, load, namespace_option, refuse_empty, run
from onejob.cli.options import json_option, read_duration
from onejob.cli.output import print_findings, rough

if TYPE_CHECKING:
    from onejob import App, Finding

MAX_AGE = timedelta(minutes=5)  # of the oldest due job
MAX_AGE_OF_FILE = timedelta(seconds=30)  # six heartbeats


@click.command(
    cls=AppCommand,
    epilog="Example: onejob health shop:app --max-age 2m, or on a worker's machine, without the store: "
    "onejob health --liveness-file /tmp/onejob.alive --max-age 30s",
)
@click.argument("app", required=False)
@import_option
@namespace_option
@click.option(
    "--max-age", type=read_duration, metavar="DURATION",
    help="How long the oldest due job of a queue may wait, 5m if left out; of a liveness file its age, 30s "
    "if left out.",
)  # fmt: skip
@click.option(
    "--max-dead", type=click.IntRange(0), default=10, show_default=True, metavar="NUMBER",
    help="How many jobs may fail for good within an hour.",
)  # fmt: skip
@click.option(
    "--timeout", type=read_duration, default="5s", show_default=True, metavar="DURATION",
    help="How long the store may take to answer.",
)  # fmt: skip
@click.option(
    "--liveness-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
    help="Check only whether the worker that was given this file has touched it; the store is not asked.",
)  # fmt: skip
@json_option
def health(
    app: str | None,
    *,
    modules: tuple[str, ...],
    namespace: str | None,
    max_age: timedelta | None,
    liveness_file: Path | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Check whether jobs are started in time and end as usual; exit with 1 if a check fails."""
    if liveness_file is not None:
        failed = print_findings(
            [look_at(liveness_file, MAX_AGE_OF_FILE if max_age is None else max_age)], as_json=as_json
        )
        raise click.exceptions.Exit(failed)
    if app is None:
        raise click.UsageError("Name the app, as in onejob health shop:app, or give --liveness-file.")
    opened = load(app, namespace, modules=modules)
    if opened.url.startswith("sqlite:"):
        refuse_empty(opened)
    run(examine, opened, {"max_age": MAX_AGE if max_age is None else max_age, "as_json": as_json, **limits})


async def examine(app: App, *, as_json: bool, **limits: Any) -> int:
    """Print what the app finds; return the exit code."""
    return print_findings(await app.maintenance.health(**limits), as_json=as_json)


def look_at(path: Path, max_age: timedelta) -> Finding:
    """Return whether a worker has touched its file in time, or each of its worker processes theirs."""
    from onejob import Finding

    own = re.compile(rf"{re.escape(path.name)}(\.\d+)?")  # a supervisor's worker processes have numbers
    files = path.parent.iterdir() if path.parent.is_dir() else ()
    touched = [one.stat().st_mtime for one in files if own.fullmatch(one.name)]
    if not touched:
        message = f"There is no file {path}: no worker was started with it, or it has stopped."
        return Finding("liveness", "fail", message)
    age = timedelta(seconds=max(time.time() - min(touched), 0))
    if age > max_age:
        message = f"The worker of {path} has made no progress for {rough(age)}, more than {rough(max_age)}."
        return Finding("liveness", "fail", message, "Restart it: it hangs, or the store does not answer.")
    return Finding("liveness", "ok", f"The worker of {path} made progress {rough(age)} ago.")
