"""What a random graph looks like, and what must come of it: the oracle, which knows nothing of onejob."""

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
    key: int | None  # nodes of one key are one piece of work: the first of them does it


@dataclass(frozen=True)
class Graph:
    """A graph by its number: the same number makes the same graph."""

    number: int
    nodes: tuple[Node, ...]

    def standing(self, index: int) -> int:
        """Tell which node does the work of a node: itself, or the first of its key."""
        key = self.nodes[index].key
        return index if key is None else next(i for i, node in enumerate(self.nodes) if node.key == key)

    def results(self) -> dict[int, int]:
        """Tell what each node that does work must return: its number, its length and what it waited for."""
        found: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            if self.standing(index) == index:
                waited = dict.fromkeys(self.standing(other) for other in node.after)
                found[index] = index + node.length + sum(found[other] for other in waited)
        return found


def graph(number: int) -> Graph:
    """Make a graph."""
    chance = random.Random(number)
    size = chance.randint(1, LARGEST)
    return Graph(number, tuple(node(index, chance) for index in range(size)))


def node(index: int, chance: random.Random) -> Node:
    """Make a node that may wait for any before it."""
    width = min(index, chance.choice([0, 0, 1, 1, 2, 3, 8]))
    key = chance.randrange(3) if chance.random() < 0.1 else None
    after = () if key is not None else tuple(sorted(chance.sample(range(index), width)))
    return Node(
        length=chance.choice([1, 1, 1, 2, 3]),
        failures=chance.choice([0, 0, 0, 0, 1]),
        after=after,
        key=key,
    )
