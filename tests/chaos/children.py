"""Start child processes in a role of `tests.chaos.roles`, and wait for what they do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds; reached only by a test that fails, on however busy a machine


class Child:
    """A child process in a role."""

    def __init__(self, folder: Path, role: str, **options: Any) -> None:
        words = [f"{name}={value}" for name, value in options.items()]
        self.errors = folder / f"errors-{time.monotonic_ns()}"
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.roles", role, str(folder), *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.pid = self._process.pid

    def write(self, line: str) -> None:
        """Write a line to its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def read(self) -> str:
        """Wait for the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end and return its exit code."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(folder: Path, *roles: dict[str, Any]) -> Iterator[list[Child]]:
    """Start children, let all of them go at the same moment, and leave none behind."""
    children: list[Child] = []
    try:
        children += [Child(folder, **role) for role in roles]
        for child in children:
            assert child.read() == "ready", child.errors.read_text()
        for child in children:
            child.write("go")
        yield children
    finally:
        for child in children:
            child.close()


def kill(*pids: int) -> None:
    """Kill processes, as far as they still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def freeze(child: Child, folder: Path) -> None:
    """Stop a process with SIGSTOP, but not while it holds SQLite's lock, which no other process can break."""
    while True:
        child.send(signal.SIGSTOP)
        eventually(lambda: process_state(child.pid) == "T", "the process is stopped")
        if not is_locked(folder / "jobs.db"):
            return
        child.send(signal.SIGCONT)


def process_state(pid: int) -> str | None:
    """Return the state of a process as the kernel names it, None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended but is not reaped yet does not."""
    return process_state(pid) not in {None, "Z"}


def is_locked(path: Path) -> bool:
    """Return whether another process is writing to a SQLite file."""
    if not path.exists():  # another store
        return False
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
    return False


def stop(*workers: Child) -> list[int]:
    """Send workers SIGTERM, and return their exit codes."""
    for worker in workers:
        worker.send(signal.SIGTERM)
    return [worker.end() for worker in workers]


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition on another process holds."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)


def check_sqlite_file(folder: Path) -> None:
    """Check the database as the kills left it, on a copy: onejob has to recover the original by itself."""
    copy = folder / "copy"
    copy.mkdir()
    for name in ("jobs.db", "jobs.db-wal"):
        shutil.copyfile(folder / name, copy / name)
    with closing(sqlite3.connect(copy / "jobs.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    shutil.rmtree(copy)
