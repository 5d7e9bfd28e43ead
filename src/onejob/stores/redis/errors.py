"""Errors of Redis and of its driver as errors of onejob: one sentence each, never with a password."""

from __future__ import annotations

import re
from typing import Any

from redis import exceptions

from onejob.errors import SchemaMismatch, StoreError, StoreRefused, StoreUnavailable

LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError)
"""Errors after which nothing is known about a call that was sent."""

TIMEOUTS = (TimeoutError, exceptions.TimeoutError)

MEANINGS = {
    "OOM": "its memory is full (maxmemory); nothing of this request was stored",
    "READONLY": "it is a replica, which cannot be written; name the primary",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "LOADING": "it is still loading its data",
    "BUSY": "it is busy with a script of another program",
    "MISCONF": "it cannot save to disk and so refuses writes",
    "NOREPLICAS": "it has fewer replicas than its settings demand",
    "CLUSTERDOWN": "a part of the cluster is down",
    **dict.fromkeys(("MOVED", "ASK", "TRYAGAIN"), "the cluster is moving this bucket"),
    "NOAUTH": "it asks for a password; write redis://user:password@host",
    "WRONGPASS": "user or password is wrong",
    "NOPERM": "this user may not run what onejob needs",
}
CODES: dict[type[Exception], str] = {  # of errors from whose text redis-py has removed the code
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.BusyLoadingError: "LOADING",
}
# Before Redis 7 the error of a command in a script stands behind the script's name and line.
INSIDE = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")


class MemoryFull(StoreUnavailable):
    """The server's memory is full: it refuses new jobs, and still lets others run and end."""


def is_lost(error: Exception) -> bool:
    """Return whether an error means that the server cannot be reached or written at all."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, MemoryFull)


def code_of(error: Exception) -> str:
    """Return the code of an error that the server has returned."""
    inside = INSIDE.findall(str(error))
    return inside[-1] if inside else CODES.get(type(error)) or str(error).partition(" ")[0]


def is_moving(reply: Any) -> bool:
    """Return whether a reply says that a cluster is moving the bucket, so that nothing was done."""
    return isinstance(reply, exceptions.ResponseError) and code_of(reply) in {"MOVED", "ASK", "TRYAGAIN"}


def lost_connection(error: BaseException, label: str) -> StoreUnavailable:
    """Return the error that says why there is no connection."""
    if isinstance(error, exceptions.AuthenticationError):
        missing = "required" in str(error).lower()
        return StoreUnavailable(f"{label}: {MEANINGS['NOAUTH' if missing else 'WRONGPASS']}.")
    if isinstance(error, exceptions.BusyLoadingError):
        return StoreUnavailable(f"{label}: {MEANINGS['LOADING']}.")
    if isinstance(error, exceptions.ResponseError):
        return StoreUnavailable(f"{label} refused the connection: {error}.")
    reason = getattr(error, "strerror", None) or type(error).__name__
    return StoreUnavailable(f"{label} cannot be reached ({reason}).")


def refusal(error: Exception, label: str) -> StoreError:
    """Return the error that says what the server has refused."""
    code = code_of(error)
    if code == "WRONGTYPE":
        return SchemaMismatch(f"{label} has a key of onejob's name and another type: give another ?prefix=.")
    if code == "NOPERM":
        return StoreRefused(f"{label}: {MEANINGS[code]}: {error}.")
    if code in MEANINGS:
        kind = MemoryFull if code == "OOM" else StoreUnavailable
        return kind(f"{label}: {MEANINGS[code]}.")
    return StoreError(f"{label} refused a command: {error}")
