"""What `onejob doctor` examines of a SQLite store: library, file and settings. Nothing here writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from onejob.stores.contract import Finding, Level, Schema
from onejob.stores.sql.schema import examine_schema
from onejob.stores.sqlite.schema import OLD_TABLES, SCHEMA, has_old_tables
from onejob.stores.sqlite.session import SQL
from onejob.stores.sqlite.write_lock import fcntl, may_corrupt

COMPANIONS = ("", "-wal", "-shm", ".lock")
NETWORKED = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
NETWORKED |= {f"fuse.{kind}" for kind in ("glusterfs", "rclone", "s3fs", "sshfs")}
MOUNTS = Path("/proc/mounts")


def examine(path: Path, synchronous: str) -> list[Finding]:
    """Examine all that can be read without opening the file for writing."""
    findings = [library(affected=may_corrupt()), durability(synchronous), file_system(path)]
    if not path.exists():
        return [*findings, Finding("file", "warn", f"{path} does not exist yet; the first use creates it.")]
    try:
        return [*findings, privacy(path), schema(path), integrity(path)]
    except sqlite3.Error as error:
        message = f"{path} cannot be read: {error}."
        return [*findings, Finding("file", "fail", message, "Name another file, or restore a backup.")]


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, nor checkpoint when it closes."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)


def schema_version(path: Path) -> int:
    """Return the version of onejob's tables, 0 if there are none."""
    if not path.exists():
        return 0
    with closing(open_read_only(path)) as connection:
        found = {name for (name,) in connection.execute(SQL["known_tables"])}
        if "onejob_schema" not in found:
            return 0
        return connection.execute(SQL["schema_version"]).fetchone()[0] or 0


def library(*, affected: bool) -> Finding:
    """Return whether SQLite has the WAL-reset bug, and what protects this store from it."""
    version = f"SQLite {sqlite3.sqlite_version}"
    if not affected:
        return Finding("library", "ok", f"{version} does not have the WAL-reset bug.")
    if fcntl is None:
        message = f"{version} has the WAL-reset bug, and this system has no file locks to avoid it."
        return Finding("library", "fail", message, "Upgrade SQLite to 3.51.3 or newer.")
    message = (
        f"{version} has the WAL-reset bug; onejob avoids it by an advisory lock around every write and "
        "checkpoint of its own."
    )
    advice = (
        "Let no other program checkpoint this file, or upgrade SQLite to 3.51.3 (or 3.50.7, 3.44.6) or newer."
    )
    return Finding("library", "warn", message, advice)


def durability(synchronous: str) -> Finding:
    """Return what a power failure may lose."""
    if synchronous == "FULL":
        return Finding("synchronous", "ok", "synchronous=FULL: a commit survives power loss.")
    message = f"synchronous={synchronous}: power loss may take the last commits."
    return Finding("synchronous", "warn", message, "Drop ?synchronous from the URL if they matter.")


def file_system(path: Path) -> Finding:
    """Return whether the file is on a file system whose locks can be trusted."""
    kind = mounted_as(path)
    if kind in NETWORKED:
        message = f"{path} lies on a network file system ({kind}), whose locks SQLite cannot trust."
        level: Level = "warn" if kind == "9p" else "fail"  # 9p is also what some sandboxes call their disk
        return Finding("file system", level, message, "Move the file to a local disk.")
    return Finding("file system", "ok", f"{path} lies on {kind or 'a file system of unknown kind'}.")


def mounted_as(path: Path) -> str | None:
    """Return the type of the file system of a path, by the longest mount point that leads to it."""
    place = path.absolute().resolve()
    above = {str(place), *map(str, place.parents)}
    kinds = {point: kind for point, kind in mounts() if point in above}
    return kinds[max(kinds, key=len)] if kinds else None


def mounts() -> Iterator[tuple[str, str]]:
    """Yield mount points and their types; later ones cover earlier ones."""
    if MOUNTS.exists():
        for line in MOUNTS.read_text().splitlines():
            _, point, kind, *_ = line.split(" ")
            yield point.encode().decode("unicode_escape"), kind


def privacy(path: Path) -> Finding:
    """Return whether other users may read the arguments of jobs."""
    files = [path.with_name(path.name + end) for end in COMPANIONS]
    seen = [file for file in files if file.exists() and file.stat().st_mode & 0o077 and os.name == "posix"]
    if not seen:
        return Finding("privacy", "ok", f"{path} is for its owner only (0600).")
    names = " ".join(map(str, seen))
    return Finding("privacy", "warn", f"Other users may open {names}.", f"Run: chmod 600 {names}")


def schema(path: Path) -> Finding:
    """Compare the tables with those that this onejob knows."""
    with closing(open_read_only(path)) as connection:
        if has_old_tables(connection):
            return Finding("schema", "fail", f"{path} {OLD_TABLES}.", "Name a new file.")
    return examine_schema(path, Schema(schema_version(path), SCHEMA))


def integrity(path: Path) -> Finding:
    """Return whether every page and index is sound, as SQLite checks them."""
    with closing(open_read_only(path)) as connection:
        answers = [answer for (answer,) in connection.execute("PRAGMA integrity_check(3)")]
    if answers == ["ok"]:
        return Finding("integrity", "ok", "Every page and index is sound (integrity_check).")
    return Finding("integrity", "fail", f"The file is damaged: {'; '.join(answers)}.", "Restore a backup.")
