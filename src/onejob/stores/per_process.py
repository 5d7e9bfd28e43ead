"""What each process that uses a store has for itself: what was opened before a fork belongs to the parent."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

_generation = 0


def generation() -> int:
    """Return how many forks led to this process; cheaper than asking the system for the process id."""
    return _generation


def _forked() -> None:
    global _generation  # noqa: PLW0603 - the counter is the point
    _generation += 1


os.register_at_fork(after_in_child=_forked)


class Opened(Protocol):
    """What was opened in a process."""

    generation: int


T = TypeVar("T", bound=Opened)


class PerProcess(Generic[T]):
    """What a process has open of a store: opened at the first use, and again after a fork or after `take`."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._opened: T | None = None

    @property
    def ready(self) -> T | None:
        """What this process has open, if anything."""
        opened = self._opened
        return opened if opened is not None and opened.generation == generation() else None

    def get(self) -> T:
        """Return what is open; open it if nothing is."""
        found = self.ready
        if found is None:
            with self._lock:
                found = self.ready
                if found is None:
                    found = self._opened = self._make()
        return found

    async def get_async(self) -> T:
        """Return what is open; open it on a thread if nothing is."""
        found = self.ready
        return found if found is not None else await asyncio.to_thread(self.get)

    def take(self) -> T | None:
        """Return what is open, to be closed by the caller; the next use opens it again."""
        with self._lock:
            found, self._opened = self.ready, None
        return found
