"""Pages of a store with very many jobs take about as long as those of a small one (`tests.large`)."""

from __future__ import annotations

import pytest

from tests.dashboard.shop import PATHS
from tests.large import compare, slow, stores_of

EXAMINES = "/system?examine=1"  # it reads the whole store, as it says


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_page_is_slower_with_very_many_jobs() -> None:
    with stores_of("sqlite") as stores:
        found = await compare(stores, 100_000)
    assert [path for path in slow(found) if path in PATHS and path != EXAMINES] == []
