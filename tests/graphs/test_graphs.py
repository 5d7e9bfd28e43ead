"""Whatever dies, and whenever: every chain is worked on to its end, once, after all that it waits for."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest

from onejob.stores.memory import MemoryStore
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.testing import Clock
from tests.graphs.plan import graph
from tests.graphs.play import play
from tests.graphs.simulate import simulate
from tests.races.stores import STORES

pytestmark = pytest.mark.races

DEEP = os.environ.get("ONEJOB_GRAPHS")  # how many per store, for a night
LIVES = os.environ.get("ONEJOB_SIMULATED")
AT_ONCE = 50


@pytest.mark.timeout(0 if DEEP else 180)
@pytest.mark.parametrize("store", STORES)
async def test_graphs_are_worked_on_to_their_end_whoever_dies(store: str, tmp_path: Path) -> None:
    number, deaths = int(DEEP or 12), 0
    for first in range(0, number, AT_ONCE):
        folder = tmp_path / str(first)
        folder.mkdir()
        with STORES[store](folder) as url:
            graphs = [graph(n) for n in range(first, min(first + AT_ONCE, number))]
            deaths += await play(url, graphs, patience=120)
        if DEEP:
            sys.stderr.write(f"{store}: {first + len(graphs)} graphs, {deaths} deaths\n")
    assert deaths > 0


@pytest.mark.timeout(0 if LIVES else 180)
def test_graphs_are_worked_on_to_their_end_in_lives_that_end_between_any_two_calls() -> None:
    first, number = (0, int(LIVES)) if LIVES else (random.randrange(10**6), 60)
    deaths = 0
    for n in range(first, first + number):
        clock = Clock()
        deaths += simulate(graph(n), MemoryStore(clock=clock), clock)
        if LIVES and n % 500 == 0:
            sys.stderr.write(f"{n} graphs, {deaths} deaths\n")
    assert deaths > number


def test_the_same_on_a_file(tmp_path: Path) -> None:
    deaths = 0
    for n in range(6):
        clock = Clock()
        store = SQLiteStore(tmp_path / f"{n}.db", clock=clock, synchronous="NORMAL")
        deaths += simulate(graph(n), store, clock)
        asyncio.run(store.close())
    assert deaths > 0
