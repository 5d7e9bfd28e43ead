"""The open store, for threads: connections, and how questions travel over them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from hiredis import ReplyError

from onejob.forks import generation
from onejob.job import EPOCH
from onejob.stores.contract import utcnow
from onejob.stores.loops import Loops
from onejob.stores.redis.faults import LOST, lost
from onejob.stores.redis.flows import Ask, Flow, Ground
from onejob.stores.redis.line import Line
from onejob.stores.redis.messages import MOVE_PAUSE, MOVES, TIME, TRIES, Outbox, checked, errors, pack, undone
from onejob.stores.redis.nodes import Node, Nodes
from onejob.stores.redis.target import Target
from onejob.stores.redis.wire import Cord

T = TypeVar("T")

SPARE = 16  # connections kept for threads, per server
CLOCK_AGE = 30.0  # seconds after which the server's clock is asked again
CLOSING = 1.0  # seconds to wait for another loop to let go


class ServerClock:
    """The server's time: this machine's, and how far the server's was from it when last asked."""

    def __init__(self) -> None:
        self._offset = timedelta(0)
        self._read_at: float | None = None

    def __call__(self) -> datetime:
        """Tell the server's time."""
        return datetime.now(UTC) + self._offset

    @property
    def stale(self) -> bool:
        """Whether it should be read again."""
        return self._read_at is None or time.monotonic() - self._read_at > CLOCK_AGE

    def set(self, asked: float, answer: Sequence[Any]) -> None:
        """Take the server's answer, given between `asked` and now."""
        after, took = utcnow(), timedelta(seconds=time.monotonic() - asked)
        server = EPOCH + timedelta(seconds=int(answer[0]), microseconds=int(answer[1]))
        apart = server - (after - took / 2)
        self._offset = apart if abs(apart) > took / 2 else timedelta(0)  # as far as can be told, none
        self._read_at = time.monotonic()


class Engine:
    """Connections to one server, or to a cluster."""

    def __init__(self, target: Target, ground: Ground, clock: ServerClock) -> None:
        self.generation = generation()
        self.target = target
        self.clock = clock
        self.nodes = Nodes(target, [place.tag for place in ground.buckets])
        self._spare: dict[Node, list[Cord]] = {}
        self._lines = Loops(lambda: Line(self.target, self.nodes, self.clock))
        self._closed = False

    def run(self, flow: Flow[T], *, tries: int = TRIES) -> T:
        """Drive a flow on this thread."""
        try:
            asks = next(flow)
            while True:
                if isinstance(asks, Ask):
                    asks = flow.send(self.ask_one(asks, tries))
                else:
                    asks = flow.send(self.ask(asks, tries=tries))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def ask_one(self, ask: Ask, tries: int = TRIES) -> Any:
        """Ask one question on this thread: the shortest way, or, if anything is in that, as `ask` does."""
        node = self.nodes.of(ask.bucket)
        cord = None if self.clock.stale or tries == 1 else self._take(node)
        if cord is None:
            return self.ask((ask,), tries=tries)[0]
        try:
            reply = cord.ask(pack(ask))
        except LOST:
            cord.close()
            return self.ask((ask.again(),), tries=tries)[0]
        except BaseException:
            cord.close()
            raise
        self._put_by(node, cord)
        return self.ask((ask,), tries=tries)[0] if isinstance(reply, ReplyError) else reply

    def ask(self, asks: Iterable[Ask], *, tries: int = TRIES) -> list[Any]:
        """Ask on this thread; over a new connection if the old one is lost."""
        outbox = Outbox(asks)
        for left in reversed(range(tries)):
            try:
                return checked(self._exchange(outbox), self.target.label)
            except LOST as error:
                if not left:
                    raise lost(error, self.target.label) from None
                outbox.again()
                with contextlib.suppress(*LOST):
                    self.nodes.refresh()
        raise AssertionError  # the last try returns or raises

    def _exchange(self, outbox: Outbox) -> list[Any]:
        cords: dict[Node, Cord] = {}
        try:
            if self.clock.stale:
                asked = time.monotonic()
                self.clock.set(asked, self._cord(cords, 0).ask(TIME))
            for ask in outbox:
                self._cord(cords, ask.bucket).put(pack(ask))
            for cord in cords.values():
                cord.flush()
            replies = [self._cord(cords, ask.bucket).read() for ask in outbox.sent]
            if errors(replies):
                self._once_more(outbox.sent, replies, cords)
        except BaseException:
            for cord in cords.values():
                cord.close()
            raise
        for node, cord in cords.items():
            self._put_by(node, cord)
        return replies

    def _once_more(self, sent: Sequence[Ask], replies: list[Any], cords: dict[Node, Cord]) -> None:
        """Send scripts whole to a server that does not know them, and on to where a bucket has gone."""
        for _ in range(MOVES):
            strange = undone(replies, "NOSCRIPT")
            moved = undone(replies, "MOVED", "ASK", "TRYAGAIN")
            if moved:
                time.sleep(MOVE_PAUSE)
                self.nodes.refresh()
            for index in (*strange, *moved):
                replies[index] = self._cord(cords, sent[index].bucket).ask(
                    pack(sent[index], whole=index in strange)
                )
            if not strange and not moved:
                return

    def _cord(self, cords: dict[Node, Cord], bucket: int) -> Cord:
        node = self.nodes.of(bucket)
        cord = cords.get(node)
        if cord is None:
            cord = cords[node] = self._take(node) or Cord(self.nodes.blocking(node))
        return cord

    def _take(self, node: Node) -> Cord | None:
        try:
            return self._spare[node].pop()
        except LookupError:  # none is left
            return None

    def _put_by(self, node: Node, cord: Cord) -> None:
        spare = self._spare.setdefault(node, [])
        if self._closed or len(spare) >= SPARE:
            cord.close()
        else:
            spare.append(cord)

    @property
    def line(self) -> Line:
        """The running event loop's own connections."""
        return self._lines.here()

    def close_spare(self) -> None:
        """Cut the connections that threads have left."""
        self._closed = True
        for spare in self._spare.values():
            while spare:
                spare.pop().close()

    async def close(self) -> None:
        """Cut every connection, each on the loop that it belongs to."""
        self.close_spare()
        here = asyncio.get_running_loop()
        for loop, line in self._lines.items():
            if loop is here:
                await line.close()
            elif loop.is_closed():
                line.cut()
            elif loop.is_running():
                with contextlib.suppress(TimeoutError):
                    leaving = asyncio.run_coroutine_threadsafe(line.close(), loop)
                    await asyncio.wait_for(asyncio.wrap_future(leaving), CLOSING)
