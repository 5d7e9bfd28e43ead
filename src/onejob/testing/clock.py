"""Clocks that move only when a test moves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from onejob.app.app import App
from onejob.core.durations import Duration, duration
from onejob.errors import InvalidCall
from onejob.stores.contract import Clocked
from onejob.testing.inside import engine_of


class Clock:
    """A clock that moves only by `advance`.

    Examples:
        >>> clock = Clock()
        >>> app = App(store=MemoryStore(clock=clock))
        >>> clock.advance("1h")
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """Return the current time of this clock."""
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Move the clock forward, and return its time."""
        self._now += duration(by)
        return self._now


@contextmanager
def moving_clock(app: App, *, start: datetime | None = None) -> Iterator[Clock]:
    """Let the store of an app take the time from a clock that only `advance` moves, for the block.

    Windows, debounces, delays, retries, leases and cron ticks follow it. The timeout of a run does not: a
    run takes real time.

    Args:
        app: The app; other apps that use the same store object get the same time, other processes do not.
        start: The time at the beginning; the store's own time if left out.

    Raises:
        InvalidCall: `start` has no time zone, or the store cannot use another clock.

    Examples:
        >>> with moving_clock(app) as clock:
        ...     await digest.options(delay="1h").enqueue()
        ...     clock.advance("1h")
        ...     await drain(app)
    """
    store = engine_of(app).store
    if not isinstance(store, Clocked):
        name = store.guarantees.store
        raise InvalidCall(f"The {name} store has no use_clock: give it a Clock() where it is made.")
    if start is not None and start.tzinfo is None:
        raise InvalidCall("start= has no time zone: write datetime(…, tzinfo=UTC).")
    clock = Clock(start or store.now())
    before = store.use_clock(clock)
    try:
        yield clock
    finally:
        store.use_clock(before)
