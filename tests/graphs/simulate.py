"""The same graphs in one process, by the thousand: lives that end between any two calls of the store.

A life is a real worker, or a real client, on an event loop of its own. When it dies it dies whole: from then
on every call to the store that it still makes raises, and nothing that it had in mind is known to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from onejob import Admission, App, State
from onejob.stores.contract import Store
from onejob.testing import Clock
from tests.graphs.plan import Graph
from tests.graphs.play import check
from tests.graphs.shop import declare

LIVES = 2000  # more than any graph needs


class Died(BaseException):
    """The process is no more."""


class Frail:
    """A store as one life sees it."""

    def __init__(self, store: Store, chance: float, dice: random.Random) -> None:
        self._store = store
        self._chance = chance
        self._dice = dice
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        """Pass everything on, as long as it lives."""
        if self.dead:
            raise Died
        return getattr(self._store, name)

    async def apply(self, steps: Any) -> list[Any]:
        """Write, unless it dies before; it may die after, too."""
        self._perhaps_die()
        answers = await self._store.apply(steps)
        self._perhaps_die()
        return answers

    def tally(self, _tallies: Any) -> None:
        """Count nothing: a thread of the dead may still come by."""

    def _perhaps_die(self) -> None:
        self.dead = self.dead or self._dice.random() < self._chance
        if self.dead:
            raise Died


class Simulation:
    """One graph on one store, carried to its end by as many lives as it takes."""

    def __init__(self, graph: Graph, store: Store, clock: Clock, chance: float) -> None:
        self.graph = graph
        self.store = store
        self.clock = clock
        self.dice = random.Random(graph.number)
        self.chance = chance
        self.deaths = 0
        self.places: dict[tuple[int, int], Admission[int]] = {}

    def live(self, act: Callable[[App], Coroutine[Any, Any, None]]) -> None:
        """Live once, to the end of the act or of the life."""
        frail = Frail(self.store, self.chance, self.dice)
        app = App(store=frail)
        declare(app)
        with contextlib.suppress(Died):
            asyncio.run(act(app))
        if frail.dead:
            self.deaths += 1
            self.clock.advance("20s")  # its leases run out

    async def enqueue_some(self, app: App) -> None:
        """Enqueue the nodes that are not known to be there; whoever died may have enqueued one more."""
        node = app.tasks["node"]
        for index, one in enumerate(self.graph.nodes):
            if (self.graph.number, index) in self.places:
                continue
            after = [self.places[self.graph.number, other].job.chain_id for other in one.after]
            call = node.options(after=after) if after else node
            key = index + 1000 if one.key is None else one.key
            given = (self.graph.number, index, key, one.length, one.failures, self.graph.standing(index))
            self.places[self.graph.number, index] = await call.enqueue(*given)
            if self.dice.random() < 0.2:
                return

    async def work(self, app: App) -> None:
        """Work until nothing is due."""
        await app.worker(drain=True, concurrency=self.dice.choice([1, 3, 20]), grace=0).run()

    async def sweep(self, app: App) -> None:
        """Look after what the dead have left."""
        await app.sweep()

    def play(self) -> None:
        """Play to the end, and compare with the oracle."""
        for _ in range(LIVES):
            self.live(self.enqueue_some)
            self.live(self.work)
            if self.deaths:
                self.live(self.sweep)
            if len(self.places) == len(self.graph.nodes) and asyncio.run(self._is_done()):
                break
        asyncio.run(self._check())

    async def _is_done(self) -> bool:
        counts = await self.store.counts("")
        return all(state is State.COMPLETED for (_, _, state), number in counts.jobs.items() if number)

    async def _check(self) -> None:
        app = App(store=self.store)
        await check(app, [self.graph], self.places)


def simulate(graph: Graph, store: Store, clock: Clock, chance: float = 0.03) -> int:
    """Play a graph; tell how many lives it took."""
    logging.getLogger("onejob").setLevel(logging.CRITICAL)
    simulation = Simulation(graph, store, clock, chance)
    simulation.play()
    return simulation.deaths
