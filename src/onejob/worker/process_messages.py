"""The messages between a worker and its child processes, and how they are written to a socket."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import msgspec

from onejob.core.runs import Completed, Failed, HandedBack, Result, Snoozed, Stopped
from onejob.stores.columns import read_job, write_job
from onejob.worker.attempt import Attempt, Phase

HEADER = 4  # bytes with the length of the message that follows

Row = list[Any]
"""A job as the table of columns writes it."""


# ── from the worker to a child ────────────────────────────────────────────────────────────────────


class Prepare(msgspec.Struct, tag=True):
    """Where to import the tasks from, and what makes the child like the process that starts it."""

    main: dict[str, Any]
    app: str | None  # module:attribute
    tasks: dict[str, tuple[str, str]]  # without an app: the module and the name of each task
    url: str
    namespace: str
    log_level: int | None


class Start(msgspec.Struct, tag=True):
    """Run a job."""

    job: Row
    blockers: list[Row]  # the last jobs of the chains that it has waited for
    deadline: datetime | None


class Stop(msgspec.Struct, tag=True):
    """Ask the run under way to stop."""


# ── from a child to the worker ────────────────────────────────────────────────────────────────────


class Ready(msgspec.Struct, tag=True):
    """The tasks were imported."""


class Broken(msgspec.Struct, tag=True):
    """The tasks could not be imported."""

    error: dict[str, Any]


class Progress(msgspec.Struct, tag=True):
    """How far the run is."""

    progress: bytes


class Completion(msgspec.Struct):
    """A completed run: the value that it returned, and the next job of its chain."""

    value: bytes | None
    continuation: Row | None


class Committing(msgspec.Struct, tag=True):
    """A transaction of the run is about to complete the job, and from here on may have."""

    completion: Completion


class Ended(msgspec.Struct, tag=True):
    """The run has ended, with a result of this kind."""

    kind: str
    result: msgspec.Raw
    completion: Completion | None
    settled: Row | None
    phase: Phase
    progress: bytes | None


ToChild = Prepare | Start | Stop
ToWorker = Ready | Broken | Progress | Committing | Ended

_encode = msgspec.msgpack.Encoder().encode
read_to_child = msgspec.msgpack.Decoder(ToChild).decode
read_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
_read_completion = msgspec.msgpack.Decoder(Completion).decode
_READERS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in (Failed, Snoozed, Stopped, HandedBack)}


def frame(message: ToChild | ToWorker) -> bytes:
    """Return a message as bytes, with its length before it."""
    data = _encode(message)
    return len(data).to_bytes(HEADER) + data


# ── attempts and results ──────────────────────────────────────────────────────────────────────────


def start_message(attempt: Attempt) -> Start:
    """Return the message that starts an attempt in a child."""
    blockers = [write_job(blocker.job) for blocker in attempt.blockers]
    return Start(write_job(attempt.job), blockers, attempt.deadline)


def end_message(result: Result, attempt: Attempt) -> Ended:
    """Return the message with an attempt's result and state."""
    return Ended(
        type(result).__name__,
        msgspec.Raw(_encode(write_completion(result) if isinstance(result, Completed) else result)),
        None if attempt.completion is None else write_completion(attempt.completion),
        None if attempt.settled is None else write_job(attempt.settled),
        attempt.phase,
        attempt.progress,
    )


def take_end(message: Ended, attempt: Attempt) -> Result:
    """Return the result of `end_message`, and put the state of the child's attempt into the worker's."""
    attempt.completion = None if message.completion is None else read_completion(message.completion)
    attempt.settled = None if message.settled is None else read_job(message.settled)
    attempt.phase = message.phase
    attempt.progress = message.progress
    if message.kind == Completed.__name__:
        return read_completion(_read_completion(message.result))
    return cast("Result", _READERS[message.kind].decode(message.result))


def take_committing(message: Committing, attempt: Attempt) -> None:
    """Note that the child's transaction may complete the job from here on."""
    attempt.completion = read_completion(message.completion)
    attempt.phase = "in doubt"


def write_completion(completion: Completed) -> Completion:
    """Return a completion as it is sent."""
    following = completion.continuation
    return Completion(completion.value, None if following is None else write_job(following))


def read_completion(completion: Completion) -> Completed:
    """Return the completion of `write_completion`."""
    following = completion.continuation
    return Completed(completion.value, None if following is None else read_job(following))
