"""Flows beside steps: mending rows that cannot be read, and the counters of absorbed requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from onejob.errors import StoreError, StoreUnavailable
from onejob.stores.columns import INDEX, Unreadable, read_job
from onejob.stores.contract import Tally
from onejob.stores.flow import Flow, Query
from onejob.stores.postgres.connection import BEGIN, COMMIT, ROLLBACK
from onejob.stores.postgres.records import CHANGED, tally_records, write_row
from onejob.stores.postgres.server import Server
from onejob.stores.salvage import salvage

T = TypeVar("T")
STATE, CREATED_AT, CHAIN_INDEX = (INDEX[name] for name in ("state", "created_at", "chain_index"))
FOLDED_AT_ONCE = 1000


# ── rows that cannot be read: each is replaced by a discarded job that can ────────────────────────


def mending(make: Callable[[], Flow[T]], now: Callable[[], datetime]) -> Flow[T]:
    """Run a flow; set aside every row that it cannot read, and run it again."""
    mended: set[str] = set()
    while True:
        try:
            return (yield from make())
        except Unreadable as damage:
            yield [ROLLBACK]
            yield from set_aside(damage, mended, now())


def set_aside(damage: Unreadable, mended: set[str], now: datetime) -> Flow[None]:
    """Replace a damaged row, unless it can be read meanwhile; raise StoreError if that was tried before."""
    if damage.id in mended:
        raise StoreError(f"{damage} It could not be set aside either.") from damage
    mended.add(damage.id)
    for row in (yield [Query("job", (damage.id,))])[0]:
        try:
            read_job(row)
        except Unreadable as cause:
            new = write_row(salvage(row, cause, now))
            values = (*(new[index] for index in CHANGED), new[CREATED_AT], new[CHAIN_INDEX])
            yield [Query("set_aside", (row[0], row[STATE], *values))]


# ── counters of absorbed requests ─────────────────────────────────────────────────────────────────


def add_counts(server: Server, tallies: Sequence[Tally], batch: str, in_doubt: dict[str, str]) -> Flow[None]:
    """Add to the counters once, although the commit's reply may be lost and the batch be repeated.

    The commit is a round trip of its own: until then a lost connection has changed nothing, and after it the
    server knows by the transaction's id whether it was committed.
    """
    if batch in in_doubt:
        [[[outcome]]] = yield [Query("transaction_outcome", (in_doubt[batch],))]
        if outcome == "in progress":
            raise StoreUnavailable(f"{server.place}: the counters are still being written.")
        del in_doubt[batch]
        if outcome == "committed":
            return
    count = Query("count", (tally_records(tallies, server.now()),))
    *_, [[in_doubt[batch]]] = yield [BEGIN, server.patiently, count, Query("transaction_id")]
    yield [COMMIT]
    del in_doubt[batch]


def fold(namespace: str) -> Flow[int]:
    """Add counters whose jobs are gone to those of no job; return how many."""
    folded = 0
    while True:
        [[[number]]] = yield [Query("fold_tallies", (namespace, FOLDED_AT_ONCE))]
        if not number:
            return folded
        folded += int(number)
