"""PgQueuer on PostgreSQL: asyncpg, a pool of 8, batches of 1,000, uvloop. It deletes jobs and logs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer import AsyncpgPoolDriver, Job, Queries, QueueManager

from bench.measure import timing

BATCH = 1000
LEFT = "SELECT count(*) FROM pgqueuer"
DONE = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[asyncpg.Pool, Queries]]:
    """Open the pool."""
    async with asyncpg.create_pool(url, min_size=8, max_size=8) as pool:
        yield pool, Queries(AsyncpgPoolDriver(pool))


async def install(url: str) -> None:
    """Create its tables."""
    async with opened(url) as (_, queries):
        await queries.install()


async def enqueue(queries: Queries, keys: Sequence[str]) -> None:
    """Enqueue in one call, each with a key of its own, and check every result."""
    ids = await queries.enqueue(
        ["nothing"] * len(keys),
        [b"{}"] * len(keys),
        [0] * len(keys),
        dedupe_key=list(keys),
        on_conflict="skip",
    )
    assert all(one is not None for one in ids)
    assert len(ids) == len(keys)


async def bulk(url: str, batches: Sequence[Sequence[str]]) -> float:
    """Enqueue batch after batch, and return how many jobs per second."""
    async with opened(url) as (pool, queries):
        before = await pool.fetchval(LEFT)
        with timing() as watch:
            for keys in batches:
                await enqueue(queries, keys)
        number = sum(map(len, batches))
        assert await pool.fetchval(LEFT) == before + number
    return watch.rate(number)


async def empty(url: str, number: int) -> float:
    """Fill and empty its queue."""
    async with opened(url) as (pool, queries):
        await queries.install()
        for start in range(0, number, BATCH):
            await enqueue(queries, [str(i) for i in range(start, min(start + BATCH, number))])
        manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
        began = 0
        all_began = asyncio.Event()

        @manager.entrypoint("nothing")
        async def nothing(job: Job) -> None:  # noqa: ARG001 - the peer's signature
            nonlocal began
            began += 1
            if began == number:
                all_began.set()

        with timing() as watch:
            running = asyncio.create_task(manager.run(batch_size=BATCH))
            await asyncio.wait(
                {running, asyncio.create_task(all_began.wait())}, return_when=asyncio.FIRST_COMPLETED
            )
            assert not running.done(), running
            while await pool.fetchval(LEFT):  # noqa: ASYNC110 - the store is asked
                await asyncio.sleep(0.002)
        assert await pool.fetchval(DONE) == number
        manager.shutdown.set()
        await running
    return watch.rate(number)


def drain(url: str, number: int) -> float:
    """Run on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(empty(url, number))
