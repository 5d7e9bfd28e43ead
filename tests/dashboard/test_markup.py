"""150 texts in every field that users write leave every page as it is, in a real Chromium.

All texts are stored at once, so that each list shows all of them. Chromium parses every page, and opens the
lists: the elements must be those of the same pages with plain texts, no script may run, nothing may be loaded
from elsewhere, and the texts must be there to be read.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from onejob import App, Retry, Unique, current
from onejob.engine.presence import WorkerStatus, report
from onejob.http import dashboard
from onejob.stores.memory import MemoryStore
from tests import chromium
from tests.dashboard.shop import Client
from tests.dashboard.test_browser import Serving, run

pytestmark = pytest.mark.timeout(600)  # a browser on a machine that has other work

SEEDS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    '" onmouseover=alert(1) x="',
    "' autofocus onfocus=alert(1) x='",
    "javascript:alert(1)",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<!--<img src=x onerror=alert(1)>",
    "]]><script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "${alert(1)}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<a href=javascript:alert(1)>x</a>",
    "<form action=//evil.example><button>x",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "\u2028<script>alert(1)</script>",
)
WRAPS = ("{}", "a{}", "{}z", "\\{}", " {} ", "\n{}\r\n")


def payloads() -> Iterator[str]:
    """Return 150 texts that would change a page if they were not escaped."""
    for wrap in WRAPS:
        for seed in SEEDS:
            yield wrap.replace("{}", seed)


LISTS = (
    *(
        "/",
        "/jobs",
        "/jobs?q=state:discarded",
        "/jobs?q=state:cancelled",
        "/dedup",
        "/dedup?by=tasks",
        "/why",
    ),
    *(
        "/dedup?by=log",
        "/dedup?by=callers",
        "/dedup?by=advice",
        "/chains",
        "/queues",
        "/cron",
        "/dead",
        "/workers",
        "/system",
    ),
)
ECHOES = (
    *("/jobs?q={}", "/jobs?q=colour:{}", "/jobs?q=task:{}", "/why?q={}", "/dead?task={}&error={}"),
    *("/jobs/{}", "/{}"),
)
# The elements of a page and how many there are: what is inside what, which attributes, where links lead.
SHAPE = """html => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const found = {};
    for (const element of page.querySelectorAll("*")) {
        const links = ["href", "src", "action"].map(name => element.getAttribute(name) ?? "");
        const shown = [
            element.parentElement?.tagName, element.tagName, ...element.getAttributeNames().sort(),
            ...links.map(link => /^\\s*([a-z]+):/i.exec(link)?.[1]),
        ].join(" ");
        found[shown] = (found[shown] ?? 0) + 1;
    }
    const typed = [...page.querySelectorAll("input, textarea")].map(one => one.value);
    return [found, [page.documentElement.textContent, ...typed].join(" ").replace(/\\s+/g, " ")];
}"""


def name_of(text: str, number: int) -> str:
    """Return a text as the app accepts it as a name."""
    return f"{''.join(filter(str.isprintable, text))} {number}"


@dataclass
class Stored:
    """An app whose jobs have texts in every field, and the pages of each text."""

    app: App
    pages: list[list[str]]  # of each text: its job, its key, what is asked about it


async def store(texts: list[str]) -> Stored:
    """Put every text into every field."""
    app = App(store=MemoryStore())
    pages = []
    for number, text in enumerate(texts):
        pages.append(await store_one(app, number, text))
    await app.worker(drain=True, concurrency=50).run()
    await app.stats()
    return Stored(app, pages)


async def store_one(app: App, number: int, text: str) -> list[str]:
    name = name_of(text, number)
    app.queue(f"queue {name}")
    source = "def call(act, *args):\n    return act(*args)\n"
    scope: dict[str, Any] = {"__name__": "shop"}
    exec(compile(source, f"line {name}", "exec"), scope)  # noqa: S102 - its file has the text as its name

    def fail(_argument: str) -> None:
        current().progress(0.5, f"progress {text}")
        raise ValueError(f"error {text}")

    async def failing(text: str) -> None:
        scope["call"](fail, text)

    task = app.task(
        name=f"task {name}", queue=f"queue {name}", unique=Unique(by="text"), retry=Retry(attempts=1)
    )(failing)
    keyed = app.task(name=f"keyed {name}", unique=Unique(key=f"key {name}"), queue="later")(failing)
    app.cron("0 3 * * *", name=f"schedule {name}")(app.task(name=f"tick {name}")(failing_tick))
    letter = await task.options(meta={f"meta {text}": f"value {text}"}).enqueue(f"argument {text}")
    held = await keyed.options(delay="1h").enqueue(f"argument {text}")
    await scope["call"](keyed.enqueue, f"other {text}")
    cancelled = await task.options(delay="1h").enqueue(f"cancelled {text}")
    await app.cancel(cancelled.job.id, reason=f"reason {text}")
    released = await task.options(delay="1h").enqueue(f"released {text}")
    assert released.key is not None
    await app.release(released.key, job=released.job.id, reason=f"released because {text}")
    now = datetime.now(UTC)
    status = WorkerStatus(
        name=f"worker {name}",
        host=f"host {text}",
        process=1,
        version=f"version {text}",
        started_at=now,
        seen_at=now,
        queues={f"queue {name}": 1},
        tasks=[f"task {name}"],
        running=[letter.job.id],
        concurrency=1,
    )
    await report(app._engine, status)
    asked = quote(f"{shlex.quote(keyed.name)} text={shlex.quote(text)}", safe="")
    return [
        *(f"/jobs/{job.id}" for job in (letter.job, held.job, cancelled.job)),
        *(f"/keys/{held.key}", f"/keys/{released.key}", f"/why?q={letter.job.id}", f"/why?q={asked}"),
        *(path.replace("{}", quote(text, safe="")) for path in ECHOES),
    ]


async def failing_tick() -> None: ...


# ── the pages in Chromium ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = chromium.find()
    assert found is not None, "No browser: run make .venv/.browser, or name one in ONEJOB_TEST_CHROMIUM."
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found, args=list(chromium.FLAGS), env=dict(chromium.environment(found))
        )
        yield launched
        launched.close()


@pytest.fixture
def parser(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@dataclass
class Parsed:
    """A page as Chromium understands it."""

    status: int
    elements: Counter[str]
    text: str


def parse(parser: Page, pages: list[tuple[int, str]]) -> list[Parsed]:
    """Let Chromium parse pages, several at a time."""
    found: list[Parsed] = []
    for at in range(0, len(pages), 100):
        some = pages[at : at + 100]
        shapes = parser.evaluate(f"pages => pages.map({SHAPE})", [html for _, html in some])
        for (status, _), (elements, text) in zip(some, shapes, strict=True):
            found.append(Parsed(status, Counter(elements), text))
    return found


async def fetch(stored: Stored, few: int | None) -> tuple[list[tuple[int, str]], list[list[tuple[int, str]]]]:
    """Return the lists, and the pages of each text."""
    client = Client(dashboard(stored.app))

    async def page(path: str) -> tuple[int, str]:
        response = await client.get(path)
        return response.status_code, response.text

    lists = [await page(path) for path in LISTS]
    pages = stored.pages if few is None else stored.pages[:few]
    return lists, [[await page(path) for path in some] for some in pages]


def both(texts: list[str]) -> tuple[Stored, Stored, list[Any]]:
    """Return an app with texts and one with as many plain ones, and the pages of both."""
    found: list[Any] = []

    async def prepare() -> None:
        for some, few in ((texts, None), ([f"plain {number}" for number in range(len(texts))], 1)):
            stored = await store(some)
            found.append((stored, await fetch(stored, few)))

    run(prepare())
    (odd, odd_pages), (plain, plain_pages) = found
    return odd, plain, [odd_pages, plain_pages]


OWN = 7  # pages of each text that show what is stored; the others repeat what was asked


def test_150_texts_in_every_field_leave_the_pages_as_they_are(browser: Browser, parser: Page) -> None:
    texts = list(payloads())
    assert len(set(texts)) == 150
    odd, plain, [(odd_lists, odd_pages), (plain_lists, plain_pages)] = both(texts)
    try:
        lists, known = parse(parser, odd_lists), set[str]()
        for path, found, expected in zip(LISTS, lists, parse(parser, plain_lists), strict=True):
            # How many requests are recorded for advice depends on their rate, and so does the number of rows.
            kind: Callable[[Counter[str]], object] = set if path.endswith("by=advice") else Counter
            assert (found.status, kind(found.elements)) == (expected.status, kind(expected.elements)), path
            known |= set(expected.elements)
        expected_pages = parse(parser, plain_pages[0])
        known.update(*(one.elements for one in expected_pages))
        known.update(*(one.elements for one in parse(parser, run_value(misunderstood(plain.app)))))
        every, size = parse(parser, [page for pages in odd_pages for page in pages]), len(expected_pages)
        listed = " ".join(one.text for one in lists)
        for number, text in enumerate(texts):
            own = every[number * size : (number + 1) * size]
            check_elements(text, own, expected_pages, known)
            check_fields(text, name_of(text, number), " ".join([*(one.text for one in own), listed]))
        open_lists(browser, odd)
    finally:
        run(odd.app.close())
        run(plain.app.close())


async def misunderstood(app: App) -> list[tuple[int, str]]:
    """Return pages with every kind of problem, and no text of a user."""
    client = Client(dashboard(app))
    paths = ("/jobs?q='", "/why?q='", "/why?q=x y", "/why?q=1234", "/jobs?q=task:", "/nonsense")
    answers = [await client.get(path) for path in paths]
    return [(answer.status_code, answer.text) for answer in answers]


def run_value(work: Any) -> Any:
    """Run a coroutine in another thread, and return its value."""
    found: list[Any] = []

    async def keep() -> None:
        found.append(await work)

    run(keep())
    return found[0]


def check_elements(text: str, found: list[Parsed], plain: list[Parsed], known: set[str]) -> None:
    """Check that the pages of a text have the elements of plain pages."""
    for number, (one, expected) in enumerate(zip(found, plain, strict=True)):
        if number < OWN:
            assert (one.status, one.elements) == (expected.status, expected.elements), (text, number)
        assert set(one.elements) <= known, (text, number, set(one.elements) - known)


def check_fields(text: str, name: str, seen: str) -> None:
    """Check that the text can be read in every field: nothing was left out."""
    for field, value in [*((field, text) for field in TEXTS), *((field, name) for field in NAMES)]:
        whole = f"{field} {value}"
        written = (whole, json.dumps(whole, ensure_ascii=False)[1:-1], repr(whole)[1:-1])
        assert any(" ".join(one.split()) in seen for one in written), (field, value)


TEXTS = ("argument", "meta", "value", "error", "progress", "reason", "released because", "version")
NAMES = ("task", "queue", "schedule", "worker", "line", "key")


def open_lists(browser: Browser, stored: Stored) -> None:
    """Open pages as a user does: nothing runs, nothing is loaded from elsewhere, nothing is forbidden."""
    noticed: list[str] = []
    with Serving(stored.app) as serving:
        page = browser.new_page()
        page.on("dialog", lambda dialog: noticed.append(dialog.message))
        page.on("console", lambda message: noticed.append(message.text))
        page.on(
            "request",
            lambda request: noticed.append(request.url) if not request.url.startswith(serving.url) else None,
        )
        for path in [*LISTS, *stored.pages[0][:OWN], *stored.pages[5][:OWN]]:
            page.goto(f"{serving.url}{path}")
        page.close()
    assert [one for one in noticed if "status of 40" not in one] == []


def test_150_namespaces_leave_a_page_as_it_is(parser: Page) -> None:
    names = [name_of(text, number) for number, text in enumerate(payloads())]

    async def pages() -> list[tuple[int, str]]:
        shared, found = MemoryStore(), []
        for name in ("plain", *names):
            response = await Client(dashboard(App(store=shared, namespace=name))).get("/workers")
            found.append((response.status_code, response.text))
        return found

    plain, *odd = parse(parser, run_value(pages()))
    for name, page in zip(names, odd, strict=True):
        assert (page.status, page.elements) == (200, plain.elements), name
        assert f"namespace {' '.join(name.split())}" in page.text


def test_the_texts_would_be_noticed(parser: Page) -> None:
    plain, *odd = parse(parser, [(200, f"<p>{text}</p>") for text in ("plain", *islice(payloads(), 3))])
    assert all(page.elements != plain.elements for page in odd)
