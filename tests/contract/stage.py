"""Two sessions on PostgreSQL, driven statement by statement, and the orders in which they can be driven.

Each session is the real store in a thread of its own. Before a statement that another session might notice it
stops until it is told to go on. Whether it waits for a lock is asked of the server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import BaseConnection, Connection
from psycopg.errors import DeadlockDetected

from onejob.core.leasing import Lease
from onejob.core.step import Step
from onejob.stores.columns import read_job, read_mark
from onejob.stores.contract import FullStore as Store
from onejob.stores.flow import Query, Row
from onejob.stores.postgres import caller_transaction
from onejob.stores.postgres.connection import StoreConnection
from onejob.stores.postgres.connection import ask as ask_postgres
from onejob.stores.postgres.server import BRIEF
from onejob.stores.postgres.store import PostgresStore
from onejob.testing import Clock

PATIENCE = 30.0  # seconds for what is bound to happen
LOOK = 0.002  # seconds after which a statement that has not ended may be waiting
MARKS = """
SELECT key, version, job, void, touched_at, prior_version, prior_job FROM onejob_marks ORDER BY key
"""
RUNNING = "SELECT * FROM onejob_jobs WHERE state = 'active'"
PASSING = {  # statements that change nothing for others, or that go with the one before them
    *("begin", "rollback", "savepoint", "undo", "release", "identify", "lock_timeout", "lock_marks"),
    *("marks", "notify", "clock", "installation", "paused", "mature"),
}

MANY = 1000  # statements: more than there are

Act = Sequence[Step[Any]] | Lease


def do(store: Store, act: Act) -> Any:
    """Let a store lease, and return the jobs; or let it apply steps, and return their answers."""
    return asyncio.run(store.lease(act)).jobs if isinstance(act, Lease) else store.apply_sync(act)


class Session:
    """A store of its own, whose statements wait for the word."""

    def __init__(self, url: str, name: str, clock: Clock) -> None:
        settings = {
            "deadlock_timeout": "50ms",
            "idle_in_transaction_session_timeout": 0,
            "onejob.session": name,
        }
        mark = "%20".join(f"-c%20{setting}%3D{value}" for setting, value in settings.items())
        self.url = f"{url}{'&' if '?' in url else '?'}options={mark}"
        self.name = name
        self.store = PostgresStore(self.url, clock=clock, admission_timeout=PATIENCE)
        self.store.migrate()
        self.connection = psycopg.connect(self.url)  # a caller's own
        self.waits = 0  # how often a statement waited for another session
        self.stops = 0  # before how many statements it stood
        self._pid = 0
        self._thread: threading.Thread | None = None
        self._here = threading.Event()  # it stands before a statement, or it has ended
        self._go = threading.Event()
        self.free = True
        self.done = False
        self.answer: Any = None
        self.next = ""

    def begin(self, act: Act, *, visiting: bool) -> None:
        """Start, up to the first statement."""
        self.done, self.free, self.answer = False, False, None
        self.waits = self.stops = 0
        self._here.clear()
        self._go.clear()
        self._thread = threading.Thread(target=self._work, args=(act,), kwargs={"visiting": visiting})
        self._thread.start()
        assert self._here.wait(PATIENCE)

    def _work(self, act: Act, *, visiting: bool) -> None:
        try:
            self.answer = self._visit(act) if visiting else do(self.store, act)
        except Exception as error:  # noqa: BLE001 - it is an answer, which the test compares
            self.answer = error
        self.done = True
        self._here.set()

    def _visit(self, act: Act) -> Any:
        assert not isinstance(act, Lease)
        try:
            answer = self.store.apply_within_sync(self.connection, act)
            self.stop_before(self.connection, "the caller's commit")
            self.connection.commit()
        finally:
            self.connection.rollback()
        return answer

    def stop_before(self, connection: BaseConnection[Any], name: str) -> None:
        """Stand before a statement until told to go on."""
        if self.free or name in PASSING:
            return
        self._pid = connection.info.backend_pid
        self.next = name
        self.stops += 1
        self._go.clear()
        self._here.set()
        assert self._go.wait(PATIENCE)

    def step(self, observer: Connection[Any]) -> None:
        """Let it run one statement; return when that has ended, or waits for another session."""
        if not self.done and self._here.is_set():
            self._here.clear()
            self._go.set()
        self.settle(observer)

    def settle(self, observer: Connection[Any]) -> bool:
        """Return when it stands, or waits for another session; tell which of the two."""
        ends = time.monotonic() + PATIENCE
        while not self._here.wait(LOOK):
            if is_blocked(observer, self._pid):
                self.waits += 1
                return False
            assert time.monotonic() < ends, f"{self.name} neither goes on from {self.next} nor waits"
        return True

    def end(self) -> None:
        """Let it run to its end by itself."""
        self.free = True
        self._go.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    def close(self) -> None:
        self.end()
        self.connection.close()
        asyncio.run(self.store.close())


def is_blocked(observer: Connection[Any], pid: int) -> bool:
    """Ask whether a backend waits for another one."""
    [[blocked]] = observer.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchall()
    return bool(blocked)


class Stage:
    """Sessions, and an observer who sees what they have done."""

    def __init__(self, url: str, clock: Clock, stack: ExitStack) -> None:
        self.deadlocks = 0  # which the server had to resolve
        self.brief = BRIEF  # milliseconds that a group waits for another session
        self.observer = stack.enter_context(psycopg.connect(url, autocommit=True))
        self.store = PostgresStore(url, clock=clock)
        stack.callback(lambda: asyncio.run(self.store.close()))
        self.store.migrate()
        self.sessions = [Session(url, name, clock) for name in ("a", "b")]
        for session in self.sessions:
            stack.callback(session.close)

    def wait_briefly(self, milliseconds: int, patch: pytest.MonkeyPatch) -> None:
        """Let groups of steps wait for this long for another session."""
        self.brief = milliseconds
        patch.setattr("onejob.stores.postgres.server.BRIEF", milliseconds)

    def keep_scenery(self) -> None:
        """Remember the tables as they are."""
        for table in ("jobs", "marks"):
            self.observer.execute(f"CREATE TABLE kept_{table} AS TABLE onejob_{table}".encode())

    def restore_scenery(self) -> None:
        """Make the tables what they were."""
        for table in ("jobs", "marks"):
            self.observer.execute(f"DELETE FROM onejob_{table}".encode())  # noqa: S608 - our own names
            self.observer.execute(f"INSERT INTO onejob_{table} TABLE kept_{table}".encode())

    def with_seen(self, act: Act) -> Act:
        """Return an act whose steps have seen the jobs that run now."""
        if isinstance(act, Lease):
            return act
        rows = self.observer.execute(RUNNING, binary=True).fetchall()
        jobs = {row[0]: read_job(row) for row in rows}
        return [msgspec.structs.replace(step, seen=jobs.get(step.job_id or "")) for step in act]

    def clear(self) -> None:
        """Leave nothing of an earlier scene."""
        self.observer.execute("TRUNCATE onejob_jobs, onejob_marks, onejob_tallies")
        self.observer.execute("DROP TABLE IF EXISTS kept_jobs, kept_marks")

    def remains(self) -> list[Any]:
        """Read all jobs and marks."""
        jobs = self.observer.execute("SELECT * FROM onejob_jobs ORDER BY id", binary=True).fetchall()
        marks = self.observer.execute(MARKS, binary=True).fetchall()
        return [[read_job(row) for row in jobs], [read_mark(row) for row in marks]]

    def stop_before(self, connection: BaseConnection[Any], name: str) -> None:
        """Let the session whose connection this is stand before a statement."""
        mark = connection.info.get_parameters().get("options", "")
        for session in self.sessions:
            if mark.endswith(f"={session.name}"):
                session.stop_before(connection, name)

    def perform(self, acts: Sequence[Act], order: Order, visiting: Sequence[bool]) -> list[Any]:
        """Drive both sessions in one order and collect their answers."""
        for session, act, visits in zip(self.sessions, acts, visiting, strict=True):
            session.begin(act, visiting=visits)
        try:
            first, second = (self.sessions[index] for index in order.who)
            self.drive(first, order.steps[0])
            self.drive(second, order.steps[1])
            while not all(session.done for session in self.sessions):
                ready = [session for session in (first, second) if session.settle(self.observer)]
                for session in [one for one in ready if not one.done][:1]:
                    session.step(self.observer)
        finally:
            for session in self.sessions:
                session.end()
        return [session.answer for session in self.sessions]

    def rehearse(self, acts: Sequence[Act], visiting: Sequence[bool]) -> list[int]:
        """Return how many statements each session has if the other comes after it."""
        lengths = []
        for who in ((0, 1), (1, 0)):
            self.restore_scenery()
            self.perform(acts, Order(who, (0, 0)), visiting)
            lengths.append(self.sessions[who[0]].stops)
        return lengths

    @contextmanager
    def statement(self, connection: BaseConnection[Any], query: Query) -> Iterator[None]:
        """Stop before a statement, and count it if it ends in a deadlock."""
        self.stop_before(connection, query.name)
        try:
            yield
        except DeadlockDetected:
            self.deadlocks += 1
            raise

    def drive(self, session: Session, steps: int) -> None:
        """Let a session run some statements, fewer if it has to wait."""
        for _ in range(steps):
            if session.done or not session.settle(self.observer):
                return
            session.step(self.observer)


class Order:
    """Who begins, after how many statements the other takes over, and after how many it gives back."""

    def __init__(self, who: tuple[int, int], steps: tuple[int, int]) -> None:
        self.who = who
        self.steps = steps

    def __repr__(self) -> str:
        names = "ab"[self.who[0]], "ab"[self.who[1]]
        return f"{self.steps[0]} of {names[0]}, {self.steps[1]} of {names[1]}, the rest of {names[0]}"


@contextmanager
def open_stage(url: str, clock: Clock) -> Iterator[Stage]:
    """Open sessions whose statements are sent one at a time and can be stopped."""
    with ExitStack() as stack:
        stage = Stage(url, clock, stack)

        exchange = StoreConnection.exchange

        async def ask(connection: Connection[Any], query: Query, *, prepare: bool | None) -> list[Row]:
            with stage.statement(connection, query):
                return await ask_postgres(connection, query, prepare=prepare)

        async def exchange_each(connection: StoreConnection, batch: Sequence[Query]) -> list[list[Row]]:
            raw = connection.raw
            if batch[0].name in {"admit_job", "admit_jobs"} and isinstance(raw, Connection):
                raw.execute(f"SET lock_timeout = {stage.brief}".encode())  # a test may have changed it
            rows: list[list[Row]] = []
            for query in batch:
                with stage.statement(connection.raw, query):
                    rows += await exchange(connection, [query])
            return rows

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(caller_transaction, "ask", ask)
        patch.setattr(StoreConnection, "exchange", exchange_each)
        yield stage


def orders(lengths: Sequence[int], *, changes: int) -> Iterator[Order]:
    """Yield every order in which hands change two or three times at most, for runs of so many statements."""
    for who in ((0, 1), (1, 0)):
        for first in range(lengths[who[0]] + 1):
            for second in range(lengths[who[1]] + 1) if changes > 2 else [MANY]:
                yield Order(who, (first, second))
