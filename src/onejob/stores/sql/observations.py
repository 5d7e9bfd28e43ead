"""Observations, for both dialects: written as one JSON parameter, limited per subject, forgotten by age."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from onejob.stores.columns import read_time, write_time
from onejob.stores.contract import Observation
from onejob.stores.flow import Flow, Query


def observe(observations: Sequence[Observation], most: int) -> Flow[None]:
    """Write observations, and keep the newest of each subject that they name."""
    by_id = {(one.namespace, one.kind, one.id): one for one in observations}
    records = [{**msgspec.structs.asdict(one), "at": write_time(one.at)} for one in by_id.values()]
    given = msgspec.json.encode(records).decode()
    yield [Query("observe", (given,)), Query("limit_observations", (given, most))]


def observations(namespace: str, kind: str, subject: str | None, limit: int) -> Flow[list[Observation]]:
    """Return observations of a kind, or those about one subject, newest first."""
    if subject is None:
        [rows] = yield [Query("observations", (namespace, kind, limit))]
    else:
        [rows] = yield [Query("observations_about", (namespace, kind, subject, limit))]
    return [Observation(row[0], row[1], row[2], row[3], read_time(row[4]), row[5]) for row in rows]


def forget(namespace: str, kind: str, before: datetime, most: int) -> Flow[int]:
    """Remove old observations, and those beyond the newest; return how many."""
    [rows] = yield [Query("forget_observations", (namespace, kind, write_time(before), most))]
    return len(rows)
