"""Worker processes under one supervisor: `--processes`, several apps, and `--reload`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from onejob.cli.output import number_of

log = logging.getLogger("onejob")

VARIABLE = "ONEJOB_SUPERVISOR"  # tells a worker process which process supervises it
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0  # seconds before a process that died is started again
PROVEN = 60.0  # seconds after which the pauses begin anew
KILL_AFTER = 9.0  # seconds after the grace time, so that all ends within ten
LOOK_EVERY = 0.5  # seconds between looks at the files
USAGE = 2  # the exit code of a command that can never work


class Supervisor:
    """Starts worker processes, starts those again that die, and passes signals on."""

    def __init__(self, commands: Sequence[Sequence[str]], *, grace: float, reload: bool) -> None:
        self._commands = commands
        self._grace = grace
        self._reload = reload
        self._processes: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()  # a file has changed since the processes were started
        self._code = 0

    async def run(self) -> int:
        """Supervise until every process has ended for good; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._obey, number)
        log.info("supervisor %d runs %s", os.getpid(), number_of(len(self._commands), "worker"))
        beside = [asyncio.create_task(self._end_in_time())]
        if self._reload:
            beside.append(asyncio.create_task(self._watch_files()))
        await asyncio.gather(*(self._keep_running(command) for command in self._commands))
        for task in beside:
            task.cancel()
        return self._code

    def _obey(self, number: int) -> None:
        """Stop, and pass a signal on: a second one makes the workers hand their jobs back at once."""
        self._stopping.set()
        self._signal_all(number)

    def _signal_all(self, number: int) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(number)

    async def _keep_running(self, command: Sequence[str]) -> None:
        """Run a command again and again, until it ends by itself or the supervisor stops."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            changed = self._changed
            code, number = await self._run_once(command)
            if self._stopping.is_set() or (code == 0 and not changed.is_set()):
                return None
            if changed.is_set():
                pause = FIRST_PAUSE
                continue
            if code == USAGE and not self._reload:
                self._code = code
                return self._obey(signal.SIGTERM)
            pause = FIRST_PAUSE if time.monotonic() - began > PROVEN else pause
            log.error("worker process %d %s; it starts again in %.1f s", number, ending(code), pause)
            await first_of(pause, self._stopping, changed)
            pause = min(pause * 2, LAST_PAUSE)
        return None

    async def _run_once(self, command: Sequence[str]) -> tuple[int, int]:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, VARIABLE: str(os.getpid())},
            process_group=0,  # otherwise Ctrl-C would reach it twice, which means at once
        )
        self._processes.add(process)
        if self._stopping.is_set():  # the signal came while it was started
            process.send_signal(signal.SIGTERM)
        code = await process.wait()
        self._processes.discard(process)
        return code, process.pid

    async def _end_in_time(self) -> None:
        """Kill the processes that are left after the grace time, without waiting for their jobs."""
        await self._stopping.wait()
        await asyncio.sleep(self._grace + KILL_AFTER)
        for process in self._processes:
            log.error("worker process %d does not end and is killed", process.pid)
            self._code = 1
        self._signal_all(signal.SIGKILL)

    async def _watch_files(self) -> None:
        """Restart the processes when a Python file under the working folder changes."""
        seen = await asyncio.to_thread(file_times)
        while not self._stopping.is_set():
            await asyncio.sleep(LOOK_EVERY)
            now = await asyncio.to_thread(file_times)
            if different := sorted(path for path, _ in seen ^ now):
                log.info("%s has changed: the workers start again", different[0])
                before, self._changed = self._changed, asyncio.Event()
                before.set()
                self._signal_all(signal.SIGTERM)
            seen = now


def ending(code: int) -> str:
    """Return how a process ended."""
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


async def first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, but no longer than this."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def file_times() -> set[tuple[str, int]]:
    """Return the Python files under the working folder, each with the time of its last change."""
    return set(python_files("."))


def python_files(folder: str) -> Iterator[tuple[str, int]]:
    """Yield Python files with their times; hidden folders and virtual environments are left out."""
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if is_source(Path(path, name))]
        for name in names:
            if name.endswith(".py"):
                try:
                    yield os.path.join(path, name), Path(path, name).stat().st_mtime_ns  # noqa: PTH118 - text
                except OSError:  # it has just been removed
                    continue


def is_source(folder: Path) -> bool:
    """Return whether a folder may contain the app's own code."""
    hidden = folder.name.startswith(".") or folder.name in {"__pycache__", "node_modules"}
    return not hidden and not (folder / "pyvenv.cfg").exists()


def command_of(app: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of one worker process."""
    return [sys.executable, "-m", "onejob", "worker", app, *arguments]


async def supervisor_is_gone() -> None:
    """Wait until the supervisor of this process has ended; without a supervisor, for ever."""
    supervisor = os.environ.get(VARIABLE)
    while supervisor is None or os.getppid() == int(supervisor):  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(LOOK_EVERY)
