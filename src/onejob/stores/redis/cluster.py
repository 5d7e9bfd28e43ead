"""Which server has which bucket: always the same one, except in a cluster, which may move buckets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio.connection as async_connections
import redis.connection as connections
from redis.crc import key_slot
from redis.exceptions import ResponseError

from onejob.errors import StoreUnavailable
from onejob.stores.redis.errors import LOST
from onejob.stores.redis.url import Target

Node = tuple[str, int]
"""Host and port; the server of the URL is HERE."""

HERE: Node = ("", 0)


class Nodes:
    """A map from buckets to servers, and connections to each."""

    def __init__(self, target: Target, tags: Sequence[str]) -> None:
        self.target = target
        self._slots = [key_slot(tag.encode()) for tag in tags]
        self._map = [HERE for _ in tags]
        self._known: list[Node] = [HERE]
        self._lock = threading.Lock()

    def of(self, bucket: int) -> Node:
        """Return the server of a bucket."""
        return self._map[bucket]

    @property
    def each(self) -> dict[Node, int]:
        """Every server that has buckets, with one of them."""
        return {node: bucket for bucket, node in reversed(list(enumerate(self._map)))}

    def refresh(self) -> None:
        """Read the map again."""
        if not self.target.cluster:
            return
        with self._lock:
            slots = self._read_slots()
            self._map = [owner(slots, slot) for slot in self._slots]
            self._known = [HERE, *dict.fromkeys(node for _, _, node in slots)]

    def _read_slots(self) -> list[tuple[int, int, Node]]:
        for node in reversed(self._known):
            connection = self.connection(node)
            try:
                connection.send_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
                reply = connection.read_response(disable_decoding=True)
            except ResponseError as error:
                raise StoreUnavailable(
                    f"{self.target.label} answers, but is no cluster ({error}): write redis://."
                ) from None
            except LOST:
                continue
            finally:
                connection.disconnect()  # type: ignore[no-untyped-call]
            return [(first, last, self._node(primary)) for first, last, primary, *_ in reply]
        raise StoreUnavailable(f"{self.target.label}: no node of the cluster answers.")

    def _node(self, primary: Sequence[Any]) -> Node:
        host = primary[0].decode() if primary[0] else self.target.options.get("host", "localhost")
        return (host, int(primary[1]))

    def _options(self, node: Node) -> dict[str, Any]:
        place = {} if node is HERE else {"host": node[0], "port": node[1]}
        return {**self.target.options, **place}

    def connection(self, node: Node) -> connections.AbstractConnection:
        """Return a new connection for threads."""
        make: Callable[..., connections.AbstractConnection] = getattr(connections, self.target.kind)
        return make(**self._options(node))

    def async_connection(self, node: Node) -> async_connections.AbstractConnection:
        """Return a new connection for an event loop; its time limit is kept by `AsyncConnections`."""
        make: Callable[..., async_connections.AbstractConnection] = getattr(
            async_connections, self.target.kind
        )
        return make(**{**self._options(node), "socket_timeout": None})


def owner(slots: Sequence[tuple[int, int, Node]], slot: int) -> Node:
    """Return the primary that has a slot."""
    for first, last, node in slots:
        if first <= slot <= last:
            return node
    raise StoreUnavailable("A part of the cluster is down: no node has one of the buckets.")
