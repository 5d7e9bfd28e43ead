"""Which server, and where on it: what a redis:// URL says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.connection import Connection, parse_url

from onejob.errors import InvalidCall

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
SECONDS = 5.0  # to connect, and to answer


@dataclass(frozen=True, slots=True)
class Target:
    """A server or a cluster, and the part of it that is ours."""

    label: str  # for messages: without user and password
    kind: str  # of connection
    options: dict[str, Any]  # of a connection
    cluster: bool
    prefix: str
    buckets: int | None  # as asked for


def read_target(url: str) -> Target:
    """Read a URL; whatever is wrong with it is said without its password."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    cluster = parts.scheme.endswith("+cluster")
    prefix, buckets = _prefix(query.pop("prefix", "onejob")), _buckets(query.pop("buckets", None))
    plain = f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}?{urlencode(query)}"
    try:
        options: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise InvalidCall(f"{_label(parts)} cannot be read: {error}.") from None
    kind = options.pop("connection_class", Connection).__name__
    options.setdefault("socket_timeout", SECONDS)
    options.setdefault("socket_connect_timeout", SECONDS)
    options["protocol"] = 2
    return Target(_label(parts), kind, options, cluster, prefix, buckets)


def _label(parts: Any) -> str:
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


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
