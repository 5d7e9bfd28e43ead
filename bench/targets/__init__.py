"""What is measured: a store at one level of durability, and its own driver without onejob.

Nothing here imports a part of onejob that is not public. What a store writes for a job is not written down
again: onejob enqueues the job in a scratch store, and the rows or records are read from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

STORES = ("sqlite", "postgres", "redis")
MODULES = {
    "sqlite": "bench.targets.sqlite",
    "postgresql": "bench.targets.postgres",
    "redis": "bench.targets.redis",
}

Written = Any
"""A job as the driver writes it."""


class NoRoom(Exception):
    """So many jobs do not fit on this machine."""


def check_room(jobs: int, each: int, free: int) -> None:
    """Raise NoRoom if jobs would need more bytes than there are."""
    if jobs * each > free:
        raise NoRoom(f"{jobs:,} jobs need about {jobs * each >> 20:,} MB, but {free >> 20:,} MB are free")


def condition_of_holder(columns: Sequence[str], parameter: str) -> str:
    """Return the SQL condition that finds the holder of a key."""
    return f"key = {parameter} AND stand = 0" if "stand" in columns else f"held_key = {parameter}"


def key_column(columns: Sequence[str]) -> int:
    """Return the index of the column that a key is found by."""
    return columns.index("key" if "stand" in columns else "held_key")


def customer_of(args: str | bytes) -> int:
    """Return the customer of an invoice, from its stored arguments."""
    return int(json.loads(args)["customer_id"])


class Trace(NamedTuple):
    """What has been written so far: numbers that change with every row, and bytes of the log."""

    rows: tuple[int, ...]
    log: int


class Bare(Protocol):
    """The store's own driver, doing the same work with the same durability."""

    def prepare(self, customers: Sequence[int]) -> list[Written]:
        """Return what is written for invoices, before the clock starts."""

    def each(self, rows: Sequence[Written]) -> None:
        """Write one by one, learning of each whether it is new."""

    async def each_awaited(self, rows: Sequence[Written]) -> None:
        """Async variant of `each`, if the store's driver has one."""

    def ask(self, rows: Sequence[Written]) -> None:
        """Write one by one, or read the holder of the key."""

    async def ask_awaited(self, rows: Sequence[Written]) -> None:
        """Async variant of `ask`."""

    def many(self, rows: Sequence[Written]) -> None:
        """Write all at once, in the driver's fastest form."""

    def send(self, sent: int) -> None:
        """Write a job with this argument such that `watch` in another process learns of it."""

    async def close(self) -> None:
        """Close the connections."""


class Target(Protocol):
    """A store at one level of durability."""

    label: str
    """The name in the table."""

    software: str
    """The server and its settings, for the heading; empty if there is no server."""

    bars: Mapping[str, float | None]
    """What is measured here, by benchmark, and the ratio that is asked for; None if it is only shown."""

    asks: bool
    """Whether duplicates are compared with the bare driver asking the same, or with our own new keys."""

    untouched: str
    """What duplicates must not do here."""

    batch: int
    """Calls in one bulk."""

    producers: int
    """Tasks that await at once."""

    drained: tuple[int, int]
    """Jobs in a drain: in full, and quick."""

    crowds: tuple[tuple[int, int], ...]
    """Finished and live jobs beside which admission is measured, one pair after the other."""

    quick_crowds: tuple[tuple[int, int], ...]

    peers: tuple[str, ...]
    """Other job systems that drain here."""

    def empty_store(self, name: str) -> AbstractContextManager[str]:
        """Yield the URL of an empty store, and remove the store afterwards."""

    def bare(self, url: str) -> Bare:
        """Open the store with its own driver."""

    def count(self, url: str) -> int:
        """Return the number of jobs, read by a connection of its own."""

    def watch_writes(self, url: str) -> AbstractContextManager[Callable[[], Trace]]:
        """Yield a function that returns what any process has written so far."""

    def fill(self, url: str, finished: int, live: int, say: Callable[[str], None]) -> None:
        """Fill the store with copies of a finished and of a live job, without onejob."""


@contextmanager
def open_targets(store: str, folder: Path) -> Iterator[list[Target]]:
    """Open a store's targets; start its server if it needs one."""
    with import_module(f"bench.targets.{store}").targets(folder) as found:
        yield found


def watch(url: str) -> None:
    """Print, for each job that a bare driver sends, the nanoseconds since then, until terminated."""
    import_module(MODULES[urlsplit(url).scheme]).watch(url)
