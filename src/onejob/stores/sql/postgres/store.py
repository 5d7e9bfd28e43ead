"""PostgreSQL: strong across every machine that reaches it, and as durable as its commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection

from onejob.forks import generation
from onejob.job import Job, View
from onejob.limits import Rate
from onejob.stores.bell import Bell
from onejob.stores.contract import (
    Counts,
    Filter,
    Finding,
    Guarantees,
    Lease,
    Schema,
    Step,
    Tally,
    utcnow,
)
from onejob.stores.lane import Closed
from onejob.stores.sql import flows as common
from onejob.stores.sql.flows import Flow
from onejob.stores.sql.postgres import flows, health, joined
from onejob.stores.sql.postgres.address import Address
from onejob.stores.sql.postgres.engine import Engine
from onejob.stores.sql.postgres.errands import Errand, Errands
from onejob.stores.sql.postgres.flows import LATER, one_by_one
from onejob.stores.sql.postgres.hints import Herald, Listener
from onejob.stores.sql.postgres.schema import script_after

T = TypeVar("T")
POLL = 0.5  # seconds between two looks while nobody can tell us of changes


class PostgresStore:
    """A store in a PostgreSQL database."""

    guarantees = Guarantees(
        store="postgresql",
        strength="strong",
        scope="everybody who uses the database",
        durability="survives power loss where the server's synchronous_commit is on",
        not_promised="failover to a standby that is not synchronous",
    )

    def __init__(
        self,
        url: str,
        *,
        admission_timeout: float = 5.0,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._address = Address(url)
        self._timeout = admission_timeout
        self._clock = clock
        self._bell = Bell()
        self._opening = threading.Lock()
        self._engine: Engine | None = None
        self._herald: Herald | None = None
        self._listener: Listener | None = None

    def __repr__(self) -> str:
        """Name the store without its password."""
        return f"<PostgresStore {self._address.place}>"

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in statements that they share with whoever else is waiting."""
        if not steps:
            return []
        answers = await self._await(lambda engine: engine.apply(steps))
        if LATER in answers:
            answers = await self._run(lambda errands: errands.finish(steps, answers))
        return answers

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps on the calling thread."""
        if not steps:
            return []
        answers = self._run_now(lambda errands: errands.apply(steps))
        if LATER in answers:
            answers = self._run_now(lambda errands: errands.finish(steps, answers))
        return answers

    async def apply_within(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Run steps inside the caller's transaction."""
        house = self._house()
        return await joined.run(connection, joined.apply(steps, self.now, house), house)

    def apply_within_now(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Run steps inside the caller's transaction."""
        house = self._house()
        return joined.run_now(connection, joined.apply(steps, self.now, house), house)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Open a transaction on a connection of its own."""
        engine = await self._opened()
        async with engine.spare_awaited.here().lent() as connection:
            yield connection

    @contextmanager
    def transaction_now(self) -> Iterator[Connection[Any]]:
        """Do the same from blocking code."""
        with self._open().spare.lent() as connection:
            yield connection

    async def tally_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count inside the caller's transaction, so that a rollback takes the count back."""
        house = self._house()
        await joined.run(connection, joined.tally(tallies, self.now(), house), house)

    def tally_within_now(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Count inside the caller's transaction, so that a rollback takes the count back."""
        house = self._house()
        joined.run_now(connection, joined.tally(tallies, self.now(), house), house)

    def _house(self) -> joined.House:
        engine = self._open()
        return joined.House(engine.place, engine.installation, self._timeout, prepares=not engine.pooled)

    async def lease(self, wanted: Lease) -> list[Job]:
        """Start due jobs that nobody else is about to start; lock no queue that looks full."""
        if wanted.limited and not await self._read(lambda: common.anything_due(wanted, self.now())):
            return []
        return await self._run(lambda errands: errands.lease(wanted))

    async def turn(self, steps: Sequence[Step], wanted: Lease) -> tuple[list[Any], list[Job]]:
        """Run steps and start due jobs in one transaction."""
        return await self._run(lambda errands: errands.turn(steps, wanted))

    def tally(self, tallies: Sequence[Tally]) -> None:
        """Add to the counters."""
        if tallies:
            self._run_now(lambda errands: errands.transact(partial(flows.count, tallies, self.now())))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Show who stands for a key."""
        return await self._read(lambda: common.look(key, self.now()))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs by id."""
        return await self._read(lambda: common.get(ids))

    async def find(self, wanted: Filter) -> list[Job]:
        """List jobs."""
        return await self._read(lambda: common.find(wanted))

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Read the last job of each chain."""
        return await self._read(lambda: common.tails(chains))

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Read what was decided at run time."""
        return await self._read(lambda: common.settings(namespace, kind))

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write one such decision, or take it back."""
        await self._read(lambda: common.put_setting(namespace, kind, name, value))
        self._ring()

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        return await self._read(lambda: common.counts(namespace))

    async def tallies(self, namespace: str) -> list[Tally]:
        """Read the counters."""
        return await self._read(lambda: common.tallies(namespace))

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job."""
        folded = 0
        while gone := await self._read(lambda: flows.fold(namespace)):
            folded += gone
        return folded

    async def next_due(self, namespace: str, rates: Mapping[str, Rate] | None = None) -> datetime | None:
        """Tell when the next timed job is due, or a queue may start one again."""
        return await self._read(lambda: common.next_due(namespace, rates, self.now()))

    async def _read(self, flow: Callable[[], Flow[T]]) -> T:
        return await self._run(lambda errands: errands.read(lambda: one_by_one(flow())))

    # ── hints ─────────────────────────────────────────────────────────────────────────────────────

    def _ring(self) -> None:
        self._bell.ring()
        if self._herald is not None:
            self._herald.tell()

    def pulse(self) -> int:
        """Note how often something has changed, as far as we were told."""
        self._open()
        with self._opening:
            if (
                self._listener is None
                and self._engine is not None
                and (url := self._listening_at(self._engine))
            ):
                assert self._herald is not None  # it came with the engine
                self._listener = Listener(url, self._bell, self._herald.name)
        return self._bell.rings

    def _listening_at(self, engine: Engine) -> str | None:
        """Choose where to listen: where we were told to, or here unless a pooler would swallow the calls."""
        match self._address.listen:
            case "off":
                return None
            case "on":
                return None if engine.pooled else self._address.url
            case elsewhere:
                return elsewhere

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait for a change; look again soon if nobody can tell us of one."""
        since = self.pulse() if since is None else since
        told = self._listener is not None and self._listener.listening
        await self._bell.wait(timeout if told else min(timeout, POLL), since)

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    def _use(self, act: Callable[[Engine], T]) -> T:
        """Use the open connections; if they are closed at this moment, those that are opened next."""
        while True:
            try:
                return act(self._open())
            except Closed:
                continue

    async def _await(self, act: Callable[[Engine], Awaitable[T]]) -> T:
        while True:
            try:
                return await act(await self._opened())
            except Closed:
                continue

    async def _run(self, plan: Callable[[Errands], Errand[T]]) -> T:
        """Run an errand on the running event loop."""
        return await self._await(lambda engine: engine.run(plan(engine.errands)))

    def _run_now(self, plan: Callable[[Errands], Errand[T]]) -> T:
        """Run an errand on this thread."""
        return self._use(lambda engine: engine.run_now(plan(engine.errands)))

    async def _opened(self) -> Engine:
        engine = self._engine
        if engine is not None and engine.generation == generation():
            return engine
        return await asyncio.to_thread(self._open)

    def _open(self) -> Engine:
        engine = self._engine
        if engine is not None and engine.generation == generation():
            return engine
        with self._opening:
            if self._engine is None or self._engine.generation != generation():
                self._engine = Engine(
                    self._address.url, self._address.place, self._timeout, self._clock, self._ring
                )
                self._herald, self._listener = Herald(self._engine.ask), None
            return self._engine

    def now(self) -> datetime:
        """Tell the server's time."""
        return self._clock() if self._clock is not None else self._use(Engine.now)

    def schema(self) -> Schema:
        """Tell the version of the tables, without making or changing any."""
        return health.schema(self._address)

    def migrate(self) -> Schema:
        """Make the tables or bring them up to date; opening does the same."""
        self._open()
        return self.schema()

    def migration_sql(self) -> str:
        """Write out what `migrate` would run now, as one script."""
        return script_after(self.schema().found, (self._clock or utcnow)())  # asking the server would open

    async def examine(self) -> list[Finding]:
        """Look at the server and its settings."""
        return await asyncio.to_thread(health.examine, self._address)

    async def close(self) -> None:
        """Finish what is under way and close the connections."""
        with self._opening:
            engine, herald, listener = self._engine, self._herald, self._listener
            self._engine = self._herald = self._listener = None
        if engine is not None and engine.generation == generation():
            await engine.leave()
            await asyncio.to_thread(close_all, engine, herald, listener)


def close_all(engine: Engine, herald: Herald | None, listener: Listener | None) -> None:
    """End the threads, those that use the connections first."""
    for part in (listener, herald):
        if part is not None:
            part.close()
    engine.close()
