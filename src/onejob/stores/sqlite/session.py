"""Named statements on one connection, at one time: what steps, leasing and queries run on."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from onejob.stores.flow import Flow, drive
from onejob.stores.sql.statements import statements

SQL = statements("sqlite")
Row = tuple[Any, ...]
T = TypeVar("T")

NULL = float("nan")
"""NULL as a parameter: SQLite stores NaN as NULL.

Before Python 3.12 the sqlite3 module binds None in 0.6 µs and `bytes` in 0.7 µs, because it first searches an
adapter for them; a float takes 0.04 µs, a `bytearray` 0.2 µs. A new job has 13 columns that are NULL.
"""


class Session:
    """A cursor, the store's time, and whether steps may run on jobs as their callers last saw them."""

    __slots__ = ("_cursor", "now", "trusting")

    def __init__(self, cursor: sqlite3.Cursor, now: datetime, *, trusting: bool = False) -> None:
        self._cursor = cursor
        self.now = now
        self.trusting = trusting

    def rows(self, name: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        return self._cursor.execute(SQL[name], parameters).fetchall()

    def write(self, name: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once per row of parameters, and return how many rows it has written."""
        if len(rows) == 1:
            return self._cursor.execute(SQL[name], rows[0]).rowcount
        return self._cursor.executemany(SQL[name], rows).rowcount

    def run(self, flow: Flow[T]) -> T:
        """Run a flow, statement by statement."""
        return drive(flow, lambda batch: [self.rows(query.name, query.parameters) for query in batch])
