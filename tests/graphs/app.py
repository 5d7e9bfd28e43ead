"""The app of the graphs, and a worker process that dies between any two of its writes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from onejob import App, Retry, Unique, current
from onejob.worker import chores

RETRY = Retry(attempts=1000, base=0, factor=1, jitter=0)


def open_app(url: str) -> App:
    """Return the app of a process."""
    app = App(url)
    declare(app)
    return app


def declare(app: App) -> None:
    """Register the one task, whose runs add up what they waited for and continue their chains."""

    @app.task(name="node", retry=RETRY, unique=Unique(by=("graph", "key"), until="forever"))
    async def node(graph: int, index: int, key: int, left: int, failures: int, sum_: int) -> int:
        context = current()
        if len([error for error in context.job.failures if error["type"] == "RuntimeError"]) < failures:
            raise RuntimeError("as planned")
        results: list[int] = [one.result for one in context.blockers]
        total = sum_ + sum(results)
        if left > 1:
            context.continue_with(node.call(graph, index, key, left - 1, failures, total + 1))
            return 0
        return total + 1


class Deadly:
    """A store's method that sometimes kills its process: before the write, or after it."""

    def __init__(
        self, method: Callable[..., Awaitable[Any]], probability: float, chance: random.Random
    ) -> None:
        self._method = method
        self._probability = probability
        self._chance = chance

    async def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the method, unless the process dies first."""
        self._maybe_die()
        answer = await self._method(*args, **options)
        self._maybe_die()
        return answer

    def _maybe_die(self) -> None:
        if self._chance.random() < self._probability:
            os.kill(os.getpid(), signal.SIGKILL)


async def work(url: str, probability: float, seed: int) -> None:
    """Work until killed."""
    chores.SWEEP_EVERY = 0.3
    app = open_app(url)
    async with app:
        store, chance = app._engine.store, random.Random(seed)
        store.apply = Deadly(store.apply, probability, chance)  # type: ignore[method-assign]
        store.lease = Deadly(store.lease, probability, chance)  # type: ignore[method-assign]
        await app.worker(concurrency=4, lease="1s").run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
