"""Statements on a thread: in batches over a connection of ours, one by one over somebody else's."""

from __future__ import annotations

import select
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.flows import Patience, Settled, Talk, converse, preceded
from onejob.stores.sql.postgres.voice import SQL, Voice
from onejob.stores.sql.rows import Row


class InDoubt(Exception):
    """The connection broke while committing: nobody knows whether it went through."""


class Line(Connection[Any]):
    """A connection of the store's own, over which a thread says batches of statements."""

    @cached_property
    def _voice(self) -> Voice:
        return Voice(self)

    @cached_property
    def _socket(self) -> select.poll:
        return select.poll()

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


def ask(connection: Connection[Any], question: Ask) -> list[Row]:
    """Run one statement on somebody else's connection, whatever its row factory."""
    cursor = RawCursor(connection, row_factory=tuple_row)
    cursor.execute(SQL[question.name], question.parameters or None, prepare=True, binary=True)
    result = cursor.pgresult
    return list(cursor.fetchall()) if result is not None and result.nfields else []


def transact(line: Line, talk: Talk[Settled], patience: Patience) -> Settled:
    """Carry on a talk in one transaction, and write what it decided."""
    begin = [Ask("begin"), Ask("lock_timeout", (patience.text,))]
    try:
        settled = converse(preceded(begin, talk), line.ask_all)
        commit(line, settled.writes)
    except BaseException:
        undo(line)
        raise
    return settled


def commit(line: Line, writes: Sequence[Ask]) -> None:
    """Write, and commit with it."""
    try:
        line.ask_all([*writes, Ask("commit")])
    except BaseException as error:
        if line.broken:
            raise InDoubt from error
        raise


def undo(line: Line) -> None:
    """Leave no transaction open, if the connection still lives."""
    if not line.closed and line.pgconn.transaction_status is not TransactionStatus.IDLE:
        line.ask(Ask("rollback"))
