"""The work that is enqueued, the same for us and for the bare driver, whatever the store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from onejob import App, Unique
from onejob.decide import decide
from onejob.job import Job, View
from onejob.tasks import Task

Invoice = Task[[int, str], None]


def open_app(url: str) -> tuple[App, Invoice]:
    """Make an app with one keyed task."""
    app = App(url)

    @app.task(unique=Unique(by="customer_id"))
    async def send_invoice(customer_id: int, note: str) -> None: ...

    return app, send_invoice


def job_of(task: Task[..., Any], *args: object) -> Job:
    """Make the job that admitting a call to a free key writes."""
    return decide(task.request(args, {}), View(datetime.now(UTC))).inserts[0]


def jobs_of(task: Invoice, customers: Iterable[int]) -> list[Job]:
    """Make the jobs that admitting these customers' calls would write."""
    return [job_of(task, customer, "July") for customer in customers]
