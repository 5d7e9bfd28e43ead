"""A process of its own for a worker's plain functions: what it is told, what it answers, and how it ends.

Whoever starts it is in `processes`. A child imports the app, says that it is ready, and runs one job after
another in its main thread; a second thread listens to the worker meanwhile.
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
from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from importlib import import_module
from multiprocessing.spawn import prepare
from typing import TYPE_CHECKING, Any, Literal, cast, get_type_hints

import msgspec

from onejob.codec import open_args
from onejob.context import Context, enter, finished
from onejob.errors import InvalidPolicy, StoreUnavailable
from onejob.job import Job, Retry
from onejob.lifecycle import Completed, Failed, HandedBack, Result, Snoozed, Stopped
from onejob.stores.contract import Store
from onejob.stores.memory import MemoryStore
from onejob.tasks import Task
from onejob.transaction import ended
from onejob.worker import describe, raised

if TYPE_CHECKING:
    from onejob.app import App

PROGRESS_EVERY = 200  # milliseconds between looks at what a run tells of its progress
LOG_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"
HEAD = 4  # bytes that say how long a message is

_serving = False  # whether this process is a child


def is_child() -> bool:
    """Tell whether this process was started by a worker to run its functions."""
    return _serving


# ── what is said ──────────────────────────────────────────────────────────────────────────────────


class Prepare(msgspec.Struct, tag=True):
    """Where the tasks are found, and what makes this process like the one that starts it."""

    main: dict[str, Any]
    app: str | None  # module:attribute
    tasks: dict[str, tuple[str, str]]  # without an app: the module and the name of each task
    url: str
    namespace: str
    log_level: int | None


class Start(msgspec.Struct, tag=True):
    """Run a job."""

    job: bytes
    blockers: list[bytes]  # the last jobs of the chains that it has waited for
    deadline: datetime | None


class Stop(msgspec.Struct, tag=True):
    """Tell the run under way to stop."""


class Ready(msgspec.Struct, tag=True):
    """The tasks are found."""


class Broken(msgspec.Struct, tag=True):
    """The tasks are not found, and here is why."""

    error: dict[str, Any]


class Told(msgspec.Struct, tag=True):
    """How far the run is."""

    progress: bytes


class Done(msgspec.Struct):
    """A completion: what was returned, and the job that goes on with the chain."""

    value: bytes | None
    continuation: bytes | None


class Committing(msgspec.Struct, tag=True):
    """A transaction of the run is about to complete the job, and from here on may have."""

    completion: Done


class Ended(msgspec.Struct, tag=True):
    """The run is over: a result of this kind, and what else its context has come to."""

    kind: str
    result: msgspec.Raw
    completion: Done | None
    settled: bytes | None
    block: Literal["open", "in doubt"] | None
    progress: bytes | None


Order = Prepare | Start | Stop
Answer = Ready | Broken | Told | Committing | Ended

encode = msgspec.msgpack.Encoder().encode
read_order = msgspec.msgpack.Decoder(Order).decode
read_answer = msgspec.msgpack.Decoder(Answer).decode

_KINDS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in (Failed, Snoozed, Stopped, HandedBack)}
_read_done = msgspec.msgpack.Decoder(Done).decode
_Retry = msgspec.defstruct(
    "_Retry", [("attempts", int), *((name, float) for name in ("base", "factor", "cap", "jitter"))]
)
_Job = msgspec.defstruct("_Job", list((get_type_hints(Job) | {"retry": _Retry}).items()))
_read_job = msgspec.msgpack.Decoder(_Job).decode


def read_job(data: bytes) -> Job:
    """Make a job of what `encode` made of it."""
    fields = msgspec.structs.asdict(_read_job(data))
    return Job(**fields | {"retry": Retry(**msgspec.structs.asdict(fields["retry"]))})


def write_done(completion: Completed) -> Done:
    """Write a completion down."""
    following = completion.continuation
    return Done(completion.value, None if following is None else encode(following))


def read_done(done: Done) -> Completed:
    """Read what `write_done` wrote."""
    return Completed(done.value, None if done.continuation is None else read_job(done.continuation))


def answer_of(result: Result, run: Context) -> Ended:
    """Write down how a run ended."""
    return Ended(
        type(result).__name__,
        msgspec.Raw(encode(write_done(result) if isinstance(result, Completed) else result)),
        None if run.completion is None else write_done(run.completion),
        None if run.settled is None else encode(run.settled),
        run.block,
        run.told,
    )


def result_of(answer: Ended, run: Context) -> Result:
    """Read what `answer_of` wrote, and let the run know what it was told."""
    run.completion = None if answer.completion is None else read_done(answer.completion)
    run.settled = None if answer.settled is None else read_job(answer.settled)
    run.block = answer.block
    run.told = answer.progress
    if answer.kind == Completed.__name__:
        return read_done(_read_done(answer.result))
    return cast("Result", _KINDS[answer.kind].decode(answer.result))


def framed(message: Order | Answer) -> bytes:
    """Put its length before a message."""
    data = encode(message)
    return len(data).to_bytes(HEAD) + data


# ── being a child ─────────────────────────────────────────────────────────────────────────────────


def serve(line: int, lifeline: int) -> None:
    """Find the tasks, then run what comes until the worker hangs up."""
    global _serving  # noqa: PLW0603 - a process becomes a child once
    _serving = True
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, lambda *_: None
        )  # the worker decides; programs that a handler starts do not inherit this
    die_with_the_worker(lifeline)
    Child(socket.socket(fileno=line)).live()


def die_with_the_worker(lifeline: int) -> None:
    """Have the kernel kill this process when the other end of a pipe closes, whoever has the GIL then.

    Nothing is ever written to it. Where the kernel cannot do this, the thread that listens notices.
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


class ChildsContext(Context):
    """A run's context that lets the worker know before its own transaction completes the job."""

    def __init__(self, app: App, job: Job, deadline: datetime | None, send: Callable[[Answer], None]) -> None:
        self._send = send
        super().__init__(app, job, deadline)

    @property
    def block(self) -> Literal["open", "in doubt"] | None:
        """How a transaction() stands."""
        return self._block

    @block.setter
    def block(self, block: Literal["open", "in doubt"] | None) -> None:
        if block == "in doubt":
            assert self.completion is not None  # it is what is to be committed
            self._send(Committing(write_done(self.completion)))
        self._block = block


class Child:
    """The inside of a child."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._sending = threading.Lock()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._runs: queue.SimpleQueue[Context | None] = queue.SimpleQueue()
        self._run: Context | None = None
        self._told: bytes | None = None  # the progress that the worker has

    def live(self) -> None:
        """Get ready, and run what comes."""
        try:
            order = self._receive()
            assert isinstance(order, Prepare)  # it is the first thing that a worker says
            self._tasks = find(order)
        except BaseException as error:  # noqa: BLE001 - the worker tells it as its jobs' failure
            return self._send(Broken(describe(error)))
        self._send(Ready())
        threading.Thread(target=self._listen, name="onejob child", daemon=True).start()
        while (run := self._runs.get()) is not None:
            result = contextvars.Context().run(attempt, self._tasks[run.job.task], run)
            self._send(answer_of(result, run), ends_run=True)
        for app in {task.app for task in self._tasks.values()}:
            app.ledger.flush()
        return None

    def _send(self, answer: Answer, *, ends_run: bool = False) -> None:
        with self._sending, contextlib.suppress(OSError):  # who listens will notice that the worker is gone
            self._run = None if ends_run else self._run
            self._line.sendall(framed(answer))

    # ── in the thread that listens ──

    def _listen(self) -> None:
        """Hear what the worker says, and tell it of progress; leave when it hangs up."""
        try:
            while True:
                if self._poll.poll(None if self._run is None else PROGRESS_EVERY):
                    self._hear(self._receive())
                self._tell()
        except (EOFError, OSError):
            if self._run is not None:
                os._exit(1)
            self._runs.put(None)

    def _hear(self, order: Order) -> None:
        if isinstance(order, Start):
            self._run, self._told = self._context(order), None
            self._runs.put(self._run)
        elif self._run is not None:
            self._run.stop = True

    def _context(self, start: Start) -> Context:
        job = read_job(start.job)
        app = self._tasks[job.task].app
        context = ChildsContext(app, job, start.deadline, self._send)
        context.blockers = finished(app, [read_job(tail) for tail in start.blockers])
        return context

    def _tell(self) -> None:
        with self._sending:  # so that nothing is told of a run whose end has been
            if self._run is not None and self._run.told not in {None, self._told}:
                self._told = self._run.told
                self._line.sendall(framed(Told(self._told or b"")))

    def _receive(self) -> Order:
        order: Order = read_order(self._exactly(int.from_bytes(self._exactly(HEAD))))
        return order

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._line.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def attempt(task: Task[..., Any], run: Context) -> Result:
    """Carry one job to a result, here and now."""
    enter(run)
    try:
        args, kwargs = task.signature.restore(open_args(task.app.safe, run.job).arguments)
        return ended(run, task.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is a result
        return raised(task, error)


# ── finding the tasks ─────────────────────────────────────────────────────────────────────────────


def find(order: Prepare) -> dict[str, Task[..., Any]]:
    """Import the app, or the modules of its tasks, and return the tasks that run here."""
    prepare(order.main)
    if order.app is not None:
        app = pick(*order.app.split(":"))
        tasks = {name: app.tasks.get(name) for name in order.tasks}
    else:
        tasks = {name: pick(*place) for name, place in order.tasks.items()}
    if order.log_level is not None:
        logging.basicConfig(level=order.log_level, format=LOG_FORM)  # unless the app has its own ideas
    for name, task in tasks.items():
        check(name, task, order)
    for app in {task.app for task in tasks.values()}:
        if isinstance(app.store, MemoryStore):
            app.store = cast("Store", OutOfReach())
    return tasks


def pick(module: str, path: str) -> Any:
    """Read a dotted attribute of a module."""
    return reduce(getattr, path.split("."), import_module(module))


def check(name: str, task: Any, order: Prepare) -> None:
    """Make sure that a task is the one that the worker has, with the same store behind it."""
    if not isinstance(task, Task):
        raise InvalidPolicy(
            f"{name} has process=True, but is not there when its app is imported once more: "
            "declare it where the module is imported, not where the program is run."
        )
    if (task.app.url, task.app.namespace) != (order.url, order.namespace):
        raise InvalidPolicy(
            f"{name} has process=True, but its app has another URL or namespace when it is imported "
            "once more: let both come from the environment."
        )


class OutOfReach:
    """Stands for a store in the memory of another process, of which only the clock is here too."""

    def now(self) -> datetime:
        """Tell the time."""
        return datetime.now(UTC)

    def __getattr__(self, name: str) -> Any:
        """Refuse whatever is asked of it."""
        raise StoreUnavailable(
            "A memory:// store is out of reach for a task with process=True: write sqlite:///jobs.db."
        )
