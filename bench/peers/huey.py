"""huey on SQLite: one worker thread. It deletes a job before it runs and keeps no result."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from huey import SqliteHuey  # type: ignore[import-untyped]

from bench.measure import timing


def drain(url: str, number: int) -> float:
    """Fill and empty huey's queue."""
    parts = urlsplit(url)
    huey: Any = SqliteHuey(filename=parts.path[1:], results=False)
    done: list[int] = []

    @huey.task()  # type: ignore[untyped-decorator]
    def nothing(number: int) -> None:
        done.append(number)

    connection = huey.storage.conn  # the one that its worker thread uses as well
    connection.execute(f"PRAGMA synchronous = {parse_qs(parts.query)['synchronous'][0]}")
    messages = [(huey.name, huey.serialize_task(nothing.s(i)), 0) for i in range(number)]
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO task (queue, data, priority) VALUES (?, ?, ?)", messages)
    connection.execute("COMMIT")

    consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False)
    with timing() as watch:
        consumer.start()
        while len(done) < number:
            time.sleep(0.001)
    consumer.stop(graceful=True)
    assert huey.storage.queue_size() == 0
    return watch.rate(number)
