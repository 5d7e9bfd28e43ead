"""Counts of absorbed requests are exact when a reply is lost: the connection is cut, or goes silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onejob import App, Unique
from tests.chaos.proxy import Proxy, through
from tests.contract.steps import absorbed

LIMIT = 1.0  # seconds: store_timeout=
REQUEST = {"postgres": b"onejob_commit", "redis": b"tallied"}  # words of the request whose reply is lost
LOSSES = 2

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=REQUEST)
def lossy(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str, str]]:
    with through(request.getfixturevalue(f"{request.param}_url")) as (proxy, url):
        yield proxy, url, request.param


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "silent"])
async def test_a_count_whose_reply_is_lost_is_counted_once(
    lossy: tuple[Proxy, str, str], *, cut: bool
) -> None:
    proxy, url, store = lossy
    async with App(url, store_timeout=LIMIT) as app:

        @app.task(unique=Unique(by="n"))
        async def mail(n: int) -> None: ...

        await mail.enqueue(1)
        for _ in range(LOSSES):
            await mail.enqueue(1)
            proxy.lose_reply(REQUEST[store], cut=cut)
            app._engine.counters.flush()
        assert proxy.lost == LOSSES
        assert await absorbed(app) == {"kept": LOSSES}
