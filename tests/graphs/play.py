"""Enqueue graphs while processes work on them and die, wait for the end, and compare with the oracle."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from onejob import Admission, App, Job, State
from onejob.stores.contract import Filter
from tests.graphs.plan import Graph
from tests.graphs.shop import open_app

ROOT = Path(__file__).parents[2]
WORKERS = 3
CHANCE = 0.02  # of dying, before a write and after it

Places = dict[tuple[int, int], Admission[int]]


class Company:
    """Workers that are replaced when they die."""

    def __init__(self, url: str, chance: float) -> None:
        self._command = [sys.executable, "-m", "tests.graphs.shop", url, str(chance)]
        self._workers = [self._hire() for _ in range(WORKERS)]
        self.deaths = 0

    def _hire(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def refill(self) -> None:
        """Replace the dead, and kill one at a moment of no meaning."""
        for index, one in enumerate(self._workers):
            if one.poll() is not None:
                self.deaths += 1
                self._workers[index] = self._hire()
        if random.random() < 0.05:
            random.choice(self._workers).kill()

    def end(self) -> None:
        """Leave none behind."""
        for one in self._workers:
            one.kill()
            one.wait()


@contextmanager
def company(url: str, chance: float = CHANCE) -> Iterator[Company]:
    """Hire workers, and dismiss them."""
    hired = Company(url, chance)
    try:
        yield hired
    finally:
        hired.end()


async def play(url: str, graphs: Sequence[Graph], patience: float) -> int:
    """Play graphs to their end and check them; tell how many processes died meanwhile."""
    app = open_app(url)
    async with app:
        with company(url) as workers:
            places = await enqueue(app, graphs)
            await ended(app, workers, patience)
        await check(app, graphs, places)
        return workers.deaths


async def enqueue(app: App, graphs: Sequence[Graph]) -> Places:
    """Enqueue the nodes of graphs, each after those that it waits for."""
    node = app.tasks["node"]
    places: Places = {}
    for graph in graphs:
        for index, one in enumerate(graph.nodes):
            after = [places[graph.number, other] for other in one.after]
            key = index + 1000 if one.key is None else one.key
            call = node.options(after=after) if after else node
            places[graph.number, index] = await call.enqueue(
                graph.number, index, key, one.length, one.failures, graph.standing(index)
            )
    return places


async def ended(app: App, workers: Company, patience: float) -> None:
    """Wait until nothing is left to do."""
    ends = time.monotonic() + patience
    while True:
        left = {state: n for state, n in (await app.stats()).by_state.items() if n and state != "completed"}
        if not left:
            return
        assert time.monotonic() < ends, f"not within {patience:g} s: {left}"
        workers.refill()
        await asyncio.sleep(0.1)


async def check(app: App, graphs: Sequence[Graph], places: Places) -> None:
    """Compare every chain with the oracle."""
    chains: defaultdict[str, list[Job]] = defaultdict(list)
    for job in await every(app):
        chains[job.chain_id].append(job)
    for graph in graphs:
        for index in graph.results():
            check_node(graph, index, places, chains)
        for index in range(len(graph.nodes)):
            stands = places[graph.number, graph.standing(index)].job.chain_id
            assert places[graph.number, index].job.chain_id == stands, f"{graph.number}, {index}: not shared"
    asked = {admission.job.chain_id for admission in places.values()}
    assert chains.keys() == asked, "chains that nobody asked for"


def check_node(graph: Graph, index: int, places: Places, chains: Mapping[str, list[Job]]) -> None:
    """Make sure that a chain is whole, came to what it must, and began after all that it waited for."""

    def jobs_of(one: int) -> list[Job]:
        chain = chains[places[graph.number, graph.standing(one)].job.chain_id]
        return sorted(chain, key=lambda job: job.chain_index)

    at, node, jobs = f"graph {graph.number}, node {index}", graph.nodes[index], jobs_of(index)
    assert [job.chain_index for job in jobs] == list(range(node.length)), f"{at}: doubled or cut"
    assert {job.state for job in jobs} == {State.COMPLETED}, at
    assert jobs[-1].result == str(graph.results()[index]).encode(), f"{at}: {jobs[-1].result!r}"
    for other in node.after:
        before = jobs_of(other)[-1].finished_at
        assert before is not None, at
        assert jobs[0].started_at is not None, at
        assert before <= jobs[0].started_at, f"{at} began before {other} had ended"


async def every(app: App) -> list[Job]:
    """Read every job."""
    found: list[Job] = []
    while page := await app.store.find(Filter(limit=5000, offset=len(found), newest_first=False)):
        found += page
    assert max(Counter(job.id for job in found).values()) == 1
    return found
