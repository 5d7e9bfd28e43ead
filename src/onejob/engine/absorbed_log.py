"""The log of absorbed requests: what was absorbed, when, by which job, and from which line of code.

Requests that the same job absorbed for the same caller between two writes share an entry, which counts them.
The store keeps the newest entries of each key, and all of them for a limited time.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import uuid4

import msgspec

from onejob.core.decide import COUNTED_AT_ONCE
from onejob.engine.decided import Absorbed, Caller
from onejob.stores.contract import Observation, Observations, Tally

KIND = "absorbed"
KEPT_FOR = timedelta(days=7)  # unless the app says otherwise
PER_KEY = 100  # entries that a key keeps
PER_NAMESPACE = 10_000  # entries that a namespace keeps
PER_WRITE = 200  # entries of one write; further ones are left out, and the share of the others is stored
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


class Entry:
    """Requests that a job absorbed for the same caller since the last write: the newest, and how many."""

    __slots__ = ("first_at", "last", "times")

    def __init__(self, first: Absorbed) -> None:
        self.first_at = first.at
        self.last = first
        self.times = 1

    def add(self, absorbed: Absorbed) -> None:
        """Add a request."""
        self.last = absorbed
        self.times += 1

    def tally(self) -> Tally:
        """Return what the requests add to their counter, which keeps what made the last one."""
        last, asked = self.last, self.last.request.job
        host, process, line = spelled(last.caller)
        made_by = LastRequest(asked.payload_digest.hex(), line, host, process)
        number = 0 if last.verdict.outcome in COUNTED_AT_ONCE else self.times  # in the write that it made
        encoded = msgspec.json.encode(made_by).decode()
        counter = (asked.namespace, asked.task, last.outcome, last.serving.id)
        return Tally(*counter, number, last.at, self.first_at, encoded)

    def observation(self, now: datetime, sampled: float) -> Observation:
        """Return the requests as the log stores them."""
        last, asked, verdict = self.last, self.last.request.job, self.last.verdict
        key = "" if asked.key is None else asked.key.hex()
        host, process, line = spelled(last.caller)
        entry = AbsorbedRequest(
            at=now,
            task=asked.task,
            outcome=last.outcome,
            reason=verdict.reason,
            job=last.serving.id,
            request=asked.id,
            key=key,
            digest=asked.payload_digest.hex(),
            payload_differs=verdict.payload_differs,
            times=self.times,
            sampled=sampled,
            in_transaction=last.in_transaction,
            host=host,
            process=process,
            line=line,
            trace=last.trace,
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
