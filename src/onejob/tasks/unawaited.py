"""Notice calls of `enqueue` that are never awaited: they enqueue nothing, and no error would say so."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from types import CodeType

log = logging.getLogger("onejob")


class Unawaited:
    """Belongs to one call of an async method: logs an error if it is dropped before the method has begun.

    The coroutine has the only reference, as an argument, and calls `begin` first. An awaited call costs the
    object and two attributes; the line is found only for a call that was dropped.
    """

    __slots__ = ("_begun", "_code", "_instruction", "_name", "_tasks")

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
        caller = frame and frame.f_back and frame.f_back.f_back
        self._code: CodeType | None = caller.f_code if caller else None
        self._instruction = caller.f_lasti if caller else 0

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
                place_of(self._code, self._instruction),
                self._name,
            )


def place_of(code: CodeType | None, instruction: int) -> str:
    """Return the file and the line of an instruction."""
    if code is None:
        return "an unknown line"
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return f"{code.co_filename}, line {next(lines, None) or code.co_firstlineno}"
