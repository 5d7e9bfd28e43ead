"""What was counted is written down before the app is closed, whoever is writing it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from onejob.engine.counters import AbsorbedCounters
from onejob.stores.contract import Tally
from onejob.stores.memory import MemoryStore


class Slow(MemoryStore):
    """A store that takes its time to write counters."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go = threading.Event()

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:
        """Write, when told to."""
        self.begun.set()
        assert self.go.wait(30)
        super().count(tallies, batch)


async def test_a_flush_waits_for_the_one_that_is_under_way() -> None:
    store = Slow()
    ledger = AbsorbedCounters(store)
    ledger.count(Tally("", "mail", "kept", "x", 1))
    timers = threading.Thread(target=ledger.flush)
    timers.start()
    assert store.begun.wait(30)

    closed = threading.Event()

    def close() -> None:
        ledger.flush()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    assert not closed.wait(0.2)
    store.go.set()
    assert closed.wait(30)
    assert [tally.count for tally in await store.tallies("")] == [1]
    timers.join()
    closing.join()
