"""What a handler may raise to say how its run ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onejob.core.durations import Duration, duration


class Signal(Exception):
    """What a handler raises to say how its run ends."""


class RetryLater(Signal):
    """Fail this attempt and try again after a time of the handler's choosing.

    Args:
        after: When to try again.
        reason: The message in the error history.
        args: Arguments that the next attempt gets instead, by name. The key and the version stay: arguments
            that would change them fail the attempt.

    Examples:
        >>> raise RetryLater("10m", "the service is in maintenance")
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
    """End this run and run the job again later, without counting an attempt.

    Args:
        after: When to run again.

    Examples:
        >>> raise Snooze("5m")
    """

    def __init__(self, after: Duration) -> None:
        super().__init__("snoozed")
        self.after = duration(after)


class Cancel(Signal):
    """End this job as cancelled; the text is stored as its reason.

    Examples:
        >>> raise Cancel("the customer is gone")
    """


class Discard(Signal):
    """End this job as a dead letter at once, whatever attempts are left; the text is stored as its error.

    Examples:
        >>> raise Discard("the file is damaged")
    """
