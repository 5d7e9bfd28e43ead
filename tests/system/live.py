"""What the tests of live workers share: stores, one that can be disturbed, and waiting with a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Job, State
from onejob.core import runs
from onejob.core.leasing import Lease
from onejob.core.step import Step
from onejob.errors import StoreUnavailable
from onejob.stores.contract import FullStore as Store
from onejob.stores.contract import Leased
from onejob.stores.memory import MemoryStore

STORES = ["memory", "sqlite"]
PATIENCE = 30  # seconds; reached only by a test that fails


def open_store(kind: str, folder: Path) -> Store:
    """Open one of STORES, with the real clock."""
    if kind == "memory":
        return MemoryStore()
    from onejob.stores.sqlite.store import SQLiteStore

    return SQLiteStore(folder / "jobs.db", synchronous="NORMAL")


# ── waiting ───────────────────────────────────────────────────────────────────────────────────────


def wait_for_hints_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every wait on a store end by a hint, never by its time limit: then a missed hint fails the test."""
    wait = store.wait

    async def wait_for_hint(_timeout: float, since: Any = None) -> None:
        await wait(3600, since)

    monkeypatch.setattr(store, "wait", wait_for_hint)


async def reached(app: App, job: Job, *states: State) -> Job:
    """Wait until a job is in one of the states."""
    async with asyncio.timeout(PATIENCE):
        while (now := await app.job(job.id)).state not in states:
            await app._engine.store.wait(0.02)
    return now


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - a condition on a store has no event
            await asyncio.sleep(0.01)


async def happens(event: asyncio.Event | threading.Event) -> None:
    """Wait for an event of this loop or of a thread."""
    if isinstance(event, asyncio.Event):
        await asyncio.wait_for(event.wait(), PATIENCE)
    elif not await asyncio.to_thread(event.wait, PATIENCE):
        raise TimeoutError


class Act:
    """A handler's work, under the test's control: it begins, and ends when it is let."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.most_at_once = 0
        self._running = 0
        self._tickets = asyncio.Semaphore(0)
        self._news = asyncio.Condition()

    async def play(self, what: Any) -> Any:
        """Begin, wait to be let, end."""
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        self.begun.append(what)
        async with self._news:
            self._news.notify_all()
        try:
            await self._tickets.acquire()
            self.ended.append(what)
            return what
        finally:
            self._running -= 1

    def let_end(self, number: int = 1) -> None:
        """Let so many runs end, now or when they begin."""
        for _ in range(number):
            self._tickets.release()

    async def begins(self, number: int) -> None:
        """Wait until so many runs have begun, in all."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: len(self.begun) >= number)


# ── disturbing ────────────────────────────────────────────────────────────────────────────────────


class Disturbed:
    """A store that can be switched off, and held up where results are written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.refused = 0
        self.refused_writes = 0
        self.broken: Exception | None = None  # raised by the next write of results
        self.settling = asyncio.Event()  # results have come to be written
        self.may_settle = asyncio.Event()
        self.may_settle.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _ask(self) -> None:
        if self.down:
            self.refused += 1
            raise StoreUnavailable("the disk is on holiday")

    async def _hold_up(self, steps: Sequence[Step[Any]]) -> None:
        if any(isinstance(step.act, partial) and step.act.func is runs.settle for step in steps):
            self.settling.set()
            await self.may_settle.wait()
            if self.broken is not None:
                raise self.broken

    async def apply(self, steps: Sequence[Step[Any]]) -> list[Any]:
        await self._hold_up(steps)
        self.refused_writes += self.down
        self._ask()
        return await self._store.apply(steps)

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        await self._hold_up(after)
        self._ask()
        return await self._store.lease(wanted, after)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        self._ask()
        return await self._store.get(ids)

    async def find(self, wanted: Any) -> list[Job]:
        self._ask()
        return await self._store.find(wanted)

    def position(self) -> Any:
        self._ask()
        return self._store.position()

    async def wait(self, timeout: float, since: Any = None) -> None:
        self._ask()
        await self._store.wait(timeout, since)
