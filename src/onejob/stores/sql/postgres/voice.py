"""Our statements, straight through libpq: a cursor of the driver costs more than most of them.

Nothing here waits. Whoever says something waits until it is sent, and then until it is answered: a thread in
`wire`, an event loop in `awaiting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import BaseConnection, OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from onejob.stores.sql.flows import Ask
from onejob.stores.sql.rows import Row
from onejob.stores.sql.statements import statements

TEXTS = statements("postgres")
SQL = {name: text.encode() for name, text in TEXTS.items()}
NAMES = {name: b"onejob_" + name.encode() for name in TEXTS}
BINARY = 1
BYTES = {bytes, bytearray}
AS_THEY_ARE = (str, bytes, bytearray)
FAILED, SYNC, BAD = int(ExecStatus.FATAL_ERROR), int(ExecStatus.PIPELINE_SYNC), int(ConnStatus.BAD)


ROLLBACK = [Ask("rollback")]
OVER = {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}


class Lost(Exception):
    """The connection broke."""


def is_idle(connection: BaseConnection[Any]) -> bool:
    """Tell whether no transaction is open, or no connection."""
    return connection.pgconn.transaction_status in OVER


class Voice:
    """What is said over one connection: batches of statements, each prepared when it is first said.

    A batch is a pipeline with one sync, hence one transaction unless it begins or ends one itself.
    """

    def __init__(self, connection: BaseConnection[Any]) -> None:
        self._link = connection.pgconn
        self._prepares = connection.prepare_threshold is not None
        self.socket = self._link.socket
        self._reader = Transformer()
        self._known: set[str] = set()  # what the server has prepared
        self._said: list[tuple[str, bool]] = []  # statements, and whether to be run or only prepared
        self._heard: list[PGresult] = []

    def say(self, asks: Sequence[Ask]) -> bool:
        """Say a batch; True once all of it is sent."""
        link = self._link
        self._said, self._heard = [], []
        link.enter_pipeline_mode()
        for ask in asks:
            given = ask.parameters
            values = [v if v is None or v.__class__ in BYTES else str(v).encode() for v in given]
            formats = [isinstance(v, AS_THEY_ARE) for v in given]  # text may hold a NUL; numbers go as text
            if self._prepares:
                self._prepare(ask.name)
                link.send_query_prepared(NAMES[ask.name], values, formats, BINARY)
            else:
                link.send_query_params(SQL[ask.name], values, None, formats, BINARY)
            self._said.append((ask.name, True))
        link.pipeline_sync()
        return self.send()

    def _prepare(self, name: str) -> None:
        if name not in self._known and (name, False) not in self._said:
            self._link.send_prepare(NAMES[name], SQL[name])
            self._said.append((name, False))

    def send(self) -> bool:
        """Send on; True once all is sent."""
        if not self._link.flush():
            return True
        self._link.consume_input()  # a server that cannot get rid of its answers takes no more questions
        return False

    def hear(self) -> bool:
        """Take in what has come; True once everything is answered."""
        link = self._link
        link.consume_input()
        while not link.is_busy():
            result = link.get_result()
            if result is None:
                if link.status == BAD:
                    raise OperationalError("the connection is lost")
            elif result.status == SYNC:
                link.exit_pipeline_mode()
                return True
            else:
                self._heard.append(result)
        return False

    def answers(self) -> list[list[Row]]:
        """Give the rows of each statement, or raise what the first that failed raised."""
        answers: list[list[Row]] = []
        said = iter(self._said)
        for result in self._heard:
            if result.status == FAILED:
                raise error_from_result(result)
            name, run = next(said)
            if run:
                answers.append(self._rows(result))
            else:
                self._known.add(name)
        return answers

    def _rows(self, result: PGresult) -> list[Row]:
        if not result.ntuples:
            return []
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)
