"""Notice calls of `enqueue` that are never awaited: they enqueue nothing, and no error would say so."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence

from onejob.engine.decided import caller_at

log = logging.getLogger("onejob")


class Unawaited:
    """Belongs to one call of an async method: logs an error if it is dropped before the method has begun.

    The coroutine has the only reference, as an argument, and calls `begin` first.

    Attributes:
        caller: The file and line that made the call.
    """

    __slots__ = ("_begun", "_name", "_tasks", "caller")

    def __init__(self, name: str, tasks: Sequence[str]) -> None:
        """Remember the line that calls the method in which this is made.

        Args:
            name: The method, as the log names it.
            tasks: The names of the tasks that it would enqueue.
        """
        self._begun = False
        self._name = name
        self._tasks = tasks
        frame = inspect.currentframe()
        self.caller = caller_at(frame and frame.f_back and frame.f_back.f_back)

    def begin(self) -> None:
        """Note that the coroutine runs."""
        self._begun = True

    def __del__(self) -> None:
        """Log the call if its coroutine has never run."""
        if not self._begun:
            log.error(
                "nothing was enqueued: %s of %s at %s was never awaited: await it, or write %s_sync",
                self._name,
                ", ".join(dict.fromkeys(self._tasks)) or "no calls",
                "{}, line {}".format(*self.caller) if self.caller[0] else "an unknown line",
                self._name,
            )
