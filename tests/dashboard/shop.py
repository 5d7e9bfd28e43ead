"""An app with one of everything that the dashboard shows, and a client that asks its pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx2
from starlette.applications import Starlette

from onejob import App, Retry, Unique, chain

HOST = "http://127.0.0.1"
CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')
HUGE = 2**70 + 1

PATHS = (
    *("/", "/jobs", "/dedup", "/dedup?by=tasks", "/why", "/chains", "/queues", "/cron", "/dead"),
    *("/dedup?by=log", "/dedup?by=callers", "/dedup?by=advice", "/workers", "/system", "/system?examine=1"),
)


def make_shop(url: str, namespace: str = "", store_timeout: float = 10) -> App:
    """Declare the tasks."""
    app = App(url, namespace=namespace, store_timeout=store_timeout)
    app.queue("mail", concurrency=3, rate="100/1m", max_depth=50)

    @app.task(queue="sync", unique=Unique.coalesce(by="customer_id"))
    async def sync_customer(customer_id: int, rev: int = 0) -> str:
        return f"{customer_id}.{rev}"

    @app.task(queue="mail", unique=Unique.once(by="order"))
    async def send_invoice(order: int, note: str = "") -> dict[str, int]:  # noqa: ARG001 - outside the key
        return {"order": order, "huge": HUGE}

    @app.task(retry=Retry(attempts=1), unique=Unique(by="entry"))
    async def embed(entry: str, model: str = "small") -> None:  # noqa: ARG001 - outside the key
        raise ValueError(f"{entry} has no text")

    @app.task
    async def fetch(number: int) -> int:
        return number

    @app.task
    async def parse(number: int) -> int:
        return number

    @app.cron("*/5 * * * *", name="nightly")
    @app.task
    async def refresh() -> None: ...

    return app


async def fill(app: App) -> None:
    """Put jobs of every kind into the store."""
    tasks = app.tasks
    await chain(tasks["fetch"].call(1), tasks["parse"].step()).enqueue()
    for entry in ("one", "two"):
        await tasks["embed"].enqueue(entry)
    for _ in range(3):
        await tasks["send_invoice"].enqueue(order=7, note="July")
    await app.worker(drain=True, concurrency=2).run()
    blocker = await tasks["fetch"].options(delay="1h").enqueue(2)
    await tasks["parse"].options(after=[blocker.chain]).enqueue(3)
    for number in range(4):
        for rev in range(3):
            await tasks["sync_customer"].enqueue(number, rev=rev)
    await tasks["fetch"].enqueue(HUGE)
    await app.queues.pause("sync")


class Client:
    """A browser without JavaScript: it follows links, sends forms and keeps cookies."""

    def __init__(self, site: Starlette, base: str = HOST) -> None:
        transport = httpx2.ASGITransport(app=site, raise_app_exceptions=False)
        self.http = httpx2.AsyncClient(transport=transport, base_url=base, headers={"accept": "text/html"})

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """Return a page."""
        return await self.http.get(path, headers=headers)

    async def text(self, path: str) -> str:
        """Return a page that must exist."""
        response = await self.get(path)
        assert response.status_code == 200, (path, response.status_code, response.text[-800:])
        return response.text

    async def post(self, path: str, page: str, **fields: Any) -> str:
        """Send a form of a page, and return the page that it leads to."""
        response = await self.http.post(path, data={"csrf": await self.csrf(page), **fields})
        assert response.status_code == 303, response.text
        return await self.text(response.headers["location"])

    async def csrf(self, page: str) -> str:
        """Return the value that the forms of a page carry."""
        found = CSRF.search((await self.get(page)).text)
        assert found is not None, page
        return found[1]


class Shape(HTMLParser):
    """The elements of a page and the names of their attributes, without any text."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element; links and forms with the scheme of their address."""
        schemes = [
            (value or "").partition(":")[0]
            for name, value in attrs
            if name in {"href", "src", "action"} and ":" in (value or "").partition("?")[0]
        ]
        self.parts.append((tag, tuple(sorted(name for name, _ in attrs)), tuple(schemes)))

    def handle_comment(self, data: str) -> None:
        """Note a comment."""
        self.parts.append(("comment", data))


def shape(html: str) -> list[Any]:
    """Return a page's elements without its text."""
    parser = Shape()
    parser.feed(html)
    parser.close()
    return parser.parts
