"""A file to which many processes append what they did, and which outlives `kill -9`.

A write that goes across two pages of the file is seen half by who reads at that moment, and stays half if
its writer is killed at that moment. So every note begins with a mark of its own and ends with a line's end
(RFC 7464): half a note is told from a whole one, and spoils none that follows.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

BEGIN = "\x1e"


class Journal:
    """What a process appends to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, **facts: Any) -> None:
        """Append one note."""
        os.write(self._file, f"{BEGIN}{json.dumps(facts)}\n".encode())


def read(path: Path) -> list[dict[str, Any]]:
    """Read every whole note."""
    if not path.exists():
        return []
    return [json.loads(note) for note in path.read_text().split(BEGIN) if note.endswith("\n")]
