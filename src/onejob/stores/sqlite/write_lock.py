"""The lock around every write: SQLite's own, and on some versions an advisory lock on a file beside it.

SQLite in WAL mode may damage a database when two connections checkpoint at the same moment (the WAL-reset
bug, before 3.51.3, 3.50.7 and 3.44.6). On these versions every write and every checkpoint of this store
happens while `jobs.db.lock` is locked. On others there is no such file, and writers wait in SQLite's busy
handler.

Either way one process writes at a time, and a process that is stopped (SIGSTOP) inside a write cannot be
overtaken: other writers raise AdmissionBusy until it continues or ends. The error names it where the system
says which process it is.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from onejob.errors import AdmissionBusy

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: there are SQLite's own locks only
    fcntl = None

FIRST_PAUSE, LONGEST_PAUSE = 0.00005, 0.002
PROCESSES = Path("/proc")
WRITER_BYTE = 120  # of the -shm file: SQLite locks it for the one connection that writes


def may_corrupt(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Return whether this SQLite has the WAL-reset bug."""
    if version >= (3, 51, 3):
        return False
    return not ((3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0))


def beside(path: Path) -> Path:
    """Return the path of a database's lock file."""
    return companion(path, ".lock")


def companion(path: Path, end: str) -> Path:
    """Return the path of a file beside the database; like SQLite's own, beside the file that a link names."""
    return Path(os.path.realpath(path) + end)


class WriteLock:
    """A lock that one process holds at a time, where SQLite's own does not suffice; waiting is bounded."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._file: int | None = None
        if fcntl is not None and may_corrupt():
            self._file = os.open(beside(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        """Take the lock, or raise AdmissionBusy."""
        if self._file is None:
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
                    raise AdmissionBusy(busy(self._path)) from None
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. It stays on disk: other processes may have it open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


# ── which process writes ──────────────────────────────────────────────────────────────────────────


def busy(path: Path) -> str:
    """Return the sentence of an AdmissionBusy: which process writes, and what to do about it."""
    process = writer_of(path)
    if process is None:
        return f"{path} is being written in a transaction that does not end; try again."
    if process == os.getpid():
        return (
            f"{path} is being written in a transaction of this process: end it first, or enqueue inside it, "
            "with task.options(connection=…)."
        )
    if _is_stopped(process):
        return (
            f"{path} is being written by process {process}, which is stopped. SQLite has one writer at a "
            f"time: continue the process (kill -CONT {process}) or end it."
        )
    return f"{path} is being written by process {process} in a transaction that does not end; try again."


def writer_of(path: Path) -> int | None:
    """Return the process that writes a database, as far as the system says."""
    locked = {_inode(beside(path)): None, _inode(companion(path, "-shm")): WRITER_BYTE}
    for line in _lines(PROCESSES / "locks"):
        # 3: POSIX  ADVISORY  WRITE 4711 fe:00:2153608 120 120
        fields = line.split()
        if len(fields) != 8 or fields[3] != "WRITE":  # noqa: PLR2004 - a line of a process that waits has nine
            continue
        inode, first, last = fields[5].rpartition(":")[2], fields[6], fields[7]
        byte = locked.get(inode, -1)
        if byte is None or (byte >= 0 and int(first) <= byte and (last == "EOF" or byte <= int(last))):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _inode(path: Path) -> str:
    try:
        return str(path.stat().st_ino)
    except OSError:
        return ""


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped, by a signal or by a debugger."""
    return any(
        line.startswith("State:\t") and line[7] in "Tt" for line in _lines(PROCESSES / f"{process}/status")
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:  # another system, or the process has ended
        return []
