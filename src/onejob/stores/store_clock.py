"""The time of a store: its own clock, or one that a test has put in its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

Clock = Callable[[], datetime]


class StoreClock:
    """A clock that can be replaced while the store is open."""

    __slots__ = ("given", "own")

    def __init__(self, own: Clock, given: Clock | None = None) -> None:
        self.own = own
        self.given = given  # instead of its own

    def __call__(self) -> datetime:
        """Return the store's time."""
        return (self.given or self.own)()

    def use(self, clock: Clock | None) -> Clock | None:
        """Take the time from another clock, or from its own again if it is None; return the one before."""
        before, self.given = self.given, clock
        return before
