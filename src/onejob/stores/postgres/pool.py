"""Pools of connections, newest first: of the process's threads, and of each event loop that uses the store.

A lone caller uses the same connection again and again, which keeps it warm on both sides.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.errors import ConnectionTimeout
from psycopg.rows import tuple_row

from onejob.errors import StoreTimeout, StoreUnavailable
from onejob.stores.flow import Flow, Query
from onejob.stores.group_commit import Closed
from onejob.stores.per_process import generation
from onejob.stores.postgres.connection import TEXTS, StoreConnection, ask
from onejob.stores.postgres.errors import ConnectionLost, translated
from onejob.stores.postgres.server import Server

T = TypeVar("T")

MOST = 10  # connections of threads
MOST_OF_LOOP = 8  # connections of one event loop
KEPT_FOR_HANDLERS = 16  # idle connections for handlers, whose slow transactions must delay no lease
PAUSE = 0.1  # seconds between two attempts to connect
CLOSING = 5.0  # seconds for flows that are under way when the store is closed


class Pool:
    """Idle connections, newest first, and all that are open; of threads if it `blocks`, else of one loop."""

    def __init__(self, server: Server, kept: int, *, blocks: bool, own: bool = True) -> None:
        self.server = server
        self.blocks = blocks
        self._kept = kept
        self._own = own  # whether the connections run the store's flows, or are lent to handlers
        self._room: Any = (threading.Semaphore if blocks else asyncio.Semaphore)(kept)
        self._idle: list[StoreConnection] = []
        self._open: set[StoreConnection] = set()
        self._is_closed = False
        # An event loop may end, and its pool with it, before the store is closed.
        weakref.finalize(self, close_all, self._open, generation())

    async def run(self, make: Callable[[], Flow[T]]) -> T:
        """Run a flow; if its connection was lost before a commit, run it on another one."""
        await self._enter()
        try:
            for _ in range(self._kept + 1):  # all idle connections may be broken
                connection = self.take() or await self.connect()
                try:
                    return await connection.run(make())
                except ConnectionLost:
                    continue
                except StoreTimeout:
                    self._close_idle()  # they are of the kind that went silent
                    raise
                except psycopg.Error as error:
                    raise translated(error, self.server.place) from error
                finally:
                    self.put(connection)
        finally:
            self._room.release()
        raise StoreUnavailable(f"{self.server.place}: the connection is lost, and so is every other.")

    async def _enter(self) -> None:
        limit = self.server.store_timeout
        if self.blocks:
            entered = self._room.acquire(timeout=limit)
        elif not self._room.locked():  # without a timer, as is usual
            entered = await self._room.acquire()
        else:
            entered = False
            with suppress(TimeoutError):
                entered = await asyncio.wait_for(self._room.acquire(), limit)
        if not entered:
            raise StoreTimeout(limit, may_exist=False)

    def take(self) -> StoreConnection | None:
        """Return the idle connection that was used last, if any; safe under concurrent calls."""
        if self._is_closed:
            raise Closed
        try:
            return self._idle.pop()
        except IndexError:
            return None

    async def connect(self) -> StoreConnection:
        """Open a connection; wait for a server that restarts, but no longer than a call may take."""
        server = self.server
        ends = time.monotonic() + min(server.admission_timeout, server.store_timeout)
        settings = server.settings(own=self._own)
        while True:
            try:
                raw: Any
                if self.blocks:
                    raw = Connection.connect(server.url.url, **settings)
                else:
                    raw = await AsyncConnection.connect(server.url.url, **settings)
            except psycopg.Error as error:
                if not self._own or time.monotonic() > ends or isinstance(error, ConnectionTimeout):
                    raise server.refuse(error) from error
                if self.blocks:
                    time.sleep(PAUSE)  # noqa: ASYNC251 - it blocks its own thread
                else:
                    await asyncio.sleep(PAUSE)
            else:
                connection = StoreConnection(raw, server)
                self._open.add(connection)
                return connection
            if self._is_closed:
                raise Closed

    def put(self, connection: StoreConnection) -> None:
        """Keep a connection for the next use, or close it."""
        if connection.raw.closed or self._is_closed or len(self._idle) >= self._kept:
            self._open.discard(connection)
            connection.close()
        else:
            self._idle.append(connection)

    def _close_idle(self) -> None:
        while self._idle and (connection := self.take()) is not None:
            connection.close()
            self.put(connection)

    async def drain(self) -> None:
        """Wait until the flows under way on this event loop have ended, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                while len(self._open) > len(self._idle):
                    await self._room.acquire()

    def close(self) -> None:
        """Close all connections, from any thread."""
        self._is_closed = True
        close_all(self._open, generation())


def close_all(connections: set[StoreConnection], born: int) -> None:
    """Close connections, unless they belong to the process from which this one was forked."""
    while connections and born == generation():
        connections.pop().close()


# ── connections for handlers' own transactions ────────────────────────────────────────────────────


@asynccontextmanager
async def lend(pool: Pool) -> AsyncIterator[Any]:
    """Open a transaction and yield its connection; commit at the end, or roll back.

    The connection is kept for the next handler after its session was reset.
    """
    connection = await take(pool)
    raw: Any = connection.raw
    try:
        async with AsyncExitStack() as stack:
            if pool.blocks:
                stack.enter_context(raw.transaction())
            else:
                await stack.enter_async_context(raw.transaction())
            yield raw
        raw.row_factory = tuple_row
        with suppress(psycopg.Error):
            reset = raw.execute(TEXTS["reset_session"])
            if not pool.blocks:
                await reset
    except BaseException:
        connection.close()
        raise
    finally:
        pool.put(connection)


async def take(pool: Pool) -> StoreConnection:
    """Return a connection that works."""
    while (connection := pool.take()) is not None:
        with suppress(psycopg.Error):
            await ask(connection.raw, Query("ping"))
            return connection
        connection.close()
        pool.put(connection)
    connection = await pool.connect()
    raw: Any = connection.raw
    if pool.blocks:
        raw.isolation_level = IsolationLevel.READ_COMMITTED
    else:
        await raw.set_isolation_level(IsolationLevel.READ_COMMITTED)
    return connection
