"""The log of absorbed requests: what was absorbed, when, by which job, and from which line of code.

Requests that the same job absorbed for the same caller between two writes share an entry, which counts them.
The store keeps the newest entries of each key, and all of them for a limited time.
"""

from __future__ import annotations

import inspect
import os
import socket
import sys
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import uuid4

import msgspec

from onejob.core.decide import COUNTED_AT_ONCE, Request, Verdict
from onejob.stores.contract import Observation, Observations, Tally

KIND = "absorbed"
KEPT_FOR = timedelta(days=7)  # unless the app says otherwise
PER_KEY = 100  # entries that a key keeps
PER_NAMESPACE = 10_000  # entries that a namespace keeps
PER_WRITE = 200  # entries of one write; further ones are left out, and the share of the others is stored
INTERNAL = (  # modules that call for others
    *("onejob.", "asyncio.", "concurrent.", "contextlib", "threading"),
    *("click.", "runpy"),  # of the command line
)

OWN_FRAMES = 8  # that lie between `find_caller` and any caller, at least
NO_CALLER = ("", 0)

Caller = tuple[str, int]
"""A file and a line; empty if they are unknown."""
Counter = tuple[str, str, str, str]
"""Namespace, task, outcome and the id of a job."""


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


class LastRequest(msgspec.Struct, frozen=True, array_like=True):
    """The request that a job absorbed last, as its counter has it: `Tally.last_by`."""

    digest: str = ""
    line: str = ""
    host: str = ""
    process: int = 0


read_last = msgspec.json.Decoder(LastRequest).decode


class Absorbed(msgspec.Struct, frozen=True, gc=False):
    """An absorbed request with its answer, as it is counted and logged."""

    request: Request
    verdict: Verdict
    outcome: str
    job_id: str  # of the job that serves it

    @property
    def counter(self) -> Counter:
        """The counter that counts it."""
        asked = self.request.job
        return asked.namespace, asked.task, self.outcome, self.job_id

    @property
    def is_counted(self) -> bool:
        """Whether its step has counted it, in the write that it made anyway."""
        return self.outcome in COUNTED_AT_ONCE


class Entry:
    """Requests that a job absorbed for the same caller since the last write: the newest, and how many."""

    __slots__ = ("absorbed", "caller", "first_at", "in_transaction", "last_at", "times", "trace")

    def __init__(
        self, absorbed: Absorbed, caller: Caller | None, now: datetime, *, in_transaction: bool = False
    ) -> None:
        self.absorbed = absorbed
        self.caller = caller
        self.first_at = now
        self.in_transaction = in_transaction
        self.times = 0
        self.add(absorbed, now)

    def add(self, absorbed: Absorbed, now: datetime) -> None:
        """Add a request."""
        self.absorbed = absorbed
        self.times += 1
        self.last_at = now
        self.trace = current_trace()

    def tally(self) -> Tally:
        """Return what the requests add to their counter, which keeps what made the last one."""
        last = self.absorbed
        host, process, line = spelled(self.caller)
        made_by = LastRequest(last.request.job.payload_digest.hex(), line, host, process)
        number = 0 if last.is_counted else self.times
        encoded = msgspec.json.encode(made_by).decode()
        return Tally(*last.counter, number, self.last_at, self.first_at, encoded)

    def observation(self, now: datetime, sampled: float) -> Observation:
        """Return the requests as the log stores them."""
        asked, verdict = self.absorbed.request.job, self.absorbed.verdict
        key = "" if asked.key is None else asked.key.hex()
        host, process, line = spelled(self.caller)
        entry = AbsorbedRequest(
            at=now,
            task=asked.task,
            outcome=self.absorbed.outcome,
            reason=verdict.reason,
            job=self.absorbed.job_id,
            request=asked.id,
            key=key,
            digest=asked.payload_digest.hex(),
            payload_differs=verdict.payload_differs,
            times=self.times,
            sampled=sampled,
            in_transaction=self.in_transaction,
            host=host,
            process=process,
            line=line,
            trace=self.trace,
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


def spelled(caller: Caller | None) -> tuple[str, int, str]:
    """Return host, process and line of a caller; all of them are empty if callers are not recorded."""
    if caller is None:
        return "", 0, ""
    return hostname(), os.getpid(), f"{caller[0]}:{caller[1]}" if caller[0] else ""


def find_caller() -> Caller:
    """Return the file and line outside of onejob that led here; empty if there is none."""
    frame = inspect.currentframe()
    for _ in range(OWN_FRAMES):  # to look at them takes longer than to pass over them
        frame = frame and frame.f_back
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(INTERNAL):
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
