"""Statements on a psycopg connection: one, or a batch that is sent together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import psycopg
from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.flows import Patience, Settled, Talk, converse
from onejob.stores.sql.rows import Row
from onejob.stores.sql.statements import statements

TEXTS = statements("postgres")
SQL = {name: text.encode() for name, text in TEXTS.items()}


class InDoubt(Exception):
    """The connection broke while committing: nobody knows whether it went through."""


class Line(Connection[Any]):
    """A connection with a cursor of its own: making one takes longer than many a statement.

    It knows which statements the server has prepared for it. In a batch that fails, what comes after the
    failure would not be prepared, but the driver would believe it: so only known statements go in batches.
    """

    @cached_property
    def own(self) -> RawCursor[Any]:
        """The cursor for one statement after the other."""
        return RawCursor(self, row_factory=tuple_row)

    @cached_property
    def known(self) -> set[str]:
        """The names of the statements that are prepared."""
        return set()

    def can_batch(self, asks: Sequence[Ask]) -> bool:
        """Tell whether these may be sent together: they are prepared, or nothing ever is."""
        return self.prepare_threshold is None or all(one.name in self.known for one in asks)


def send(cursor: RawCursor[Any], question: Ask) -> RawCursor[Any]:
    """Run one statement; in a pipeline its rows come later."""
    return cursor.execute(SQL[question.name], question.parameters or None, prepare=True, binary=True)


def cursor_of(connection: Connection[Any]) -> RawCursor[Any]:
    """Make a cursor that gives plain tuples, whatever the caller's row factory."""
    return RawCursor(connection, row_factory=tuple_row)


def rows_of(cursor: RawCursor[Any]) -> list[Row]:
    """Fetch what a statement gave."""
    result = cursor.pgresult  # `description` would describe every column, which costs more than the statement
    return cursor.fetchall() if result is not None and result.nfields else []


def ask(connection: Connection[Any], question: Ask) -> list[Row]:
    """Run one statement."""
    if not isinstance(connection, Line):
        return rows_of(send(cursor_of(connection), question))
    rows = rows_of(send(connection.own, question))
    connection.known.add(question.name)
    return rows


def ask_all(connection: Connection[Any], asks: Sequence[Ask]) -> list[list[Row]]:
    """Run statements in order, sent together."""
    if len(asks) == 1 or not isinstance(connection, Line) or not connection.can_batch(asks):
        return [ask(connection, one) for one in asks]
    return [rows_of(cursor) for cursor in send_all(connection, asks)]


def send_all(line: Line, asks: Sequence[Ask]) -> list[RawCursor[Any]]:
    """Send statements together; the first that fails is what is raised."""
    cursors = [cursor_of(line) for _ in asks]
    failed: list[psycopg.Error] = []
    try:
        with line.pipeline():
            try:
                for cursor, one in zip(cursors, asks, strict=True):
                    send(cursor, one)
            except psycopg.Error as error:  # raised below: what ends the pipeline would hide it
                failed.append(error)
    except psycopg.Error as error:
        failed.append(error)
    if failed:
        raise failed[0]
    return cursors


def transact(connection: Connection[Any], talk: Talk[Settled], patience: Patience) -> Settled:
    """Carry on a talk in one transaction, and write what it decided."""
    begun = False

    def ask_inside(asks: Sequence[Ask]) -> list[list[Row]]:
        nonlocal begun
        if begun:
            return ask_all(connection, asks)
        begun = True
        return ask_all(connection, [Ask("begin"), Ask("lock_timeout", (patience.text,)), *asks])[2:]

    try:
        settled = converse(talk, ask_inside)
        commit(connection, settled.writes)
    except BaseException:
        undo(connection)
        raise
    return settled


def commit(connection: Connection[Any], writes: Sequence[Ask]) -> None:
    """Write, and commit with it."""
    try:
        ask_all(connection, [*writes, Ask("commit")])
    except BaseException as error:
        if connection.broken:
            raise InDoubt from error
        raise


def undo(connection: Connection[Any]) -> None:
    """Leave no transaction open, if the connection still lives."""
    if not connection.closed and connection.info.transaction_status is not TransactionStatus.IDLE:
        ask(connection, Ask("rollback"))
