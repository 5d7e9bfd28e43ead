"""`onejob worker`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from onejob.cli.apps import AppCommand, import_option, load, run, whole
from onejob.cli.options import json_option, read_duration, read_queues
from onejob.cli.output import number_of, rough
from onejob.cli.supervisor import Supervisor, command_of, supervisor_is_gone
from onejob.errors import StoreUnavailable

if TYPE_CHECKING:
    from onejob import App, Worker

log = logging.getLogger("onejob")

SUPERVISED = {"processes", "reload", "liveness_file"}  # options that are not passed on as they are
CLOSE_WITHIN = 2.0  # seconds for a store that may not answer
LAST_STEPS = 0.2  # seconds for tasks and threads; one that lives longer is still at work


@click.command(
    cls=AppCommand, epilog="Example: onejob worker shop:app --queues default:8,embeddings:3 --processes 2"
)
@click.argument("apps", nargs=-1, required=True, metavar="APP...")
@import_option
@click.option(
    "--queues",
    type=read_queues,
    metavar="A:3,B",
    help="Only these, and how many jobs of each at once.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="How many jobs to run at once.",
)
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, metavar="NUMBER",
    help="How many worker processes to run per app; one that dies is started again.",
)  # fmt: skip
@click.option(
    "--task-processes", type=click.IntRange(1), metavar="NUMBER",
    help="How many processes at most for tasks with process=True, per worker process.",
)  # fmt: skip
@click.option("--drain", is_flag=True, help="Stop when no job is due.")
@click.option(
    "--lease", type=read_duration, default="15s", show_default=True, metavar="DURATION",
    help="After how long without renewal a worker's jobs are taken back.",
)  # fmt: skip
@click.option(
    "--grace", type=read_duration, default="25s", show_default=True, metavar="DURATION",
    help="How long running jobs may take after the first signal.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    envvar="ONEJOB_LOG_FORMAT", help="Lines for people, or one JSON object per line; also ONEJOB_LOG_FORMAT.",
)  # fmt: skip
@click.option(
    "--liveness-file", type=click.Path(dir_okay=False), metavar="PATH",
    help="Touch this file while the worker makes progress, for onejob health --liveness-file.",
)  # fmt: skip
@click.option("--reload", is_flag=True, help="Start again when a Python file of this folder changes.")
@click.option("--verbose", is_flag=True, help="Log every run and every absorbed request.")
@json_option
def worker(
    apps: tuple[str, ...],
    *,
    modules: tuple[str, ...],
    processes: int,
    reload: bool,
    log_format: str,
    verbose: bool,
    **options: Any,
) -> None:
    """Run jobs until stopped.

    The first SIGTERM or Ctrl-C lets running jobs end within the grace time, then hands them back without
    spending an attempt. The second hands them back at once. Several apps, --processes and --reload run
    worker processes under one supervisor.
    """
    configure_logging(log_format, verbose=verbose)
    if len(apps) * processes > 1 or reload:
        commands = commands_of(apps, processes, options["liveness_file"])
        supervisor = Supervisor(commands, grace=options["grace"].total_seconds(), reload=reload)
        raise click.exceptions.Exit(asyncio.run(supervisor.run()))
    app = load(apps[0], needs_tasks=True, modules=modules)
    run(work, app, {"imported_as": apps[0], **options})


def commands_of(apps: Sequence[str], processes: int, liveness_file: str | None) -> list[list[str]]:
    """Return the commands of worker processes; each has a liveness file of its own: PATH.1, PATH.2, …."""
    commands = []
    for number, app in enumerate((app for app in apps for _ in range(processes)), 1):
        own = [] if liveness_file is None else ["--liveness-file", f"{liveness_file}.{number}"]
        commands.append(command_of(app, [*own_arguments(), *own]))
    return commands


def own_arguments() -> list[str]:
    """Return the options of this command as its worker processes get them: without the supervisor's."""
    context = click.get_current_context()
    found: list[str] = []
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and isinstance(parameter, click.Option) and parameter.name not in SUPERVISED:
            found += spell_option(parameter, context.params[parameter.name or ""])
    return found


def spell_option(option: click.Option, value: Any) -> list[str]:
    """Return an option and its value as they are written on a command line."""
    flag = option.opts[0]
    if option.is_flag:
        return [flag] if value else []
    if isinstance(value, tuple):
        return [word for one in value for word in (flag, str(one))]
    if isinstance(value, dict):
        return [flag, ",".join(f"{name}:{most}" if most else name for name, most in value.items())]
    return [flag, f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)]


async def work(
    app: App,
    *,
    imported_as: str,
    queues: dict[str, int | None] | None,
    concurrency: int,
    task_processes: int | None,
    drain: bool,
    lease: timedelta,
    grace: timedelta,
    liveness_file: str | None,
    as_json: bool,
) -> None:
    """Run a worker of one app until it is stopped."""
    before = set(threading.enumerate())
    asyncio.get_running_loop().set_default_executor(blocking := ThreadPoolExecutor())
    places = queues and {queue: number or concurrency for queue, number in queues.items()}
    chosen = app.worker(
        concurrency=concurrency,
        queues=places,
        lease=lease,
        grace=grace,
        drain=drain,
        processes=task_processes,
        imported_as=imported_as,
        liveness_file=liveness_file,
    )
    line = await introduce(app, chosen, drain=drain, as_json=as_json)
    began = time.monotonic()
    running = asyncio.create_task(chosen.run(signals=True))
    await asyncio.sleep(0)  # from here on it obeys signals
    click.echo(line)
    orphaned = asyncio.create_task(stop_without_supervisor(chosen))
    await running
    orphaned.cancel()
    await asyncio.wait([asyncio.create_task(app.close())], timeout=CLOSE_WITHIN)
    summarise(chosen, timedelta(seconds=time.monotonic() - began), as_json=as_json)
    blocking.shutdown(wait=False, cancel_futures=True)
    await leave_behind(before)


async def stop_without_supervisor(worker: Worker) -> None:
    """Stop a worker whose supervisor was killed."""
    await supervisor_is_gone()
    log.error("the supervisor is gone, so worker %s stops", worker.name)
    worker.stop()


def configure_logging(log_format: str, *, verbose: bool) -> None:
    """Log to stderr, unless the app has configured logging; processes that run tasks log in the same form."""
    from onejob import log_formatter

    os.environ["ONEJOB_LOG_FORMAT"] = log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_formatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if verbose:
        log.setLevel(logging.DEBUG)


async def introduce(app: App, worker: Worker, *, drain: bool, as_json: bool) -> str:
    """Return a line that says what this worker runs."""
    if as_json:
        return event("started", worker, url=whole(app.url), queues=worker.queues, tasks=sorted(app.tasks))
    tasks = number_of(len(app.tasks), "task")
    try:
        declared = [status.queue for status in await app.queues.list()]
    except StoreUnavailable:
        if drain or app.url.startswith("sqlite:"):  # a file that cannot be opened does not appear by itself
            raise
        queues = ", ".join(worker.queues)
        return f"Worker {worker.name} waits for {whole(app.url)}, to run {tasks} of queues {queues}."
    limits = {queue.name: queue.concurrency for queue in declared if queue.concurrency is not None}
    queues = ", ".join(f"{name}:{min(most, limits.get(name, most))}" for name, most in worker.queues.items())
    return f"Worker {worker.name} runs {tasks} from {whole(app.url)}, queues {queues}."


def summarise(worker: Worker, span: timedelta, *, as_json: bool) -> None:
    """Print what this worker has done."""
    ended = dict(sorted(worker.ended.items()))
    if as_json:
        return click.echo(event("stopped", worker, seconds=round(span.total_seconds(), 3), runs=ended))
    runs = ", ".join(f"{count:,} {ending}" for ending, count in ended.items()) or "no job was due"
    total = number_of(sum(ended.values()), "run")
    return click.echo(f"Worker {worker.name} stopped after {rough(span)} and {total}: {runs}.")


def event(kind: str, worker: Worker, **facts: Any) -> str:
    """Return one event as a line of JSON."""
    return json.dumps({"event": kind, "worker": worker.name, **facts})


async def leave_behind(before: set[threading.Thread]) -> None:
    """End the process although tasks or threads that the jobs have started do not; they were handed back."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, tasks = await asyncio.wait(tasks, timeout=LAST_STEPS)
    threads = [thread for thread in set(threading.enumerate()) - before if not thread.daemon]
    for thread in threads:
        thread.join(LAST_STEPS)
    if tasks or any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
