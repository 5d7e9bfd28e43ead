"""The open store, for one event loop: a connection per server, shared by all tasks, and one that listens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from hiredis import ReplyError

from onejob.errors import StoreError, StoreUnavailable
from onejob.stores.contract import Step
from onejob.stores.redis.faults import LOST, lost
from onejob.stores.redis.flows import Ask, Flow, Ground, apply
from onejob.stores.redis.messages import MOVE_PAUSE, MOVES, TIME, TRIES, Outbox, checked, errors, pack, undone
from onejob.stores.redis.nodes import Node, Nodes
from onejob.stores.redis.target import Target
from onejob.stores.redis.wire import Ear, Wire

T = TypeVar("T")

CLOSING = 5.0  # seconds for what is under way
EAR_PAUSE = 1.0  # seconds between two tries to listen again
CROWD = 8  # requests that are worth a flight beside another

Request = tuple[Sequence[Step], "asyncio.Future[list[Any]]"]


class Clock(Protocol):
    """A clock that must be set now and then."""

    @property
    def stale(self) -> bool:
        """Whether it must be set."""

    def set(self, asked: float, answer: Sequence[Any]) -> None:
        """Set it."""


class Line:
    """One event loop's connections."""

    def __init__(self, target: Target, nodes: Nodes, clock: Clock) -> None:
        self._target = target
        self._nodes = nodes
        self._clock = clock
        self._wires: dict[Node, Wire] = {}
        self._opening = asyncio.Lock()
        self._ear: Ear | None = None
        self._listening: asyncio.Task[None] | None = None
        self._gathered: list[Request] = []
        self._flights: set[asyncio.Task[None] | None] = set()  # None is the one that goes alone
        self._aboard = 0  # requests that are under way
        self._crowded = False  # whether the last steps that were applied were several tasks'
        self._running = 0  # flows under way
        self._idle = asyncio.Event()
        self._closed = False
        self._cut = False

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow on this loop."""
        if self._cut:
            raise StoreUnavailable(f"{self._target.label} was closed at this moment: try again.")
        self._running += 1
        try:
            asks = next(flow)
            while True:
                if isinstance(asks, Ask):
                    asks = flow.send(await self.ask_one(asks))
                else:
                    asks = flow.send(await self.ask(asks))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def ask_one(self, ask: Ask) -> Any:
        """Ask one question: the shortest way, or, if anything is in that, as `ask` does."""
        wire = None if self._clock.stale else self._wires.get(self._nodes.of(ask.bucket))
        if wire is None or wire.closed:
            return (await self.ask((ask,)))[0]
        try:
            reply = await wire.ask(pack(ask))
        except LOST:
            return (await self.ask((ask.again(),)))[0]
        return (await self.ask((ask,)))[0] if isinstance(reply, ReplyError) else reply

    async def ask(self, asks: Iterable[Ask]) -> list[Any]:
        """Ask, and await the answers; over a new connection if the old one is lost."""
        outbox = Outbox(asks)
        for left in reversed(range(TRIES)):
            try:
                return checked(await self._exchange(outbox), self._target.label)
            except LOST as error:
                if not left:
                    raise lost(error, self._target.label) from None
                outbox.again()
                with contextlib.suppress(*LOST):
                    await self._refresh()
        raise AssertionError  # the last try returns or raises

    async def _exchange(self, outbox: Outbox) -> list[Any]:
        if self._clock.stale:
            wire = await self._wire(0)
            asked = time.monotonic()
            self._clock.set(asked, await wire.ask(TIME))
        futures = []
        for ask in outbox:
            known = self._wires.get(self._nodes.of(ask.bucket))
            wire = known if known is not None and not known.closed else await self._wire(ask.bucket)
            futures.append(wire.ask(pack(ask)))
        replies = [await future for future in futures]
        if errors(replies):
            await self._once_more(outbox.sent, replies)
        return replies

    async def _once_more(self, sent: Sequence[Ask], replies: list[Any]) -> None:
        """Send scripts whole to a server that does not know them, and on to where a bucket has gone."""
        for _ in range(MOVES):
            strange = undone(replies, "NOSCRIPT")
            moved = undone(replies, "MOVED", "ASK", "TRYAGAIN")
            if moved:
                await asyncio.sleep(MOVE_PAUSE)
                await self._refresh()
            for index in (*strange, *moved):
                wire = await self._wire(sent[index].bucket)
                replies[index] = await wire.ask(pack(sent[index], whole=index in strange))
            if not strange and not moved:
                return

    async def _refresh(self) -> None:
        if self._target.cluster:
            await asyncio.to_thread(self._nodes.refresh)

    async def _wire(self, bucket: int) -> Wire:
        async with self._opening:
            node = self._nodes.of(bucket)
            wire = self._wires.get(node)
            if wire is None or wire.closed:
                wire = Wire(float(self._target.options["socket_timeout"]))
                await wire.open(self._nodes.awaited(node))
                self._wires[node] = wire
            return wire

    # ── applying together ─────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step], ground: Ground) -> list[Any]:
        """Apply steps at once, or with all that has gathered when there is a flight for them."""
        if self._flights or self._crowded:  # those who were answered together will ask again together
            future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            self._gathered.append((steps, future))
            self._take_off(ground)
            return await future
        self._flights.add(None)
        self._aboard += 1
        try:
            return await self.run(apply(steps, ground))
        finally:
            self._land(None, 1, ground)

    def _take_off(self, ground: Ground) -> None:
        """Let a task of its own go on with what has gathered by the loop's next turn.

        What is under way comes back first, unless there is a crowd: then half of it is decided here while the
        server writes the other half.
        """
        most = 1 if len(self._gathered) < CROWD else 2
        if self._gathered and len(self._flights) < most:
            self._flights.add(asyncio.create_task(self._work(ground)))

    def _land(self, flight: asyncio.Task[None] | None, number: int, ground: Ground) -> None:
        self._flights.discard(flight)
        self._aboard -= number
        self._take_off(ground)

    async def _work(self, ground: Ground) -> None:
        """Apply what has gathered in one go; if that fails, each alone, so that only the guilty one fails.

        This runs in a task of its own, for whoever asked may be cancelled, and the others not with it.
        """
        most = max(CROWD, (len(self._gathered) + self._aboard + 1) // 2)
        taken, self._gathered = self._gathered[:most], self._gathered[most:]
        self._crowded = len(taken) > 1
        self._aboard += len(taken)
        try:
            await self._answer(taken, ground)
        except asyncio.CancelledError:
            fail(taken, StoreError("The event loop is closing: nobody knows whether this was stored."))
            raise
        finally:
            self._land(asyncio.current_task(), len(taken), ground)

    async def _answer(self, taken: Sequence[Request], ground: Ground) -> None:
        try:
            answers = await self.run(apply([step for steps, _ in taken for step in steps], ground))
        except StoreError as error:
            fail(taken, error)
        except Exception:  # noqa: BLE001 - each gets its own
            for one in taken:
                await self._alone(one, ground)
        else:
            deliver(taken, answers)

    async def _alone(self, request: Request, ground: Ground) -> None:
        try:
            deliver([request], await self.run(apply(request[0], ground)))
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            fail([request], error)

    # ── listening ─────────────────────────────────────────────────────────────────────────────────

    def listen(self, channel: bytes, voice: bytes, hear: Callable[[bytes], None]) -> None:
        """See to it that messages are heard from now on."""
        idle = self._listening is None or self._listening.done()
        if self._ear is None and idle and not self._closed:
            self._listening = asyncio.create_task(self._listen(channel, voice, hear))

    async def _listen(self, channel: bytes, voice: bytes, hear: Callable[[bytes], None]) -> None:
        """Subscribe; try until it works: who waits polls meanwhile."""
        while not self._closed:
            ear = Ear(hear, voice, self._grow_deaf)
            try:
                await ear.open(self._nodes.awaited(self._nodes.of(0)), channel)
                self._ear = ear
            except LOST:
                await asyncio.sleep(EAR_PAUSE)
            else:
                return

    def _grow_deaf(self) -> None:
        self._ear = None  # the next one who waits sees to it

    async def close(self) -> None:
        """Let what is under way end, then cut the connections."""
        self._closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                while self._running or self._gathered:
                    self._idle.clear()
                    await self._idle.wait()
        self._cut = True
        for end in (*self._wires.values(), self._ear):
            if end is not None:
                end.close()
        await asyncio.sleep(0)  # by then they are closed

    def cut(self) -> None:
        """Drop the connections of a loop that runs no more, which closes them."""
        for end in (*self._wires.values(), self._ear):
            if end is not None:
                end.drop()


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
