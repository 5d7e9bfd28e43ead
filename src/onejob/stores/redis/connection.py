"""Round trips over redis-py's connections, for threads and for event loops.

An exchange is a generator that sends calls, reads their replies, and repeats what was lost. It yields methods
of connections with their arguments, which are alike in both kinds: `Connections` calls them on a thread,
`AsyncConnections` awaits them on an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from hashlib import sha1
from importlib.resources import files
from itertools import chain
from typing import Any, TypeVar, cast

import hiredis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from onejob.errors import StoreTimeout
from onejob.stores.flow import drive, drive_async
from onejob.stores.redis.clock import ServerClock, elapsed
from onejob.stores.redis.cluster import Node, Nodes
from onejob.stores.redis.errors import LOST, TIMEOUTS, is_moving, lost_connection, refusal
from onejob.stores.redis.groups import Call, Flow
from onejob.stores.redis.layout import Keyspace

T = TypeVar("T")
Talk = Generator[tuple[Any, ...], Any, T]

TRIES = 3  # a connection may have been idle for too long, and the next one too
MOVES = 50  # times to wait for a cluster that is moving a bucket
MOVE_PAUSE = 0.05  # seconds
SUBSCRIBE_PAUSE = 1.0  # seconds between two tries to subscribe
ENOUGH = 16384  # bytes to send at once
MOST_IDLE = 16  # connections kept per server
TIME = Call(0, ("TIME",))

NAMES = ("create", "commit", "take", "count", "observe", "overdue", "tails")
SCRIPTS = {name: files(__package__).joinpath(f"{name}.lua").read_bytes() for name in NAMES}
DIGESTS = {name: sha1(text).hexdigest() for name, text in SCRIPTS.items()}  # noqa: S324 - as Redis names them
WRITING = frozenset({"create", "commit"})  # scripts by which jobs are stored
pack_words = cast("Callable[[Any], bytes]", hiredis.pack_command)  # whose declared type allows one word only


def pack(call: Call, *, whole: bool = False) -> bytes:
    """Return a call as the server reads it; a script by its digest, or whole."""
    if call.script is None:
        return pack_words(tuple(call.words))
    script = ("EVAL", SCRIPTS[call.script]) if whole else ("EVALSHA", DIGESTS[call.script])
    return pack_words((*script, len(call.keys), *call.keys, *call.words))


class Exchange:
    """One round trip: calls are sent as they are made, and kept in case they must be sent again."""

    def __init__(self, calls: Iterable[Call], pool: Pool) -> None:
        self._rest = iter(calls)
        self._pool = pool
        self._sent: list[Call] = []
        self.used: dict[Node, Any] = {}

    def timeout(self) -> StoreTimeout:
        """Return the error that says that there was no answer in time."""
        return self._pool.timeout(self._sent)

    def run(self) -> Talk[list[Any]]:
        """Send the calls and return their replies; repeat what was lost with a connection."""
        for left in reversed(range(TRIES)):
            try:
                replies = yield from self._round()
            except TIMEOUTS:
                raise self.timeout() from None
            except ResponseError as error:  # replies are returned: this one answers a greeting
                raise lost_connection(error, self._pool.label) from None
            except LOST as error:
                if not left:
                    raise lost_connection(error, self._pool.label) from None
                self._rest, self._sent = chain(self._sent, self._rest), []
                yield from self.drop()
                for connection in self._pool.take_idle():  # what cut one connection has often cut all
                    yield connection.disconnect, True
                yield self._pool.refresh, 0
            else:
                yield from self._keep()
                for reply in replies:
                    if isinstance(reply, ResponseError):
                        raise refusal(reply, self._pool.label)
                return replies
        raise AssertionError  # the last try returns or raises

    def _round(self) -> Talk[list[Any]]:
        order, pending, clock = [], dict[Any, bytes](), self._pool.clock
        asked_at = elapsed() if clock.is_stale else None
        if asked_at is not None:
            pending[self._connection(TIME)] = pack(TIME)
        for call in self._rest:
            self._sent.append(call)
            connection = self._connection(call)
            order.append(connection)
            pending[connection] = pending.get(connection, b"") + pack(call)
            if len(pending[connection]) > ENOUGH:
                yield connection.send_packed_command, [pending.pop(connection)], False
        for connection, data in pending.items():
            yield connection.send_packed_command, [data], False
        if asked_at is not None:
            clock.set(asked_at, (yield from _reply(self._connection(TIME))))
        replies = []
        for connection in order:
            replies.append((yield from _reply(connection)))  # noqa: PERF401 - a comprehension cannot yield
        if any(isinstance(reply, ResponseError) for reply in replies):
            yield from self._repeat(replies)
        return replies

    def _connection(self, call: Call) -> Any:
        node = self._pool.nodes.of(call.bucket)
        connection = self.used.get(node)
        if connection is None:
            connection = self.used[node] = self._pool.pop(node)
        return connection

    def _repeat(self, replies: list[Any]) -> Talk[None]:
        """Send scripts whole to a server that does not know them; follow a bucket that was moved."""
        for _ in range(MOVES):
            unknown = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            moved = [n for n, reply in enumerate(replies) if is_moving(reply)]
            if moved:
                yield self._pool.refresh, MOVE_PAUSE
            for n in (*unknown, *moved):
                connection, data = self._connection(self._sent[n]), pack(self._sent[n], whole=n in unknown)
                yield connection.send_packed_command, [data], False
                replies[n] = yield from _reply(connection)
            if not unknown and not moved:
                return

    def _keep(self) -> Talk[None]:
        """Keep the connections for other calls."""
        used, self.used = self.used, {}
        for node, connection in used.items():
            if not self._pool.put(node, connection):
                yield connection.disconnect, True

    def drop(self) -> Talk[None]:
        """Close the connections."""
        used, self.used = self.used, {}
        for connection in used.values():
            yield connection.disconnect, True


def _reply(connection: Any) -> Talk[Any]:
    """Read one reply; an error of the server is a reply."""
    try:
        return (yield connection.read_response, True)
    except ResponseError as error:
        return error


class Pool:
    """Idle connections to each server; safe under concurrent calls."""

    def __init__(self, nodes: Nodes, clock: ServerClock, make: Callable[[Node], Any], refresh: Any) -> None:
        self.nodes, self.clock, self.refresh = nodes, clock, refresh
        self.label, self.seconds = nodes.target.label, nodes.target.timeout
        self._make = make
        self._idle: dict[Node, list[Any]] = {}
        self._closed = False

    def timeout(self, sent: Sequence[Call]) -> StoreTimeout:
        """Return the error that says that calls had no answer in time."""
        return StoreTimeout(self.seconds, may_exist=any(call.script in WRITING for call in sent))

    def is_lost(self, error: BaseException, call: Call) -> bool:
        """Return whether an error leaves open what became of a call, which is then repeated."""
        if isinstance(error, TIMEOUTS):
            raise self.timeout([call]) from None
        return isinstance(error, (ResponseError, *LOST))

    def is_undone(self, reply: Any) -> bool:
        """Return whether a call must be sent in another way; raise what the server has refused."""
        if isinstance(reply, ResponseError) and not isinstance(reply, NoScriptError) and not is_moving(reply):
            raise refusal(reply, self.label)
        return isinstance(reply, ResponseError)

    def pop(self, node: Node) -> Any:
        """Pop an idle connection, or make one."""
        try:
            return self._idle[node].pop()
        except LookupError:
            return self._make(node)

    def put(self, node: Node, connection: Any) -> bool:
        """Keep a connection for other calls; return whether there was room for it."""
        idle = self._idle.setdefault(node, [])
        if self._closed or len(idle) >= MOST_IDLE:
            return False
        idle.append(connection)
        return True

    def take_idle(self) -> list[Any]:
        """Remove all idle connections from the pool, and return them."""
        taken = []
        for idle in list(self._idle.values()):
            with suppress(IndexError):  # another thread may take one meanwhile
                while True:
                    taken.append(idle.pop())
        return taken

    def empty(self) -> list[Any]:
        """Return all idle connections, and keep none from now on."""
        self._closed = True
        return self.take_idle()


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


class Connections:
    """Connections for threads."""

    def __init__(self, nodes: Nodes, clock: ServerClock) -> None:
        self._nodes = nodes
        self._pool = Pool(nodes, clock, nodes.connection, self._refresh)

    def _refresh(self, pause: float) -> None:
        time.sleep(pause)
        self._nodes.refresh()

    def run(self, flow: Flow[T]) -> T:
        """Run a flow on the calling thread."""
        return drive(flow, self.ask)  # type: ignore[arg-type]

    def ask(self, calls: Iterable[Call]) -> list[Any]:
        """Send calls and return their replies."""
        if calls.__class__ is list and len(calls) == 1 and not self._pool.clock.is_stale:
            return [self._ask_one(calls[0])]
        return self._ask(calls)

    def _ask_one(self, call: Call) -> Any:
        """Send one call the shortest way; if that fails, repeat it as `_ask` does."""
        node = self._nodes.of(call.bucket)
        connection = self._pool.pop(node)
        try:
            connection.send_packed_command([pack(call)], check_health=False)
            try:
                reply = connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
        except BaseException as error:
            connection.disconnect()
            if self._pool.is_lost(error, call):
                return self._ask([call])[0]
            raise
        if not self._pool.put(node, connection):
            connection.disconnect()
        if self._pool.is_undone(reply):
            return self._ask([call])[0]
        return reply

    def _ask(self, calls: Iterable[Call]) -> list[Any]:
        exchange = Exchange(calls, self._pool)
        try:
            return drive(exchange.run(), _perform)  # type: ignore[arg-type]
        except BaseException:
            drive(exchange.drop(), _perform)  # type: ignore[arg-type]
            raise

    def close(self) -> None:
        """Close the idle connections; those in use are closed after their call."""
        for connection in self._pool.empty():
            connection.disconnect()


def _perform(operation: tuple[Any, ...]) -> Any:
    method, *arguments = operation
    return method(*arguments)


# ── event loops ───────────────────────────────────────────────────────────────────────────────────


class AsyncConnections:
    """Connections of one event loop, and a subscription."""

    def __init__(self, nodes: Nodes, clock: ServerClock) -> None:
        self._nodes = nodes
        self._pool = Pool(nodes, clock, nodes.async_connection, self._refresh)
        self._listening: asyncio.Task[None] | None = None

    async def _refresh(self, pause: float) -> None:
        await asyncio.sleep(pause)
        if self._nodes.target.cluster:
            await asyncio.to_thread(self._nodes.refresh)

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow on this loop."""
        return await drive_async(flow, self.ask)  # type: ignore[arg-type]

    async def ask(self, calls: Iterable[Call]) -> list[Any]:
        """Send calls and return their replies."""
        if calls.__class__ is list and len(calls) == 1 and not self._pool.clock.is_stale:
            return [await self._ask_one(calls[0])]
        return await self._ask(calls)

    async def _ask_one(self, call: Call) -> Any:
        """Send one call the shortest way; if that fails, repeat it as `_ask` does."""
        node = self._nodes.of(call.bucket)
        connection = self._pool.pop(node)
        try:
            async with asyncio.timeout(self._pool.seconds):
                await connection.send_packed_command([pack(call)], check_health=False)
                try:
                    reply = await connection.read_response(disable_decoding=True)
                except ResponseError as error:
                    reply = error
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if self._pool.is_lost(error, call):
                return (await self._ask([call]))[0]
            raise
        if not self._pool.put(node, connection):
            await connection.disconnect(nowait=True)
        if self._pool.is_undone(reply):
            return (await self._ask([call]))[0]
        return reply

    async def _ask(self, calls: Iterable[Call]) -> list[Any]:
        exchange = Exchange(calls, self._pool)
        try:
            async with asyncio.timeout(self._pool.seconds):
                return await drive_async(exchange.run(), _perform_async)  # type: ignore[arg-type]
        except BaseException as error:
            await drive_async(exchange.drop(), _perform_async)  # type: ignore[arg-type]
            if isinstance(error, TimeoutError):
                raise exchange.timeout() from None
            raise

    def listen(self, space: Keyspace, notify: Callable[[], None]) -> None:
        """Subscribe to the messages of other processes, unless that is done or under way."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(space, notify))

    async def _listen(self, space: Keyspace, notify: Callable[[], None]) -> None:
        """Notify of every message that another process has sent; what it contains does not matter."""
        while True:
            connection = self._nodes.async_connection(self._nodes.of(0))
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command("SUBSCRIBE", space.channel)
                while True:
                    message = await connection.read_response(disable_decoding=True)
                    if message[-1] != space.sender.encode():
                        notify()
            except (RedisError, *LOST):
                notify()  # messages may have been missed
            finally:
                await connection.disconnect(nowait=True)
            await asyncio.sleep(SUBSCRIBE_PAUSE)

    async def close(self) -> None:
        """Close the idle connections; those in use are closed after their call."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        for connection in self._pool.empty():
            await connection.disconnect(nowait=True)
        await asyncio.sleep(0)  # transports close at the loop's next turn

    def cut(self) -> None:
        """Forget the connections of a loop that has closed, which closes their sockets."""
        self._pool.empty()


async def _perform_async(operation: tuple[Any, ...]) -> Any:
    method, *arguments = operation
    return await method(*arguments)
