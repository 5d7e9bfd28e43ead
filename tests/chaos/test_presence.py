"""A worker that dies is seen to be dead within two heartbeats; one that stops in order leaves no row."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onejob import App, WorkerStatus
from onejob.engine.presence import SILENT_AFTER
from tests.chaos.children import eventually
from tests.chaos.test_ending import started

pytestmark = pytest.mark.timeout(120)


def workers(url: str) -> list[WorkerStatus]:
    async def read() -> list[WorkerStatus]:
        async with App(url) as app:
            return await app.activity.workers()

    return asyncio.run(read())


def test_a_killed_worker_is_seen_to_be_dead_within_two_heartbeats(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url)
    with started(tmp_path, url) as worker:
        eventually(lambda: bool(workers(url)), "the worker has reported")
        [seen] = workers(url)
        assert seen.process == worker.pid
        assert "gated" in seen.tasks
        assert seen.queues == {"default": seen.concurrency}
        worker.kill()
        [last] = workers(url)
    assert last.is_alive(last.seen_at + SILENT_AFTER)
    assert not last.is_alive(last.seen_at + SILENT_AFTER * 1.01)
    app.close_sync()


def test_a_worker_that_stops_in_order_is_no_longer_listed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with started(tmp_path, url) as worker:
        eventually(lambda: bool(workers(url)), "the worker has reported")
        worker.terminate()
        assert worker.end() == 0
    assert workers(url) == []
