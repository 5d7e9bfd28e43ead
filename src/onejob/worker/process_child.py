"""The program of a child process: import the tasks, then run one job after another in the main thread.

A second thread listens to the worker meanwhile. `process_pool` starts children.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import logging
import os
import queue
import select
import signal
import socket
import threading
from datetime import UTC, datetime
from functools import reduce
from importlib import import_module
from multiprocessing.spawn import prepare
from typing import Any, cast

from onejob.core.job import Job
from onejob.core.runs import Completed, Result
from onejob.engine.engine import Engine
from onejob.engine.log_lines import FORMAT_VARIABLE, log_formatter
from onejob.errors import InvalidCall, InvalidPolicy, StoreUnavailable
from onejob.stores.columns import read_job
from onejob.stores.contract import FullStore
from onejob.stores.memory import MemoryStore
from onejob.tasks.current import enter
from onejob.tasks.request import RequestBuilder
from onejob.tasks.running import set_running
from onejob.tasks.task import Task, builder_of
from onejob.worker.attempt import Attempt, describe
from onejob.worker.lifespan import LifespanThread
from onejob.worker.process_messages import (
    HEADER,
    Broken,
    Committing,
    Prepare,
    Progress,
    Ready,
    Start,
    ToChild,
    ToWorker,
    end_message,
    frame,
    read_to_child,
    write_completion,
)

PROGRESS_EVERY = 200  # milliseconds between looks at a run's progress
CLOSE_WITHIN = 0.8  # seconds for the lifespan; the worker kills a child that does not end within one

_is_child = False


def is_child() -> bool:
    """Return whether this process was started by a worker to run its functions."""
    return _is_child


def refuse_at_import(what: str) -> InvalidCall:
    """Return the error for a module that does something which each process repeats when it imports it."""
    cure = 'write if __name__ == "__main__": before that'
    return InvalidCall(f"A process that runs a task imports its module, which {what}: {cure}.")


class Importing:
    """Stands for the run while a process imports the tasks: enqueuing asks for its job, and is refused.

    Otherwise each process would add a job, for which the worker would start a process, and so on.
    """

    @property
    def job(self) -> Job:
        """Nothing: no job runs yet."""
        raise refuse_at_import("enqueues a job, or waits for one")


def serve(connection: int, lifeline: int) -> None:
    """Import the tasks, then run jobs until the worker closes the connection."""
    global _is_child  # noqa: PLW0603 - a process becomes a child once
    _is_child = True
    for number in (signal.SIGINT, signal.SIGTERM):
        # The worker decides what a signal means. Programs that a handler starts do not inherit a function.
        signal.signal(number, lambda *_: None)
    die_with_the_worker(lifeline)
    Child(socket.socket(fileno=connection)).run()


def die_with_the_worker(lifeline: int) -> None:
    """Let the kernel kill this process when the other end of a pipe closes, whichever thread has the GIL.

    Nothing is ever written to the pipe. Where the kernel cannot do this, the thread that listens notices.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(lifeline, 1)
    except BlockingIOError:
        return
    os._exit(1)  # it had closed before


class Child:
    """A child process, from inside."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._sending = threading.Lock()
        self._tasks: dict[str, RequestBuilder] = {}
        self._attempts: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._attempt: Attempt | None = None  # the one that runs
        self._sent: bytes | None = None  # the progress that the worker has
        self._lifespans: dict[Engine, LifespanThread] = {}

    def run(self) -> None:
        """Import the tasks, and run the jobs that the worker sends."""
        try:
            message = self._receive()
            assert isinstance(message, Prepare)  # it is the first message of a worker
            self._tasks = contextvars.Context().run(import_tasks, message)
            self._lifespans = open_lifespans(self._tasks)
        except BaseException as error:  # noqa: BLE001 - the worker reports it as the failure of its jobs
            return self._send(Broken(describe(error)))
        self._send(Ready())
        threading.Thread(target=self._listen, name="onejob child", daemon=True).start()
        while (attempt := self._attempts.get()) is not None:
            result = contextvars.Context().run(run_attempt, attempt)
            self._send(end_message(result, attempt), ends_attempt=True)
        for engine, lifespan in self._lifespans.items():
            lifespan.close()
            engine.counters.flush()
        return None

    def _send(self, message: ToWorker, *, ends_attempt: bool = False) -> None:
        with (
            self._sending,
            contextlib.suppress(OSError),
        ):  # the listening thread notices that the worker is gone
            self._attempt = None if ends_attempt else self._attempt
            self._connection.sendall(frame(message))

    # ── in the listening thread ──

    def _listen(self) -> None:
        """Receive messages and send progress; end when the worker closes the connection."""
        try:
            while True:
                if self._poll.poll(None if self._attempt is None else PROGRESS_EVERY):
                    self._take(self._receive())
                self._send_progress()
        except (EOFError, OSError):
            if self._attempt is not None:
                os._exit(1)
            self._attempts.put(None)

    def _take(self, message: ToChild) -> None:
        if isinstance(message, Start):
            self._attempt, self._sent = self._begin(message), None
            self._attempts.put(self._attempt)
        elif self._attempt is not None:
            self._attempt.is_stopping = True

    def _begin(self, start: Start) -> Attempt:
        job = read_job(start.job)
        task = self._tasks[job.task]
        state = self._lifespans[task.engine].state
        attempt = Attempt(
            task.engine, task.registry, job, start.deadline, on_commit=self._announce_commit, state=state
        )
        attempt.show_blockers([read_job(row) for row in start.blockers])
        return attempt

    def _announce_commit(self, completion: Completed) -> None:
        self._send(Committing(write_completion(completion)))

    def _send_progress(self) -> None:
        with self._sending:  # so that no progress follows the end of its attempt
            progress = None if self._attempt is None else self._attempt.progress
            if progress is not None and progress != self._sent:
                self._sent = progress
                self._connection.sendall(frame(Progress(progress)))

    def _receive(self) -> ToChild:
        message: ToChild = read_to_child(self._receive_bytes(int.from_bytes(self._receive_bytes(HEADER))))
        return message

    def _receive_bytes(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def run_attempt(attempt: Attempt) -> Result:
    """Run a plain function once, on this thread, and return its result."""
    enter(attempt.context)
    try:
        args, kwargs = attempt.arguments()
        return attempt.complete(attempt.task.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - anything that a handler raises is a result
        return attempt.fail(error)


# ── importing the tasks ───────────────────────────────────────────────────────────────────────────


def import_tasks(message: Prepare) -> dict[str, RequestBuilder]:
    """Import the app, or the modules of its tasks, and return the tasks that run here."""
    set_running(Importing())
    prepare(message.main)
    if message.app is not None:
        found = import_name(*message.app.split(":"))
        app = found() if callable(found) else found  # a factory
        for name, (module, _) in message.tasks.items():
            if name not in app.tasks:  # its module was named beside the app
                import_module(module)
        tasks = {name: app.tasks.get(name) for name in message.tasks}
    else:
        tasks = {name: import_name(*place) for name, place in message.tasks.items()}
    if message.log_level is not None:
        configure_logging(message.log_level)
    builders = {name: check_task(name, task, message) for name, task in tasks.items()}
    for engine in engines_of(builders):
        if isinstance(engine.store, MemoryStore):
            engine.store = cast("FullStore", OutOfReach())
    return builders


def configure_logging(level: int) -> None:
    """Log as the worker does, unless the app has configured logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(log_formatter(os.environ.get(FORMAT_VARIABLE)))
    logging.basicConfig(level=level, handlers=[handler])


def open_lifespans(tasks: dict[str, RequestBuilder]) -> dict[Engine, LifespanThread]:
    """Open the lifespan of each app whose tasks run here."""
    registries = {task.engine: task.registry for task in tasks.values()}
    return {
        engine: LifespanThread(engine, registry.lifespan, CLOSE_WITHIN)
        for engine, registry in registries.items()
    }


def engines_of(tasks: dict[str, RequestBuilder]) -> set[Engine]:
    """Return the engines of tasks."""
    return {task.engine for task in tasks.values()}


def import_name(module: str, path: str) -> Any:
    """Return a dotted attribute of a module."""
    return reduce(getattr, path.split("."), import_module(module))


def check_task(name: str, task: Any, message: Prepare) -> RequestBuilder:
    """Return a task's builder; raise InvalidPolicy unless it is the worker's own, with the same store."""
    if not isinstance(task, Task):
        raise InvalidPolicy(
            f"{name} has process=True, but is not there when its app is imported once more: "
            "declare it where the module is imported, not where the program is run."
        )
    builder = builder_of(task)
    if (builder.engine.url, builder.engine.namespace) != (message.url, message.namespace):
        raise InvalidPolicy(
            f"{name} has process=True, but its app has another URL or namespace when it is imported "
            "once more: read both from the environment."
        )
    return builder


class OutOfReach:
    """Stands for a memory store of another process, of which only the clock is here too."""

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    def __getattr__(self, name: str) -> Any:
        """Refuse every other use."""
        raise StoreUnavailable(
            "A memory:// store is out of reach for a task with process=True: write sqlite:///jobs.db."
        )
