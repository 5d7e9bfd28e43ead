"""Statements on a thread: in batches over a connection of ours, one by one over somebody else's."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, RawCursor
from psycopg.rows import tuple_row

from onejob.errors import StoreUnavailable
from onejob.stores.lane import Closed
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.account import PAUSE, Account
from onejob.stores.sql.postgres.faults import unavailable
from onejob.stores.sql.postgres.flows import Talk
from onejob.stores.sql.postgres.voice import ROLLBACK, SQL, Lost, Voice, is_idle
from onejob.stores.sql.rows import Row

T = TypeVar("T")

MOST = 10  # connections of threads


class Line(Connection[Any]):
    """A connection of the store's own, over which a thread says batches of statements."""

    @cached_property
    def _voice(self) -> Voice:
        return Voice(self)

    @cached_property
    def _socket(self) -> select.poll:
        return select.poll()

    def carry(self, talk: Talk[T]) -> T:
        """Carry on a talk to its end; leave no transaction open."""
        try:
            asks = next(talk)
            while True:
                try:
                    answers = self.ask_all(asks)
                except psycopg.Error as error:
                    asks = talk.throw(Lost(str(error)) if self.closed else error)
                else:
                    asks = talk.send(answers)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            if not is_idle(self):
                with suppress(psycopg.Error):
                    self.ask_all(ROLLBACK)

    def ask_all(self, asks: Sequence[Ask]) -> list[list[Row]]:
        """Run statements in order, sent together; the first that fails is what is raised."""
        voice = self._voice
        try:
            sent = voice.say(asks)
            while not sent:
                self._until(select.POLLIN | select.POLLOUT)
                sent = voice.send()
            self._until(select.POLLIN)
            while not voice.hear():
                self._until(select.POLLIN)
        except BaseException:
            self.pgconn.finish()  # nobody knows how far it got
            raise
        return voice.answers()

    def _until(self, event: int) -> None:
        self._socket.register(self._voice.socket, event)
        self._socket.poll()

    def ask(self, question: Ask) -> list[Row]:
        """Run one statement."""
        [rows] = self.ask_all([question])
        return rows


class Lines:
    """The connections of a process's threads, each used by one thread at a time."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._idle: list[Line] = []
        self._room = threading.Semaphore(MOST)
        self._closed = False

    def run(self, work: Callable[[Line], T]) -> T:
        """Use a connection; if it turns out to be broken before anything was committed, another one."""
        if not self._room.acquire(timeout=self._account.patience):
            raise StoreUnavailable(f"{self._account.place}: all {MOST} connections are in use.")
        try:
            for _ in range(MOST + 1):  # all that have been idle may be broken
                line = self._take()
                try:
                    return work(line)
                except (Lost, psycopg.Error):
                    if not line.closed:
                        raise
                finally:
                    self._put_by(line)
        finally:
            self._room.release()
        raise self._account.lost()

    def _take(self) -> Line:
        if self._closed:
            raise Closed
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _put_by(self, line: Line) -> None:
        if line.closed or self._closed:
            line.close()
        else:
            self._idle.append(line)

    def _connect(self) -> Line:
        account, ends = self._account, time.monotonic() + self._account.patience
        while True:
            try:
                line = Line.connect(account.url, **account.settings)
                if account.first:
                    line.ask_all(account.first)
            except psycopg.Error as error:
                if time.monotonic() > ends:
                    raise unavailable(error, account.place) from error
                time.sleep(PAUSE)
            else:
                return line

    def close(self) -> None:
        """Close those that nobody uses; the others are closed by whoever does."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def ask(connection: Connection[Any], question: Ask, *, prepare: bool = True) -> list[Row]:
    """Run one statement on somebody else's connection, whatever its row factory."""
    cursor = RawCursor(connection, row_factory=tuple_row)
    cursor.execute(SQL[question.name], question.parameters or None, prepare=prepare, binary=True)
    result = cursor.pgresult
    return list(cursor.fetchall()) if result is not None and result.nfields else []
