"""Random graphs of chains, and the results they must have. This module knows nothing of onejob."""

from __future__ import annotations

import random
from dataclasses import dataclass

LARGEST = 50  # nodes


@dataclass(frozen=True)
class Node:
    """One chain: how many jobs it has, how often each fails first, and which earlier nodes it waits for."""

    length: int
    failures: int
    after: tuple[int, ...]
    key: int | None  # nodes with one key are one piece of work, which the first of them does


@dataclass(frozen=True)
class Graph:
    """A graph; the same number always gives the same graph."""

    number: int
    nodes: tuple[Node, ...]

    def worker_of(self, index: int) -> int:
        """Return the node that does the work of a node: itself, or the first with its key."""
        key = self.nodes[index].key
        return index if key is None else next(i for i, node in enumerate(self.nodes) if node.key == key)

    def results(self) -> dict[int, int]:
        """Return the result of each node that does work: its number, its length and what it waited for."""
        found: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            if self.worker_of(index) == index:
                waited = dict.fromkeys(self.worker_of(other) for other in node.after)
                found[index] = index + node.length + sum(found[other] for other in waited)
        return found


def graph(number: int) -> Graph:
    """Return the graph with this number."""
    chance = random.Random(number)
    size = chance.randint(1, LARGEST)
    return Graph(number, tuple(node(index, chance) for index in range(size)))


def node(index: int, chance: random.Random) -> Node:
    """Return a random node, which may wait for any node before it."""
    width = min(index, chance.choice([0, 0, 1, 1, 2, 3, 8]))
    key = chance.randrange(3) if chance.random() < 0.1 else None
    after = () if key is not None else tuple(sorted(chance.sample(range(index), width)))
    return Node(
        length=chance.choice([1, 1, 1, 2, 3]),
        failures=chance.choice([0, 0, 0, 0, 1]),
        after=after,
        key=key,
    )
