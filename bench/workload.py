"""The work that is enqueued, the same for onejob and for the bare driver, whatever the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from onejob import App, Task, Unique

Invoice = Task[[int, str], None]


def open_app(url: str) -> tuple[App, Invoice]:
    """Return an app with one keyed task."""
    app = App(url)

    @app.task(unique=Unique(by="customer_id"))
    async def send_invoice(customer_id: int, note: str) -> None: ...

    return app, send_invoice


def enqueue_invoices(url: str, customers: Iterable[int]) -> None:
    """Enqueue an invoice per customer; this also creates the tables."""
    app, task = open_app(url)
    app.enqueue_many_sync([task.call(customer, "July") for customer in customers])
    app.close_sync()


def send_invoices(url: str) -> None:
    """Run every invoice that is due."""

    async def drain() -> None:
        app, _ = open_app(url)
        async with app:
            await app.worker(drain=True).run()

    asyncio.run(drain())
