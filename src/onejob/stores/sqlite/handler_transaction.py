"""A transaction for a handler's own writes in a SQLite file: this store begins it and ends it.

It holds the lock that every write of the store holds, so its commit meets no checkpoint.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from onejob.stores.sqlite.database import Synchronous, connect
from onejob.stores.sqlite.errors import translating
from onejob.stores.sqlite.write_lock import WriteLock

T = TypeVar("T")


@contextmanager
def begun(path: Path, synchronous: Synchronous, timeout: float) -> Iterator[sqlite3.Connection]:
    """Yield a connection inside a transaction; commit it at the end, or roll it back."""
    with ExitStack() as stack:
        with translating(path):
            lock = stack.enter_context(closing(WriteLock(path, timeout)))
            stack.enter_context(lock)
            connection = stack.enter_context(closing(connect(path, synchronous, timeout)))
            connection.execute("BEGIN IMMEDIATE")
        yield connection  # closing a connection rolls back, so an error in the block does
        with translating(path):
            connection.execute("COMMIT")


@asynccontextmanager
async def in_thread(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a block on a thread of its own, which waits for locks and for the disk."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="onejob transaction")
    there = partial(asyncio.get_running_loop().run_in_executor, thread)
    try:
        try:
            given = await there(block.__enter__)
        except asyncio.CancelledError as error:
            thread.submit(block.__exit__, type(error), error, None)  # once it has been entered
            raise
        try:
            yield given
        except BaseException as error:
            await there(block.__exit__, type(error), error, error.__traceback__)
            raise
        await there(block.__exit__, None, None, None)
    finally:
        thread.shutdown(wait=False)
