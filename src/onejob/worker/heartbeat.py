"""A worker's heartbeat: the row by which operators see that it is alive, what it knows and what it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version

import msgspec

from onejob.engine.engine import Engine
from onejob.engine.presence import WorkerStatus, report
from onejob.engine.timings import PER_WORKER, Recorder
from onejob.errors import StoreError
from onejob.tasks.registry import Registry
from onejob.worker.liveness import LivenessFile
from onejob.worker.run import Run

log = logging.getLogger("onejob")

LAST_LIMIT = 1.0  # seconds that a stopping worker waits for its last row to be written

find_version = cache(version)  # it reads and parses a file


class Heartbeat:
    """Describes a worker to the store, and writes what it has measured."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        *,
        name: str,
        concurrency: int,
        queues: Mapping[str, int],
        runs: Mapping[str, Run],
        timings: Recorder,
        liveness: LivenessFile,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._name = name
        self._concurrency = concurrency
        self._queues = queues
        self._runs = runs
        self._timings = timings
        self._liveness = liveness
        self._started_at: datetime | None = None

    async def beat(self) -> None:
        """Write the worker's row and its timings; then the store has answered, and the event loop runs."""
        await self._write(self._describe())
        self._liveness.touch()

    async def end(self) -> None:
        """Write that the worker has stopped; a store that does not answer does not delay the end.

        A draining worker that ends before its first heartbeat has no row, and needs none.
        """
        has_row = self._started_at is not None
        last = msgspec.structs.replace(self._describe(), stopped=True) if has_row else None
        try:
            await asyncio.wait_for(self._write(last), LAST_LIMIT)
        except (TimeoutError, StoreError) as error:
            log.debug("worker %s could not write that it has stopped: %s", self._name, error)

    async def _write(self, status: WorkerStatus | None) -> None:
        """Write a row and the timings that have changed; these are written again if the store fails."""
        measured = self._timings.take(self._engine.namespace)
        try:
            await report(self._engine, status, measured, PER_WORKER)
        except BaseException:
            self._timings.keep()
            raise
        self._timings.written()

    def _most(self, queue: str, most: int) -> int:
        """Return how many jobs of a queue the worker runs at once, by its own limit and that of the queue."""
        declared = self._registry.queues.get(queue)
        limit = None if declared is None else declared.concurrency
        return most if limit is None else min(most, limit)

    def _describe(self) -> WorkerStatus:
        now = self._engine.store.now()
        self._started_at = self._started_at or now
        return WorkerStatus(
            name=self._name,
            host=socket.gethostname(),
            process=os.getpid(),
            version=find_version("onejob"),
            started_at=self._started_at,
            seen_at=now,
            queues={queue: self._most(queue, most) for queue, most in self._queues.items()},
            tasks=sorted(self._registry.tasks),
            running=list(self._runs),
            concurrency=self._concurrency,
        )
