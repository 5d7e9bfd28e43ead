"""Dramatiq on Redis: 16 threads. It deletes a job once it is acknowledged and keeps no result."""

from __future__ import annotations

import time
from itertools import count

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from redis import Redis

from bench.measure import timing

THREADS = 16


def drain(url: str, number: int) -> float:
    """Fill and empty its queue."""
    broker = RedisBroker(url=url)
    done = count()

    @dramatiq.actor(broker=broker)
    def nothing(number: int) -> None:  # noqa: ARG001 - what is enqueued
        next(done)

    for i in range(number):
        nothing.send(i)
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    with timing() as watch, Redis.from_url(url) as client:
        worker.start()
        while client.hlen("dramatiq:default.msgs"):  # what is not acknowledged
            time.sleep(0.01)
    worker.stop()
    assert next(done) == number
    return watch.rate(number)
