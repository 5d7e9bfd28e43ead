"""Take the pictures of the dashboard that README and docs show: a shop that has been busy for some minutes.

    python -m tests.pictures --minutes 10

Requests, runs and absorbed requests are real; only their arguments are invented. The pictures replace those
in `docs/images`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import socket
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from onejob import App, Retry, Unique, unique
from onejob.http import dashboard
from onejob.http.serve import make_server
from tests import chromium

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1360, "height": 920}
PAGES = {
    "overview-dark": "/",
    "dedup-light": "/dedup",
    "key-dark": "/keys/{key}",
    "why-light": '/why?q=send_invoice order=90017 note="July"',
}
CUSTOMER, ORDER = 4711, 90017  # of which the pictures tell
SLOW = {CUSTOMER: 12.0}  # seconds that a run takes, by customer


def make_shop(url: str) -> App:
    """Declare the tasks of a shop."""
    app = App(url, namespace="shop")
    app.queue("mail", concurrency=3, rate="100/1m", max_depth=50)
    app.queue("sync", concurrency=4)
    app.queue("index", concurrency=2)

    @app.task(queue="sync", unique=Unique.coalesce(by="customer_id"))
    async def sync_customer(customer_id: int, rev: int = 0) -> int:
        await asyncio.sleep(SLOW.get(customer_id, 1 + customer_id % 4))
        return rev

    @app.task(queue="index", unique=Unique(by="doc"))
    async def reindex_document(doc: str) -> None:  # noqa: ARG001 - part of the key
        await asyncio.sleep(2.5)

    @app.task(queue="mail", unique=unique.by("order").until("failure").within("24h"))
    async def send_invoice(order: int, note: str = "") -> int:  # noqa: ARG001 - outside the key
        await asyncio.sleep(0.4)
        return order

    @app.task(queue="index", retry=Retry(attempts=3, base="5s"), unique=Unique(by="entry_id"))
    async def embed_entry(entry_id: str) -> None:
        if entry_id.startswith("00"):
            raise ValueError(f"entry {entry_id} has no text")

    @app.task(queue="index", unique=Unique.singleton())
    async def graph_maintenance() -> None:
        await asyncio.sleep(20)

    @app.task(unique=Unique.debounce("4s", "30s", by="channel"))
    async def notify_slack(channel: str, text: str) -> None: ...

    @app.cron("30 8 * * 1-5", name="weekday_report")
    @app.task
    async def report() -> None: ...

    return app


async def ask(app: App, number: int) -> None:
    """Make one request of a kind that is chosen by chance."""
    tasks, chance = app.tasks, random.Random(number)
    customer = CUSTOMER if chance.random() < 0.2 else chance.randrange(4712, 4740)
    order = ORDER if chance.random() < 0.5 else chance.randrange(91000, 96000)
    document = chance.choice(("handbook", "faq", "terms"))
    calls = (
        (40, tasks["sync_customer"].call(customer, rev=number)),
        (20, tasks["reindex_document"].call(document)),
        (20, tasks["send_invoice"].call(order, note="July")),
        (8, tasks["embed_entry"].call(f"{chance.randrange(16**4):04x}")),
        (6, tasks["graph_maintenance"].call()),
        (6, tasks["notify_slack"].call("#deploys", f"deploy {number}")),
    )
    [call] = chance.choices([call for _, call in calls], [weight for weight, _ in calls])
    await app.enqueue_many([call])


async def be_busy(app: App, seconds: float) -> None:
    """Make requests at a rate that changes, with one flood."""
    began, number = time.monotonic(), 0
    while (gone := time.monotonic() - began) < seconds:
        number += 1
        await ask(app, number)
        flood = 3 if 0.6 < gone / seconds < 0.7 else 1
        await asyncio.sleep(1 / (flood * (4 + 2 * math.sin(12 * gone / seconds))))


def take(url: str, key: str) -> None:
    """Take the pictures."""
    found = chromium.find()
    assert found is not None, "No browser: run make .venv/.browser."
    with sync_playwright() as playwright:
        options = {"args": list(chromium.FLAGS), "env": dict(chromium.environment(found))}
        browser = playwright.chromium.launch(executable_path=found, **options)  # type: ignore[arg-type]
        for name, path in PAGES.items():
            scheme = name.rpartition("-")[2]
            page = browser.new_page(color_scheme=scheme, viewport=SIZE)  # type: ignore[arg-type]
            page.goto(url + path.replace("{key}", key))
            page.evaluate("document.fonts.ready")
            page.locator("#heard", has_text="live").wait_for()
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()
        browser.close()


async def main(minutes: float) -> None:
    """Run the shop, its worker and its dashboard, and take the pictures while they run."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        async with make_shop(f"sqlite:///{folder}/jobs.db?synchronous=NORMAL") as app:
            site = dashboard(app)
            server = make_server(site)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            async with app.worker(concurrency=8):
                busy = asyncio.create_task(be_busy(app, 60 * minutes + 30))
                await asyncio.sleep(60 * minutes)
                key = app.tasks["sync_customer"].call(CUSTOMER).key
                await asyncio.to_thread(take, f"http://127.0.0.1:{listening.getsockname()[1]}", key or "")
                await busy
            site.state.dashboard.sampler.stopping.set()
            server.should_exit = True
            await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.pictures", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    asyncio.run(main(parser.parse_args().minutes))
