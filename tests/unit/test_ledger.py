"""What was counted is written down before the app is closed, whoever is writing it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from onejob.core.decide import Outcome, Request, Verdict
from onejob.core.job import EPOCH, Job, Retry, State
from onejob.engine.absorbed_log import KIND, PER_WRITE, read_entry
from onejob.engine.counters import AbsorbedCounters
from onejob.errors import StoreUnavailable
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


class Away(MemoryStore):
    """A store that does not answer at first."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:
        """Count, once the store is back."""
        if self.is_away:
            raise StoreUnavailable("it is away")
        super().count(tallies, batch)


class Admitted(NamedTuple):
    """A step that decided about a request."""

    request: Request


def note(ledger: AbsorbedCounters, number: int, task: str = "mail") -> None:
    """Note a request that job `number` absorbed."""
    job = Job(
        id=f"request {number}",
        namespace="",
        task=task,
        queue="default",
        state=State.AVAILABLE,
        priority=0,
        run_at=EPOCH,
        place=number,
        created_at=EPOCH,
        args=b"{}",
        meta=b"{}",
        payload_digest=b"d",
        retry=Retry(),
        chain_id=f"request {number}",
        key=number.to_bytes(32),
    )
    holder = msgspec.structs.replace(job, id=f"job {number}")
    ledger.note([Admitted(Request(job))], [Verdict(Outcome.KEPT, holder, holder, "It waits.")])


async def test_while_the_store_is_away_all_is_counted_and_the_log_keeps_a_share() -> None:
    store = Away()
    ledger = AbsorbedCounters(store)
    for part in range(3):
        for number in range(PER_WRITE):
            note(ledger, part * PER_WRITE + number)
        ledger.flush()
    assert sum(ledger.unwritten.values()) == 3 * PER_WRITE
    store.is_away = False
    ledger.flush()
    assert sum(tally.count for tally in await store.tallies("")) == 3 * PER_WRITE
    entries = [read_entry(one) for one in await store.observations("", KIND, limit=3 * PER_WRITE)]
    assert len(entries) == PER_WRITE
    assert {entry.sampled for entry in entries} == {0.3333}
    assert {entry.job for entry in entries} == {f"job {number}" for number in range(PER_WRITE)}


async def test_requests_of_two_tasks_that_one_job_absorbs_are_counted_apart() -> None:
    store = MemoryStore()
    ledger = AbsorbedCounters(store)
    for task in ("mail", "post", "mail"):
        note(ledger, 1, task)
    ledger.flush()
    assert {tally.task: tally.count for tally in await store.tallies("")} == {"mail": 2, "post": 1}
