"""Connections of the store: a batch of statements is one libpq pipeline, one round trip, one time limit.

`psycopg.pq` is used instead of cursors, which cost more client time than most statements take on the server.
Blocking and async code share every coroutine here; on a thread, no wait suspends it (`flow.run_blocking`).
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, OperationalError, RawCursor
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from onejob.errors import InvalidCall, StoreTimeout, StoreUnavailable
from onejob.stores.flow import Batch, Flow, Query, Row, drive_async, run_blocking
from onejob.stores.postgres.errors import OUTDATED_PLAN, ConnectionLost, sqlstate
from onejob.stores.postgres.server import Server
from onejob.stores.sql.statements import statements

T = TypeVar("T")

SQL = statements("postgres")
TEXTS = {name: text.encode() for name, text in SQL.items()}
NAMES = {name: b"onejob_" + name.encode() for name in SQL}
BINARY = 1
LOCK_MARGIN = 0.5  # seconds for the answer of a statement that waited for a lock
FAILED, SYNC, BAD = int(ExecStatus.FATAL_ERROR), int(ExecStatus.PIPELINE_SYNC), int(ConnStatus.BAD)
ENDED = {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}
BEGIN, CLOCK, COMMIT, ROLLBACK = Query("begin"), Query("clock"), Query("commit"), Query("rollback")
WAITS = {"lock_timeout", "time_limits"}  # their first parameter is how long to wait for a lock
WRITING = {
    *("commit", "admit_job", "admit_jobs", "update_job", "update_jobs"),
    *("put_setting", "drop_setting", "fold_tallies", "set_aside"),
    *("observe", "limit_observations", "forget_observations"),
}


class StoreConnection:
    """A connection of a thread or of an event loop, used by one thread or task at a time."""

    def __init__(self, raw: Connection[Any] | AsyncConnection[Any], server: Server) -> None:
        self.raw = raw
        self._server = server
        self._libpq = raw.pgconn
        self._socket = raw.pgconn.socket
        self._poll = select.poll() if isinstance(raw, Connection) else None
        self._ready: asyncio.Future[None] | None = None  # while a task waits for the socket
        self._lock_wait = 0.0  # seconds that the flow under way may wait for a lock
        self._reader = Transformer()
        self._prepared: set[str] = set()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; leave no transaction open."""
        self._lock_wait = 0.0
        try:
            return await drive_async(flow, self.exchange)
        finally:
            if self._libpq.transaction_status not in ENDED:
                with suppress(Exception):
                    await self.exchange([ROLLBACK])

    async def exchange(self, batch: Batch) -> list[list[Row]]:
        """Run a batch, which is one transaction unless it begins or ends one; return each statement's rows.

        A query for the server's time joins it if that is due, after `begin`, which must come first.
        """
        clock = self._server.clock
        position = (1 if batch[0] == BEGIN else 0) if clock.is_due() and batch[0] != ROLLBACK else None
        full = batch if position is None else [*batch[:position], CLOCK, *batch[position:]]
        asked_at = 0.0 if position is None else clock.monotonic()
        try:
            answers = self._read(*await self._transfer(full, self._time_limit(batch)))
        except (psycopg.Error, TimeoutError, UnicodeEncodeError) as error:
            raise self._explain(error, batch) from error
        if position is not None:
            [[microseconds]] = answers.pop(position)
            clock.set(microseconds, asked_at)
        return answers

    def _time_limit(self, batch: Batch) -> float:
        """Return how many seconds a batch may take: the store's limit, or longer if it waits for locks."""
        for query in batch:
            if query.name in WAITS:
                self._lock_wait = int(query.parameters[0]) / 1000
        return max(self._server.store_timeout, self._lock_wait + LOCK_MARGIN)

    # ── a round trip ──────────────────────────────────────────────────────────────────────────────

    async def _transfer(self, batch: Batch, limit: float) -> tuple[list[str | None], list[PGresult]]:
        """Send a batch and receive its results; return what each is the result of."""
        results: list[PGresult] = []
        try:
            self._libpq.enter_pipeline_mode()
            sent = [name for query in batch for name in self._send(query)]
            self._libpq.pipeline_sync()
            progress = self._proceed(results)
            for events in progress:
                if self._poll is None:
                    await self._wait_async(events, limit, progress)
                else:
                    self._wait(self._poll, events, limit)
        except BaseException:
            self.close()  # it is unknown how far the exchange got
            raise
        return sent, results

    def _send(self, query: Query) -> Iterator[str | None]:
        """Send a statement; yield its name if it is to be prepared first, then None for its rows."""
        libpq, name = self._libpq, query.name
        types = tuple(map(type, query.parameters))
        values = [
            value if value is None or kind is bytes else str(value).encode()
            for kind, value in zip(types, query.parameters, strict=True)
        ]
        formats = formats_of(types)
        if self.raw.prepare_threshold is None:
            libpq.send_query_params(TEXTS[name], values, None, formats, BINARY)
        else:
            if name not in self._prepared:
                libpq.send_prepare(NAMES[name], TEXTS[name])
                self._prepared.add(name)
                yield name
            libpq.send_query_prepared(NAMES[name], values, formats, BINARY)
        yield None

    def _proceed(self, results: list[PGresult]) -> Iterator[int]:
        """Send and receive what the socket is ready for; yield what to wait for."""
        libpq = self._libpq
        while libpq.flush():
            yield select.POLLIN | select.POLLOUT
            libpq.consume_input()  # a server that cannot send its answers does not read either
        while True:
            yield select.POLLIN
            libpq.consume_input()
            while not libpq.is_busy():
                result = libpq.get_result()
                if result is None:
                    if libpq.status == BAD:
                        raise OperationalError("the connection is lost")
                elif result.status == SYNC:
                    libpq.exit_pipeline_mode()
                    return
                else:
                    results.append(result)

    def _wait(self, poll: select.poll, events: int, limit: float) -> None:
        """Block the thread until the socket is ready."""
        poll.register(self._socket, events)
        if not poll.poll(limit * 1000):
            raise TimeoutError

    async def _wait_async(self, events: int, limit: float, progress: Iterator[int]) -> None:
        """Wait until everything can be sent; or until everything has arrived, without waking the task."""
        loop = asyncio.get_running_loop()
        ready = self._ready = loop.create_future()
        timer = loop.call_later(limit, _resolve, ready, TimeoutError())
        must_send = events & select.POLLOUT
        if must_send:
            loop.add_writer(self._socket, _resolve, ready)
            loop.add_reader(self._socket, _resolve, ready)
        else:
            loop.add_reader(self._socket, _advance, progress, ready)
        try:
            await ready
        finally:
            self._ready = None
            timer.cancel()
            loop.remove_reader(self._socket)
            if must_send:
                loop.remove_writer(self._socket)

    def _read(self, sent: list[str | None], results: list[PGresult]) -> list[list[Row]]:
        """Return the rows of each statement, or raise the error of the first that failed."""
        answers: list[list[Row]] = []
        for index, (name, result) in enumerate(zip(sent, results, strict=False)):
            if result.status == FAILED:
                self._prepared -= {name for name in sent[index:] if name is not None}
                raise error_from_result(result)
            if name is None:
                self._reader.set_pgresult(result)
                answers.append(self._reader.load_rows(0, result.ntuples, tuple) if result.ntuples else [])
        return answers

    # ── failures ──────────────────────────────────────────────────────────────────────────────────

    def _explain(self, error: Exception, batch: Batch) -> Exception:
        """Return what an error means for the flow; close a connection in an unknown state."""
        if isinstance(error, TimeoutError):
            writes = any(query.name in WRITING for query in batch)
            return StoreTimeout(self._server.store_timeout, may_exist=writes)
        if isinstance(error, UnicodeEncodeError):
            return InvalidCall("PostgreSQL cannot store a lone surrogate: leave it out.")
        is_outdated = sqlstate(error) == OUTDATED_PLAN  # it must be prepared anew, and has written nothing
        if is_outdated or not sqlstate(error):
            self.close()
        if not self.raw.closed:
            return error
        if is_outdated or COMMIT not in batch:
            return ConnectionLost(str(error))
        message = f"{self._server.place}: the connection broke during a commit; the job may exist."
        return StoreUnavailable(message)

    def close(self) -> None:
        """Close the connection, from any thread, whether or not its loop still runs; an exchange fails."""
        self._libpq.finish()
        if (ready := self._ready) is not None:
            with suppress(RuntimeError):  # its loop has closed
                closed = OperationalError("the connection was closed")
                ready.get_loop().call_soon_threadsafe(_resolve, ready, closed)


@lru_cache(maxsize=4096)
def formats_of(types: tuple[type, ...]) -> list[bool]:
    """Return which parameters are binary: text is, because libpq ends it at a NUL otherwise."""
    return [issubclass(kind, (bytes, str)) for kind in types]


def _resolve(ready: asyncio.Future[None], error: Exception | None = None) -> None:
    if ready.done():
        return
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)


def _advance(progress: Iterator[int], ready: asyncio.Future[None]) -> None:
    """Receive what has arrived, and resolve the future when that is everything."""
    try:
        if not ready.done():
            next(progress)
    except StopIteration:
        ready.set_result(None)
    except psycopg.Error as error:
        ready.set_exception(error)


async def ask(raw: Any, query: Query, *, prepare: bool | None = None) -> list[Row]:
    """Run one statement on a connection of psycopg or asyncpg, whatever its row factory."""
    given: Any = (TEXTS[query.name], query.parameters or None)
    if isinstance(raw, Connection):
        cursor = RawCursor(raw, row_factory=tuple_row).execute(*given, prepare=prepare, binary=True)
        return list(cursor.fetchall()) if cursor.description is not None else []
    if isinstance(raw, AsyncConnection):
        awaited = AsyncRawCursor(raw, row_factory=tuple_row)
        await awaited.execute(*given, prepare=prepare, binary=True)
        return list(await awaited.fetchall()) if awaited.description is not None else []
    return [tuple(row) for row in await raw.fetch(SQL[query.name], *query.parameters)]


def ask_sync(raw: Connection[Any], query: Query) -> list[Row]:
    """Blocking variant of `ask`."""
    return run_blocking(ask(raw, query))
