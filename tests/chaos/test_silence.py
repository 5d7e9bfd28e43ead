"""A server that goes silent: every call ends within the limit, and a worker recovers on new connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from onejob import App, Task, Unique
from onejob.errors import StoreTimeout, StoreUnavailable
from tests.chaos.proxy import Proxy, through

LIMIT = 1.0  # seconds: store_timeout=
SLACK = 4.0  # a call may need a second connection before it gives up

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["postgres", "redis"])
def silent(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str]]:
    with through(request.getfixturevalue(f"{request.param}_url")) as both:
        yield both


class Shop(NamedTuple):
    """An app whose connections lead through a proxy, and its task."""

    app: App
    mail: Task[[int], int]
    proxy: Proxy


@pytest.fixture
async def shop(silent: tuple[Proxy, str]) -> AsyncIterator[Shop]:
    proxy, url = silent
    app = App(url, store_timeout=LIMIT)

    @app.task(unique=Unique(by="n"))
    async def mail(n: int) -> int:
        return n

    yield Shop(app, mail, proxy)
    proxy.heal()
    await app.close()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Check that a block ends in time."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


CALLS: dict[str, Callable[[Shop], Awaitable[object]]] = {
    "enqueue": lambda shop: shop.mail.enqueue(1),
    "blocking enqueue": lambda shop: asyncio.to_thread(shop.mail.enqueue_sync, 2),
    "bulk": lambda shop: shop.app.enqueue_many([shop.mail.call(n) for n in range(100, 200)]),
    "stats": lambda shop: shop.app.stats(),
    "job": lambda shop: shop.app.job("01a1eca5-bb54-7000-aff0-e8a9f8fc8e1a"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_over_a_silent_connection_ends_within_the_limit(shop: Shop, call: str) -> None:
    await shop.mail.enqueue(0)  # the connection is open
    shop.proxy.silence(new=True)
    with within(LIMIT * 2 + SLACK), pytest.raises(StoreUnavailable) as refused:
        await CALLS[call](shop)
    if isinstance(refused.value, StoreTimeout):
        assert "may exist" in str(refused.value) or "nothing was stored" in str(refused.value)


async def test_a_first_connection_that_stays_silent_ends_within_the_limit(silent: tuple[Proxy, str]) -> None:
    silent[0].silence(new=True)
    app = App(silent[1], store_timeout=LIMIT)
    with within(LIMIT * 2 + SLACK), pytest.raises(StoreUnavailable):
        await app.stats()
    await app.close()


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_to_a_server_that_refuses_connections_ends_within_the_limit(
    shop: Shop, call: str
) -> None:
    await shop.mail.enqueue(0)
    shop.proxy.close()
    # `stats` asks the store twice: it writes the counters first.
    with within(LIMIT * 2 + 1), pytest.raises(StoreUnavailable):
        await CALLS[call](shop)


async def test_a_worker_recovers_once_new_connections_work(shop: Shop) -> None:
    first = await shop.mail.enqueue(1)
    async with shop.app.worker(lease="5s", grace="1s"):
        assert await first.result(timeout=10) == 1
        shop.proxy.silence(new=False)
        with within(15):
            while True:
                try:
                    again = await shop.mail.enqueue(2)
                    break
                except StoreUnavailable:
                    continue
            assert await again.result(timeout=15) == 2
