"""Whatever dies, and whenever: every chain is worked on to its end, once, after all that it waits for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.graphs.plan import graph
from tests.graphs.play import play
from tests.races.stores import STORES

pytestmark = pytest.mark.races

DEEP = os.environ.get("ONEJOB_GRAPHS")  # how many per store, for a night
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
