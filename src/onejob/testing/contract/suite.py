"""The cases of the contract suite: each opens an empty store, and asserts one promise of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from onejob.app.app import App
from onejob.stores.contract import FullStore
from onejob.testing.clock import Clock


class OpenStore(Protocol):
    """Opens a store; the same one again when it is called again, as far as the store outlives a close."""

    def __call__(self, *, clock: Clock) -> FullStore:
        """Return the store, which takes its time from the clock."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a case works with."""

    app: App
    store: FullStore
    clock: Clock
    open_store: OpenStore


@dataclass(frozen=True, slots=True)
class Case:
    """One promise of a store, and the function that checks it."""

    name: str
    check: Callable[[OpenStore], None]

    def __str__(self) -> str:
        """Return its name, which is the id of the test."""
        return self.name


Act = Callable[[Given], Awaitable[None]]
CASES: list[Case] = []


def case(act: Act) -> Act:
    """Add a function to the suite under the name of its module and its own."""
    group, name = act.__module__.rpartition(".")[2], getattr(act, "__name__", "")
    CASES.append(Case(f"{group}: {name.replace('_', ' ')}", partial(check, act)))
    return act


def check(act: Act, open_store: OpenStore) -> None:
    """Open a store, run one case on an event loop of its own, and close the store."""
    asyncio.run(play(act, open_store))


async def play(act: Act, open_store: OpenStore) -> None:
    """Run one case."""
    clock = Clock()
    store = open_store(clock=clock)
    async with App(store=store) as app:
        await act(Given(app, store, clock, open_store))
