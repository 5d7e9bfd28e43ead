"""The app of the graphs, and a worker that dies between any two of its writes."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

from onejob import App, Retry, Unique, current
from onejob import worker as machine
from onejob.stores.contract import Step

RETRY = Retry(attempts=1000, base=0, factor=1, jitter=0)


def open_app(url: str) -> App:
    """Make the app of a process."""
    app = App(url)
    declare(app)
    return app


def declare(app: App) -> None:
    """Register the one task, whose runs count what they waited for and continue their chains."""

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


class Mortal:
    """Let a store's `apply` kill its process now and then: before the write, or after it."""

    def __init__(self, app: App, chance: float) -> None:
        self._apply = app.store.apply
        self._chance = chance

    async def __call__(self, steps: Sequence[Step]) -> list[Any]:
        """Apply, if it lives to."""
        self._perhaps_die()
        answers = await self._apply(steps)
        self._perhaps_die()
        return answers

    def _perhaps_die(self) -> None:
        if random.random() < self._chance:
            os.kill(os.getpid(), 9)


async def work(url: str, chance: float) -> None:
    """Work until killed, or told to end."""
    machine.SWEEP_EVERY = 0.3
    app = open_app(url)
    async with app:
        app.store.apply = Mortal(app, chance)  # type: ignore[method-assign]
        await app.worker(concurrency=4, lease="1s").run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2])))
