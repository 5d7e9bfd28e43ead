"""Redis and Valkey: one server, or a cluster in which a key and its jobs share a bucket.

Decisions are made in Python on what was seen, and written by a script that first makes sure that it is still
so. A step is thus atomic, and a lost race costs one more round, never an answer that is not true.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, TypeVar

from onejob.errors import ForeignConnection, NoTransactions, OnejobError
from onejob.forks import generation
from onejob.job import Job, View
from onejob.limits import Rate
from onejob.stores.bell import Bell
from onejob.stores.contract import Counts, Filter, Finding, Guarantees, Lease, Schema, Step, Tally
from onejob.stores.redis import flows, health, reading
from onejob.stores.redis.engine import Engine, ServerClock
from onejob.stores.redis.flows import Flow, Ground
from onejob.stores.redis.target import CLUSTER_BUCKETS, read_target

T = TypeVar("T")

NO_TRANSACTION = (
    "Redis has no transaction that a job could join: leave connection= out, "
    "or keep jobs beside your data in SQLite or PostgreSQL."
)
NO_TRANSACTIONS = "Redis has no transactions: use SQLite or PostgreSQL for this task."


class RedisStore:
    """A store on a Redis or Valkey server."""

    def __init__(
        self, url: str, *, admission_timeout: float = 5.0, clock: Callable[[], datetime] | None = None
    ) -> None:
        self._target = read_target(url)
        self._server_clock = ServerClock()
        self._clock = clock
        buckets = self._target.buckets or (CLUSTER_BUCKETS if self._target.cluster else 1)
        self._ground = Ground(self._target.prefix, buckets, clock or self._server_clock, admission_timeout)
        self._bell = Bell()
        self._opening = threading.Lock()
        self._engine: Engine | None = None
        self._guarantees: Guarantees | None = None

    @property
    def guarantees(self) -> Guarantees:
        """Declare strength and durability, as the server's settings are."""
        if self._guarantees is None:
            with closing_spare(self._look_only()) as engine:
                self._guarantees = health.declare(health.inspect(engine), cluster=self._target.cluster)
        return self._guarantees

    def now(self) -> datetime:
        """Tell the server's time."""
        if self._clock is not None:
            return self._clock()
        if self._engine is None:
            self._open()
        return self._server_clock()

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in scripts that they share with whoever else is waiting."""
        if not steps:
            return []
        engine = self._ready or await self._opened()
        answers = await engine.line.apply(steps, self._ground)
        self._ring()
        return answers

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps on the calling thread."""
        if not steps:
            return []
        engine = self._ready or self._open()
        answers = engine.run(flows.apply(steps, self._ground))
        self._ring()
        return answers

    def apply_within_now(self, connection: Any, steps: Sequence[Step]) -> list[Any]:  # noqa: ARG002 - the contract's
        """Refuse: there is no transaction to join."""
        raise ForeignConnection(NO_TRANSACTION)

    async def apply_within(self, connection: Any, steps: Sequence[Step]) -> list[Any]:
        """Refuse: there is no transaction to join."""
        return self.apply_within_now(connection, steps)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Refuse: a rollback would have nothing to roll back."""
        raise NoTransactions(NO_TRANSACTIONS)

    def transaction_now(self) -> AbstractContextManager[Any]:
        """Refuse: a rollback would have nothing to roll back."""
        raise NoTransactions(NO_TRANSACTIONS)

    async def lease(self, wanted: Lease) -> list[Job]:
        """Start due jobs, best first."""
        return await self._await(flows.lease(wanted, self._ground))

    async def turn(self, steps: Sequence[Step], wanted: Lease) -> tuple[list[Any], list[Job]]:
        """Run steps, then start due jobs."""
        return await self.apply(steps), await self.lease(wanted)

    def tally(self, tallies: Sequence[Tally]) -> None:
        """Add to the counters; without trying again, for what was counted must not count twice."""
        if tallies:
            self._open().run(reading.tally(tallies, self._ground), tries=1)

    def tally_within_now(self, connection: Any, tallies: Sequence[Tally]) -> None:  # noqa: ARG002 - the contract's
        """Refuse: there is no transaction to join."""
        raise ForeignConnection(NO_TRANSACTION)

    async def tally_within(self, connection: Any, tallies: Sequence[Tally]) -> None:
        """Refuse: there is no transaction to join."""
        self.tally_within_now(connection, tallies)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Show who stands for a key."""
        return await self._await(reading.look(key, self._ground))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs by id."""
        return await self._await(reading.get(ids, self._ground))

    async def find(self, wanted: Filter) -> list[Job]:
        """List jobs."""
        return await self._await(reading.find(wanted, self._ground))

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Read the last job of each chain."""
        return await self._await(reading.tails(chains, self._ground)) if chains else []

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Read what was decided at run time."""
        return await self._await(reading.settings(namespace, kind, self._ground))

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write one such decision, or take it back."""
        await self._await(reading.put_setting(namespace, kind, name, value, self._ground))
        self._ring()

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        return await self._await(reading.counts(namespace, self._ground))

    async def tallies(self, namespace: str) -> list[Tally]:
        """Read the counters."""
        return await self._await(reading.tallies(namespace, self._ground))

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job."""
        return await self._await(reading.fold(namespace, self._ground))

    async def next_due(self, namespace: str, rates: Mapping[str, Rate] | None = None) -> datetime | None:
        """Tell when the next timed job is due, or a queue may start one again."""
        return await self._await(reading.next_due(namespace, rates or {}, self._ground))

    def pulse(self) -> int:
        """Note how often something has changed, as far as it was heard."""
        return self._bell.rings

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait until this process changes something, or another says that it did."""
        rings = self._bell.rings if since is None else since
        engine = await self._opened()
        engine.line.listen(self._ground.channel, self._ground.voice, self._hear)
        await self._bell.wait(timeout, rings)

    def _hear(self, record: bytes) -> None:
        """Hear that another process has changed something, or made this job."""
        self._ground.offers.hear(record)
        self._bell.ring()

    def _ring(self) -> None:
        self._ground.offers.forget()
        self._bell.ring()

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    async def _await(self, flow: Flow[T]) -> T:
        return await (self._ready or await self._opened()).line.run(flow)

    async def _opened(self) -> Engine:
        """Open the store on another thread, so that nobody here waits for the network."""
        if (engine := self._ready) is not None:
            return engine
        return await asyncio.to_thread(self._open)

    @property
    def _ready(self) -> Engine | None:
        """The open store, if it is open in this process."""
        engine = self._engine
        return engine if engine is not None and engine.generation == generation() else None

    def _open(self) -> Engine:
        if (engine := self._ready) is not None:
            return engine
        with self._opening:
            engine = self._engine = self._ready or self._prepared()
            return engine

    def _prepared(self) -> Engine:
        """Connect, refuse what cannot be used, and write down how jobs are laid out."""
        engine = self._look_only()
        try:
            health.prepare(engine, self._ground)
        except BaseException:
            engine.close_spare()
            raise
        return engine

    def _look_only(self) -> Engine:
        engine = Engine(self._target, self._ground, self._server_clock)
        engine.nodes.refresh()
        return engine

    def schema(self) -> Schema:
        """Tell the version of the layout, without making any."""
        with closing_spare(self._look_only()) as engine:
            return health.schema(engine, self._ground)

    def migrate(self) -> Schema:
        """Write the layout's version down; opening does the same."""
        self._open()
        return self.schema()

    def migration_sql(self) -> str:
        """Write nothing: there are no tables, and what is missing is made by its first use."""
        return ""

    async def examine(self) -> list[Finding]:
        """Look at the server, its settings and its indexes."""
        return await asyncio.to_thread(self._examine)

    def _examine(self) -> list[Finding]:
        try:
            with closing_spare(self._look_only()) as engine:
                return health.examine(engine, self._ground)
        except OnejobError as error:
            return [Finding("server", "fail", str(error), health.UNREACHABLE)]

    async def close(self) -> None:
        """Cut the connections."""
        with self._opening:
            engine, self._engine = self._engine, None
        if engine is not None and engine.generation == generation():
            await engine.close()


@contextlib.contextmanager
def closing_spare(engine: Engine) -> Iterator[Engine]:
    """Use an engine for a look from this thread only."""
    try:
        yield engine
    finally:
        engine.close_spare()
