"""Workers as the store knows them: each writes a row at every heartbeat, and when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from onejob.engine.engine import Engine
from onejob.stores.contract import Observation

KIND = "worker"
HEARTBEAT = timedelta(seconds=5)
SILENT_AFTER = 2 * HEARTBEAT  # a worker that is silent for longer is taken for dead
FORGOTTEN_AFTER = timedelta(days=1)
MOST = 10_000  # rows that are kept


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it last described itself.

    Attributes:
        name: The worker's name.
        host: The machine that it runs on.
        process: The id of its process.
        version: Its version of onejob.
        started_at: When it started.
        seen_at: When it last wrote this.
        queues: The queues that it serves, with the most jobs of each at once.
        tasks: The tasks that it knows.
        running: The ids of the jobs that it runs.
        concurrency: How many jobs it runs at once at most.
        stopped: Whether it has stopped in order.
        alive: Whether it was seen within two heartbeats, by the store's clock, when this was read.
    """

    name: str
    host: str
    process: int
    version: str
    started_at: datetime
    seen_at: datetime
    queues: dict[str, int]
    tasks: Sequence[str]
    running: Sequence[str]
    concurrency: int
    stopped: bool = False
    alive: bool = False

    def is_alive(self, now: datetime) -> bool:
        """Return whether the worker has not stopped and was seen within two heartbeats."""
        return not self.stopped and now - self.seen_at <= SILENT_AFTER


async def report(
    engine: Engine, status: WorkerStatus | None, measured: Sequence[Observation] = (), most: int = 1
) -> None:
    """Write a worker's row, and what it has measured: of that, the `most` newest rows stay."""
    rows = list(measured)
    if status is not None:
        data = msgspec.json.encode(status).decode()
        rows.append(Observation(engine.namespace, KIND, status.name, status.name, status.seen_at, data))
    if rows:
        await engine.store.observe(rows, most)


async def read_workers(engine: Engine) -> list[WorkerStatus]:
    """Return the workers that have not stopped in order, those seen last first, and which are alive."""
    now = engine.store.now()
    rows = await engine.store.observations(engine.namespace, KIND, limit=MOST)
    workers = [msgspec.json.decode(row.data, type=WorkerStatus) for row in rows]
    return [
        msgspec.structs.replace(worker, alive=worker.is_alive(now))
        for worker in workers
        if not worker.stopped
    ]


async def forget_workers(engine: Engine) -> None:
    """Remove the rows of workers that have been silent for long."""
    before = engine.store.now() - FORGOTTEN_AFTER
    await engine.store.forget(engine.namespace, KIND, before=before, most=MOST)
