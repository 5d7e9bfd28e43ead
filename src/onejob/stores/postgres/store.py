"""PostgreSQL: strong across all machines that reach the server, and as durable as its commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import AsyncConnection, Connection

from onejob.core.leasing import Lease
from onejob.core.step import Step, View
from onejob.errors import InvalidCall, OnejobError, StoreError, StoreUnavailable
from onejob.stores.contract import Finding, Guarantees, Leased, Schema, Tally, utcnow
from onejob.stores.flow import Flow, Query, enter_blocking, run_blocking
from onejob.stores.gathering import Gathering
from onejob.stores.group_commit import Closed
from onejob.stores.per_loop import PerLoop
from onejob.stores.per_process import PerProcess, generation
from onejob.stores.postgres import admit, health
from onejob.stores.postgres.admit import waiting
from onejob.stores.postgres.caller_transaction import apply_within, count_within, run_within
from onejob.stores.postgres.connection import CLOCK, SQL, ask_sync
from onejob.stores.postgres.lease import busy, lease
from onejob.stores.postgres.notify import Listener, Notifier
from onejob.stores.postgres.pool import KEPT_FOR_HANDLERS, MOST, MOST_OF_LOOP, Pool, lend
from onejob.stores.postgres.schema import prepare_schema
from onejob.stores.postgres.server import Clock, Server, Url
from onejob.stores.postgres.steps import apply_alone, apply_group, look
from onejob.stores.postgres.upkeep import add_counts, fold, mending
from onejob.stores.sql.reading import ReadingStore, put_setting
from onejob.stores.sql.schema import script_after
from onejob.stores.store_clock import Clock as StoreTime
from onejob.stores.wakeup import Wakeup

T = TypeVar("T")
MANY = 64  # steps that are worth a connection of their own beside a lease
POLL = 0.5  # seconds between two looks while no notification can arrive


class Callers:
    """The connections that threads share, or those of one event loop; and callers that share a batch."""

    def __init__(self, server: Server, *, blocks: bool) -> None:
        self._server = server
        self.pool = Pool(server, MOST if blocks else MOST_OF_LOOP, blocks=blocks)
        self.handlers = Pool(server, 0 if server.is_pooled else KEPT_FOR_HANDLERS, blocks=blocks, own=False)
        self.gathering = Gathering(self.apply, lambda error: isinstance(error, StoreUnavailable), batches=1)

    async def apply(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Run steps; WAITS is the answer of those that another transaction delays."""
        return await self.run(lambda server: admit.apply(server, steps))

    async def run(self, make: Callable[[Server], Flow[T]]) -> T:
        """Run a flow."""
        return await self.pool.run(lambda: mending(lambda: make(self._server), self._server.now))

    def cut(self) -> None:
        """Close all connections, from any thread."""
        self.pool.close()
        self.handlers.close()


class OpenStore:
    """What one process has of the store."""

    def __init__(self, server: Server, wakeup: Wakeup) -> None:
        self.generation = generation()
        self.server = greet(server)
        self.threads = Callers(self.server, blocks=True)
        self.loops = PerLoop(lambda: Callers(self.server, blocks=False))
        self.notifier = Notifier(lambda query: run_blocking(self.threads.run(lambda _: send(query))))
        self._wakeup = wakeup
        self.listener: Listener | None = None
        self._starting = threading.Lock()

    def listen(self) -> None:
        """Listen to the notifications of other processes, unless a pooler would swallow them."""
        url = self.server.url
        if url.listen == "off" or (url.listen == "on" and self.server.is_pooled):
            return
        with self._starting:
            at = url.url if url.listen == "on" else url.listen
            self.listener = self.listener or Listener(at, self.server, self._wakeup, self.notifier.name)

    def close(self) -> None:
        """End the threads and close all connections."""
        if self.listener is not None:
            self.listener.close()
        self.notifier.close()
        self.loops.cut()
        self.threads.cut()


def send(query: Query) -> Flow[None]:
    """Run one statement."""
    yield [query]


def greet(server: Server) -> Server:
    """Connect once: create the tables, read the clock, and detect a pooler by its process number."""
    url, clock = server.url, server.clock
    settings = url.settings(server.store_timeout)
    try:
        with psycopg.connect(url.url, prepare_threshold=None, **settings) as connection:
            prepare_schema(connection, url.place, utcnow())
            [[installation]] = ask_sync(connection, Query("installation"))
            [[backend]] = ask_sync(connection, Query("backend"))
            asked_at = clock.monotonic()
            [[microseconds]] = ask_sync(connection, CLOCK)
            clock.set(microseconds, asked_at)
            is_pooled = backend != connection.info.backend_pid
            return replace(server, installation=installation, is_pooled=is_pooled)
    except psycopg.Error as error:
        raise server.refuse(error) from error


class PostgresStore(ReadingStore):
    """A store in a PostgreSQL database."""

    guarantees = Guarantees(
        store="postgresql",
        strength="strong",
        scope="all apps that use the database",
        durability="survives power loss where the server's synchronous_commit is on",
        not_promised="failover to a standby that is not synchronous",
    )

    def __init__(
        self,
        url: str,
        *,
        admission_timeout: float = 5.0,
        store_timeout: float = 10.0,
        clock: StoreTime | None = None,
    ) -> None:
        self._wakeup = Wakeup()
        self._server = Server(
            url=Url(url),
            clock=Clock(clock),
            admission_timeout=admission_timeout,
            store_timeout=store_timeout,
            changed=self._notify,
        )
        self._in_doubt: dict[str, str] = {}  # transactions whose commit was not confirmed, by batch
        self._opening = PerProcess(lambda: OpenStore(self._server, self._wakeup))
        self._open = self._opening.get

    def __repr__(self) -> str:
        """Name the store without its password."""
        return f"<PostgresStore {self._server.place}>"

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Run steps in a batch that they share with other callers; then, alone, those that must wait."""
        if not steps:
            return []
        answers = await self._use(lambda opened: opened.loops.here().gathering.apply(steps))
        for index in waiting(answers):
            answers[index] = await self._run(partial(apply_alone, step=steps[index]))
        return answers

    def apply_sync(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Blocking variant of `apply`."""
        answers = self._run_sync(lambda server: admit.apply(server, steps)) if steps else []
        for index in waiting(answers):
            answers[index] = self._run_sync(partial(apply_alone, step=steps[index]))
        return answers

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        """Apply steps and start due jobs: in one transaction, or side by side if that saves time.

        Side by side, the server works on both at once. A job that a step makes available is found by the next
        lease, for which the step's commit wakes the worker.
        """
        if len(after) < MANY or wanted.limited:
            return await self._run(lambda server: lease(server, wanted, after))
        settling = asyncio.create_task(self._settle(after))
        try:
            leased = await self._run(lambda server: lease(server, wanted, ()))
            return Leased(await settling, leased.jobs, leased.next_due)
        finally:
            settling.cancel()

    async def _settle(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Apply steps beside a lease, which may have started jobs: an error is the answer of its steps."""
        try:
            answers = await self._run(lambda server: apply_group(server, dict(enumerate(steps))))
        except StoreError as error:
            return [error for _ in steps]
        except Exception as error:  # noqa: BLE001 - a result that cannot be written must not lose what was started
            if len(steps) == 1:
                return [
                    error if isinstance(error, OnejobError) else InvalidCall(f"It cannot be stored: {error}")
                ]
            return [answer for step in steps for answer in await self._settle([step])]
        delayed = busy(self._server)
        return [answers.get(index, delayed) for index in range(len(steps))]

    # ── transactions ──────────────────────────────────────────────────────────────────────────────

    async def apply_within(self, connection: Any, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Apply steps inside the caller's transaction."""
        server = (await self._opening.get_async()).server
        return await run_within(server, connection, lambda: apply_within(server, steps), blocks=False)

    def apply_within_sync(self, connection: Any, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Blocking variant of `apply_within`."""
        server = self._open().server
        return run_blocking(run_within(server, connection, lambda: apply_within(server, steps), blocks=True))

    async def count_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count absorbed requests inside the caller's transaction."""
        server = (await self._opening.get_async()).server
        await run_within(server, connection, lambda: count_within(server, tallies), blocks=False)

    def count_within_sync(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Blocking variant of `count_within`."""
        server = self._open().server
        run_blocking(run_within(server, connection, lambda: count_within(server, tallies), blocks=True))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Open a transaction for a handler on a connection of its own."""
        opened = await self._opening.get_async()
        async with lend(opened.loops.here().handlers) as connection:
            yield connection

    def transaction_sync(self) -> AbstractContextManager[Connection[Any]]:
        """Blocking variant of `transaction`."""
        return enter_blocking(lend(self._open().threads.handlers))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Return the jobs and the mark of a key."""
        return await self._run(lambda server: look(key, server.now()))

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write a setting, or remove it."""
        await self._run(lambda _: put_setting(namespace, kind, name, value))
        self._notify()

    # ── counters ──────────────────────────────────────────────────────────────────────────────────

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:
        """Add to the counters."""
        name = batch or uuid4().hex
        if tallies:
            self._run_sync(lambda server: add_counts(server, tallies, name, self._in_doubt))

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job."""
        return await self._run(lambda _: fold(namespace))

    def use_clock(self, clock: StoreTime | None) -> StoreTime | None:
        """Take the time from another clock; return the one before."""
        return self._server.clock.use(clock)

    # ── wake-ups ──────────────────────────────────────────────────────────────────────────────────

    def _notify(self) -> None:
        """Wake tasks that wait in this process, and soon those of others."""
        self._wakeup.notify()
        if (opened := self._opening.ready) is not None:
            opened.notifier.notify()

    def position(self) -> int:
        """Return how often something has changed, as far as this process was notified."""
        self._open().listen()
        return self._wakeup.count

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait for a change; return soon if no notification can arrive."""
        since = self.position() if since is None else since
        opened = self._opening.ready
        listener = None if opened is None else opened.listener
        is_notified = listener is not None and listener.is_listening
        await self._wakeup.wait(timeout if is_notified else min(timeout, POLL), since)

    # ── running flows ─────────────────────────────────────────────────────────────────────────────

    async def _read(self, make: Callable[[], Flow[T]], *, is_quick: bool = False) -> T:  # noqa: ARG002
        return await self._run(lambda _: make())

    async def _write(self, make: Callable[[], Flow[T]]) -> T:
        return await self._run(lambda _: make())

    def _use_sync(self, make: Callable[[], Flow[T]], *, writes: bool) -> T:  # noqa: ARG002
        return self._run_sync(lambda _: make())

    async def _run(self, make: Callable[[Server], Flow[T]]) -> T:
        return await self._use(lambda opened: opened.loops.here().run(make))

    async def _use(self, act: Callable[[OpenStore], Awaitable[T]]) -> T:
        """Use the open store; if it is closed at this moment, open it again."""
        while True:
            with suppress(Closed):
                return await act(self._opening.ready or await self._opening.get_async())

    def _run_sync(self, make: Callable[[Server], Flow[T]]) -> T:
        while True:
            with suppress(Closed):
                return run_blocking(self._open().threads.run(make))

    def now(self) -> datetime:
        """Return the server's time."""
        if not self._server.clock.is_set:
            self._open()
        return self._server.now()

    # ── administration ────────────────────────────────────────────────────────────────────────────

    def schema(self) -> Schema:
        """Return the version of the tables, without creating or changing any."""
        return health.schema(self._server.url)

    def migrate(self) -> Schema:
        """Create the tables or upgrade them; opening does the same."""
        self._open()
        return self.schema()

    def migration_sql(self) -> str:
        """Return what `migrate` would run now, as one script."""
        return script_after("postgres", self.schema().found, utcnow(), f"BEGIN;\n\n{SQL['migrating']}")

    async def examine(self) -> list[Finding]:
        """Examine the server and its settings."""
        return await asyncio.to_thread(health.examine, self._server.url)

    async def close(self) -> None:
        """Finish what is under way and close the connections."""
        if (opened := self._opening.take()) is not None:
            await opened.loops.here().pool.drain()
            await asyncio.to_thread(opened.close)
