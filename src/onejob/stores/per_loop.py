"""What each event loop that uses a store has for itself: a connection belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Own(Protocol):
    """What one loop has."""

    def cut(self) -> None:
        """Close its connections, whether or not the loop still runs."""


T = TypeVar("T", bound=Own)


class Loops(Generic[T]):
    """What all loops have."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def here(self) -> T:
        """Give what the running loop has."""
        return self._by_loop.get(asyncio.get_running_loop()) or self._welcome()

    def _welcome(self) -> T:
        """Make it; cut what closed loops have left, for connections know their loop and so keep it alive."""
        with self._lock:
            for loop, own in self.items():
                if loop.is_closed():
                    del self._by_loop[loop]
                    own.cut()
            own = self._by_loop[asyncio.get_running_loop()] = self._make()
            return own

    def items(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """List the loops and what they have."""
        return list(self._by_loop.items())

    def cut(self) -> None:
        """Cut what all of them have."""
        for own in list(self._by_loop.values()):
            own.cut()
        self._by_loop.clear()
