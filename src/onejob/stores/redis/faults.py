"""What Redis and its client raise, as what onejob raises: one sentence each, never with a password."""

from __future__ import annotations

import re

from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from onejob.errors import SchemaMismatch, StoreError, StoreUnavailable

MEANINGS = {
    "OOM": "its memory is full (maxmemory); nothing of this request was stored",
    "READONLY": "it is a replica, which cannot be written; name the primary",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "LOADING": "it is still loading its data",
    "BUSY": "it is busy with a script of somebody else's",
    "MISCONF": "it cannot save to disk and so refuses writes",
    "NOREPLICAS": "it has fewer replicas than it is told to need",
    "CLUSTERDOWN": "a part of the cluster is down",
    "TRYAGAIN": "the cluster is moving this bucket",
    "NOAUTH": "it asks for a password; write redis://user:password@host",
    "WRONGPASS": "user or password is wrong",
    "NOPERM": "this user may not run what onejob needs",
}

# Before version 7, what a command in a script was refused for stands behind the script's name and line.
INSIDE = re.compile(r"@user_script: ?\d+: -?([A-Z]+ .*)")


def lost(error: BaseException, label: str) -> StoreUnavailable:
    """Name the loss of a connection, or that there was none."""
    if isinstance(error, AuthenticationError):
        return StoreUnavailable(f"{label}: {MEANINGS['WRONGPASS']}.")
    if isinstance(error, (TimeoutError, RedisTimeout)):
        return StoreUnavailable(f"{label} does not answer in time.")
    reason = getattr(error, "strerror", None) or type(error).__name__
    return StoreUnavailable(f"{label} cannot be reached ({reason}).")


def refusal(text: str, label: str) -> StoreError:
    """Name what the server refused."""
    inside = INSIDE.findall(text)
    code, _, rest = (inside[-1] if inside else text).partition(" ")
    if code == "FOREIGN":
        return SchemaMismatch(f"{label}: the key {rest}, which is not onejob's: give another ?prefix=.")
    if code == "WRONGTYPE":
        return SchemaMismatch(f"{label} has a key of our name and another type: give another ?prefix=.")
    if code in MEANINGS:
        return StoreUnavailable(f"{label}: {MEANINGS[code]}.")
    return StoreError(f"{label} refused a command: {text}")


LOST = (RedisError, OSError, EOFError)
