"""Connections: of a thread, of an event loop, and one that listens. Answers come in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis
import redis.connection as blocking
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Lost

UNFINISHED = object()
READ = 65536  # bytes at once
ENOUGH = 16384  # bytes to send at once


async def take_over(connection: AbstractConnection, protocol: asyncio.Protocol) -> asyncio.StreamWriter:
    """Let redis-py connect and introduce us, then take its stream; who drops the writer closes that."""
    inner = cast("Any", connection)  # it offers no other way to its stream
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        if inner._writer is not None:  # noqa: SLF001
            inner._writer.transport.abort()  # noqa: SLF001
            inner._reader = inner._writer = None  # noqa: SLF001
        raise
    writer: asyncio.StreamWriter = inner._writer  # noqa: SLF001
    inner._reader = inner._writer = None  # noqa: SLF001
    writer.transport.set_protocol(protocol)
    return writer


class Cord:
    """A connection that one thread at a time uses."""

    __slots__ = ("_connection", "_pending", "_reader", "_socket")

    def __init__(self, connection: blocking.AbstractConnection) -> None:
        """Let redis-py connect and introduce us, then use its socket."""
        connection.connect()  # type: ignore[no-untyped-call]
        self._connection = connection
        self._socket = cast("Any", connection)._sock  # noqa: SLF001 - its own ways cost more than the network
        self._reader = hiredis.Reader(notEnoughData=UNFINISHED)
        self._pending = b""

    def put(self, data: bytes) -> None:
        """Send a question, now or with the next ones: large ones go out while the next is made."""
        self._pending = self._pending + data if self._pending else data
        if len(self._pending) > ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Send what is left."""
        if self._pending:
            data, self._pending = self._pending, b""
            self._socket.sendall(data)

    def read(self) -> Any:
        """Wait for the next answer."""
        while (reply := self._reader.gets()) is UNFINISHED:
            received = self._socket.recv(READ)
            if not received:
                raise Lost("closed by the server")
            self._reader.feed(received)
        return reply

    def ask(self, data: bytes) -> Any:
        """Send a question and wait for its answer."""
        self._socket.sendall(data)
        return self.read()

    def close(self) -> None:
        """Cut the connection."""
        self._connection.disconnect()  # type: ignore[no-untyped-call]


class Wire(asyncio.Protocol):
    """A connection that is shared by everybody on its loop."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=UNFINISHED)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self.closed = False

    async def open(self, connection: AbstractConnection) -> None:
        """Connect."""
        self._writer = await take_over(connection, self)
        self._transport = self._writer.transport

    def ask(self, data: bytes) -> asyncio.Future[Any]:
        """Send a question; the future has its answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed or self._transport is None:
            future.set_exception(Lost("closed"))
            return future
        self._waiting.append((future, self._loop.time()))
        self._transport.write(data)
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience, self._check)
        return future

    def data_received(self, data: bytes) -> None:
        """Hand answers to those who wait for them."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not UNFINISHED:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who waits that no answer will come."""
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(Lost(str(error or "closed by the server")))
        self._waiting.clear()

    def _check(self) -> None:
        """Give a server up that does not answer."""
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + self._patience - self._loop.time()
        if left <= 0:
            self.close()
        else:
            self._watch = self._loop.call_later(left, self._check)

    def close(self) -> None:
        """Cut the connection."""
        if self._writer is not None:
            self._writer.transport.abort()

    def drop(self) -> None:
        """Let go of the connection, which closes it: its loop, which would do more, runs no more."""
        self._writer = self._transport = None


class Ear(asyncio.Protocol):
    """A connection that listens: it calls back for every message that is not our own.

    A message is who says it, and perhaps something else, with which it calls back.
    """

    def __init__(self, hear: Callable[[bytes], None], voice: bytes, lost: Callable[[], None]) -> None:
        self._hear = hear
        self._voice = voice
        self._lost = lost
        self._reader = hiredis.Reader(notEnoughData=UNFINISHED)
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, connection: AbstractConnection, channel: bytes) -> None:
        """Connect and subscribe."""
        self._writer = await take_over(connection, self)
        words: Any = (b"SUBSCRIBE", channel)  # the declared type knows of one word only
        self._writer.transport.write(hiredis.pack_command(words))

    def data_received(self, data: bytes) -> None:
        """Hear messages; the first is the server's word that we are subscribed."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not UNFINISHED:
            said = reply[-1] if isinstance(reply, list) and isinstance(reply[-1], bytes) else b""
            if not said.startswith(self._voice):
                self._hear(said[len(self._voice) :])

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """Say that from now on nothing is heard."""
        self._lost()

    def close(self) -> None:
        """Cut the connection."""
        if self._writer is not None:
            self._writer.transport.abort()

    def drop(self) -> None:
        """Let go of the connection, which closes it: its loop, which would do more, runs no more."""
        self._writer = None
