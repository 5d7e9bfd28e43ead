"""Which server has which bucket: always the same one, but for a cluster, which may move buckets about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import redis.asyncio.connection as awaited
import redis.connection as blocking
from redis.asyncio.retry import Retry as AwaitedRetry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from onejob.errors import StoreUnavailable
from onejob.stores.redis.faults import LOST
from onejob.stores.redis.target import Target
from onejob.stores.redis.wire import Cord

Node = tuple[str, int]
"""Host and port; a server that is not a cluster's is HERE, wherever its URL says."""

HERE: Node = ("", 0)
SLOTS = hiredis.pack_command(("CLUSTER", "SLOTS"))  # type: ignore[arg-type]


class Nodes:
    """A map from buckets to servers, and the way to each."""

    def __init__(self, target: Target, tags: Sequence[bytes]) -> None:
        self._target = target
        self._slots = [key_slot(tag) for tag in tags]
        self._map = [HERE for _ in tags]
        self._known: list[Node] = [HERE]
        self._door = threading.Lock()

    def of(self, bucket: int) -> Node:
        """Name the server of a bucket."""
        return self._map[bucket]

    @property
    def each(self) -> dict[Node, int]:
        """Every server that has a bucket of ours, with one that it has."""
        return {node: bucket for bucket, node in reversed(list(enumerate(self._map)))}

    def refresh(self) -> None:
        """Ask the cluster again where everything is."""
        if not self._target.cluster:
            return
        with self._door:
            slots = self._ask_anyone()
            self._map = [owner(slots, slot) for slot in self._slots]
            self._known = [HERE, *dict.fromkeys(node for _, _, node in slots)]

    def _ask_anyone(self) -> list[tuple[int, int, Node]]:
        for node in reversed(self._known):
            try:
                cord = Cord(self.blocking(node))
            except LOST:
                continue
            try:
                reply = cord.ask(SLOTS)
            except LOST:
                continue
            finally:
                cord.close()
            if isinstance(reply, list):
                return [(first, last, self._node(primary)) for first, last, primary, *_ in reply]
        raise StoreUnavailable(f"{self._target.label}: no node of the cluster answers.")

    def _node(self, primary: Sequence[Any]) -> Node:
        host = primary[0].decode() if primary[0] else self._target.options.get("host", "localhost")
        return (host, int(primary[1]))

    def _options(self, node: Node) -> dict[str, Any]:
        place = {} if node is HERE else {"host": node[0], "port": node[1]}
        return {**self._target.options, **place}

    def blocking(self, node: Node) -> blocking.AbstractConnection:
        """Make a connection for threads."""
        make: Callable[..., blocking.AbstractConnection] = getattr(blocking, self._target.kind)
        return make(**self._options(node), retry=Retry(NoBackoff(), 0))

    def awaited(self, node: Node) -> awaited.AbstractConnection:
        """Make a connection for an event loop."""
        make: Callable[..., awaited.AbstractConnection] = getattr(awaited, self._target.kind)
        return make(**self._options(node), retry=AwaitedRetry(NoBackoff(), 0))


def owner(slots: Sequence[tuple[int, int, Node]], slot: int) -> Node:
    """Find the primary that has a slot."""
    for first, last, node in slots:
        if first <= slot <= last:
            return node
    raise StoreUnavailable("A part of the cluster is down: nobody has one of our buckets.")
