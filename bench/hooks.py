"""What hooks and logs cost: keyed enqueues, duplicates and a drain, with all of them and with none.

Run it with `python -m bench.hooks [URL]`. One side has a hook for every event, records the callers of
absorbed requests, and records requests for advice; the other side does none of this. (`bench.recording`
measures the last alone.) Both sides are in one process and take turns at a few hundred calls, so that
whatever else the machine does slows both. The ratio is the median of the turns' ratios of processor time. A
URL names a store that both share; without one, each has a SQLite file.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

from onejob import App, Event, Unique
from onejob.engine.hooks import KINDS
from onejob.testing import drain

JOBS = 200
TURNS = 120

Act = Callable[[], Awaitable[None]]


class Side:
    """An app with a hook for every event, or without any."""

    def __init__(self, app: App, *, hooked: bool) -> None:
        self.app = app
        self.heard = 0
        self._numbers: Iterator[int] = count(1)

        @app.task(unique=Unique(by="n"))
        async def work(n: int) -> None: ...

        self._work = work
        for kind in KINDS if hooked else ():
            app.on(kind)(self._hear)  # type: ignore[arg-type]

    def _hear(self, _: Event) -> None:
        self.heard += 1

    async def enqueue(self) -> None:
        """Enqueue new keys."""
        for _ in range(JOBS):
            await self._work.enqueue(next(self._numbers))

    async def repeat(self) -> None:
        """Enqueue a key that is held."""
        for _ in range(JOBS):
            await self._work.enqueue(1)

    async def finish(self) -> None:
        """Run what waits."""
        await drain(self.app, concurrency=32)
        self._numbers = count(1)


async def seconds(act: Act) -> float:
    """Return the processor time that an act takes."""
    began = time.process_time()
    await act()
    return time.process_time() - began


async def measure(urls: tuple[str, str]) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds without and with hooks of every turn, by what was measured."""
    found: dict[str, list[tuple[float, float]]] = {}
    async with AsyncExitStack() as stack:
        bare = App(urls[0], namespace="off", record_callers=False, record_requests=False)
        off = Side(await stack.enter_async_context(bare), hooked=False)
        on = Side(await stack.enter_async_context(App(urls[1], namespace="on")), hooked=True)
        for turn in range(TURNS):
            for what in ("enqueue", "repeat", "finish"):
                sides = (off, on) if turn % 2 else (on, off)
                took = {side: await seconds(getattr(side, what)) for side in sides}
                found.setdefault(what, []).append((took[off], took[on]))
        assert (off.heard, on.heard) == (0, TURNS * (4 * JOBS + 2))  # a worker starts and stops
    return found


def main() -> None:
    """Print the rates with and without hooks, and their ratios."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        files = tuple(f"sqlite:///{Path(folder) / name}.db" for name in ("off", "on"))
        found = asyncio.run(measure((sys.argv[1], sys.argv[1]) if sys.argv[1:] else (files[0], files[1])))
    for what, turns in found.items():
        off, on = (JOBS / statistics.median(turn[side] for turn in turns) for side in (0, 1))
        ratio = statistics.median(one / other for one, other in turns)
        print(f"{what:8}  off {off:9,.0f}/s  on {on:9,.0f}/s  ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
