"""UUIDv7: ids that sort by the order in which this process made them."""

from __future__ import annotations

import os
import random
import threading
import time

_COUNTER_BITS = 12
_TAIL = 8  # random bytes
_lock = threading.Lock()
_random = random.Random(os.urandom(16))  # noqa: S311 - ids must be distinct, not secret
_last = 0

Slot = tuple[int, bytes]
"""What makes an id unique: its leading 64 bits, which always rise, and random bytes."""


def reserve() -> Slot:
    """Reserve a slot for an id."""
    global _last  # noqa: PLW0603 - the counter is the point
    with _lock:
        _last = ticks = max(_last + 1, time.time_ns() // 1_000_000 << _COUNTER_BITS)
    tail = _random.getrandbits(8 * _TAIL).to_bytes(_TAIL)  # as `randbytes`, with one call less
    return ticks >> _COUNTER_BITS << 16 | 0x7000 | ticks & 0xFFF, tail


def reserve_many(count: int) -> list[Slot]:
    """Reserve slots for ids, in order."""
    global _last  # noqa: PLW0603 - the counter is the point
    with _lock:
        first = max(_last + 1, time.time_ns() // 1_000_000 << _COUNTER_BITS)
        _last = first + count - 1
        tails = _random.randbytes(_TAIL * count)
    return [
        (ticks >> _COUNTER_BITS << 16 | 0x7000 | ticks & 0xFFF, tails[start : start + _TAIL])
        for start, ticks in zip(range(0, len(tails), _TAIL), range(first, first + count), strict=True)
    ]


def write_id(slot: Slot, key: bytes | None = None) -> str:
    """Return the id of a slot: a UUID of version 7.

    It ends with the first two bytes of its key, so that a store that is spread over many servers keeps both
    on one.
    """
    place, tail = slot
    text = (place.to_bytes(8) + (tail if key is None else tail[:6] + key[:2])).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-8{text[17:20]}-{text[20:]}"


def new_id(key: bytes | None = None) -> tuple[str, int]:
    """Return an id and its place in the order of admission."""
    slot = reserve()
    return write_id(slot, key), slot[0]


def bucket_of(chain_id: str) -> bytes:
    """Return the ending of a chain's id; the ids of its later jobs end with it too."""
    return bytes.fromhex(chain_id[-4:])


def _reset_after_fork() -> None:
    """Let a forked child make ids of its own, even if another thread held the lock during the fork."""
    global _lock  # noqa: PLW0603 - the old one may be held by a thread that does not exist here
    _lock = threading.Lock()
    _random.seed(os.urandom(16))


os.register_at_fork(after_in_child=_reset_after_fork)
