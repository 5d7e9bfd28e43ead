"""Race requests for one key: threads, tasks of an event loop, and processes."""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

from onejob.core.decide import Outcome
from onejob.core.job import Job
from onejob.errors import Duplicate, InvalidCall
from onejob.tasks.admission import Admission
from onejob.tasks.call import Call, parts_of
from onejob.tasks.options import Options
from onejob.tasks.request import RequestBuilder
from onejob.tasks.signature import encode

CHILD = "from onejob.testing.race import enqueue_at_signal; enqueue_at_signal()"
LONGEST_ANSWER = 60.0  # seconds for processes to start and to answer


class Answer(NamedTuple):
    """What one of the racing requests got."""

    outcome: str
    deduplicated: bool
    job: str


async def assert_single_admission(call: Call[Any], n: int = 50, *, processes: int = 0) -> Job:
    """Assert that of many requests made at the same moment exactly one creates a job.

    The requests are made on the real store: half of them in threads, half in tasks of the event loop.

    Args:
        call: What is requested: `task.call(7)`. No job may hold its key before.
        n: How many requests are made in this process.
        processes: How many more are made by processes of their own, one each, on a store that processes
            share. They import the module of the task, in which it must have its function's name.

    Returns:
        The job that serves all of the requests.

    Raises:
        AssertionError: None or several requests were admitted, or the others name another job.
        InvalidCall: Other processes cannot make this call.

    Examples:
        >>> await assert_single_admission(send_invoice.call(7))
    """
    builder, args, kwargs = parts_of(check_race(call, n))
    children = [await start_child(builder, args, kwargs) for _ in range(processes)]
    try:
        answers = await race(call, n, children)
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()
    check(answers, name=builder.declaration.name)
    return await builder.engine.job(answers[0].job)


def assert_single_admission_sync(call: Call[Any], n: int = 50, *, processes: int = 0) -> Job:
    """Blocking variant of `assert_single_admission`."""
    return parts_of(check_race(call, n))[0].engine.run_sync(
        assert_single_admission(call, n, processes=processes)
    )


def check_race(call: Call[Any], n: int) -> Call[Any]:
    """Return what requests are raced for; raise InvalidCall if it is no call, or if nothing would race."""
    if not isinstance(call, Call):
        raise InvalidCall(f"{call!r} is no call: write assert_single_admission(task.call(…)).")
    if n < 1:
        raise InvalidCall(f"n={n!r}: at least one request has to be made.")
    return call


async def race(call: Call[Any], n: int, children: Sequence[Process]) -> list[Answer]:
    """Make all requests at the same moment, and return their answers."""
    begin, loop = threading.Event(), asyncio.get_running_loop()

    def in_thread() -> Answer:
        begin.wait()
        try:
            return answer_of(call.enqueue_sync())
        except Duplicate as refusal:
            return read_refusal(refusal)

    with ThreadPoolExecutor(max(n // 2, 1)) as pool:
        threads = [loop.run_in_executor(pool, in_thread) for _ in range(n // 2)]
        try:
            tasks: list[Awaitable[Answer]] = [in_task(call) for _ in range(n - n // 2)]
            begin.set()
            return await asyncio.gather(*tasks, *threads, *(ask_child(child) for child in children))
        finally:
            begin.set()


async def in_task(call: Call[Any]) -> Answer:
    """Make one request on the event loop."""
    try:
        return answer_of(await call.enqueue())
    except Duplicate as refusal:
        return read_refusal(refusal)


def answer_of(admission: Admission[Any]) -> Answer:
    """Return an admission as it is compared."""
    return Answer(str(admission.outcome), admission.deduplicated, admission.job.id)


def read_refusal(refusal: Duplicate) -> Answer:
    """Return the answer of a request that a policy rejects: it names the job that holds the key."""
    return Answer(str(Outcome.REJECTED), deduplicated=True, job=refusal.admission.job.id)


def check(answers: Sequence[Answer], *, name: str) -> None:
    """Raise AssertionError unless one request was admitted and serves all others."""
    admitted = [one for one in answers if not one.deduplicated]
    outcomes = ", ".join(f"{one.outcome} {one.job}" for one in admitted[:10])
    if not admitted:
        raise AssertionError(
            f"{name}: none of {len(answers)} requests was admitted, because job {answers[0].job} held the "
            "key before: race for a key that is free."
        )
    if len(admitted) > 1:
        raise AssertionError(
            f"{name}: {len(admitted)} of {len(answers)} requests were admitted, not one: {outcomes}."
        )
    others = {one.job for one in answers} - {admitted[0].job}
    if others:
        raise AssertionError(
            f"{name}: job {admitted[0].job} was created, but requests name {sorted(others)}."
        )


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


class Start(msgspec.Struct, frozen=True):
    """What a process is to enqueue."""

    module: str
    path: str
    url: str
    arguments: dict[str, Any]
    search: list[str]  # where modules are found


async def start_child(builder: RequestBuilder, args: tuple[Any, ...], kwargs: Any) -> Process:
    """Start a process that has imported the task and waits for the signal."""
    task, engine = builder.declaration, builder.engine
    if engine.store.guarantees.store == "memory":
        raise InvalidCall("The memory store belongs to one process: leave processes= out.")
    if builder.options != Options():
        raise InvalidCall("Other processes make the call without its options: leave options(…) out.")
    bound = task.signature.bind(args, kwargs)
    arguments = msgspec.json.decode(encode(bound, "The arguments", engine.max_args, aware=True))
    function = task.function
    start = Start(function.__module__, function.__qualname__, engine.url, arguments, sys.path)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdin=PIPE, stdout=PIPE)
    await send(child, msgspec.json.encode(start))
    await receive(child)
    return child


async def ask_child(child: Process) -> Answer:
    """Let a process make its request."""
    await send(child, b"now")
    return msgspec.json.decode(await receive(child), type=Answer)


async def send(child: Process, line: bytes) -> None:
    """Send a line to a process."""
    assert child.stdin is not None  # it was started with a pipe
    child.stdin.write(line + b"\n")
    await child.stdin.drain()


async def receive(child: Process) -> bytes:
    """Return the next line of a process; raise InvalidCall if it has ended."""
    assert child.stdout is not None  # it was started with a pipe
    async with asyncio.timeout(LONGEST_ANSWER):
        line = await child.stdout.readline()
    if not line:
        raise InvalidCall("A process cannot make the call: its standard error says why.")
    return line


def enqueue_at_signal() -> None:
    """Import a task, wait for the signal, enqueue, and print the answer: what a racing process does."""
    from importlib import import_module
    from operator import attrgetter

    start = msgspec.json.decode(sys.stdin.readline(), type=Start)
    sys.path[:] = start.search
    task = attrgetter(start.path)(import_module(start.module))
    call: Call[Any] = task.call_from(start.arguments)
    engine = parts_of(call)[0].engine
    if engine.url != start.url:
        raise InvalidCall("The app has another URL when its module is imported again.")
    print("ready", flush=True)  # noqa: T201 - the answer to the process that races
    sys.stdin.readline()
    try:
        answer = answer_of(call.enqueue_sync())
    except Duplicate as refusal:
        answer = read_refusal(refusal)
    engine.close_sync()  # first, so that its counters are written when the answer is there
    print(msgspec.json.encode(answer).decode(), flush=True)  # noqa: T201 - as above
