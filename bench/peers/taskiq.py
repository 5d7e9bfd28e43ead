"""taskiq on Redis streams: 500 tasks at once, uvloop. It acknowledges a job after its run, and deletes it."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from redis.asyncio import Redis
from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

from bench.measure import timing

TASKS = 500


async def empty(url: str, number: int) -> float:
    """Fill and empty its stream."""
    broker = RedisStreamBroker(url, consumer_id="0", xread_block=100)
    broker.is_worker_process = True
    began = 0

    @broker.task
    async def nothing(number: int) -> None:  # noqa: ARG001 - what is enqueued
        nonlocal began
        began += 1

    await broker.startup()
    for start in range(0, number, 100):
        await asyncio.gather(*(nothing.kiq(i) for i in range(start, min(start + 100, number))))
    receiver = Receiver(broker, max_async_tasks=TASKS, max_prefetch=TASKS, run_startup=False)
    finish = asyncio.Event()
    async with Redis.from_url(url) as client:
        with timing() as watch:
            running = asyncio.create_task(receiver.listen(finish))
            while began < number or await unacknowledged(client):  # noqa: ASYNC110 - the store is asked
                await asyncio.sleep(0.01)
        [group] = await groups(client)
        assert group["lag"] in {0, None}  # all has been read
    finish.set()
    await running
    await broker.shutdown()
    return watch.rate(number)


async def groups(client: Redis) -> Any:
    """Return the stream's groups of readers."""
    return await client.xinfo_groups("taskiq")


async def unacknowledged(client: Redis) -> int:
    """Return how many jobs were read and not acknowledged."""
    [group] = await groups(client)
    return int(group["pending"])


def drain(url: str, number: int) -> float:
    """Run on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(empty(url, number))
