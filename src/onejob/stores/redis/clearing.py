"""Emptying a namespace: remove all of it but its jobs and marks."""

from __future__ import annotations

import re
from typing import Any

from onejob.stores.redis.groups import Call, Flow
from onejob.stores.redis.layout import TALLIED_JOBS, TALLIES, Bucket, Keyspace, frame

KINDS = (*TALLIES, TALLIED_JOBS, "observations", "observed", "settings", "starts")
PAGE = 1000  # keys that are looked at in one call


def clear(namespace: str, space: Keyspace) -> Flow[None]:
    """Remove counters, observations, settings and recorded starts of a namespace."""
    for bucket in space.buckets:
        for kind in KINDS:
            yield from _remove(bucket, f"{bucket.tag}{kind}:{frame(namespace).rstrip(']')}")


def _remove(bucket: Bucket, prefix: str) -> Flow[None]:
    """Remove the keys of a bucket whose name goes on with a comma or ends with a bracket after a prefix."""
    pattern = re.sub(r"([\\*?\[\]^-])", r"\\\1", prefix) + r"[,\]]*"
    cursor: Any = 0
    while True:
        [[cursor, names]] = yield [Call(bucket.number, ("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE))]
        if names:
            yield [Call(bucket.number, ("DEL", *names))]
        if int(cursor) == 0:
            return
