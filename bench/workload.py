"""The work that is enqueued, the same for us and for the bare driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import Synchronous
from onejob import App, Unique
from onejob.decide import decide
from onejob.job import View
from onejob.stores.sql.rows import write_job
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.stores.sql.statements import statements
from onejob.tasks import Task

INSERT = statements("sqlite")["insert_job"]

Invoice = Task[[int, str], None]


def open_app(path: Path, synchronous: Synchronous) -> tuple[App, Invoice]:
    """Make an app with one keyed task."""
    app = App(f"sqlite:///{path}?synchronous={synchronous}")

    @app.task(unique=Unique(by="customer_id"))
    async def send_invoice(customer_id: int, note: str) -> None: ...

    return app, send_invoice


def open_bare(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """Make our schema and open it with the bare driver, which commits every statement."""
    SQLiteStore(path).migrate()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


def row_of(task: Task[..., Any], *args: object) -> Sequence[Any]:
    """Make the row that admitting a call to a free key writes."""
    return write_job(decide(task.request(args, {}), View(datetime.now(UTC))).inserts[0])


def rows_of(task: Invoice, customers: Sequence[int]) -> list[Sequence[Any]]:
    """Make the rows that admitting these customers' calls would write."""
    return [row_of(task, customer, "July") for customer in customers]
