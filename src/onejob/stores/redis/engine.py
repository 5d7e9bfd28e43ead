"""The open store: connections of threads and of event loops, and how questions travel over them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import hiredis
import redis.asyncio.connection as awaited
import redis.connection as blocking
from redis.backoff import NoBackoff
from redis.asyncio.retry import Retry as AwaitedRetry
from redis.retry import Retry

from onejob.errors import StoreError
from onejob.forks import generation
from onejob.job import EPOCH
from onejob.stores.contract import Step
from onejob.stores.redis.faults import LOST, lost, refusal
from onejob.stores.redis.flows import Ask, Flow, Ground, apply
from onejob.stores.redis.scripts import DIGESTS, TEXTS
from onejob.stores.redis.target import Target
from onejob.stores.redis.wire import Ear, Wire

T = TypeVar("T")

TRIES = 3  # a lost connection may have been idle for too long: the next one tells
SPARE = 16  # connections kept for threads
CLOCK_AGE = 30.0  # seconds after which the server's clock is asked again
EAR_PAUSE = 1.0


class ServerClock:
    """The server's time, read now and then, and carried on by this machine's steady clock between."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._read_at: float | None = None

    def __call__(self) -> datetime:
        """Tell the server's time."""
        return EPOCH + timedelta(seconds=self._offset + time.monotonic())

    @property
    def stale(self) -> bool:
        """Whether it should be read again."""
        return self._read_at is None or time.monotonic() - self._read_at > CLOCK_AGE

    def set(self, asked: float, answer: Sequence[Any]) -> None:
        """Take the server's answer, given between `asked` and now."""
        now = time.monotonic()
        seconds, micros = answer
        self._offset = int(seconds) + int(micros) / 1e6 - (asked + now) / 2
        self._read_at = now


def pack(asks: Sequence[Ask], *, whole: bool = False) -> bytes:
    """Write questions as the server reads them."""
    return b"".join([_pack(ask, whole=whole) for ask in asks])


def _pack(ask: Ask, *, whole: bool) -> bytes:
    if ask.script is None:
        return hiredis.pack_command(tuple(ask.words))
    head = (b"EVAL", TEXTS[ask.script]) if whole else (b"EVALSHA", DIGESTS[ask.script])
    return hiredis.pack_command((*head, len(ask.keys), *ask.keys, *ask.words))


def is_unknown(reply: Any) -> bool:
    """Tell whether the server does not know a script, and so has done nothing."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


class Engine:
    """Connections to one server."""

    def __init__(self, target: Target, clock: ServerClock) -> None:
        self.generation = generation()
        self.target = target
        self.clock = clock
        self.closed = False
        self._spare: list[blocking.AbstractConnection] = []
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = weakref.WeakKeyDictionary()
        self._door = threading.Lock()

    # ── from threads ──────────────────────────────────────────────────────────────────────────────

    def run(self, flow: Flow[T], *, tries: int = TRIES) -> T:
        """Drive a flow on this thread."""
        try:
            asks = next(flow)
            while True:
                asks = flow.send(self.ask(asks, tries=tries) if asks else [])
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def ask(self, asks: Sequence[Ask], *, tries: int = TRIES) -> list[Any]:
        """Ask on this thread; over a new connection if the old one is lost."""
        for left in reversed(range(tries)):
            try:
                replies = self._exchange(asks)
                break
            except LOST as error:
                if not left:
                    raise lost(error, self.target.label) from None
        return [self._checked(reply) for reply in replies]

    def _exchange(self, asks: Sequence[Ask]) -> list[Any]:
        connection = self._spare.pop() if self._spare else self._connect()
        try:
            if self.clock.stale:
                asked = time.monotonic()
                self.clock.set(asked, _converse(connection, [Ask(0, (b"TIME",))])[0])
            replies = _converse(connection, asks)
            unknown = [index for index, reply in enumerate(replies) if is_unknown(reply)]
            again = _converse(connection, [asks[index] for index in unknown], whole=True) if unknown else []
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        except BaseException:
            connection.disconnect()
            raise
        if len(self._spare) < SPARE and not self.closed:
            self._spare.append(connection)
        else:
            connection.disconnect()
        return replies

    def _connect(self) -> blocking.AbstractConnection:
        options = {**self.target.options, "retry": Retry(NoBackoff(), 0)}
        kind = blocking.UnixDomainSocketConnection if "path" in options else blocking.Connection
        if options.pop("ssl", False):
            kind = blocking.SSLConnection
        connection = kind(**options)
        connection.connect()
        return connection

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, hiredis.ReplyError):
            raise refusal(str(reply), self.target.label)
        return reply

    # ── from event loops ──────────────────────────────────────────────────────────────────────────

    @property
    def line(self) -> Line:
        """The running loop's connections."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            with self._door:
                line = self._lines.setdefault(loop, Line(self))
        return line

    async def await_flow(self, flow: Flow[T]) -> T:
        """Drive a flow on the running loop."""
        line = self.line
        try:
            asks = next(flow)
            while True:
                asks = flow.send(await line.ask(asks) if asks else [])
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Cut every connection, each on the loop that it belongs to."""
        self.closed = True
        while self._spare:
            self._spare.pop().disconnect()
        here = asyncio.get_running_loop()
        for loop, line in list(self._lines.items()):
            if loop is here:
                await line.close()
            elif loop.is_running():
                with contextlib.suppress(TimeoutError):
                    leaving = asyncio.run_coroutine_threadsafe(line.close(), loop)
                    await asyncio.wait_for(asyncio.wrap_future(leaving), 1)


def _converse(connection: blocking.AbstractConnection, asks: Sequence[Ask], *, whole: bool = False) -> list[Any]:
    connection.send_packed_command([pack(asks, whole=whole)], check_health=False)
    return [_read(connection) for _ in asks]


def _read(connection: blocking.AbstractConnection) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except blocking.ResponseError as error:
        return hiredis.ReplyError(_spelled(error))


def _spelled(error: Exception) -> str:
    """Write an error as the server did: redis-py takes the code off those that it has a class for."""
    codes = {
        "NoScriptError": "NOSCRIPT",
        "ReadOnlyError": "READONLY",
        "BusyLoadingError": "LOADING",
        "OutOfMemoryError": "OOM",
        "NoPermissionError": "NOPERM",
    }
    code = codes.get(type(error).__name__)
    return str(error) if code is None or str(error).startswith(code) else f"{code} {error}"


class Line:
    """One event loop's connections: one for questions, one that listens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wire: Wire | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._ear: Ear | None = None
        self._listening: asyncio.Task[None] | None = None
        self._gathered: list[Request] = []
        self._busy = False
        self._crowded = False
        self._worker: asyncio.Task[None] | None = None
        self.closed = False

    async def ask(self, asks: Sequence[Ask]) -> list[Any]:
        """Ask, and await the answers; over a new connection if the old one is lost."""
        engine = self._engine
        data = pack(asks)
        for left in reversed(range(TRIES)):
            try:
                wire = self._wire
                if wire is None or wire.closed:
                    wire = await self._connected()
                if engine.clock.stale:
                    asked = time.monotonic()
                    engine.clock.set(asked, (await wire.ask(pack([Ask(0, (b"TIME",))]), 1))[0])
                replies = await wire.ask(data, len(asks))
                unknown = [index for index, reply in enumerate(replies) if is_unknown(reply)]
                if unknown:
                    again = pack([asks[index] for index in unknown], whole=True)
                    for index, reply in zip(unknown, await wire.ask(again, len(unknown)), strict=True):
                        replies[index] = reply
                break
            except LOST as error:
                if not left:
                    raise lost(error, engine.target.label) from None
        return [engine._checked(reply) for reply in replies]  # noqa: SLF001 - its own line

    async def gather(self, steps: Sequence[Step], ground: Ground) -> list[Any]:
        """Apply steps together with whatever else is asked for while the one before is under way."""
        if not self._busy:
            self._busy = True
            try:
                if self._crowded:  # the others who were answered together will ask again together
                    await asyncio.sleep(0)
                if not self._gathered:
                    return await self._engine.await_flow(apply(steps, ground))
                mine: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
                self._gathered.append((steps, mine))
                await self._work(ground)
                return await mine
            finally:
                self._busy = False
                self._hand_over(ground)
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._gathered.append((steps, future))
        return await future

    def _hand_over(self, ground: Ground) -> None:
        """Let a task of its own go on with what has gathered."""
        self._crowded = bool(self._gathered)
        if self._gathered:
            self._busy = True
            self._worker = asyncio.create_task(self._keep_working(ground))

    async def _keep_working(self, ground: Ground) -> None:
        try:
            while self._gathered:
                await self._work(ground)
                await asyncio.sleep(0)
        finally:
            self._busy = False

    async def _work(self, ground: Ground) -> None:
        """Apply what has gathered in one go; if that fails, each alone, so that only the guilty one fails."""
        taken, self._gathered = self._gathered, []
        try:
            answers = await self._engine.await_flow(apply([step for steps, _ in taken for step in steps], ground))
        except StoreError as error:
            fail(taken, error)
        except asyncio.CancelledError:
            self._gathered = taken + self._gathered
            raise
        except Exception:  # noqa: BLE001 - each gets its own
            for steps, future in taken:
                await self._alone(steps, future, ground)
        else:
            deliver(taken, answers)

    async def _alone(self, steps: Sequence[Step], future: asyncio.Future[list[Any]], ground: Ground) -> None:
        try:
            answers = await self._engine.await_flow(apply(steps, ground))
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            fail([(steps, future)], error)
        else:
            deliver([(steps, future)], answers)

    async def _connected(self) -> Wire:
        async with self._opening:
            if self._wire is None or self._wire.closed:
                wire = Wire(float(self._engine.target.options["socket_timeout"]))
                await wire.open(self._connection())
                self._wire = wire
            return self._wire

    def _connection(self) -> awaited.AbstractConnection:
        options = {**self._engine.target.options, "retry": AwaitedRetry(NoBackoff(), 0)}
        kind = awaited.UnixDomainSocketConnection if "path" in options else awaited.Connection
        if options.pop("ssl", False):
            kind = awaited.SSLConnection
        return kind(**options)

    # ── listening ─────────────────────────────────────────────────────────────────────────────────

    def listen(self, channel: bytes, voice: bytes, hear: Callable[[], None]) -> None:
        """See to it that messages are heard from now on."""
        if self._listening is None or self._listening.done():
            if self._ear is None and not self.closed:
                self._listening = asyncio.create_task(self._listen(channel, voice, hear))

    async def _listen(self, channel: bytes, voice: bytes, hear: Callable[[], None]) -> None:
        """Subscribe, and again after a loss, until it works or the line closes; waiting polls meanwhile."""
        while not self.closed:
            ear = Ear(hear, voice, self._deaf)
            try:
                await ear.open(self._connection(), channel)
            except LOST:
                await asyncio.sleep(EAR_PAUSE)
                continue
            self._ear = ear
            return

    def _deaf(self) -> None:
        self._ear = None  # the next one who waits will see to it

    async def close(self) -> None:
        """Cut the connections."""
        self.closed = True
        if self._listening is not None:
            self._listening.cancel()
        for end in (self._wire, self._ear):
            if end is not None:
                end.close()
        await asyncio.sleep(0)  # by then they are closed


Request = tuple[Sequence[Step], "asyncio.Future[list[Any]]"]


def deliver(requests: Sequence[Request], answers: Sequence[Any]) -> None:
    """Hand answers to those who asked."""
    first = 0
    for steps, future in requests:
        if not future.done():
            future.set_result(list(answers[first : first + len(steps)]))
        first += len(steps)


def fail(requests: Sequence[Request], error: Exception) -> None:
    """Raise an error where somebody awaits an answer."""
    for _, future in requests:
        if not future.done():
            future.set_exception(error)
