"""Inline mode: an enqueue also runs its job, in the caller's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from onejob.app.app import App
from onejob.core.decide import Request, Verdict
from onejob.core.job import Job
from onejob.engine.decided import Caller
from onejob.engine.engine import NONE, Engine
from onejob.errors import OnejobError
from onejob.tasks.registry import Registry
from onejob.testing.draining import raise_failure, run_due
from onejob.testing.inside import engine_of, registry_of
from onejob.worker.worker import Worker

Verdicts = list[Verdict | OnejobError]


@contextmanager
def inline(app: App, *, raises: bool = True) -> Iterator[None]:
    """Run jobs at once, in this process, whenever the app enqueues one inside the block.

    The request is decided first, as always. Then everything that is due runs, one job after the other: the
    new job, and what becomes due by it. When the enqueue returns, `result()` has its answer. It is for sync
    and async code, and for every store. A job that is due later waits, as does a job whose transaction
    (`connection=`) is not committed yet: `drain` runs them when they are due.

    Args:
        app: The app; also requests of other threads and tasks are run at once.
        raises: Let the enqueue raise what a task raises. Otherwise failures are only stored and logged.

    Examples:
        >>> with inline(app):
        ...     admission = await send_invoice.enqueue(7)
        ...     assert await admission.result() == "sent"
    """
    engine = engine_of(app)

    async def admit_and_run(
        requests: Sequence[Request],
        connection: Any = None,
        own: Mapping[str, Job] = NONE,
        caller: Caller | None = None,
    ) -> Verdicts:
        verdicts = await Engine.admit(engine, requests, connection, own, caller)
        if connection is None:
            raise_failure(await run_due(make_worker(app)), raises=raises)
        return verdicts

    def admit_and_run_sync(
        requests: Sequence[Request], connection: Any = None, own: Mapping[str, Job] = NONE
    ) -> Verdicts:
        verdicts = Engine.admit_sync(engine, requests, connection, own)
        if connection is None:
            raise_failure(engine.portal.run(run_due(make_worker(app))), raises=raises)
        return verdicts

    replaced = {"admit": admit_and_run, "admit_sync": admit_and_run_sync}
    before = {name: vars(engine)[name] for name in replaced if name in vars(engine)}  # of an outer block
    vars(engine).update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del vars(engine)[name]
        vars(engine).update(before)


def make_worker(app: App) -> Worker:
    """Return a worker that runs what is due, also tasks that have process=True, in this process."""
    declared = registry_of(app)
    here = Registry(declared.lifespan)
    here.queues = declared.queues
    here.tasks = {name: replace(task, process=False) for name, task in declared.tasks.items()}
    return Worker(
        engine_of(app),
        here,
        concurrency=1,
        queues=None,
        lease=timedelta(minutes=1),
        grace=0.0,
        drain=True,
        name="inline",
    )
