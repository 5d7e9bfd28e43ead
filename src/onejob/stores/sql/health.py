"""What `onejob doctor` looks at in SQLite: the library, the file, its settings. Nothing here writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from onejob.stores.contract import Finding, Level
from onejob.stores.sql.lockfile import fcntl
from onejob.stores.sql.statements import statements

SQL = statements("sqlite")
COMPANIONS = ("", "-wal", "-shm", ".lock")
NETWORKED = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
NETWORKED |= {f"fuse.{kind}" for kind in ("glusterfs", "rclone", "s3fs", "sshfs")}
MOUNTS = Path("/proc/mounts")


def examine(path: Path, synchronous: str, known: int, *, affected: bool) -> list[Finding]:
    """Look at everything that can be seen without opening the file for writing."""
    findings = [library(affected=affected), durability(synchronous), file_system(path)]
    if not path.exists():
        return [*findings, Finding("file", "warn", f"{path} does not exist yet; the first use makes it.")]
    try:
        return [*findings, privacy(path), schema(path, schema_version(path), known), integrity(path)]
    except sqlite3.Error as error:
        message = f"{path} cannot be read: {error}."
        return [*findings, Finding("file", "fail", message, "Name another file, or restore a backup.")]


def look_only(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, nor checkpoint when it closes."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)


def schema_version(path: Path) -> int:
    """Tell the version of our tables, 0 if there are none."""
    if not path.exists():
        return 0
    with closing(look_only(path)) as connection:
        found = {name for (name,) in connection.execute(SQL["known_tables"])}
        if "onejob_schema" not in found:
            return 0
        return connection.execute(SQL["schema_version"]).fetchone()[0] or 0


def library(*, affected: bool) -> Finding:
    """Tell whether SQLite has the write-ahead log reset bug, and that it cannot strike here."""
    version = f"SQLite {sqlite3.sqlite_version}"
    if not affected:
        return Finding("library", "ok", f"{version} does not have the WAL-reset bug.")
    if fcntl is None:
        message = f"{version} has the WAL-reset bug, and this system has no file locks to keep clear of it."
        return Finding("library", "fail", message, "Upgrade SQLite to 3.51.3 or newer.")
    message = (
        f"{version} has the WAL-reset bug; onejob keeps clear of it: one advisory lock around every write "
        "and checkpoint of its own."
    )
    advice = (
        "Let no other program checkpoint this file, or upgrade SQLite to 3.51.3 (or 3.50.7, 3.44.6) or newer."
    )
    return Finding("library", "warn", message, advice)


def durability(synchronous: str) -> Finding:
    """Tell what a power cut may take."""
    if synchronous == "FULL":
        return Finding("synchronous", "ok", "synchronous=FULL: a commit survives power loss.")
    message = f"synchronous={synchronous}: power loss may take the last commits."
    return Finding("synchronous", "warn", message, "Drop ?synchronous from the URL if they matter.")


def file_system(path: Path) -> Finding:
    """Tell whether the file lies where locks can be trusted."""
    kind = mounted_as(path)
    if kind in NETWORKED:
        message = f"{path} lies on a network file system ({kind}), whose locks SQLite cannot trust."
        level: Level = "warn" if kind == "9p" else "fail"  # 9p is also what some sandboxes call their disk
        return Finding("file system", level, message, "Move the file to a local disk.")
    return Finding("file system", "ok", f"{path} lies on {kind or 'a file system of unknown kind'}.")


def mounted_as(path: Path) -> str | None:
    """Tell the type of the file system under a path, by the longest mount point that leads to it."""
    place = path.absolute().resolve()
    above = {str(place), *map(str, place.parents)}
    kinds = {point: kind for point, kind in mounts() if point in above}
    return kinds[max(kinds, key=len)] if kinds else None


def mounts() -> Iterator[tuple[str, str]]:
    """Read mount points and their types; later ones cover earlier ones."""
    if MOUNTS.exists():
        for line in MOUNTS.read_text().splitlines():
            _, point, kind, *_ = line.split(" ")
            yield point.encode().decode("unicode_escape"), kind


def privacy(path: Path) -> Finding:
    """Tell whether others may read the arguments of our jobs."""
    files = [path.with_name(path.name + end) for end in COMPANIONS]
    seen = [file for file in files if file.exists() and file.stat().st_mode & 0o077 and os.name == "posix"]
    if not seen:
        return Finding("privacy", "ok", f"{path} is for its owner only (0600).")
    names = " ".join(map(str, seen))
    return Finding("privacy", "warn", f"Other users may open {names}.", f"Run: chmod 600 {names}")


def schema(path: Path, found: int, known: int) -> Finding:
    """Compare the tables with those that this onejob knows."""
    if found == known:
        return Finding("schema", "ok", f"The tables have version {found}, the newest.")
    if found > known:
        message = f"{path} has schema {found}, newer than {known}, which this onejob knows."
        return Finding("schema", "fail", message, "Upgrade onejob.")
    message = (
        f"{path} has {f'schema {found}' if found else 'no tables of onejob'}; this onejob knows {known}."
    )
    return Finding("schema", "warn", message, "Run onejob migrate; the next use of the app does the same.")


def integrity(path: Path) -> Finding:
    """Let SQLite check every page and index."""
    with closing(look_only(path)) as connection:
        answers = [answer for (answer,) in connection.execute("PRAGMA integrity_check(3)")]
    if answers == ["ok"]:
        return Finding("integrity", "ok", "Every page and index is sound (integrity_check).")
    return Finding("integrity", "fail", f"The file is damaged: {'; '.join(answers)}.", "Restore a backup.")
