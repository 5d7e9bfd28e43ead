"""The log of absorbed requests: what was absorbed, when, by which job, and from which line of code.

Requests that the same job absorbed for the same caller between two writes share an entry, which counts them.
The store keeps the newest entries of each key, and all of them for a limited time.
"""

from __future__ import annotations

import inspect
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import uuid4

import msgspec

from onejob.core.decide import COUNTED_AT_ONCE, Request, Verdict
from onejob.stores.contract import Observation, Observations

KIND = "absorbed"
KEPT_FOR = timedelta(days=7)  # unless the app says otherwise
PER_KEY = 100  # entries that a key keeps
PER_NAMESPACE = 10_000  # entries that a namespace keeps
PER_WRITE = 200  # different entries between two writes; further ones are left out, and their share is stored
INTERNAL = (  # modules that call for others
    *("onejob.", "asyncio.", "concurrent.", "contextlib", "threading"),
    *("click.", "runpy"),  # of the command line
)


NO_CALLER = ("", 0)


class AbsorbedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of the log: one request, or several alike, that an existing job serves.

    Attributes:
        at: When it was written, within a second of the request.
        task: The task that was requested.
        outcome: What happened to it, such as "kept"; "shadow:kept" if a shadow policy would have kept it.
        reason: Why, in one sentence.
        job: The id of the job that serves it.
        request: The id that the request's own job would have had.
        key: The key in hexadecimal; empty if the request had none.
        digest: The digest of its payload, in hexadecimal.
        payload_differs: Whether its payload differs from that of the job that held the key.
        times: How many requests the entry stands for.
        sampled: The share of entries that were stored at that time; 1 unless there were very many.
        in_transaction: Whether it was made in a caller's transaction, which may have been rolled back.
        host: The machine that made the request; empty if callers are not recorded.
        process: The id of the process that made it.
        line: The file and line that made it.
        trace: The id of the OpenTelemetry trace that it belongs to.
    """

    at: datetime
    task: str
    outcome: str
    reason: str
    job: str
    request: str
    key: str = ""
    digest: str = ""
    payload_differs: bool = False
    times: int = 1
    sampled: float = 1.0
    in_transaction: bool = False
    host: str = ""
    process: int = 0
    line: str = ""
    trace: str = ""


Caller = tuple[str, int]
"""A file and a line; empty if they are unknown."""
Counter = tuple[str, str, str, str]
"""Namespace, task, outcome and the id of a job."""


class LastRequest(msgspec.Struct, frozen=True, array_like=True):
    """The request that a job absorbed last, as its counter has it: `Tally.last_by`."""

    digest: str = ""
    line: str = ""
    host: str = ""
    process: int = 0


read_last = msgspec.json.Decoder(LastRequest).decode


class Absorbed(NamedTuple):
    """An absorbed request with its answer, as it is counted and logged."""

    request: Request
    verdict: Verdict
    outcome: str
    job_id: str  # of the job that serves it

    @property
    def is_counted(self) -> bool:
        """Whether its step has counted it, in the write that it made anyway."""
        return self.outcome in COUNTED_AT_ONCE

    @property
    def counter(self) -> Counter:
        """The counter that counts it."""
        asked = self.request.job
        return asked.namespace, asked.task, self.outcome, self.job_id


@dataclass(slots=True)
class Waiting:
    """An entry that waits to be written: the newest request, and how many there were."""

    absorbed: Absorbed
    line: str
    times: int = 0
    in_transaction: bool = False
    trace: str = ""


class AbsorbedLog:
    """Collects absorbed requests in memory; `take` returns what is to be written."""

    def __init__(self, *, records_callers: bool) -> None:
        self._records_callers = records_callers
        self._waiting: dict[tuple[str, str, str, int], Waiting] = {}
        self._left_out = 0

    def caller(self) -> Caller:
        """Return the file and line that made the request under way, if callers are recorded."""
        return find_caller() if self._records_callers else NO_CALLER

    def add(self, absorbed: Absorbed, *, in_transaction: bool) -> Caller:
        """Add a request to the entry of its job, outcome and caller; return the caller."""
        caller = name, line = self.caller()
        index = (absorbed.job_id, absorbed.outcome, name, line)
        waiting = self._waiting.get(index)
        if waiting is None:
            if len(self._waiting) >= PER_WRITE:
                self._left_out += 1
                return caller
            waiting = self._waiting[index] = Waiting(absorbed, spelled(caller))
        waiting.absorbed = absorbed
        waiting.times += 1
        waiting.in_transaction = in_transaction
        waiting.trace = current_trace()
        return caller

    def describe(self, absorbed: Absorbed, caller: Caller) -> str:
        """Return what a counter keeps of the request that was absorbed last."""
        digest, line = absorbed.request.job.payload_digest.hex(), spelled(caller)
        own = (hostname(), os.getpid()) if self._records_callers else ("", 0)
        return msgspec.json.encode(LastRequest(digest, line, *own)).decode()

    def take(self, clock: Callable[[], datetime]) -> list[Observation]:
        """Return the entries collected so far, and begin anew; without any, do not ask for the time."""
        if not self._waiting:
            return []
        waiting, left_out = list(self._waiting.values()), self._left_out
        self._waiting, self._left_out = {}, 0
        sampled = round(len(waiting) / (len(waiting) + left_out), 4) if left_out else 1.0
        now = clock()
        return [self._observe(one, now, sampled) for one in waiting]

    def _observe(self, waiting: Waiting, now: datetime, sampled: float) -> Observation:
        request, verdict, outcome, job_id = waiting.absorbed
        asked = request.job
        key = "" if asked.key is None else asked.key.hex()
        entry = AbsorbedRequest(
            at=now,
            task=asked.task,
            outcome=outcome,
            reason=verdict.reason,
            job=job_id,
            request=asked.id,
            key=key,
            digest=asked.payload_digest.hex(),
            payload_differs=verdict.payload_differs,
            times=waiting.times,
            sampled=sampled,
            in_transaction=waiting.in_transaction,
            host=hostname() if self._records_callers else "",
            process=os.getpid() if self._records_callers else 0,
            line=waiting.line,
            trace=waiting.trace,
        )
        return Observation(asked.namespace, KIND, uuid4().hex, key, now, msgspec.json.encode(entry).decode())


def read_entry(observation: Observation) -> AbsorbedRequest:
    """Return an entry of the log as it was written."""
    return msgspec.json.decode(observation.data, type=AbsorbedRequest)


async def forget_entries(store: Observations, namespace: str, before: datetime) -> int:
    """Remove the entries from before a time, and those beyond the limit of the namespace."""
    return await store.forget(namespace, KIND, before=before, most=PER_NAMESPACE)


@lru_cache(maxsize=1)
def hostname() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


@lru_cache(maxsize=1024)
def is_internal(module: str) -> bool:
    """Return whether a module makes requests for others."""
    return module.startswith(INTERNAL)


def spelled(caller: Caller) -> str:
    """Return a file and a line as text."""
    return f"{caller[0]}:{caller[1]}" if caller[0] else ""


def find_caller() -> Caller:
    """Return the file and line outside of onejob that led here; empty if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if not is_internal(frame.f_globals.get("__name__", "")):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return NO_CALLER


def current_trace() -> str:
    """Return the id of the current OpenTelemetry trace; empty if there is none, or no OpenTelemetry."""
    telemetry = sys.modules.get("opentelemetry.trace")
    if telemetry is None:
        return ""
    context = telemetry.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else ""
