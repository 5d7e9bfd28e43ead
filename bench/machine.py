"""The machine on which the figures were taken."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Machine:
    """The versions, the cores, and the disk."""

    system: str
    cores: int
    python: str
    sqlite: str
    folder: str
    file_system: str
    fsync_p50_ms: float
    servers: tuple[str, ...] = ()


def inspect(folder: Path) -> Machine:
    """Describe this machine and the disk that holds `folder`."""
    return Machine(
        system=platform.platform(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        folder=str(folder.parent),
        file_system=file_system(folder),
        fsync_p50_ms=fsync(folder / "fsync"),
    )


def fsync(path: Path, times: int = 200) -> float:
    """Return the median time to sync one page to disk, in milliseconds."""
    took = []
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for _ in range(times):
            os.write(file, bytes(4096))
            began = time.perf_counter()
            os.fsync(file)
            took.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(file)
    return statistics.median(took)


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`, where the system shows it."""
    if not MOUNTS.exists():
        return "unknown"
    mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1]
