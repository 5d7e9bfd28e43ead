"""What a handler may raise to say how its run ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onejob.core.durations import Duration, duration


class Signal(Exception):
    """A handler's word about its own run."""


class RetryLater(Signal):
    """Fail this attempt and try again after a time of the handler's choosing.

    Args:
        after: When to try again.
        reason: What the error history says.
        args: Arguments that the next attempt gets instead, by name. The key and the version stay: arguments
            that would change them fail the attempt.
    """

    def __init__(
        self,
        after: Duration,
        reason: str = "the handler asked for a retry",
        *,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(reason)
        self.after = duration(after)
        self.changes = args  # an exception has `args` already


class Snooze(Signal):
    """Run again after a while without spending an attempt."""

    def __init__(self, after: Duration) -> None:
        super().__init__("snoozed")
        self.after = duration(after)


class Cancel(Signal):
    """End this job as cancelled."""


class Discard(Signal):
    """End this job as a dead letter at once, whatever attempts are left."""
