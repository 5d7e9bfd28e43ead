"""Connections for handlers' own writes, each lent to one transaction at a time and kept for the next.

They are none of the store's own, so that handlers who take their time keep nobody from renewing a lease.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.rows import tuple_row

from onejob.forks import generation
from onejob.stores.sql.postgres.faults import unavailable
from onejob.stores.sql.postgres.voice import SQL

C = TypeVar("C")


class Spare:
    """The connections for plain functions, whatever their threads."""

    def __init__(self, url: str, place: str, settings: dict[str, Any], *, kept: int) -> None:
        self._url = url
        self._place = place
        self._settings = settings
        self._kept = kept
        self._idle: list[Connection[Any]] = []
        self._born = generation()
        weakref.finalize(self, finish, self._idle, self._born)

    @contextmanager
    def lent(self) -> Iterator[Connection[Any]]:
        """Lend a connection inside a transaction; commit it at the end, or roll it back."""
        connection = self._take()
        try:
            with connection.transaction():
                yield connection
            self._keep(connection)
        except BaseException:
            connection.close()
            raise

    def _take(self) -> Connection[Any]:
        while (connection := popped(self._idle)) is not None:
            with suppress(psycopg.Error):
                connection.execute(SQL["ping"])
                return connection
            connection.close()
        try:
            connection = Connection.connect(self._url, **self._settings)
        except psycopg.Error as error:
            raise unavailable(error, self._place) from error
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        return connection

    def _keep(self, connection: Connection[Any]) -> None:
        """Keep it as it came, if it can be."""
        connection.row_factory = tuple_row
        with suppress(psycopg.Error):
            connection.execute(SQL["forget"])
        if connection.closed or len(self._idle) >= self._kept:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close those that nobody uses; the others are closed by whoever does."""
        finish(self._idle, self._born)


class SpareAwaited:
    """The connections for those who await, on one event loop."""

    def __init__(self, url: str, place: str, settings: dict[str, Any], *, kept: int) -> None:
        self._url = url
        self._place = place
        self._settings = settings
        self._kept = kept
        self._idle: list[AsyncConnection[Any]] = []
        self._born = generation()
        weakref.finalize(self, finish, self._idle, self._born)  # the loop may end before the store is closed

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection inside a transaction; commit it at the end, or roll it back."""
        connection = await self._take()
        try:
            async with connection.transaction():
                yield connection
            await self._keep(connection)
        except BaseException:
            await connection.close()
            raise

    async def _take(self) -> AsyncConnection[Any]:
        while (connection := popped(self._idle)) is not None:
            with suppress(psycopg.Error):
                await connection.execute(SQL["ping"])
                return connection
            await connection.close()
        try:
            connection = await AsyncConnection.connect(self._url, **self._settings)
        except psycopg.Error as error:
            raise unavailable(error, self._place) from error
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        return connection

    async def _keep(self, connection: AsyncConnection[Any]) -> None:
        connection.row_factory = tuple_row
        with suppress(psycopg.Error):
            await connection.execute(SQL["forget"])
        if connection.closed or len(self._idle) >= self._kept:
            await connection.close()
        else:
            self._idle.append(connection)

    def cut(self) -> None:
        """Close those that nobody uses, whether or not their loop still runs."""
        finish(self._idle, self._born)


def popped(idle: list[C]) -> C | None:
    """Take one that waits, whoever else does so at the same time."""
    try:
        return idle.pop()
    except IndexError:
        return None


def finish(idle: list[Any], born: object) -> None:
    """Close connections of either kind; those of the process that this one was forked from are not ours."""
    while born == generation() and (connection := popped(idle)) is not None:
        connection.pgconn.finish()
