"""The stores that races run on. To add one, name here how it is opened for the length of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from tests import servers

Open = Callable[[Path], AbstractContextManager[str]]
"""Open an empty store, which may use this folder, and yield its URL."""


class Served(Protocol):
    """A running server, as `tests.servers` yields it."""

    @property
    def url(self) -> str:
        """The server's URL."""


def served(start: Callable[[], AbstractContextManager[Served]]) -> Open:
    """Return a function that runs a server for the length of a block."""

    @contextmanager
    def open_(_folder: Path) -> Iterator[str]:
        with start() as server:
            yield server.url

    return open_


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    """Yield the URL of a new file."""
    yield f"sqlite:///{folder / 'jobs.db'}"


STORES: dict[str, Open] = {
    "sqlite": sqlite,
    "postgres": served(servers.postgres),
    "redis": served(servers.redis),
}
