"""A file to which many processes append notes, and which survives kill -9.

A write that crosses two pages of the file is seen half by a reader at that moment, and stays half if its
writer is killed at that moment. So every note begins with a separator of its own and ends with a newline
(RFC 7464): a reader can tell half a note from a whole one, and half a note damages none that follows.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SEPARATOR = "\x1e"


class Journal:
    """A journal that this process appends to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, **facts: Any) -> None:
        """Append one note."""
        os.write(self._file, f"{SEPARATOR}{json.dumps(facts)}\n".encode())


def read(path: Path) -> list[dict[str, Any]]:
    """Return every whole note."""
    if not path.exists():
        return []
    return [json.loads(note) for note in path.read_text().split(SEPARATOR) if note.endswith("\n")]
