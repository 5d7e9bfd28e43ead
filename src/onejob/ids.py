"""UUIDv7: ids that sort by the order in which this process made them."""

from __future__ import annotations

import os
import random
import struct
import threading
import time

_COUNTER_BITS = 12
_pack = struct.Struct(">QQ").pack
_lock = threading.Lock()
_random = random.Random(os.urandom(16))  # noqa: S311 - ids must be distinct, not secret
_last = 0


def new_id(key: bytes | None = None) -> tuple[str, int]:
    """Make an id and the place in line that it stands for: its leading 64 bits, always rising.

    It ends as its key begins, so that a store that is spread over many servers finds both on one.
    """
    global _last  # noqa: PLW0603 - the counter is the point
    with _lock:
        _last = max(_last + 1, time.time_ns() // 1_000_000 << _COUNTER_BITS)
        ticks, tail = _last, _random.getrandbits(62)
    place = ticks >> _COUNTER_BITS << 16 | 0x7000 | ticks & 0xFFF
    made = _pack(place, tail | 1 << 63)
    text = (made if key is None else made[:14] + key[:2]).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}", place


def _begin_anew() -> None:
    """Let a forked child make ids of its own, even if another thread was making one during the fork."""
    global _lock  # noqa: PLW0603 - the old one may be held by a thread that is not here
    _lock = threading.Lock()
    _random.seed(os.urandom(16))


os.register_at_fork(after_in_child=_begin_anew)
