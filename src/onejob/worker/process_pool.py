"""Child processes for plain functions that compute: each runs one job at a time and can be killed alone.

They are new programs that import the app, never forks of this process, which would not have its threads.
`process_child` is the program that they run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from multiprocessing.spawn import get_executable, get_preparation_data
from typing import Self

from onejob.core.runs import Failed, Result
from onejob.engine.engine import Engine
from onejob.errors import InvalidPolicy
from onejob.tasks.declaration import Declaration
from onejob.tasks.registry import Registry
from onejob.tasks.task import Task, builder_of
from onejob.worker.attempt import Attempt, failure
from onejob.worker.process_child import is_child, refuse_at_import
from onejob.worker.process_messages import (
    HEADER,
    Broken,
    Committing,
    Ended,
    Prepare,
    Progress,
    Stop,
    ToChild,
    ToWorker,
    frame,
    read_to_worker,
    start_message,
    take_committing,
    take_end,
)

PATIENCE = 3.0  # seconds that a run has to stop by itself once it is cancelled
READY_WITHIN = 120.0  # seconds to import the app
END_WITHIN = 1.0  # seconds that an idle process has to end once the worker closes its connection
READ_AFTER_EXIT = 0.05  # seconds after its end in which a process's last messages are read

MAIN = "__main__"
MAIN_KEYS = {"init_main_from_name", "init_main_from_path"}
PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from onejob.worker.process_child import serve; serve(*map(int, sys.argv[1:3]))"
)


class ProcessPool:
    """The processes of a worker: started when they are needed, used again, replaced when they die."""

    def __init__(self, engine: Engine, registry: Registry, app: str | None, size: int) -> None:
        if is_child():
            raise refuse_at_import("starts a worker")
        self._preparation = make_preparation(engine, registry, app)
        self._capacity = asyncio.Semaphore(size)
        self._idle: list[Process] = []
        self._all: set[Process] = set()

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[Process]:
        """Yield a process that is ready, for one job; it is killed unless that job has ended."""
        async with self._capacity:
            process = self._take_idle() or await self._start()
            try:
                await process.wait_ready()
                yield process
            finally:
                if process.is_idle:
                    self._idle.append(process)
                else:
                    process.kill()

    def _take_idle(self) -> Process | None:
        """Return a process that has run a job before and still lives, if there is one."""
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
        return None

    async def _start(self) -> Process:
        process = await Process.start(self._preparation)
        self._all.add(process)
        process.exited.add_done_callback(lambda _: self._all.discard(process))
        return process

    async def close(self) -> None:
        """Let idle processes end, and kill the others."""
        try:
            await asyncio.gather(*(process.end() for process in self._all))
        finally:
            for process in self._all:
                process.kill()


class Process:
    """A child process, from outside."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lifeline: int,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._lifeline = lifeline  # the child dies when it closes
        self._is_new = True
        self._failure: Failed | None = None  # why it cannot run anything
        self._killing: asyncio.TimerHandle | None = None
        self.is_idle = False
        self.exited = asyncio.create_task(self._wait_exit(), name=f"onejob process {process.pid}")

    @classmethod
    async def start(cls, preparation: Prepare) -> Self:
        """Start a process; it imports the app meanwhile."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            there, lifeline = os.pipe()
            undo.callback(os.close, lifeline)
            with theirs, os.fdopen(there):
                fds = (theirs.fileno(), there)
                program = [os.fsdecode(get_executable()), "-u", "-c", PROGRAM, *map(str, fds), *sys.path]
                process = await asyncio.create_subprocess_exec(
                    *program, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            undo.pop_all()
        started = cls(process, reader, writer, lifeline)
        started.send(preparation)
        return started

    @property
    def is_alive(self) -> bool:
        """Whether it can run a job, as far as this process knows."""
        ended = self._process.returncode is not None or self._reader.at_eof()
        return not ended and not has_exited(self._process.pid)

    async def wait_ready(self) -> None:
        """Wait until it has imported the app, or has failed to."""
        if not self._is_new:
            return
        self._is_new = False
        try:
            async with asyncio.timeout(READY_WITHIN):
                message = await self._receive()
        except TimeoutError:
            self._failure = failure("NotReady", f"its app was not imported within {READY_WITHIN:g} s")
            return
        if isinstance(message, Broken):
            self._failure = Failed(message.error)
        elif message is None:
            self._failure = await self._failure_of_exit()

    async def run(self, attempt: Attempt) -> Result:
        """Run an attempt and return its result; the death of the process is a failure."""
        if self._failure is not None:
            return self._failure
        self.is_idle = False
        self.send(start_message(attempt))
        try:
            return await self._receive_result(attempt)
        finally:
            if self._killing is not None:
                self._killing.cancel()
                self._killing = None

    async def _receive_result(self, attempt: Attempt) -> Result:
        while True:
            match await self._receive():
                case Progress(progress=progress):
                    attempt.progress = progress
                case Committing() as message:
                    take_committing(message, attempt)
                case Ended() as message:
                    self.is_idle = True
                    return take_end(message, attempt)
                case _ if self._killing is not None:
                    raise asyncio.CancelledError
                case _:
                    return await self._failure_of_exit()

    async def _failure_of_exit(self) -> Failed:
        self.kill()  # it may only have closed its connection
        code = await self._process.wait()
        how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        return failure("ProcessDied", f"the process that ran it ended with {how}")

    def stop(self) -> None:
        """Ask the run to stop; kill the process if it does not."""
        self.send(Stop())
        self._killing = asyncio.get_running_loop().call_later(PATIENCE, self.kill)

    def kill(self) -> None:
        """Kill the process and the processes that it has started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own

    async def end(self) -> None:
        """Let an idle process end by itself, and kill it if it does not."""
        if self.is_idle and self.is_alive:
            self._writer.write_eof()
            await asyncio.wait([self.exited], timeout=END_WITHIN)
        self.kill()
        await asyncio.wait([self.exited])

    async def _wait_exit(self) -> None:
        await self._process.wait()
        # A process that it has started may keep the connection open: do not wait for the end of the stream.
        await asyncio.sleep(READ_AFTER_EXIT)
        self._writer.transport.abort()
        os.close(self._lifeline)

    def send(self, message: ToChild) -> None:
        """Send a message without waiting for it to be read."""
        self._writer.write(frame(message))

    async def _receive(self) -> ToWorker | None:
        """Return the next message; None if the process has ended."""
        try:
            size = int.from_bytes(await self._reader.readexactly(HEADER))
            message: ToWorker = read_to_worker(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message


def has_exited(pid: int) -> bool:
    """Return whether a child process has ended; the event loop may not have been notified yet."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


# ── where a child imports its tasks from ──────────────────────────────────────────────────────────


def make_preparation(engine: Engine, registry: Registry, app: str | None) -> Prepare:
    """Return where a child finds the tasks with process=True; raise InvalidPolicy if it cannot."""
    tasks = {name: task for name, task in registry.tasks.items() if task.process}
    places = {
        name: (task.function.__module__, "") if app else import_place(task) for name, task in tasks.items()
    }
    wanted = {"sys_argv", "dir"}
    if any(module == MAIN for module, _ in places.values()):
        wanted |= MAIN_KEYS
    return Prepare(
        main={name: value for name, value in get_preparation_data("onejob").items() if name in wanted},
        app=app,
        tasks=places,
        url=engine.url,
        namespace=engine.namespace,
        log_level=logging.root.level if logging.root.handlers else None,
    )


def import_place(task: Declaration) -> tuple[str, str]:
    """Return the module and the name by which a task can be imported; raise InvalidPolicy if it cannot."""
    module = task.function.__module__
    names = vars(sys.modules[module]).items()
    name = next((name for name, value in names if is_task(value, task)), None)
    if name is None:
        raise InvalidPolicy(
            f"{task.name} has process=True, but a new process cannot import it: "
            f"declare it at the top level of {module}, not inside of a function or a class."
        )
    if module == MAIN and not can_import_main():
        raise InvalidPolicy(
            f"{task.name} has process=True, but a new process cannot import a program that was typed or "
            "piped in: write it into a file, and import it from there."
        )
    return module, name


def is_task(value: object, task: Declaration) -> bool:
    """Return whether an attribute of a module is the task that was declared."""
    return isinstance(value, Task) and builder_of(value).declaration is task


def can_import_main() -> bool:
    """Return whether the program itself is a file that can be imported."""
    found = get_preparation_data("onejob")
    name, path = found.get("init_main_from_name"), found.get("init_main_from_path")
    return os.path.exists(path) if path else name is not None and not name.endswith(MAIN)  # noqa: PTH110 - text
