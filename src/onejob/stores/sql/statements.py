"""Read the named statements of a dialect, and its migrations, from their .sql files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_HERE = files(__package__)
_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return the statements of `<dialect>.sql` by name."""
    text = (_HERE / f"{dialect}.sql").read_text()
    return {name: body.strip().removesuffix(";") for name, body in _BLOCK.findall(text)}


@cache
def migrations(dialect: str) -> Mapping[int, str]:
    """Return the migrations of a dialect by number, in order."""
    found = {int(file.name[:4]): file.read_text() for file in (_HERE / "migrations" / dialect).iterdir()}
    return dict(sorted(found.items()))
