"""What the scenario tests share: handlers under control, and ways to run what is due without sleeping."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from onejob import App, Job, State
from onejob.core.job import INCOMPLETE
from onejob.core.leasing import Lease
from tests.system.live import PATIENCE

DOOMED = "doomed"


class Stage:
    """Handlers call `play`; the test sees what runs, and lets it end."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.running: list[Any] = []
        self.most_at_once = 0
        self._go = asyncio.Event()
        self._go.set()
        self._tickets = asyncio.Semaphore(0)
        self._changed = asyncio.Condition()

    def close(self) -> None:
        """Let runs begin, but not end."""
        self._go.clear()

    def open(self) -> None:
        """Let every run end."""
        self._go.set()
        for _ in self.running:
            self._tickets.release()

    def let_one_end(self) -> None:
        """Let the run that began first end."""
        self._tickets.release()

    async def play(self, what: Any) -> None:
        """Be a handler's work."""
        self.runs.append(what)
        self.running.append(what)
        self.most_at_once = max(self.most_at_once, len(self.running))
        await self._tell()
        try:
            if not self._go.is_set():
                await self._tickets.acquire()
        finally:
            self.running.remove(what)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def begun(self, number: int) -> None:
        """Wait until so many runs have begun, in all."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.runs) >= number)


async def run_due(app: App, *, concurrency: int = 8) -> None:
    """Run what is due by the app's clock, and what that makes due."""
    async with asyncio.timeout(PATIENCE), app.worker(concurrency=concurrency):
        while await is_busy(app):
            await app._engine.store.wait(0.05)


async def is_busy(app: App) -> bool:
    """Return whether a worker has something to do at this moment."""
    jobs = await app.jobs(state=INCOMPLETE, limit=10_000)
    crashed = {job.id for job in jobs if job.state is State.ACTIVE and job.worker == DOOMED}
    return any(job.id not in crashed and is_due(job, app._engine.store.now()) for job in jobs)


def is_due(job: Job, now: datetime) -> bool:
    """Return whether a job runs, or would if a worker had room."""
    timed = job.state in {State.SCHEDULED, State.RETRYABLE}
    return job.run_at <= now if timed else job.state in {State.ACTIVE, State.AVAILABLE}


async def until(app: App, job: Job, *states: State) -> Job:
    """Wait until a job is in one of the states."""
    async with asyncio.timeout(PATIENCE):
        while (now := await app.job(job.id)).state not in states:
            await app._engine.store.wait(0.05)
    return now


async def crash_in(app: App) -> list[Job]:
    """Lease everything that is available, as a worker would that is then never heard of again."""
    wanted = Lease(
        namespace=app.namespace,
        worker=DOOMED,
        queues=dict.fromkeys(app._registry.queues, 100),
        total=100,
        duration=timedelta(seconds=15),
        tasks=app.tasks.keys(),
    )
    return (await app._engine.store.lease(wanted)).jobs


async def live(app: App, task: str) -> list[Job]:
    """List the jobs of a task that wait or run, oldest first."""
    return (await app.jobs(task=task, state=INCOMPLETE, limit=10_000))[::-1]
