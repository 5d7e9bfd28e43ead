"""Run coroutines from blocking code, on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from onejob.errors import InvalidCall, OnejobError
from onejob.stores.per_process import generation

T = TypeVar("T")

GROUPS = {
    "Activity": "app.activity",
    "DeadLetters": "app.dead",
    "Engine": "App",
    "Maintenance": "app.maintenance",
    "Queues": "app.queues",
    "Schedules": "app.schedules",
    "run_due": "drain",
}
"""What callers write for a class or a function of ours."""


def refuse_running_loop(name: str) -> None:
    """Raise InvalidCall where a blocking variant would block an event loop, and perhaps what it waits for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    owner, dot, method = name.partition(".")
    name = f"{GROUPS.get(owner, owner)}{dot}{method}"
    raise InvalidCall(
        f"{name}_sync would block the event loop of this thread: write await {name}(…), or run the "
        "blocking code in a thread, with asyncio.to_thread(…)."
    )


class Portal:
    """An event loop in a thread, for blocking callers; the thread ends with the portal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._generation = generation()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the portal's loop and wait for it."""
        with self._lock:  # so that nothing is handed to a loop that is about to stop
            future = asyncio.run_coroutine_threadsafe(coroutine, self._open())
        try:
            return future.result()
        except CancelledError:
            raise OnejobError("The app was closed meanwhile.") from None

    def _open(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._generation != generation():
            self._loop, self._generation = asyncio.new_event_loop(), generation()
            self._thread = threading.Thread(
                target=_serve, args=[self._loop], name="onejob portal", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _stop, self._loop).atexit = False  # for an app that is never closed
        return self._loop

    def close(self) -> None:
        """Stop the loop, if one runs, and cancel what still waits on it."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._generation == generation():
            _stop(loop)
            assert self._thread is not None  # it came with the loop
            self._thread.join()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed already
        loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        for task in (waiting := asyncio.all_tasks(loop)):
            task.cancel()
        if waiting:
            loop.run_until_complete(asyncio.wait(waiting))
    finally:
        loop.close()
