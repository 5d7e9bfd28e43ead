"""Threads for plain functions: each function has one of its own while it runs, and threads are used again."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from onejob.worker.threads import HandlerThreads


@pytest.fixture
async def threads() -> AsyncIterator[HandlerThreads]:
    """Return threads that end with the test."""
    pool = HandlerThreads()
    yield pool
    pool.close()


async def test_functions_that_wait_for_each_other_all_run(threads: HandlerThreads) -> None:
    meeting = threading.Barrier(20)
    assert len(await asyncio.gather(*(threads.run(meeting.wait) for _ in range(20)))) == 20


async def test_a_thread_whose_function_has_ended_is_used_again(threads: HandlerThreads) -> None:
    assert len({await threads.run(threading.get_ident) for _ in range(5)}) == 1


async def test_functions_that_were_left_to_themselves_take_no_thread_from_others(
    threads: HandlerThreads,
) -> None:
    end = threading.Event()
    left = [asyncio.create_task(threads.run(end.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.wait(left)

    assert await asyncio.gather(*(threads.run(threading.get_ident) for _ in range(3)))
    end.set()


async def test_what_a_function_raises_is_raised_where_it_is_awaited(threads: HandlerThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)


async def test_threads_end_when_they_are_closed() -> None:
    pool = HandlerThreads()
    thread = await pool.run(threading.current_thread)
    pool.close()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
