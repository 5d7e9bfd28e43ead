"""Questions as the server reads them, and what its answers say about whether to ask again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import hiredis

from onejob.stores.redis.faults import refusal
from onejob.stores.redis.flows import Ask
from onejob.stores.redis.scripts import DIGESTS, TEXTS

TRIES = 3  # a lost connection may have been idle for too long: the next one tells
MOVES = 50  # times to wait for a cluster that is moving a bucket
MOVE_PAUSE = 0.05  # seconds

pack_words = cast("Any", hiredis.pack_command)  # whose declared type knows of one word only
TIME: bytes = pack_words((b"TIME",))


def pack(ask: Ask, *, whole: bool = False) -> bytes:
    """Write a question as the server reads it."""
    packed: bytes
    if ask.script is None:
        packed = pack_words(tuple(ask.words))
    else:
        head = (b"EVAL", TEXTS[ask.script]) if whole else (b"EVALSHA", DIGESTS[ask.script])
        packed = pack_words((*head, len(ask.keys), *ask.keys, *ask.words))
    return packed


def errors(replies: Sequence[Any]) -> list[int]:
    """Find the answers by which the server refused."""
    return [index for index, reply in enumerate(replies) if isinstance(reply, hiredis.ReplyError)]


def undone(replies: Sequence[Any], *codes: str) -> list[int]:
    """Find the refusals which say that nothing was done, and that it is worth asking again."""
    return [index for index in errors(replies) if str(replies[index]).startswith(codes)]


def checked(replies: list[Any], label: str) -> list[Any]:
    """Raise what the server refused."""
    for index in errors(replies):
        raise refusal(str(replies[index]), label)
    return replies


class Outbox:
    """Questions on their way: each is made when it is sent, and kept in case it must be sent again."""

    __slots__ = ("_rest", "sent")

    def __init__(self, asks: Iterable[Ask]) -> None:
        self._rest = iter(asks)
        self.sent: list[Ask] = []

    def __iter__(self) -> Iterator[Ask]:
        """Send one after the other."""
        for ask in self._rest:
            self.sent.append(ask)
            yield ask

    def again(self) -> None:
        """Put back what was sent: nobody knows what of it came through."""
        self._rest = chain([ask.again() for ask in self.sent], self._rest)
        self.sent = []
