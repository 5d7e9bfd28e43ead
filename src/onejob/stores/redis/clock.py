"""The server's clock: its time when last read, counted on by a clock that no one sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from onejob.core.job import EPOCH
from onejob.stores.contract import utcnow

MOST_AGE = 30.0  # seconds after which the server's clock is read again
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts while the machine sleeps, if it can


def elapsed() -> float:
    """Return seconds since some moment, unaffected by changes of this machine's time."""
    return time.clock_gettime(_ELAPSED)


class ServerClock:
    """The server's time."""

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._time = EPOCH

    def __call__(self) -> datetime:
        """Return the server's time; before it was first read, this machine's."""
        if self._read_at is None:
            return utcnow()
        return self._time + timedelta(seconds=elapsed() - self._read_at)

    @property
    def is_set(self) -> bool:
        """Whether the server's clock has been read."""
        return self._read_at is not None

    @property
    def is_stale(self) -> bool:
        """Whether the server's clock should be read again."""
        return self._read_at is None or elapsed() - self._read_at > MOST_AGE

    def set(self, asked_at: float, answer: Sequence[Any]) -> None:
        """Take the server's answer to TIME, given between `asked_at` and now."""
        now = elapsed()
        server = EPOCH + timedelta(seconds=int(answer[0]), microseconds=int(answer[1]))
        uncertain = timedelta(seconds=(now - asked_at) / 2)
        time_now = server + uncertain
        if self._read_at is not None and abs(time_now - self()) <= uncertain:
            time_now = self()  # no difference that can be told, so time does not jump
        self._time, self._read_at = time_now, now
