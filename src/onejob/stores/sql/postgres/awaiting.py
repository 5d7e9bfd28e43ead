"""Statements on an event loop, for those who await there; and admission together with whoever else does.

A lone caller's steps are run at once. Whoever comes while some are under way waits for their end, and then
shares the next statements, and the next commit, with all others who have come meanwhile.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection

from onejob.errors import StoreUnavailable
from onejob.forks import generation
from onejob.stores.contract import Step
from onejob.stores.lane import GROUP, Closed, deliver
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.account import PAUSE, Account
from onejob.stores.sql.postgres.faults import unavailable
from onejob.stores.sql.postgres.flows import Talk
from onejob.stores.sql.postgres.voice import ROLLBACK, Lost, Voice, is_idle
from onejob.stores.sql.rows import Row

T = TypeVar("T")
Apply = Callable[[Sequence[Step]], Awaitable[list[Any]]]
Waiting = tuple[Sequence[Step], "asyncio.Future[Any]"]

MOST = 8  # connections of one loop
CLOSING = 5.0  # seconds for what is under way


class AwaitedLine:
    """A connection of the store's own, over which a loop says batches of statements."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.connection = connection
        self._voice = Voice(connection)
        self._done: asyncio.Future[None] | None = None  # while something is under way

    async def carry(self, talk: Talk[T]) -> T:
        """Carry on a talk to its end; leave no transaction open."""
        try:
            asks = next(talk)
            while True:
                try:
                    answers = await self.ask_all(asks)
                except psycopg.Error as error:
                    asks = talk.throw(Lost(str(error)) if self.connection.closed else error)
                else:
                    asks = talk.send(answers)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            if not is_idle(self.connection):
                with suppress(psycopg.Error):
                    await self.ask_all(ROLLBACK)

    async def ask_all(self, asks: Sequence[Ask]) -> list[list[Row]]:
        """Run statements in order, sent together; the first that fails is what is raised."""
        voice, loop = self._voice, asyncio.get_running_loop()
        try:
            if not voice.say(asks):
                await self._until(voice.send, loop.add_writer, loop.remove_writer)
            await self._until(voice.hear, loop.add_reader, loop.remove_reader)
        except BaseException:
            self.connection.pgconn.finish()  # nobody knows how far it got
            raise
        return voice.answers()

    async def _until(
        self, act: Callable[[], bool], add: Callable[..., Any], remove: Callable[..., Any]
    ) -> None:
        """Go on with an act whenever the socket lets it, until that was all."""
        done = self._done = asyncio.get_running_loop().create_future()
        add(self._voice.socket, go_on, act, done)
        try:
            await done
        finally:
            self._done = None
            remove(self._voice.socket)

    def cut(self) -> None:
        """Close the connection, from any thread; whoever waits for an answer is told."""
        self.connection.pgconn.finish()
        if (done := self._done) is not None:
            with suppress(RuntimeError):  # its loop has closed
                done.get_loop().call_soon_threadsafe(give_up, done)


def go_on(act: Callable[[], bool], done: asyncio.Future[None]) -> None:
    """Do what can be done now; tell if that was all, or cannot be done."""
    try:
        if not done.done() and act():
            done.set_result(None)
    except psycopg.Error as error:
        done.set_exception(error)


def give_up(done: asyncio.Future[None]) -> None:
    """Tell whoever waits that nothing more will come."""
    if not done.done():
        done.set_exception(psycopg.OperationalError("the connection was closed"))


class AwaitedLines:
    """The connections of one event loop."""

    def __init__(self, account: Account, apply: Apply) -> None:
        self._account = account
        self._idle: list[AwaitedLine] = []
        self._open: set[AwaitedLine] = set()
        self._room = asyncio.Semaphore(MOST)
        self._closed = False
        self.admissions = Admissions(apply)
        weakref.finalize(self, cut_all, self._open, generation())  # the loop may end before the store

    async def run(self, work: Callable[[], Talk[T]]) -> T:
        """Carry on a talk; if the connection breaks before anything was committed, over another one."""
        async with self._room:
            for _ in range(MOST + 1):  # all that have been idle may be broken
                line = self._idle.pop() if self._idle else await self._connect()
                try:
                    return await line.carry(work())
                except Lost:
                    continue
                finally:
                    self._put_by(line)
        raise self._account.lost()

    def _put_by(self, line: AwaitedLine) -> None:
        if line.connection.closed or self._closed:
            self._open.discard(line)
            line.cut()
        else:
            self._idle.append(line)

    async def _connect(self) -> AwaitedLine:
        account, ends = self._account, time.monotonic() + self._account.patience
        while not self._closed:
            try:
                line = AwaitedLine(await AsyncConnection.connect(account.url, **account.settings))
                self._open.add(line)
                if account.first:
                    await line.ask_all(account.first)
            except psycopg.Error as error:
                if time.monotonic() > ends:
                    raise unavailable(error, account.place) from error
                await asyncio.sleep(PAUSE)
            else:
                return line
        raise Closed

    async def leave(self) -> None:
        """Let what is under way end, if it does so soon."""
        try:
            async with asyncio.timeout(CLOSING):
                for _ in range(MOST):
                    await self._room.acquire()
        except TimeoutError:
            return
        for _ in range(MOST):
            self._room.release()

    def cut(self) -> None:
        """Close all of them, whether or not their loop still runs."""
        self._closed = True
        self._idle.clear()
        cut_all(self._open, generation())


def cut_all(lines: set[AwaitedLine], born: object) -> None:
    """Close connections; those of the process that this one was forked from are not ours."""
    while lines and born == generation():
        lines.pop().cut()


class Admissions:
    """The steps of one event loop, in groups."""

    def __init__(self, apply: Apply) -> None:
        self._apply = apply
        self._busy = False
        self._waiting: list[Waiting] = []

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps, now or with the next group."""
        if self._busy:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting.append((steps, future))
            return await future  # type: ignore[no-any-return]
        self._busy = True
        try:
            return await self._apply(steps)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Let those who waited share their statements."""
        group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
        self._busy = bool(group)
        if group:
            task = asyncio.ensure_future(self._run_group(group))
            task.add_done_callback(lambda _: self._go_on())

    async def _run_group(self, group: Sequence[Waiting]) -> None:
        """Run several callers' steps as one; if that fails, each caller's alone."""
        live = [(steps, future) for steps, future in group if not future.done()]
        try:
            answers = iter(await self._apply([step for steps, _ in live for step in steps]))
            deliver([(future, [next(answers) for _ in steps]) for steps, future in live])
        except Exception as error:  # noqa: BLE001 - whoever awaits it decides
            if len(live) == 1 or isinstance(error, StoreUnavailable):  # who tried alone would wait as long
                deliver([(future, error) for _, future in live])
            else:
                for one in live:
                    await self._run_group([one])
