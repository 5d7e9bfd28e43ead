"""How a process that runs a worker ends: by signals, and in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from onejob.errors import InvalidCall

log = logging.getLogger("onejob")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSE_WITHIN = 2.0  # seconds for closing the store after a worker has ended
LAST_STEPS = 0.5  # seconds for tasks that are left then to end
AT_THE_LATEST = 9.5  # seconds after the grace time; then the process ends, whatever keeps its worker


@contextlib.contextmanager
def obeying_signals(obey: Callable[[], None], grace: float) -> Iterator[None]:
    """Call a function at SIGTERM and SIGINT for the length of a block, then restore the former handlers.

    If something keeps the block from ending, such as a job that blocks the event loop, the process ends.
    """
    loop, ended = asyncio.get_running_loop(), threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def watch(_number: int, _frame: object) -> None:
        threading.Thread(target=end_process, args=(ended, grace + AT_THE_LATEST), daemon=True).start()

    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, obey)
            signal.signal(number, watch)  # Python calls this one also while the loop is blocked
    except NotImplementedError:  # Windows has none
        yield
        return
    except (ValueError, RuntimeError):
        raise InvalidCall(
            "Signals reach only the main thread: run the worker there, or call stop()."
        ) from None
    try:
        yield
    finally:
        ended.set()
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def end_process(ended: threading.Event, within: float) -> None:
    """End the process unless its worker ends in time."""
    if not ended.wait(within):
        log.error(
            "the process ends before its worker: a job blocks the event loop, or a hook or the lifespan "
            "ignores its cancellation; the leases of its jobs expire"
        )
        logging.shutdown()
        os._exit(1)


def run_to_end(main: Coroutine[Any, Any, None], close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a new event loop, then close an app, in bounded time.

    Tasks that ignore their cancellation are left behind; `asyncio.run` would wait for them for ever.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
    else:
        main.close()
        raise InvalidCall("An event loop runs here: write await app.worker(…).run(signals=True).")
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(close_in_time(close()))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LAST_STEPS))
        if not asyncio.all_tasks(loop):
            loop.close()


async def close_in_time(closing: Coroutine[Any, Any, None]) -> None:
    """Close an app, but no longer than `CLOSE_WITHIN`: the store may not answer."""
    task = asyncio.create_task(closing)
    done, _ = await asyncio.wait([task], timeout=CLOSE_WITHIN)
    if not done:
        log.warning("the store does not answer, so its connections are left open")
    elif (error := task.exception()) is not None:
        log.warning("the store cannot be closed: %s", error)


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but no longer than this."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
