"""Whichever process dies, and whenever: every chain runs to its end, once, after all that it waits for."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from pathlib import Path

import pytest

from onejob.stores.memory import MemoryStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from tests.graphs.plan import graph
from tests.graphs.play import play
from tests.graphs.simulate import simulate
from tests.races.stores import STORES

pytestmark = pytest.mark.races

DEEP = os.environ.get("ONEJOB_GRAPHS")  # how many per store; hundreds take hours
SIMULATED = os.environ.get("ONEJOB_SIMULATED")  # how many in one process
AT_ONCE = 50


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hide the log: runs that fail are part of the plan."""
    caplog.set_level(logging.CRITICAL, logger="onejob")


@pytest.mark.timeout(0 if DEEP else 600)
@pytest.mark.parametrize("store", STORES)
async def test_graphs_run_to_their_end_while_processes_die(
    store: str, tmp_path: Path, chance: random.Random
) -> None:
    number, deaths = int(DEEP or 12), 0
    for first in range(0, number, AT_ONCE):
        folder = tmp_path / str(first)
        folder.mkdir()
        with STORES[store](folder) as url:
            graphs = [graph(n) for n in range(first, min(first + AT_ONCE, number))]
            deaths += await play(url, graphs, patience=500, chance=chance)
        if DEEP:
            sys.stderr.write(f"{store}: {first + len(graphs)} graphs, {deaths} deaths\n")
    assert deaths > 0


@pytest.mark.timeout(0 if SIMULATED else 600)
def test_graphs_run_to_their_end_in_processes_that_die_between_any_two_calls(chance: random.Random) -> None:
    first, number = (0, int(SIMULATED)) if SIMULATED else (chance.randrange(10**6), 60)
    deaths = 0
    for n in range(first, first + number):
        clock = Clock()
        deaths += simulate(graph(n), MemoryStore(clock=clock), clock)
        if SIMULATED and n % 500 == 0:
            sys.stderr.write(f"{n} graphs, {deaths} deaths\n")
    assert deaths > number


def test_graphs_run_to_their_end_in_dying_processes_on_a_file(tmp_path: Path) -> None:
    deaths = 0
    for n in range(6):
        clock = Clock()
        store = SQLiteStore(tmp_path / f"{n}.db", clock=clock, synchronous="NORMAL")
        deaths += simulate(graph(n), store, clock)
        asyncio.run(store.close())
    assert deaths > 0
