"""Races: threads and event loops that use one store at the same moment."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onejob.core.decide import Outcome
from onejob.core.policy import Unique
from onejob.engine.portal import Portal
from onejob.testing.contract.acts import everything, lease, mailer, start
from onejob.testing.contract.suite import Given, case
from onejob.testing.race import assert_single_admission

T = TypeVar("T")
LOOPS = 4


async def on_several_loops(given: Given, act: Callable[[int], Awaitable[T]]) -> list[T]:
    """Run a coroutine on several event loops, each in a thread of its own, at the same moment."""
    gate, here, portals = (
        threading.Barrier(LOOPS),
        asyncio.get_running_loop(),
        [Portal() for _ in range(LOOPS)],
    )

    async def at_once(number: int) -> T:
        gate.wait()
        return await act(number)

    with ThreadPoolExecutor(LOOPS) as threads:
        running = [
            here.run_in_executor(threads, portal.run, at_once(number))
            for number, portal in enumerate(portals)
        ]
        found = await asyncio.gather(*running)
    await given.store.close()  # while the loops that have its connections run
    for portal in portals:
        portal.close()
    return found


@case
async def of_threads_and_tasks_that_race_for_a_key_one_creates_a_job(given: Given) -> None:
    mail = mailer(given.app, Unique())
    for key in range(3):
        await assert_single_admission(mail.call(key), 20)
    assert len(await everything(given.app)) == 3


@case
async def of_event_loops_that_race_for_keys_one_creates_each_job(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to"))

    async def enqueue_all(number: int) -> list[Outcome]:
        return [(await mail.enqueue(key, number)).outcome for key in range(10)]

    outcomes = Counter(one for some in await on_several_loops(given, enqueue_all) for one in some)
    assert outcomes == {Outcome.CREATED: 10, Outcome.KEPT: 10 * (LOOPS - 1)}


@case
async def of_requests_that_race_with_a_run_one_becomes_the_successor(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to", on_conflict="update"))
    await mail.enqueue(1)
    await start(given.app)

    async def enqueue(number: int) -> Outcome:
        return (await mail.enqueue(1, number)).outcome

    outcomes = Counter(await on_several_loops(given, enqueue))
    assert outcomes == {Outcome.RERUN: 1, Outcome.UPDATED: LOOPS - 1}
    assert len(await everything(given.app)) == 2


@case
async def of_workers_that_race_for_jobs_one_gets_each_job(given: Given) -> None:
    mail = mailer(given.app)
    await given.app.enqueue_many([mail.call(number) for number in range(40)])

    async def work(number: int) -> list[str]:
        found: list[str] = []
        while jobs := await lease(given.app, total=3, worker=f"worker {number}"):
            found += [job.id for job in jobs]
        return found

    started = [job_id for some in await on_several_loops(given, work) for job_id in some]
    assert len(started) == len(set(started)) == 40


@case
async def a_limit_of_a_queue_holds_in_a_race(given: Given) -> None:
    given.app.queue("narrow", concurrency=3)
    mail = mailer(given.app, queue="narrow")
    await given.app.enqueue_many([mail.call(number) for number in range(20)])

    async def work(number: int) -> int:
        return len(await lease(given.app, worker=f"worker {number}"))

    assert sum(await on_several_loops(given, work)) == 3


@case
async def a_wait_ends_when_something_has_changed(given: Given) -> None:
    mail = mailer(given.app)
    await mail.enqueue(1)
    position = given.store.position()
    waiting = asyncio.create_task(given.store.wait(30, position))
    await asyncio.sleep(0)
    await mail.enqueue(2)
    async with asyncio.timeout(20):
        await waiting
