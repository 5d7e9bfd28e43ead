"""What a worker does at intervals: renew leases, notice cancellations, store progress, sweep and prune."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from onejob.core.job import Job, State
from onejob.engine.engine import Engine
from onejob.engine.log_lines import about
from onejob.engine.retention import prune_in_turn
from onejob.engine.sweep import Sweeper, replay_due
from onejob.engine.timings import Recorder
from onejob.stores.queries import Overdue
from onejob.tasks.registry import Registry
from onejob.worker.heartbeat import Heartbeat
from onejob.worker.liveness import LivenessFile
from onejob.worker.run import Run

log = logging.getLogger("onejob")

OUTLIVED = "outlived its lease: the store was away, or a handler kept the GIL, which process=True is for"
TAKEN_OVER = "was taken over"
UNKNOWN_EVERY = 60.0  # seconds between two looks for due jobs of tasks that the app does not have
LOOKED_AT = 200  # due jobs of each queue and priority, those that have waited longest


class Upkeep:
    """Looks after the runs of a worker, and after the jobs of workers that died."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        *,
        name: str,
        lease: timedelta,
        concurrency: int,
        queues: Mapping[str, int],
        runs: Mapping[str, Run],
        ended: Sequence[Run],
        timings: Recorder,
        liveness: LivenessFile,
    ) -> None:
        """Keep references to a worker's collections.

        Args:
            engine: The way to the store.
            registry: The tasks, for their merge functions.
            name: The worker's name, for the log.
            lease: How long a lease lasts.
            concurrency: How many jobs the worker runs at once.
            queues: The queues that the worker serves, with the most jobs of each at once.
            runs: The runs under way, by job.
            ended: The runs whose results are to be written.
            timings: How long the worker's jobs waited and ran.
            liveness: The file that shows that the worker makes progress.
        """
        self._engine = engine
        self._registry = registry
        self._name = name
        self._lease = lease
        self._queues = queues
        self._runs = runs
        self._ended = ended
        self._sweeper = Sweeper(engine, registry.merge_of)
        self._unknown_at = -UNKNOWN_EVERY  # when it last looked for jobs of unknown tasks
        self.repaired = 0
        self.heartbeat = Heartbeat(
            engine,
            registry,
            name=name,
            concurrency=concurrency,
            queues=queues,
            runs=runs,
            timings=timings,
            liveness=liveness,
        )

    async def renew(self) -> None:
        """Renew every lease, also of results that wait to be written; `watch` stops runs that lost it."""
        runs = [run for run in (*self._runs.values(), *self._ended) if run.attempt.settled is None]
        if not runs:
            return
        answers = await self._engine.apply([run.renewal_step(self._lease) for run in runs])
        for run, renewed in zip(runs, answers, strict=True):
            if renewed is None:
                run.lease_until = None
            elif isinstance(renewed, Job):
                run.attempt.keep(renewed)
                run.lease_until = renewed.lease_until

    async def watch(self) -> None:
        """Stop runs that have lost their lease or are cancelled, and store progress."""
        runs = [run for run in self._runs.values() if not run.attempt.may_be_completed]
        if not runs:
            return
        for run in runs:
            self._check_lease(run)
        await self._store_progress(runs)
        for run, job in zip(runs, await self._engine.get([run.job.id for run in runs]), strict=True):
            if job is not None and job.state is State.ACTIVE:
                run.attempt.keep(job)
            if job is not None and job.cancel_requested and run.stopped_for is None:
                run.stop("cancelled")

    def _check_lease(self, run: Run) -> None:
        """Stop a run that is another worker's, or may be by now; its result is not written."""
        is_owned = run.lease_until is not None and run.lease_until > self._engine.store.now()
        if is_owned or run.stopped_for is not None:
            return
        why = TAKEN_OVER if run.lease_until is None else OUTLIVED
        log.warning("job %s %s; its result is dropped", run.job.id, why, extra=about(run.job))
        run.stop("lost")

    async def _store_progress(self, runs: Sequence[Run]) -> None:
        news = [(run, progress) for run in runs if (progress := run.unstored_progress) is not None]
        if not news:
            return
        answers = await self._engine.apply([run.progress_step(progress) for run, progress in news])
        for (run, progress), answer in zip(news, answers, strict=True):
            run.stored_progress = progress
            if isinstance(answer, Job):
                run.attempt.keep(answer)

    async def sweep(self) -> None:
        """Take back jobs of dead workers, repair what they left, and replay dead letters that are due."""
        rescued, repaired = await self._sweeper.sweep()
        self.repaired += repaired
        if rescued or repaired:
            log.warning(
                "worker %s: jobs taken back: %d, successors repaired: %d", self._name, rescued, repaired
            )
        await replay_due(self._engine)
        if time.monotonic() - self._unknown_at >= UNKNOWN_EVERY:
            await self.warn_of_unknown_tasks()

    async def warn_of_unknown_tasks(self) -> None:
        """Log which due jobs are left alone, because this app does not have their tasks."""
        self._unknown_at = time.monotonic()
        now = self._engine.store.now()
        due = await self._engine.find(Overdue(namespace=self._engine.namespace, by=now, limit=LOOKED_AT))
        known = self._registry.tasks
        unknown = Counter(job.task for job in due if job.queue in self._queues and job.task not in known)
        if unknown:
            log.warning(
                "worker %s leaves due jobs alone whose tasks this app does not have (%s): import the modules "
                "that declare them, perhaps with --import, or start a worker of an app that has them",
                self._name,
                ", ".join(f"{task}: {number}" for task, number in unknown.most_common()),
            )

    async def prune(self) -> None:
        """Remove ended jobs past their retention, unless another worker has just done so."""
        await prune_in_turn(self._engine)
