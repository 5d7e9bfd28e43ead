"""A process that moves jobs and kills itself: python -m tests.chaos.mover OLD NEW WRITES.

It kills itself (SIGKILL) before write number WRITES to one of the two stores; with 0 it finishes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from onejob import App
from onejob.app import move

WRITES = {"apply", "count", "put_setting"}
BATCH = 3  # jobs that are written together: many boundaries between few jobs


class Fuse:
    """Counts writes, and kills the process before one of them."""

    def __init__(self, writes: int) -> None:
        self._left = writes

    def burn(self) -> None:
        """Count one write."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Fused:
    """A store whose writes burn a fuse."""

    def __init__(self, store: Any, fuse: Fuse) -> None:
        self._store = store
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        if name in WRITES:
            self._fuse.burn()
        return getattr(self._store, name)


async def main(old: str, new: str, writes: int) -> None:
    """Move everything."""
    move.AT_ONCE = BATCH
    fuse = Fuse(writes)
    async with App(old) as source, App(new) as target:
        for app in (source, target):
            app._engine.store = Fused(app._engine.store, fuse)
        await source.maintenance.move_to(target)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
