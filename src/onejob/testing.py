"""Help for tests of code that uses onejob: a clock that stands still, and a worker that runs dry."""

from __future__ import annotations

from datetime import UTC, datetime

from onejob.app import App
from onejob.schedule import Duration, duration
from onejob.stores.memory import MemoryStore

__all__ = ["Clock", "MemoryStore", "drain"]


class Clock:
    """A clock that moves only when told to: MemoryStore(clock=Clock())."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """Tell the time."""
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Move on."""
        self._now += duration(by)
        return self._now


async def drain(app: App, *, concurrency: int = 8) -> None:
    """Run everything that is due, and what that makes due, then return."""
    await app.worker(concurrency=concurrency, drain=True).run()
