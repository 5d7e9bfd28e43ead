"""Enqueue graphs while processes work on them and die, wait for the end, and compare with the plan."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from onejob import Admission, App, Job, State
from onejob.stores.queries import Listed
from tests.graphs.app import open_app
from tests.graphs.plan import Graph

ROOT = Path(__file__).parents[2]
WORKERS = 3
PROBABILITY = 0.02  # of dying, before a write and after it

Admissions = dict[tuple[int, int], Admission[int]]  # by graph and node


class WorkerProcesses:
    """Worker processes, each replaced when it dies."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self._command = [sys.executable, "-m", "tests.graphs.app", url, str(PROBABILITY)]
        self._chance = chance
        self._processes = [self._start() for _ in range(WORKERS)]
        self.deaths = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*self._command, str(self._chance.getrandbits(32))]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def refill(self) -> None:
        """Replace the dead."""
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                self.deaths += 1
                self._processes[index] = self._start()

    def maybe_kill(self) -> None:
        """Sometimes kill one at a random moment."""
        if self._chance.random() < 0.05:
            self._chance.choice(self._processes).kill()

    def close(self) -> None:
        """Kill all."""
        for process in self._processes:
            process.kill()
            process.wait()


async def play(url: str, graphs: Sequence[Graph], patience: float, chance: random.Random) -> int:
    """Play graphs to their end and check them; return how many processes died meanwhile."""
    app = open_app(url)
    async with app:
        with closing(WorkerProcesses(url, chance)) as workers:
            admissions = await enqueue(app, graphs)
            await all_completed(app, workers, patience)
        await check(app, graphs, admissions)
        return workers.deaths


async def enqueue(app: App, graphs: Sequence[Graph]) -> Admissions:
    """Enqueue the nodes of graphs, each after the nodes that it waits for."""
    node = app.tasks["node"]
    admissions: Admissions = {}
    for graph in graphs:
        for index, one in enumerate(graph.nodes):
            after = [admissions[graph.number, other] for other in one.after]
            key = index + 1000 if one.key is None else one.key
            call = node.options(after=after) if after else node
            admissions[graph.number, index] = await call.enqueue(
                graph.number, index, key, one.length, one.failures, graph.worker_of(index)
            )
    return admissions


async def all_completed(app: App, workers: WorkerProcesses, patience: float) -> None:
    """Wait until every job is completed; kill workers no faster than they complete jobs."""
    ends, completed = time.monotonic() + patience, 0
    while True:
        by_state = (await app.stats()).by_state
        left = {state: n for state, n in by_state.items() if n and state != "completed"}
        if not left:
            return
        assert time.monotonic() < ends, f"not within {patience:g} s: {left}"
        workers.refill()
        if by_state[State.COMPLETED] > completed:  # a slow machine would start workers only to kill them
            workers.maybe_kill()
            completed = by_state[State.COMPLETED]
        await asyncio.sleep(0.1)


async def check(app: App, graphs: Sequence[Graph], admissions: Admissions) -> None:
    """Compare every chain with the plan."""
    chains: defaultdict[str, list[Job]] = defaultdict(list)
    for job in await all_jobs(app):
        chains[job.chain_id].append(job)
    for graph in graphs:
        for index in graph.results():
            check_node(graph, index, admissions, chains)
        for index in range(len(graph.nodes)):
            shared = admissions[graph.number, graph.worker_of(index)].job.chain_id
            own = admissions[graph.number, index].job.chain_id
            assert own == shared, f"{graph.number}, {index}: not shared"
    requested = {admission.job.chain_id for admission in admissions.values()}
    assert chains.keys() == requested, "chains that no request created"


def check_node(graph: Graph, index: int, admissions: Admissions, chains: Mapping[str, list[Job]]) -> None:
    """Check that a chain is whole, has the right result, and began after all that it waited for."""

    def jobs_of(one: int) -> list[Job]:
        chain = chains[admissions[graph.number, graph.worker_of(one)].job.chain_id]
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


async def all_jobs(app: App) -> list[Job]:
    """Return every job."""
    found: list[Job] = []
    while page := await app._engine.store.find(
        Listed(namespace=None, limit=5000, offset=len(found), newest_first=False)
    ):
        found += page
    assert max(Counter(job.id for job in found).values()) == 1
    return found
