"""Statements on a psycopg connection: one, or a batch that is sent together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.flows import Patience, Settled, Talk, converse
from onejob.stores.sql.rows import Row
from onejob.stores.sql.statements import statements

SQL = statements("postgres")


class InDoubt(Exception):
    """The connection broke while committing: nobody knows whether it went through."""


def send(connection: Connection[Any], question: Ask) -> RawCursor[Any]:
    """Run one statement; in a pipeline its rows come later."""
    cursor = RawCursor(connection, row_factory=tuple_row)
    return cursor.execute(SQL[question.name].encode(), question.parameters or None, binary=True)


def rows_of(cursor: RawCursor[Any]) -> list[Row]:
    """Fetch what a statement gave."""
    result = cursor.pgresult  # `description` would describe every column, which costs more than the statement
    return cursor.fetchall() if result is not None and result.nfields else []


def ask(connection: Connection[Any], question: Ask) -> list[Row]:
    """Run one statement."""
    return rows_of(send(connection, question))


def ask_all(connection: Connection[Any], asks: Sequence[Ask]) -> list[list[Row]]:
    """Run statements in order, sent together."""
    if len(asks) == 1:
        return [ask(connection, asks[0])]
    with connection.pipeline():
        cursors = [send(connection, one) for one in asks]
    return [rows_of(cursor) for cursor in cursors]


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
