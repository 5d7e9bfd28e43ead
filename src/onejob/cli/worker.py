"""`onejob worker`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_command, redacted
from onejob.cli.options import read_duration, read_queues
from onejob.cli.output import number_of, rough

if TYPE_CHECKING:
    from onejob import App, Worker

log = logging.getLogger("onejob")

IDLE_THREADS_END_WITHIN = 0.2  # seconds; one that lives longer is still at work


@app_command(example="onejob worker shop:app --queues default:8,embeddings:3", needs_tasks=True)
@click.option("--queues", type=read_queues, metavar="A:3,B", help="Only these, with so many places each.")
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True, help="Places in all.")
@click.option(
    "--processes", type=click.IntRange(1), metavar="NUMBER",
    help="Of these, so many at most for tasks with process=True.",
)  # fmt: skip
@click.option("--drain", is_flag=True, help="Stop when nothing is due any more.")
@click.option(
    "--lease", type=read_duration, default="15s", show_default=True, metavar="DURATION",
    help="A job is taken back from a worker that has been silent for so long.",
)  # fmt: skip
@click.option(
    "--grace", type=read_duration, default="25s", show_default=True, metavar="DURATION",
    help="How long running jobs may go on after the first signal.",
)  # fmt: skip
@click.option("--verbose", is_flag=True, help="Log every run and every absorbed request.")
async def worker(
    app: App,
    *,
    queues: dict[str, int | None] | None,
    concurrency: int,
    processes: int | None,
    drain: bool,
    lease: timedelta,
    grace: timedelta,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run jobs until told to stop.

    The first SIGTERM or Ctrl-C lets running jobs end within the grace time, then hands them back without
    spending an attempt. The second hands them back at once.
    """
    configure_logging(verbose=verbose)
    places = queues and {queue: number or concurrency for queue, number in queues.items()}
    chosen = app.worker(
        concurrency=concurrency, queues=places, lease=lease, grace=grace, drain=drain, processes=processes
    )
    obey_signals(chosen, grace)
    announce(app, chosen, as_json=as_json)
    began = time.monotonic()
    await chosen.run()
    await app.close()
    summarise(chosen, timedelta(seconds=time.monotonic() - began), as_json=as_json)
    leave_threads_behind()


def configure_logging(*, verbose: bool) -> None:
    """Log to stderr, unless the app has its own ideas."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form)
    if verbose:
        log.setLevel(logging.DEBUG)


def obey_signals(worker: Worker, grace: timedelta) -> None:
    """Stop the worker at the first signal, and hurry it at the second."""

    def obey() -> None:
        hurried = next(signals) > 0
        worker.stop(at_once=hurried)
        left = number_of(worker.running, "running job")
        patience = (
            "at once" if hurried else f"what still runs in {rough(grace)}; a second signal does it at once"
        )
        log.info("worker %s stops: %s; handing back %s", worker.name, left, patience)

    signals = itertools.count()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, obey)


def announce(app: App, worker: Worker, *, as_json: bool) -> None:
    """Tell what this worker does."""
    if as_json:
        return tell("started", worker, url=redacted(app.url), queues=worker.queues, tasks=sorted(app.tasks))
    limits = {queue.name: queue.concurrency for queue in app.queues.values() if queue.concurrency is not None}
    queues = ", ".join(f"{name}:{min(most, limits.get(name, most))}" for name, most in worker.queues.items())
    tasks = number_of(len(app.tasks), "task")
    return click.echo(f"Worker {worker.name} runs {tasks} from {redacted(app.url)}, queues {queues}.")


def summarise(worker: Worker, span: timedelta, *, as_json: bool) -> None:
    """Tell what this worker has done."""
    ended = dict(sorted(worker.ended.items()))
    if as_json:
        return tell("stopped", worker, seconds=round(span.total_seconds(), 3), runs=ended)
    runs = ", ".join(f"{count:,} {ending}" for ending, count in ended.items()) or "nothing was due"
    total = number_of(sum(ended.values()), "run")
    return click.echo(f"Worker {worker.name} stopped after {rough(span)} and {total}: {runs}.")


def tell(event: str, worker: Worker, **facts: Any) -> None:
    """Print one event as a line of JSON."""
    click.echo(json.dumps({"event": event, "worker": worker.name, **facts}))


def leave_threads_behind() -> None:
    """End the process although plain functions still run: their jobs were handed back."""
    for thread in threading.enumerate():
        if thread.name.startswith("onejob_"):
            thread.join(IDLE_THREADS_END_WITHIN)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
