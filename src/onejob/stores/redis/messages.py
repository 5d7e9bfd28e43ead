"""Questions as the server reads them, and what its answers say about whether to ask again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
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
    said: bytes = pack_words(tuple(ask.words))
    if ask.script is None:
        return said
    first = said.index(b"\n") + 1  # behind the number of words
    number = 3 + len(ask.keys) + len(ask.words)
    return b"*%d\r\n%b%b" % (number, call_of(ask.script, ask.keys, whole), said[first:])


@lru_cache(maxsize=1024)
def call_of(script: str, keys: tuple[bytes, ...], whole: bool) -> bytes:  # noqa: FBT001 - names make it slow
    """Write the part of a call that is the same whenever these keys are meant."""
    name = (b"EVAL", TEXTS[script]) if whole else (b"EVALSHA", DIGESTS[script])
    said: bytes = pack_words((*name, len(keys), *keys))
    return said[said.index(b"\n") + 1 :]


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
