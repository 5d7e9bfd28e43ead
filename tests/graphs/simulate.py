"""The same graphs in one process, by the thousand: simulated processes die between calls to the store.

A simulated process is a real worker, or a real client, on an event loop of its own. From its death on, every
call to the store that it still makes raises, and the next process knows nothing of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

from onejob import Admission, App, State
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.graphs.app import declare
from tests.graphs.plan import Graph
from tests.graphs.play import check

Act = Callable[[App], Coroutine[Any, Any, None]]

MOST_ROUNDS = 2000  # more than any graph needs


class Died(BaseException):
    """The simulated process is dead."""


class DeadlyStore:
    """A store as one simulated process uses it, which may die at every write."""

    def __init__(self, store: Store, probability: float, chance: random.Random) -> None:
        self._store = store
        self._probability = probability
        self._chance = chance
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        """Pass every other call on, as long as the process is alive."""
        if self.dead:
            raise Died
        return getattr(self._store, name)

    async def apply(self, steps: Any) -> list[Any]:
        """Write, unless the process dies before; it may also die after."""
        self._maybe_die()
        answers = await self._store.apply(steps)
        self._maybe_die()
        return answers

    async def lease(self, wanted: Any, after: Any = ()) -> Any:
        """Settle and start, unless the process dies before; it may also die after."""
        self._maybe_die()
        leased = await self._store.lease(wanted, after)
        self._maybe_die()
        return leased

    def tally(self, _tallies: Any) -> None:
        """Count nothing: a thread of a dead process may still call this."""

    async def close(self) -> None:
        """Leave the store open for the next process."""

    def _maybe_die(self) -> None:
        self.dead = self.dead or self._chance.random() < self._probability
        if self.dead:
            raise Died


class Simulation:
    """One graph on one store, worked on by as many processes as it takes."""

    def __init__(self, graph: Graph, store: Store, clock: Clock, probability: float) -> None:
        self.graph = graph
        self.store = store
        self.clock = clock
        self.chance = random.Random(graph.number)
        self.probability = probability
        self.deaths = 0
        self.admissions: dict[tuple[int, int], Admission[int]] = {}

    def run(self, act: Act) -> None:
        """Run one simulated process, to the end of its act or to its death."""
        deadly = DeadlyStore(self.store, self.probability, self.chance)
        app = App(store=deadly)
        declare(app)
        with contextlib.suppress(Died):
            asyncio.run(run_and_close(app, act))
        if deadly.dead:
            self.deaths += 1
            self.clock.advance("20s")  # its leases expire

    async def enqueue_some(self, app: App) -> None:
        """Enqueue the nodes that have no answer yet; a process that died may have enqueued one of them."""
        node = app.tasks["node"]
        for index, one in enumerate(self.graph.nodes):
            if (self.graph.number, index) in self.admissions:
                continue
            after = [self.admissions[self.graph.number, other].job.chain_id for other in one.after]
            call = node.options(after=after) if after else node
            key = index + 1000 if one.key is None else one.key
            given = (self.graph.number, index, key, one.length, one.failures, self.graph.worker_of(index))
            self.admissions[self.graph.number, index] = await call.enqueue(*given)
            if self.chance.random() < 0.2:
                return

    async def work(self, app: App) -> None:
        """Work until nothing is due."""
        await app.worker(drain=True, concurrency=self.chance.choice([1, 3, 20]), grace=0).run()

    async def sweep(self, app: App) -> None:
        """Take back what dead processes have leased."""
        await app.maintenance.sweep()

    def play(self) -> None:
        """Play to the end, and compare with the plan."""
        for _ in range(MOST_ROUNDS):
            self.run(self.enqueue_some)
            self.run(self.work)
            if self.deaths:
                self.run(self.sweep)
            if len(self.admissions) == len(self.graph.nodes) and asyncio.run(self._is_done()):
                break
        asyncio.run(self._check())

    async def _is_done(self) -> bool:
        counts = await self.store.counts("")
        return all(state is State.COMPLETED for (_, _, state), number in counts.jobs.items() if number)

    async def _check(self) -> None:
        app = App(store=self.store)
        await check(app, [self.graph], self.admissions)


async def run_and_close(app: App, act: Act) -> None:
    """Run an act, and close the app, even if the process has died: a timer of it would run on."""
    try:
        await act(app)
    finally:
        await app.close()


def simulate(graph: Graph, store: Store, clock: Clock, probability: float = 0.03) -> int:
    """Play a graph; return how many processes died."""
    simulation = Simulation(graph, store, clock, probability)
    simulation.play()
    return simulation.deaths
