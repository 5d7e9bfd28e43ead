"""The options of a worker: checked, and in the form that a lease takes."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from onejob.core.durations import spell
from onejob.core.leasing import Queue
from onejob.core.text import is_name
from onejob.errors import InvalidPolicy
from onejob.tasks.registry import Registry

SHORTEST_LEASE = timedelta(milliseconds=10)


def new_name() -> str:
    """Return a name for a worker: its host, its process, and four digits."""
    return f"{socket.gethostname()}:{os.getpid()}:{random.randrange(16**4):04x}"  # noqa: S311 - a label


def limits(queues: Iterable[Queue]) -> dict[str, Any]:
    """Return the limits that queues declare, as a lease takes them."""
    return {
        "limits": {q.name: q.concurrency for q in queues if q.concurrency is not None},
        "shares": {q.name: q.partition_concurrency for q in queues if q.partition_concurrency is not None},
        "rates": {q.name: q.rate for q in queues if q.rate is not None},
    }


def check_options(concurrency: int, processes: int | None, lease: timedelta, name: str | None) -> None:
    """Raise InvalidPolicy for options with which a worker could not work."""
    if name is not None and not is_name(name):
        raise InvalidPolicy(f"name={name!r}: a worker's name is printable text.")
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidPolicy(f"concurrency={concurrency!r}: a worker needs at least one place.")
    if processes is not None and (type(processes) is not int or processes < 1):
        raise InvalidPolicy(f"processes={processes!r}: allow at least one, or leave it out.")
    if lease < SHORTEST_LEASE:
        raise InvalidPolicy(f"lease={spell(lease)} is too short to be renewed in time: write 1s or more.")


def capacities(
    registry: Registry, queues: Collection[str] | Mapping[str, int] | None, concurrency: int
) -> dict[str, int]:
    """Return how many jobs of each queue a worker runs at once; raise UnknownQueue."""
    if queues is None:
        return dict.fromkeys(registry.queues, concurrency)
    chosen = [queues] if isinstance(queues, str) else queues
    for name in sorted(chosen):
        registry.queue(name)
    return dict(chosen) if isinstance(chosen, Mapping) else dict.fromkeys(chosen, concurrency)
