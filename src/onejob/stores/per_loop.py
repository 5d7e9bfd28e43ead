"""What each event loop that uses a store has for itself: a connection belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Own(Protocol):
    """What one event loop has of a store, such as connections."""

    def cut(self) -> None:
        """Close its connections, whether or not the loop still runs."""


T = TypeVar("T", bound=Own)


class PerLoop(Generic[T]):
    """What each event loop has of a store, created at its first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def here(self) -> T:
        """Return what the running loop has; create it at the first use."""
        return self._by_loop.get(asyncio.get_running_loop()) or self._create()

    def _create(self) -> T:
        """Create it, and cut what closed loops have left: a connection keeps its loop alive."""
        with self._lock:
            for loop, own in self.items():
                if loop.is_closed():
                    del self._by_loop[loop]
                    own.cut()
            own = self._by_loop[asyncio.get_running_loop()] = self._make()
            return own

    def items(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return the loops and what they have."""
        return list(self._by_loop.items())

    def cut(self) -> None:
        """Cut the connections of all loops."""
        for own in list(self._by_loop.values()):
            own.cut()
        self._by_loop.clear()
