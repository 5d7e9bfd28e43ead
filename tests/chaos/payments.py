"""Handlers that pay in one transaction with the completion of their job, and die at a chosen point of it.

The tables have no key that would reject a second payment: only the transaction prevents one.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from inspect import isawaitable
from pathlib import Path
from typing import Any

import psycopg

from onejob import Retry, current
from tests.chaos.roles import Shop

RETRY = Retry(attempts=10_000, base="20ms", factor=1, cap="20ms")  # every kill costs one
TABLES = ("CREATE TABLE ledger (job VARCHAR, n INTEGER)", "CREATE TABLE account (balance INTEGER)")
OPEN_ACCOUNT = "INSERT INTO account VALUES (0)"
PAY = ("UPDATE account SET balance = balance + 1", "INSERT INTO ledger VALUES ('{job}', {n})")
POINTS = ("open", "written", "settled", "committed")


def connect(url: str) -> Any:
    """Connect without onejob, in autocommit mode."""
    if url.startswith("postgresql"):
        return psycopg.connect(url, autocommit=True)
    return sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None, timeout=30)


def following(n: int) -> int:
    """Return the number of the payment that follows another in its chain."""
    return -n - 1


class Payments:
    """Tasks that pay: async, in a thread, and in a transaction that the handler begins and commits itself."""

    def __init__(self, shop: Shop, options: Mapping[str, str]) -> None:
        self.app = shop.app
        self.url = (shop.folder / "url").read_text()
        self._deaths = shop.acks
        self._dies_at, self._turn = options.get("dies", ""), int(options.get("turn", "0"))
        self._passed: Counter[str] = Counter()
        self._passing = threading.Lock()
        self.tasks = [self.app.task(retry=RETRY)(way) for way in (self.awaited, self.plain, self.own)]
        self._watch_the_store()

    def _watch_the_store(self) -> None:
        """Add points before the handler's first write, and between the completion and the commit."""
        store: Any = self.app._engine.store
        awaited, blocking = store.apply_within, store.apply_within_sync

        async def apply_within(connection: Any, steps: Any) -> list[Any]:
            answers: list[Any] = await awaited(connection, steps)
            self._pass("settled" if steps else "open")
            return answers

        def apply_within_sync(connection: Any, steps: Any) -> list[Any]:
            answers: list[Any] = blocking(connection, steps)
            self._pass("settled" if steps else "open")
            return answers

        store.apply_within, store.apply_within_sync = apply_within, apply_within_sync

    def _pass(self, point: str) -> None:
        """Die here, if this is the point and the turn.

        Handlers pass in several threads. The lock is held until the process is dead, so that no other thread
        can note a second death between the first note and the end of the process.
        """
        with self._passing:
            self._passed[point] += 1
            if point == self._dies_at and self._passed[point] == self._turn:
                self._deaths.add(died_at=point)
                os.kill(os.getpid(), signal.SIGKILL)

    async def awaited(self, n: int) -> int:
        """Pay on an async connection, if the store has one, and let the chain pay once more."""
        async with current().transaction() as tx:
            self._pass("open")
            for sql in PAY:
                done = tx.execute(sql.format(job=current().job.id, n=n))
                if isawaitable(done):
                    await done
            self._pass("written")
            current().continue_with(self.tasks[1].call(following(n)))
            current().returns(n)
        self._pass("committed")
        return n

    def plain(self, n: int) -> int:
        """Pay in a plain function."""
        with current().transaction() as tx:
            self._pass("open")
            self._pay(tx, n)
            self._pass("written")
            current().returns(n)
        self._pass("committed")
        return n

    def own(self, n: int) -> int:
        """Pay in a transaction of the handler's own, which the completion joins."""
        with closing(connect(self.url)) as connection:
            connection.execute("BEGIN" if self.url.startswith("postgresql") else "BEGIN IMMEDIATE")
            self._pay(connection, n)
            with current().transaction(connection=connection):
                self._pass("written")
                current().returns(n)
            connection.execute("COMMIT")
        self._pass("committed")
        return n

    def _pay(self, connection: Any, n: int) -> None:
        for sql in PAY:
            connection.execute(sql.format(job=current().job.id, n=n))
