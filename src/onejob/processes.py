"""Processes for plain functions that compute: each runs one job at a time, and can be killed alone.

They are new programs that import the app, never forks of this process, whose threads would not come along.
What happens inside of one is in `child`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from multiprocessing.spawn import get_executable, get_preparation_data
from typing import TYPE_CHECKING, Any, Self

from onejob.child import (
    HEAD,
    Answer,
    Broken,
    Committing,
    Ended,
    Order,
    Prepare,
    Start,
    Stop,
    Told,
    encode,
    framed,
    is_child,
    read_answer,
    read_done,
    result_of,
)
from onejob.context import Context
from onejob.errors import InvalidPolicy, OnejobError
from onejob.lifecycle import Failed, Result

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.tasks import Task

PATIENCE = 3.0  # seconds that a run has to stop by itself once it is cancelled
READY_WITHIN = 120.0  # seconds to import the app
GOODBYE = 1.0  # seconds that an idle process has to end once the worker hangs up
LAST_WORDS = 0.05  # seconds after its end in which what a process said is still read

MAIN = "__main__"
MAIN_KEYS = {"init_main_from_name", "init_main_from_path"}
PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from onejob.child import serve; serve(*map(int, sys.argv[1:3]))"
)


class Processes:
    """The processes of a worker: started when they are needed, used again, replaced when they die."""

    def __init__(self, app: App, most: int) -> None:
        if is_child():
            raise OnejobError(
                "A process that runs a task imports its module, which starts a worker: "
                'write if __name__ == "__main__": before that.'
            )
        self._order = preparation(app)
        self._places = asyncio.Semaphore(most)
        self._idle: list[Process] = []
        self._all: set[Process] = set()

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Process]:
        """Take a process that is ready, for one job; unless it has ended that, it is killed."""
        async with self._places:
            process = self._waiting() or await self._start()
            try:
                await process.ready()
                yield process
            finally:
                if process.is_idle:
                    self._idle.append(process)
                else:
                    process.kill()

    def _waiting(self) -> Process | None:
        """Take one that has run a job before, if one still lives."""
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
        return None

    async def _start(self) -> Process:
        process = await Process.start(self._order)
        self._all.add(process)
        process.over.add_done_callback(lambda _: self._all.discard(process))
        return process

    async def close(self) -> None:
        """Let idle processes end, and make sure that none is left."""
        try:
            await asyncio.gather(*(process.end() for process in self._all))
        finally:
            for process in self._all:
                process.kill()


class Process:
    """A child, seen from outside."""

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
        self._lifeline = lifeline  # when it closes, the child dies
        self._is_new = True
        self._failure: Failed | None = None  # why it cannot run anything
        self._killing: asyncio.TimerHandle | None = None
        self.is_idle = False
        self.over = asyncio.create_task(self._see_off(), name=f"onejob process {process.pid}")

    @classmethod
    async def start(cls, order: Prepare) -> Self:
        """Start a process; it may not be ready yet."""
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
        started._say(order)
        return started

    @property
    def is_alive(self) -> bool:
        """Whether it can run a job, as far as one can know."""
        ended = self._process.returncode is not None or self._reader.at_eof()
        return not ended and not has_exited(self._process.pid)

    async def ready(self) -> None:
        """Wait until it has imported the app, or has failed to."""
        if not self._is_new:
            return
        self._is_new = False
        try:
            async with asyncio.timeout(READY_WITHIN):
                answer = await self._hear()
        except TimeoutError:
            self._failure = failure("NotReady", f"its app was not imported within {READY_WITHIN:g} s")
            return
        if isinstance(answer, Broken):
            self._failure = Failed(answer.error)
        elif answer is None:
            self._failure = await self._died()

    async def attempt(self, run: Context) -> Result:
        """Run a job; a process that dies over it is a failure."""
        if self._failure is not None:
            return self._failure
        self.is_idle = False
        tails = [encode(blocker.job) for blocker in run.blockers]
        self._say(Start(encode(run.job), tails, run.deadline))
        try:
            return await self._result(run)
        finally:
            if self._killing is not None:
                self._killing.cancel()
                self._killing = None

    async def _result(self, run: Context) -> Result:
        while isinstance(answer := await self._hear(), Told | Committing):
            if isinstance(answer, Told):
                run.told = answer.progress
            else:
                run.block, run.completion = "in doubt", read_done(answer.completion)
        if isinstance(answer, Ended):
            self.is_idle = True
            return result_of(answer, run)
        if self._killing is not None:
            raise asyncio.CancelledError
        return await self._died()

    async def _died(self) -> Failed:
        self.kill()  # it may only have closed what we hear it by
        code = await self._process.wait()
        how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        return failure("ProcessDied", f"the process that ran it ended with {how}")

    def stop(self) -> None:
        """Tell the run to stop; if it does not listen, it is killed."""
        self._say(Stop())
        self._killing = asyncio.get_running_loop().call_later(PATIENCE, self.kill)

    def kill(self) -> None:
        """Kill the process, and what it has started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    self._process.pid, signal.SIGKILL
                )  # a session of its own has the number of its first

    async def end(self) -> None:
        """Let the process end by itself if it does nothing, but soon."""
        if self.is_idle and self.is_alive:
            self._writer.write_eof()
            await asyncio.wait([self.over], timeout=GOODBYE)
        self.kill()
        await asyncio.wait([self.over])

    async def _see_off(self) -> None:
        await self._process.wait()
        await asyncio.sleep(
            LAST_WORDS
        )  # a process that it has started may keep the line open: we do not wait for it
        self._writer.transport.abort()
        os.close(self._lifeline)

    def _say(self, order: Order) -> None:
        self._writer.write(framed(order))

    async def _hear(self) -> Answer | None:
        """Wait for the next answer; None if the process is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(HEAD))
            answer: Answer = read_answer(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return answer


def has_exited(pid: int) -> bool:
    """Ask the system whether a child has ended, for the event loop may not have heard of it yet."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def failure(kind: str, message: str) -> Failed:
    """Make the failure of an attempt that no handler has raised."""
    error = {"type": kind, "message": message, "traceback": ""}
    return Failed(error, chance=random.random())  # noqa: S311 - jitter


# ── where a child finds its tasks ─────────────────────────────────────────────────────────────────


def preparation(app: App) -> Prepare:
    """Say where the tasks are that run in processes; refuse one that only this process can have."""
    tasks = {name: task for name, task in app.tasks.items() if task.process}
    places = {name: ("", "") if app.place else place(task) for name, task in tasks.items()}
    wanted = {"sys_argv", "dir"}
    if any(module == MAIN for module, _ in places.values()):
        wanted |= MAIN_KEYS
    return Prepare(
        main={name: value for name, value in get_preparation_data("onejob").items() if name in wanted},
        app=app.place,
        tasks=places,
        url=app.url,
        namespace=app.namespace,
        log_level=logging.root.level if logging.root.handlers else None,
    )


def place(task: Task[..., Any]) -> tuple[str, str]:
    """Find the name by which a task can be imported."""
    module = task.function.__module__
    name = next((name for name, value in vars(sys.modules[module]).items() if value is task), None)
    if name is None:
        raise InvalidPolicy(
            f"{task.name} has process=True, but a new process cannot import it: "
            f"declare it at the top level of {module}, not inside of a function or a class."
        )
    if module == MAIN and not can_import_main():
        raise InvalidPolicy(
            f"{task.name} has process=True, but a new process cannot import what was typed in or piped in: "
            "write it into a file, and import it from there."
        )
    return module, name


def can_import_main() -> bool:
    """Tell whether the program itself is a file that can be imported."""
    found = get_preparation_data("onejob")
    name, path = found.get("init_main_from_name"), found.get("init_main_from_path")
    return os.path.exists(path) if path else name is not None and not name.endswith(MAIN)  # noqa: PTH110 - text
