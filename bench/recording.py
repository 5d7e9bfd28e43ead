"""What recording requests costs: keyed enqueues, duplicates and a drain, with `record_requests` and without.

Run it with `python -m bench.recording memory` or `sqlite`. Two apps on two stores take turns, so that a busy
machine slows both, and the median of the ratios counts. Each part ends with writing what is in memory, which
is more often than in use.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from onejob import App, Task, Unique
from onejob.testing import drain

PART = 2000  # requests
PARTS = 11

Act = Callable[[App, "Task[..., None]", int], Awaitable[object]]


def declare(app: App) -> Task[..., None]:
    @app.task(unique=Unique(by="n"), retention={"completed": 0})
    async def work(n: int, text: str) -> None: ...

    return work


async def enqueue(_app: App, work: Task[..., None], part: int) -> None:
    for number in range(part * PART, (part + 1) * PART):
        await work.enqueue(number, "hello")


async def repeat(_app: App, work: Task[..., None], part: int) -> None:
    for number in range(PART):
        await work.enqueue(number % 100 + part, "hello")


async def finish(app: App, _work: Task[..., None], _part: int) -> None:
    await drain(app, concurrency=32)


async def seconds(act: Act, app: App, work: Task[..., None], part: int) -> float:
    """Return the processor time of a part, with the writing of what is in memory after it."""
    began = time.process_time()
    await act(app, work, part)
    await app.activity.absorbed(limit=1)
    return time.process_time() - began


async def measure(urls: tuple[str, str]) -> None:
    """Print the rates with and without recording, and the ratio."""
    async with App(urls[0], record_requests=False) as off, App(urls[1]) as on:
        sides = [(off, declare(off)), (on, declare(on))]
        for name, act, before in (
            ("keyed", enqueue, None),
            ("duplicates", repeat, None),
            ("drain", finish, enqueue),
        ):
            times: list[tuple[float, float]] = []
            for part in range(PARTS):
                found = {}
                for side in (0, 1) if part % 2 else (1, 0):
                    app, work = sides[side]
                    if before is not None:
                        await drain(app, concurrency=32)
                        await before(app, work, 1000 + part)
                    found[side] = await seconds(act, app, work, part)
                times.append((found[0], found[1]))
            ratio = median(without / recording for without, recording in times)
            rates = [PART / median(one[side] for one in times) for side in (0, 1)]
            print(f"{name:10}  off {rates[0]:9,.0f}/s  on {rates[1]:9,.0f}/s  ratio {ratio:.3f}")


def main() -> None:
    """Measure on memory and SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        files = [f"sqlite:///{Path(folder) / name}.db?synchronous=NORMAL" for name in ("off", "on")]
        for urls in (("memory://", "memory://"), (files[0], files[1])):
            if sys.argv[1:] in ([], [urls[0].partition(":")[0]]):
                print(urls[0].partition(":")[0])
                asyncio.run(measure(urls))


if __name__ == "__main__":
    main()
