"""Observations: records by id, and ids by time, of a kind and of each subject."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from onejob.stores.columns import read_time, write_time
from onejob.stores.contract import Observation
from onejob.stores.flow import Flow
from onejob.stores.redis.groups import Call
from onejob.stores.redis.layout import Bucket, Keyspace

OBSERVED_AT_ONCE = 100  # in one call of the script: the server does nothing else meanwhile
FORGOTTEN_AT_ONCE = 1000


def observe(observations: Sequence[Observation], most: int, space: Keyspace) -> Flow[None]:
    """Write observations; of each subject that they name, the newest stay."""
    bucket = space.buckets[0]
    by_kind: dict[tuple[str, str], list[Observation]] = {}
    for one in observations:
        by_kind.setdefault((one.namespace, one.kind), []).append(one)
    yield [
        _writing(same[first : first + OBSERVED_AT_ONCE], namespace, kind, most, bucket)
        for (namespace, kind), same in by_kind.items()
        for first in range(0, len(same), OBSERVED_AT_ONCE)
    ]


def _writing(
    observations: Sequence[Observation], namespace: str, kind: str, most: int, bucket: Bucket
) -> Call:
    """Return the call that writes observations of a kind."""
    keys = {bucket.name("observed", namespace, kind): 1, _records(bucket, namespace, kind): 2}
    words: list[Any] = [most]
    for one in observations:
        about = bucket.name("observed", namespace, kind, one.subject)
        number = keys.setdefault(about, len(keys) + 1)
        words += (number, one.id, write_time(one.at), msgspec.json.encode((one.subject, one.data)))
    return Call(bucket.number, words, "observe", tuple(keys))


def _names(bucket: Bucket, namespace: str, kind: str, subject: str) -> tuple[str, str]:
    return bucket.name("observed", namespace, kind), bucket.name("observed", namespace, kind, subject)


def _records(bucket: Bucket, namespace: str, kind: str) -> str:
    return bucket.name("observations", namespace, kind)


def observations(
    namespace: str, kind: str, subject: str | None, limit: int, space: Keyspace
) -> Flow[list[Observation]]:
    """Return observations of a kind, or those about one subject, newest first."""
    bucket = space.buckets[0]
    everything, about = _names(bucket, namespace, kind, subject or "")
    name = everything if subject is None else about
    [reply] = yield [Call(bucket.number, ("ZREVRANGE", name, 0, limit - 1, "WITHSCORES"))]
    ids, times = reply[::2], reply[1::2]
    if not ids:
        return []
    [records] = yield [Call(bucket.number, ("HMGET", _records(bucket, namespace, kind), *ids))]
    return [
        Observation(namespace, kind, name.decode(), about, read_time(int(at)), data)
        for name, at, record in zip(ids, times, records, strict=True)
        if record is not None
        for about, data in [msgspec.json.decode(record)]
    ]


def forget(namespace: str, kind: str, before: datetime, most: int, space: Keyspace) -> Flow[int]:
    """Remove old observations, and those beyond the newest; return how many."""
    bucket = space.buckets[0]
    everything, _ = _names(bucket, namespace, kind, "")
    forgotten = 0
    while True:
        old, excess = yield [
            Call(
                bucket.number,
                (
                    "ZRANGEBYSCORE",
                    everything,
                    "-inf",
                    f"({write_time(before)}",
                    "LIMIT",
                    0,
                    FORGOTTEN_AT_ONCE,
                ),
            ),
            Call(bucket.number, ("ZRANGE", everything, 0, -most - 1)),
        ]
        ids = list({*old, *excess[:FORGOTTEN_AT_ONCE]})
        if not ids:
            return forgotten
        forgotten += len(ids)
        place = _records(bucket, namespace, kind)
        [records] = yield [Call(bucket.number, ("HMGET", place, *ids))]
        subjects = [None if record is None else msgspec.json.decode(record)[0] for record in records]
        yield [
            Call(bucket.number, ("ZREM", everything, *ids)),
            Call(bucket.number, ("HDEL", place, *ids)),
            *(
                Call(bucket.number, ("ZREM", _names(bucket, namespace, kind, subject)[1], name))
                for name, subject in zip(ids, subjects, strict=True)
                if subject is not None
            ),
        ]
