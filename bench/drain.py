"""How fast one worker process empties a queue of jobs that do nothing, beside huey's.

    python -m bench.drain ours|plain|huey FILE NORMAL|FULL COUNT

fills a queue, empties it and prints the rate. Both sides have everything enqueued before the clock starts,
and stop it when the store holds no unfinished job. huey forgets a job before it runs and keeps no result;
ours is leased, fenced, completed and kept.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

from bench.measure import LEVELS, Plan, Reading, Synchronous, alternate, at_least, shown, timing
from onejob import App, Unique
from onejob.job import State

CONCURRENCY = 500


def drain(plan: Plan) -> Iterator[Reading]:
    """Measure ours, keyed and not, against huey."""
    number = plan.size(10_000, 2_000)
    files = (plan.folder / f"drain-{index}.db" for index in count())
    for synchronous in LEVELS:
        run = partial(in_a_process, files, synchronous, number)
        keyed = alternate(plan, lambda: run("ours"), lambda: run("huey"))  # noqa: B023 - called in this turn
        plain = alternate(plan, lambda: run("plain"), lambda: run("huey"))  # noqa: B023 - as above
        yield at_least(f"drain keyed no-ops, {synchronous}", keyed, 3, unit="jobs/s", against="huey")
        yield shown(f"drain plain no-ops, {synchronous}", plain, unit="jobs/s", against="huey")


def in_a_process(files: Iterator[Path], synchronous: Synchronous, number: int, side: str) -> float:
    """Let one side drain in a process of its own."""
    command = [sys.executable, "-m", "bench.drain", side, str(next(files)), synchronous, str(number)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def drain_ours(path: Path, synchronous: Synchronous, number: int, *, keyed: bool) -> float:
    """Fill and empty our queue."""
    async with App(f"sqlite:///{path}?synchronous={synchronous}") as app:

        @app.task(unique=Unique() if keyed else None)
        async def nothing(number: int) -> None: ...

        await app.enqueue_many([nothing.call(i) for i in range(number)])
        with timing() as watch:
            await app.worker(concurrency=CONCURRENCY, drain=True).run()
        stats = await app.stats()
    assert stats.by_state[State.COMPLETED] == number
    return watch.rate(number)


def drain_huey(path: Path, synchronous: Synchronous, number: int) -> float:
    """Fill and empty huey's queue."""
    from huey import SqliteHuey  # type: ignore[import-untyped]

    huey: Any = SqliteHuey(filename=str(path), results=False)
    done: list[int] = []

    @huey.task()  # type: ignore[untyped-decorator]
    def nothing(number: int) -> None:
        done.append(number)

    connection = huey.storage.conn  # the one that its worker thread uses as well
    connection.execute(f"PRAGMA synchronous = {synchronous}")
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


def main() -> None:
    """Run one side and print its rate."""
    side, file, level, number = sys.argv[1:]
    path, synchronous = Path(file), cast("Synchronous", level)
    if side == "huey":
        print(drain_huey(path, synchronous, int(number)))
    else:
        print(asyncio.run(drain_ours(path, synchronous, int(number), keyed=side == "ours")))


if __name__ == "__main__":
    main()
