"""The liveness file: touched while a worker makes progress, so that a probe sees whether it hangs."""

from __future__ import annotations

import logging
import time
from pathlib import Path

log = logging.getLogger("onejob")

STALLED_AFTER = 10.0  # seconds for which an exchange with the store may go on, or fail again and again


class LivenessFile:
    """A file whose age says for how long a worker has not been seen to work; none if there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._waits_since: float | None = None  # since when the loop has waited for an answer of the store
        self._is_failing = False

    def ask(self) -> None:
        """Note that the loop asks the store, perhaps again after an error."""
        if self._waits_since is None:
            self._waits_since = time.monotonic()

    def answered(self) -> None:
        """Note that the store has answered the loop."""
        self._waits_since = None

    def touch(self) -> None:
        """Touch the file after a heartbeat, unless the loop has waited for the store for too long."""
        if self._path is None or self._is_stalled():
            return
        try:
            self._path.touch()
            self._is_failing = False
        except OSError as error:
            level = logging.DEBUG if self._is_failing else logging.ERROR
            log.log(level, "the liveness file %s cannot be written: %s", self._path, error.strerror)
            self._is_failing = True

    def _is_stalled(self) -> bool:
        return self._waits_since is not None and time.monotonic() - self._waits_since > STALLED_AFTER

    def remove(self) -> None:
        """Remove the file, because the worker has stopped in order."""
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("the liveness file %s cannot be removed: %s", self._path, error.strerror)
