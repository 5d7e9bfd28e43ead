"""The stores that are raced on. To add one, name here how it is opened for the length of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from tests import servers

Open = Callable[[Path], AbstractContextManager[str]]
"""Open an empty store, perhaps in this folder, and give its URL."""


class Served(Protocol):
    """What `tests.servers` yields: a server that runs."""

    @property
    def url(self) -> str:
        """Where it is."""


def served(start: Callable[[], AbstractContextManager[Served]]) -> Open:
    """Start a server for the length of a block."""

    @contextmanager
    def open_(_folder: Path) -> Iterator[str]:
        with start() as server:
            yield server.url

    return open_


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    """Make a file."""
    yield f"sqlite:///{folder / 'jobs.db'}"


STORES: dict[str, Open] = {
    "sqlite": sqlite,
    "postgres": served(servers.postgres),
    "redis": served(servers.redis),
}
