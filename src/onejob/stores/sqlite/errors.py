"""SQLite's errors as errors of onejob, one sentence each."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from onejob.errors import AdmissionBusy, SchemaMismatch, StoreError, StoreUnavailable
from onejob.stores.sqlite.write_lock import busy

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
MEANINGS = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing of this request was stored",
    sqlite3.SQLITE_READONLY: "the file is read-only; make it writable for this user",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that its folder exists and is writable",
    sqlite3.SQLITE_PERM: "the file may not be opened by this user",
    sqlite3.SQLITE_IOERR: "the disk gave an error; nothing of this request was stored",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a backup",
}


class translating(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a verb in `with`
    """Raise errors of SQLite and of the file system as errors of onejob."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the typed error in place of SQLite's."""
        if isinstance(error, sqlite3.Error):
            raise translated(error, self._path) from error
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise StoreUnavailable(f"{self._path}: {error.strerror or error}.") from error


def translated(error: sqlite3.Error, path: Path) -> StoreError:
    """Return an error of SQLite as an error of onejob."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return AdmissionBusy(
            f"Your transaction on {path} began with a read, and another one has written since: roll it back, "
            "and begin it with BEGIN IMMEDIATE."
        )
    if code in BUSY:
        return AdmissionBusy(busy(path))
    if code == sqlite3.SQLITE_NOTADB:
        return SchemaMismatch(f"{path} is not a SQLite database: name another file.")
    return StoreUnavailable(f"{path}: {MEANINGS.get(code, error)}.")
