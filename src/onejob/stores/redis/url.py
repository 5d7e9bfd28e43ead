"""What a redis:// URL says: which server, and which keys on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import redis.asyncio.connection as async_connections
import redis.connection as connections

from onejob.errors import InvalidCall
from onejob.stores.server_url import is_ambiguous

SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "redis+unix": "unix",
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
}
CLUSTER_BUCKETS = 16
MOST_BUCKETS = 1024
ENCODE = "percent-encode special characters in the user and the password, such as / as %2F"


@dataclass(frozen=True, slots=True)
class Target:
    """A server or a cluster, and the keys on it that belong to the store."""

    label: str  # for messages, without user and password
    kind: str  # name of redis-py's class of connections
    options: dict[str, Any]  # of a connection
    cluster: bool
    prefix: str
    buckets: int
    timeout: float  # seconds in which a round trip must end


def read_url(url: str, store_timeout: float) -> Target:
    """Read a URL; an error about it never shows the password."""
    parts = urlsplit(url)
    if is_ambiguous(url) or "@" in parts.query:
        raise InvalidCall(f"The {parts.scheme}:// URL cannot be read: {ENCODE}.")
    query = dict(parse_qsl(parts.query))
    cluster = parts.scheme.endswith("+cluster")
    prefix, buckets = _prefix(query.pop("prefix", "onejob")), _buckets(query.pop("buckets", None))
    label = _label(parts)
    options = _options(parts, query, label)
    kind = options.pop("connection_class", connections.Connection).__name__
    options.setdefault("socket_timeout", store_timeout)
    options.setdefault("socket_connect_timeout", options["socket_timeout"])
    options["protocol"] = 2
    _check_options(kind, options, query, label)
    count = buckets or (CLUSTER_BUCKETS if cluster else 1)
    return Target(label, kind, options, cluster, prefix, count, float(options["socket_timeout"]))


def _options(parts: SplitResult, query: dict[str, str], label: str) -> dict[str, Any]:
    plain = f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}?{urlencode(query)}"
    try:
        options: dict[str, Any] = connections.parse_url(plain)  # type: ignore[no-untyped-call]
    except ValueError as error:  # a message about the port would show a part of the password
        reason = ENCODE if "ort" in str(error) else f"{error}".rstrip(".")
        raise InvalidCall(f"{label} cannot be read: {reason}.") from None
    return options


def _label(parts: SplitResult) -> str:
    """Return the URL without user, password and options."""
    place = parts.netloc.rpartition("@")[2]
    try:
        port = parts.port
    except ValueError:  # what stands there may be a part of the password
        raise InvalidCall(f"The {parts.scheme}:// URL has no port that is a number: {ENCODE}.") from None
    if port is None and ":" in place.rpartition("]")[2]:
        place = place.rpartition(":")[0]
    return f"{parts.scheme}://{place}{parts.path}"


def _check_options(kind: str, options: dict[str, Any], query: dict[str, str], label: str) -> None:
    for module in (connections, async_connections):
        try:
            getattr(module, kind)(**options)
        except TypeError:
            unknown = ", ".join(sorted(query)) or "an option"
            raise InvalidCall(f"{label}: redis-py does not accept {unknown}: leave it out.") from None


def _prefix(prefix: str) -> str:
    if not re.fullmatch(r"[\w.:-]{1,100}", prefix, re.ASCII):
        raise InvalidCall(f"?prefix={prefix}: write letters, digits and . : _ - only.")
    return prefix


def _buckets(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_BUCKETS:
        raise InvalidCall(f"?buckets={text}: write a number from 1 to {MOST_BUCKETS}.")
    return int(text)
