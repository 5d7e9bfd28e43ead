"""Where measurements take place: a store at one level of durability, and its own driver without us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from onejob.job import Job

STORES = ("sqlite", "postgres", "redis")
MODULES = {
    "sqlite": "bench.places.sqlite",
    "postgresql": "bench.places.postgres",
    "redis": "bench.places.redis",
}

Written = Sequence[Any]
"""A job as the driver writes it."""


class NoStore(Exception):
    """A store that cannot be measured here."""


class NoRoom(Exception):
    """A crowd that does not fit here."""


def check_room(jobs: int, each: int, free: int) -> None:
    """Refuse a crowd that would need more bytes than there are."""
    if jobs * each > free:
        raise NoRoom(f"{jobs:,} jobs need about {jobs * each >> 20:,} MB, but {free >> 20:,} MB are free")


class Trace(NamedTuple):
    """What has been written so far: something that changes with every row, and bytes of the log."""

    rows: tuple[int, ...]
    log: int


class Bare(Protocol):
    """The store's own driver, doing the same work with the same durability."""

    def prepare(self, jobs: Sequence[Job]) -> list[Written]:
        """Make what is written for jobs, before the clock starts."""

    def each(self, rows: Sequence[Written]) -> None:
        """Write one by one, learning of each whether it is new."""

    async def each_awaited(self, rows: Sequence[Written]) -> None:
        """Do the same with the asynchronous driver, if the store has one."""

    def ask(self, rows: Sequence[Written]) -> None:
        """Write one by one, or read who holds the key."""

    async def ask_awaited(self, rows: Sequence[Written]) -> None:
        """Do the same with the asynchronous driver."""

    def many(self, rows: Sequence[Written]) -> None:
        """Write all in one go, in the driver's best form."""

    def send(self, job: Job) -> None:
        """Write a job such that `watch` in another process hears of it."""

    async def close(self) -> None:
        """Let go of the connections."""


class Place(Protocol):
    """A store at one level of durability."""

    label: str
    """What the table calls it."""

    software: str
    """Which server at which settings, for the heading; empty if there is none."""

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
    """Jobs in a drain: in whole, and quick."""

    crowds: tuple[tuple[int, int], ...]
    """Finished and live jobs beside which admission is measured, one after the other."""

    quick_crowds: tuple[tuple[int, int], ...]

    peers: tuple[str, ...]
    """Who else drains here."""

    def fresh(self, name: str) -> AbstractContextManager[str]:
        """Make an empty store, tell its URL, and remove it afterwards."""

    def bare(self, url: str) -> Bare:
        """Open the store with its own driver."""

    def count(self, url: str) -> int:
        """Count the jobs from outside."""

    def witness(self, url: str) -> AbstractContextManager[Callable[[], Trace]]:
        """Watch from outside what is written, by anybody."""

    def fill(self, url: str, finished: int, live: int, sample: Job, say: Callable[[str], None]) -> None:
        """Bring the store to so many finished and live jobs, without us."""


@contextmanager
def places(store: str, folder: Path) -> Iterator[list[Place]]:
    """Open a store's places, starting its server if it needs one."""
    if find_spec(f"onejob.stores.{store}") is None and find_spec(f"onejob.stores.sql.{store}") is None:
        raise NoStore("this onejob does not have it")
    with import_module(f"bench.places.{store}").places(folder) as found:
        yield found


def watch(url: str) -> None:
    """Print, for each job that a bare driver sends, the nanoseconds since then, until terminated."""
    import_module(MODULES[urlsplit(url).scheme]).watch(url)
