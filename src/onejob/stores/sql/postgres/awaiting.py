"""Admission for those who await: on their own event loop, and together with whoever else awaits there.

A lone caller's statement is sent at once. Whoever comes while one is under way waits for its end, and then
shares the next statement, and the next commit, with all others who have come meanwhile.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import psycopg
from psycopg import AsyncConnection

from onejob.stores.contract import Step
from onejob.stores.lane import GROUP, deliver
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.flows import Talk
from onejob.stores.sql.postgres.voice import Voice
from onejob.stores.sql.rows import Row

Admit = Callable[[Sequence[Step]], Talk[list[Any]]]
Waiting = tuple[Sequence[Step], "asyncio.Future[Any]"]


class Unconnected(Exception):
    """This loop cannot reach the server by itself."""


class Admissions:
    """The admissions of one event loop, over one connection."""

    def __init__(self, url: str, settings: dict[str, Any], first: Sequence[Ask], admit: Admit) -> None:
        self._url = url
        self._settings = settings
        self._first = first  # what is said once over every connection
        self._admit = admit
        self._busy = False
        self._waiting: list[Waiting] = []
        self._connection: AsyncConnection[Any] | None = None
        self._voice: Voice | None = None
        self._finish: Callable[[], object] = _nothing

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps, now or with the next statement; raises Unconnected if they must go another way."""
        if self._busy:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting.append((steps, future))
            return await future  # type: ignore[no-any-return]
        self._busy = True
        try:
            return await self._run(steps)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Let those who waited share a statement."""
        group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
        self._busy = bool(group)
        if group:
            task = asyncio.ensure_future(self._run_group(group))
            task.add_done_callback(lambda _: self._go_on())

    async def _run_group(self, group: Sequence[Waiting]) -> None:
        live = [(steps, future) for steps, future in group if not future.done()]
        try:
            answers = iter(await self._run([step for steps, _ in live for step in steps]))
            deliver([(future, [next(answers) for _ in steps]) for steps, future in live])
        except Exception as error:  # noqa: BLE001 - whoever awaits it decides
            deliver([(future, error) for _, future in live])

    async def _run(self, steps: Sequence[Step]) -> list[Any]:
        talk = self._admit(steps)
        try:
            asks = next(talk)
            while True:
                asks = talk.send(await self._ask_all(asks))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def _ask_all(self, asks: Sequence[Ask]) -> list[list[Row]]:
        voice = self._voice or await self._connect()
        try:
            await exchange(voice, asks)
        except BaseException as error:
            self.close()  # nobody knows how far it got: the same again, elsewhere, finds out
            if isinstance(error, psycopg.Error):
                raise Unconnected from error
            raise
        return voice.answers()

    async def _connect(self) -> Voice:
        try:
            connection = await AsyncConnection.connect(self._url, **self._settings)
            voice = Voice(connection)
            if self._first:
                await exchange(voice, self._first)
        except psycopg.Error as error:
            raise Unconnected from error
        self._connection = connection
        self._finish = weakref.finalize(self, connection.pgconn.finish)
        self._voice = voice
        return voice

    def close(self) -> None:
        """Close the connection, whether or not its loop still runs."""
        self._finish()  # before anything lets go of the connection
        self._connection = self._voice = None


async def exchange(voice: Voice, asks: Sequence[Ask]) -> None:
    """Say a batch on the running loop, and hear all of its answers."""
    loop = asyncio.get_running_loop()
    if not voice.say(asks):
        done = loop.create_future()
        loop.add_writer(voice.socket, go_on, voice.send, done)
        try:
            await done
        finally:
            loop.remove_writer(voice.socket)
    done = loop.create_future()
    loop.add_reader(voice.socket, go_on, voice.hear, done)
    try:
        await done
    finally:
        loop.remove_reader(voice.socket)


def go_on(act: Callable[[], bool], done: asyncio.Future[None]) -> None:
    """Do what can be done now; tell if that was all, or was not to be done."""
    try:
        if not done.done() and act():
            done.set_result(None)
    except psycopg.Error as error:
        done.set_exception(error)


class Closing(Protocol):
    """What can be closed, whether or not its loop still runs."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closing)


class Loops(Generic[C]):
    """What each event loop that uses a store has for itself."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, C] = weakref.WeakKeyDictionary()

    def here(self) -> C:
        """Give what the running loop has."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = self._make()
        return self._by_loop[loop]

    def close(self) -> None:
        """Close all of them."""
        for own in self._by_loop.values():
            own.close()
        self._by_loop.clear()


def _nothing() -> None:
    """Finish nothing: there is no connection yet."""
