"""Read the named statements of a dialect, and its migrations, from their .sql files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_STORES = files("onejob.stores")
_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?);$", re.MULTILINE | re.DOTALL)


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return the statements of a dialect by name."""
    text = (_STORES / dialect / "statements.sql").read_text()
    return dict(_BLOCK.findall(text))


@cache
def migrations(dialect: str) -> Mapping[int, str]:
    """Return the migrations of a dialect by number, in order."""
    found = {int(file.name[:4]): file.read_text() for file in (_STORES / dialect / "migrations").iterdir()}
    return dict(sorted(found.items()))
