"""An advisory lock between processes, on a file of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from onejob.errors import AdmissionBusy

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: SQLite's own locks must do
    fcntl = None

FIRST_PAUSE, LONGEST_PAUSE = 0.00005, 0.002


def beside(path: Path) -> Path:
    """Tell where the lock of a database lies."""
    return path.with_name(path.name + ".lock")


class LockFile:
    """A lock that one process holds at a time; waiting is bounded."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        """Take the lock, or raise AdmissionBusy."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait()

    def _wait(self) -> None:
        ends = time.monotonic() + self._timeout
        pause = FIRST_PAUSE
        while True:
            time.sleep(pause)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > ends:
                    message = (
                        f"{self._path} has been locked by another process for {self._timeout:g} s; try again."
                    )
                    raise AdmissionBusy(message) from None
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go."""
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. It stays on disk: removing it would part those who wait from those who come."""
        os.close(self._file)
