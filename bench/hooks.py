"""What hooks cost: keyed enqueues, duplicates and a drain, with a hook for every event and without any.

Run it with `python -m bench.hooks [URL]`. Both sides take turns, so that a busy machine slows
both; the best round of each counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from onejob import App, Event, Unique
from onejob.engine.hooks import KINDS
from onejob.testing import drain

JOBS = 2000
ROUNDS = 15


async def measure(url: str, *, hooked: bool) -> dict[str, float]:
    """Return operations per second of processor time, which other programs on the machine change less."""
    heard = 0

    def count(_: Event) -> None:
        nonlocal heard
        heard += 1

    async with App(url) as app:

        @app.task(unique=Unique(by="n"))
        async def work(n: int) -> None: ...

        for kind in KINDS if hooked else ():
            app.on(kind)(count)  # type: ignore[arg-type]

        async def enqueue() -> None:
            for number in range(JOBS):
                await work.enqueue(number)

        async def repeat() -> None:
            for _ in range(JOBS):
                await work.enqueue(0)

        async def finish() -> None:
            await drain(app, concurrency=32)

        rates = {
            "keyed": await rate(enqueue),
            "duplicates": await rate(repeat),
            "drain": await rate(finish),
        }
        assert heard == (4 * JOBS + 2 if hooked else 0)
        return rates


async def rate(act: Callable[[], Awaitable[None]]) -> float:
    began = time.process_time()
    await act()
    return JOBS / (time.process_time() - began)


def main() -> None:
    """Print the rates with and without hooks, and their ratios."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(ROUNDS):
        for hooked in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                url = sys.argv[1] if sys.argv[1:] else f"sqlite:///{Path(folder) / 'jobs.db'}"
                found[hooked].append(asyncio.run(measure(url, hooked=hooked)))
    for what in found[True][0]:
        off, on = (max(one[what] for one in found[hooked]) for hooked in (False, True))
        print(f"{what:10}  off {off:9,.0f}/s  on {on:9,.0f}/s  ratio {on / off:.3f}")


if __name__ == "__main__":
    main()
