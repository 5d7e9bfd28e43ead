"""With very many jobs, counting takes long: no page waits for it, and figures that are not new say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from starlette.applications import Starlette

from onejob import App, Retry, render_metrics
from onejob.http import dashboard
from onejob.http.pages import figures, samples
from tests.dashboard.shop import Client, fill
from tests.system.live import eventually


@asynccontextmanager
async def counting(site: Starlette) -> AsyncIterator[Client]:
    """Run a site until its regular count has begun, and return a client of it."""
    async with site.router.lifespan_context(site), asyncio.timeout(60):
        client = Client(site)
        await client.text("/")

        async def runs() -> bool:
            return bool(site.state.dashboard.sampler._runs)

        await eventually(runs)
        yield client


async def test_no_page_waits_for_a_count_that_takes_long(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(app)
    site, count, proceed = dashboard(app), samples.count, asyncio.Event()
    sampler = site.state.dashboard.sampler

    async def count_slowly(*given: Any) -> samples.Sample:
        await proceed.wait()
        return await count(*given)

    async with counting(site) as client:
        assert "counted" not in await client.text("/queues")
        monkeypatch.setattr(samples, "QUICK", -1.0)  # every count takes long
        monkeypatch.setattr(samples, "count", count_slowly)
        monkeypatch.setattr(samples, "OLD", timedelta(0))
        html = await client.post("/queues", "/queues", queue="sync", act="resume")
        assert "Queue sync runs again." in html
        assert '<p class="counted">counted <time' in html
        proceed.set()

        async def is_counted() -> bool:
            return not any(one.paused for one in (await sampler.sample()).queues)

        await eventually(is_counted)


async def test_the_newest_dead_letters_are_grouped_and_the_page_says_so(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_LETTERS", 2)

    @app.task(retry=Retry.never())
    async def explode() -> None:
        raise RuntimeError("first")

    await explode.enqueue()
    await app.worker(drain=True).run()
    for entry in ("one", "two"):
        await app.tasks["embed"].enqueue(entry)
    await app.worker(drain=True).run()
    client = Client(dashboard(app))
    html = await client.text("/dead")
    assert "the newest 2 of 3" in html
    assert "<strong>ValueError</strong>" in html
    assert "RuntimeError" not in html
    html = await client.text("/dead?task=explode&error=RuntimeError")
    assert "None of the newest 2 dead letters has this task and error." in html
    html = await client.text("/dead?task=embed&error=ValueError")
    assert html.count("<tr data-row>") == 3  # the group and its letters


async def test_dead_letters_are_read_again_only_after_one_has_come_or_gone(app: App) -> None:
    await fill(app)
    first = await samples.count(app)
    assert [(one.task, one.count) for one in first.letters.groups] == [("embed", 1), ("embed", 1)]
    await app.tasks["fetch"].enqueue(5)
    second = await samples.count(app, first)
    assert second.letters is first.letters
    await app.dead.replay(first.letters.newest[1])
    assert [job.id for job in (await samples.count(app, second)).letters.newest] == [
        first.letters.newest[0].id
    ]


async def test_metrics_that_take_long_are_read_beside_the_requests(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, render, proceed = Client(dashboard(app)), render_metrics, asyncio.Event()
    gauge = 'onejob_jobs{queue="default",state="available",task="fetch"}'

    async def render_slowly(app: App) -> str:
        await proceed.wait()
        return await render(app)

    async with asyncio.timeout(60):
        monkeypatch.setattr(figures, "QUICK", 60.0)
        for number in (1, 2):  # as long as it is quick, every request reads them
            await app.tasks["fetch"].enqueue(number)
            assert f"{gauge} {number}.0" in await client.text("/metrics")
        monkeypatch.setattr(figures, "render_metrics", render_slowly)
        monkeypatch.setattr(figures, "QUICK", -1.0)
        monkeypatch.setattr(figures, "PATIENCE", 0.0)
        await app.tasks["fetch"].enqueue(3)
        assert f"{gauge} 2.0" in await client.text("/metrics")
        proceed.set()

        async def is_read() -> bool:
            return f"{gauge} 3.0" in await client.text("/metrics")

        await eventually(is_read)


async def test_chains_among_the_newest_jobs_are_counted_beside_the_page(full: Client) -> None:
    assert '<span>Chains</span><span class="count">2</span>' in await full.text("/")
