"""Redis and Valkey: one server, or a cluster in which a key and its jobs share a bucket.

Steps are decided in Python on the rows seen, and written by a script that first makes sure that the rows are
unchanged. So each step is atomic, and a lost race costs one more round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from onejob.core.job import Job
from onejob.core.leasing import Lease
from onejob.core.step import Step, View
from onejob.errors import OnejobError
from onejob.stores.contract import Counts, Finding, Guarantees, Leased, Observation, Schema, Tally
from onejob.stores.gathering import Gathering
from onejob.stores.per_loop import PerLoop
from onejob.stores.per_process import generation
from onejob.stores.queries import Query
from onejob.stores.redis import health, reads
from onejob.stores.redis.clearing import clear
from onejob.stores.redis.clock import ServerClock
from onejob.stores.redis.cluster import Nodes
from onejob.stores.redis.connection import AsyncConnections, Connections
from onejob.stores.redis.errors import is_lost
from onejob.stores.redis.groups import Flow
from onejob.stores.redis.layout import Keyspace
from onejob.stores.redis.lease import lease
from onejob.stores.redis.observations import forget, observations, observe
from onejob.stores.redis.steps import apply
from onejob.stores.redis.url import Target, read_url
from onejob.stores.store_clock import Clock, StoreClock
from onejob.stores.wakeup import Wakeup

T = TypeVar("T")

STORE_TIMEOUT = 10.0  # seconds in which a round trip must end
CLOSING = 1.0  # seconds that closing waits for another event loop


class OfLoop:
    """What one event loop has: connections, and the steps of callers that wait for each other."""

    def __init__(self, nodes: Nodes, space: Keyspace, clock: ServerClock) -> None:
        self.connections = AsyncConnections(nodes, clock)
        self.gathering = Gathering(lambda steps: self.connections.run(apply(steps, space)), is_lost)
        self.cut = self.connections.cut


class Opened:
    """The open store: connections of threads and of event loops."""

    def __init__(self, target: Target, space: Keyspace, clock: ServerClock) -> None:
        self.generation = generation()
        nodes = Nodes(target, [bucket.tag for bucket in space.buckets])
        nodes.refresh()
        self.connections = Connections(nodes, clock)
        self.server = health.Server(nodes, space, self.connections)
        self._loops = PerLoop(lambda: OfLoop(nodes, space, clock))

    @property
    def here(self) -> OfLoop:
        """What the running event loop has."""
        return self._loops.here()

    async def close(self) -> None:
        """Close every connection, each on the loop that it belongs to."""
        self.connections.close()
        here = asyncio.get_running_loop()
        for loop, own in self._loops.items():
            if loop is here:
                await own.connections.close()
            elif loop.is_closed():
                own.cut()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(own.connections.close(), loop)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(closing), CLOSING)


class RedisStore:
    """A store on a Redis or Valkey server."""

    def __init__(
        self,
        url: str,
        *,
        admission_timeout: float = 5.0,
        store_timeout: float = STORE_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        self._target = read_url(url, store_timeout)
        self._server_clock = ServerClock()
        self._clock = StoreClock(self._server_clock, clock)
        self._space = Keyspace(self._target.prefix, self._target.buckets, self._clock, admission_timeout)
        self._wakeup = Wakeup()
        self._opening = threading.Lock()
        self._opened: Opened | None = None
        self._guarantees: Guarantees | None = None

    @property
    def guarantees(self) -> Guarantees:
        """The store's strength and durability, as the server is set."""
        if self._guarantees is None:
            with self._examining() as server:
                self._guarantees = health.declare(server.facts(), cluster=self._target.cluster)
        return self._guarantees

    def now(self) -> datetime:
        """Return the server's time."""
        if self._clock.given is None and not self._server_clock.is_set:
            self._open()
        return self._clock()

    def use_clock(self, clock: Clock | None) -> Clock | None:
        """Take the time from another clock; return the one before."""
        return self._clock.use(clock)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Run steps, together with those of other callers that arrive meanwhile."""
        if not steps:
            return []
        opened = self._ready or await self._open_async()
        answers = await opened.here.gathering.apply(steps)
        self._wakeup.notify()
        return answers

    def apply_sync(self, steps: Sequence[Step[T]]) -> list[T | OnejobError]:
        """Blocking variant of `apply`."""
        if not steps:
            return []
        opened = self._ready or self._open()
        answers = opened.connections.run(apply(steps, self._space))
        self._wakeup.notify()
        return answers

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        """Apply steps and start due jobs, in one round trip and one more for the starts."""
        leased = await self._run(lease(wanted, after, self._space))
        if after:
            self._wakeup.notify()
        return leased

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, key: bytes) -> View:
        """Return the jobs and the mark of a key."""
        return await self._run(reads.look(key, self._space))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id."""
        return await self._run(reads.get(ids, self._space)) if ids else []

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Return the last job of each chain."""
        return await self._run(reads.tails(chains, self._space)) if chains else []

    async def find(self, query: Query) -> list[Job]:
        """Return the jobs that a query names."""
        return await self._run(reads.find(query, self._space))

    async def counts(self, namespace: str) -> Counts:
        """Count jobs."""
        return await self._run(reads.counts(namespace, self._space))

    def position(self) -> int:
        """Return how many changes were noticed."""
        return self._wakeup.count

    async def wait(self, timeout: float, since: int | None = None) -> None:
        """Wait until this process changes something, or another says that it did."""
        position = self.position() if since is None else since
        opened = self._ready or await self._open_async()
        opened.here.connections.listen(self._space, self._wakeup.notify)
        await self._wakeup.wait(timeout, position)

    # ── counters and settings ─────────────────────────────────────────────────────────────────────

    def count(self, tallies: Sequence[Tally], batch: str = "") -> None:
        """Add to the counters."""
        if tallies:
            self._open().connections.run(reads.count(tallies, self._space, batch))

    async def tallies(self, namespace: str, jobs: Collection[str] | None = None) -> list[Tally]:
        """Return the counters."""
        return await self._run(reads.tallies(namespace, self._space, jobs))

    async def fold(self, namespace: str) -> int:
        """Add the counters of jobs that are gone to those of no job."""
        return await self._run(reads.fold(namespace, self._space))

    async def observe(self, observations: Sequence[Observation], most: int) -> None:
        """Write observations, and keep the newest of each subject."""
        await self._run(observe(observations, most, self._space))

    def observe_sync(self, observations: Sequence[Observation], most: int) -> None:
        """Blocking variant of `observe`."""
        self._open().connections.run(observe(observations, most, self._space))

    async def observations(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Return observations, newest first."""
        return await self._run(observations(namespace, kind, subject, limit, self._space))

    def observations_sync(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Blocking variant of `observations`."""
        return self._open().connections.run(observations(namespace, kind, subject, limit, self._space))

    async def forget(self, namespace: str, kind: str, *, before: datetime, most: int) -> int:
        """Remove old observations, and those beyond the newest."""
        return await self._run(forget(namespace, kind, before, most, self._space))

    async def starts(self, namespace: str, queue: str, since: datetime) -> list[datetime]:
        """Return when jobs of a queue that has a rate have started."""
        return await self._run(reads.starts(namespace, queue, since, self._space))

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Return the settings of a kind."""
        return await self._run(reads.settings(namespace, kind, self._space))

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Write a setting, or remove it."""
        await self._run(reads.put_setting(namespace, kind, name, value, self._space))
        self._wakeup.notify()

    async def clear(self, namespace: str) -> None:
        """Remove counters, observations, settings and recorded starts."""
        await self._run(clear(namespace, self._space))

    # ── administration ────────────────────────────────────────────────────────────────────────────

    def schema(self) -> Schema:
        """Return the version of the layout, without writing any."""
        with self._examining() as server:
            return health.schema(server)

    def migrate(self) -> Schema:
        """Write the version of the layout; opening does the same."""
        self._open()
        return self.schema()

    def migration_sql(self) -> str:
        """Return nothing: there are no tables."""
        return ""

    async def examine(self) -> list[Finding]:
        """Examine the server, its settings and the indexes."""
        return await asyncio.to_thread(self._examine)

    def _examine(self) -> list[Finding]:
        try:
            with self._examining() as server:
                return health.examine(server)
        except OnejobError as error:
            return [Finding("server", "fail", str(error), health.UNREACHABLE)]

    @contextlib.contextmanager
    def _examining(self) -> Iterator[health.Server]:
        """Yield the server over connections of its own, without opening the store."""
        opened = Opened(self._target, self._space, self._server_clock)
        try:
            yield opened.server
        finally:
            opened.connections.close()

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    async def _run(self, flow: Flow[T]) -> T:
        return await (self._ready or await self._open_async()).here.connections.run(flow)

    @property
    def _ready(self) -> Opened | None:
        """The open store, if it was opened in this process."""
        opened = self._opened
        return opened if opened is not None and opened.generation == generation() else None

    async def _open_async(self) -> Opened:
        return await asyncio.to_thread(self._open)

    def _open(self) -> Opened:
        """Connect, and refuse what cannot be used."""
        with self._opening:
            opened = self._ready
            if opened is None:
                opened = Opened(self._target, self._space, self._server_clock)
                try:
                    health.prepare(opened.server)
                except BaseException:
                    opened.connections.close()
                    raise
                self._opened = opened
            return opened

    async def close(self) -> None:
        """Close the connections."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None and opened.generation == generation():
            await opened.close()
