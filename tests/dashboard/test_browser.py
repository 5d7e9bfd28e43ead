"""The pages in a real Chromium: light and dark, empty and full, wide and narrow; live and by keyboard."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect, sync_playwright

from onejob import App, Retry, Unique
from onejob.http import dashboard
from onejob.http.serve import make_server
from onejob.stores.memory import MemoryStore
from tests import chromium
from tests.chaos.proxy import through
from tests.dashboard.shop import fill, make_shop

NAMES = (
    *("", "jobs", "dedup", "dedup?by=tasks", "dedup?by=log", "dedup?by=callers", "why", "chains"),
    *("dedup?by=advice", "queues", "workers", "cron", "dead", "system"),
)
SIZES = {"wide": (1280, 800), "narrow": (360, 740)}
AXE = "window.axe.run(document, {resultTypes: ['violations']})"


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


@dataclass
class Site:
    """A dashboard that a thread serves, and its app for the test's own thread."""

    url: str
    app: App
    shots: Path


class Serving:
    """uvicorn in a thread, on a port of its own."""

    def __init__(self, app: App) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._app = app
        self._server = make_server(dashboard(app))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def _serve(self) -> None:
        async with self._app:  # its connections belong to this event loop
            await self._server.serve(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.handle_exit(signal.SIGINT, None)
        self._thread.join()
        self._socket.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: in this one, Playwright has an event loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def blocking(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a blocking variant in a thread: Playwright runs an event loop in the test's own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *args, **options).result()


def served(folder: Path, *, filled: bool) -> Iterator[Site]:
    url = f"sqlite:///{folder / 'jobs.db'}?synchronous=NORMAL"
    own = make_shop(url)
    if filled:
        run(fill_and_close(own))
    theirs = make_shop(url)
    with Serving(theirs) as serving:
        yield Site(serving.url, own, folder)
    own.close_sync()


async def fill_and_close(app: App) -> None:
    async with app:
        await fill(app)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from served(tmp_path_factory.mktemp("empty"), filled=False)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from served(tmp_path_factory.mktemp("full"), filled=True)


@dataclass
class Watched:
    """A page whose errors are collected."""

    page: Page
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", self._fail)

    def _note(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def _fail(self, request: Request) -> None:
        # When a page is left, its stream ends, and so does what it was just asking for to show news.
        in_background = request.resource_type in {"fetch", "xhr"} and request.failure == "net::ERR_ABORTED"
        if "/live?" not in request.url and not in_background:
            self.errors.append(f"{request.url}: {request.failure}")


Open = Callable[..., Watched]


@pytest.fixture
def watch(browser: Browser) -> Iterator[Open]:
    contexts = []

    def opened(url: str, *, scheme: Any = "light", size: str = "wide", **options: Any) -> Watched:
        width, height = SIZES[size]
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": height}, **options
        )
        contexts.append(context)
        watched = Watched(context.new_page())
        watched.page.goto(url)
        return watched

    yield opened
    for context in contexts:
        context.close()


def pages_of(site: Site) -> list[str]:
    """Return all pages, with those of a job, a key and a chain if there are any."""
    jobs = blocking(site.app.jobs_sync, limit=100)
    letter = next((job for job in jobs if job.state == "discarded"), None)
    holder = next((job for job in jobs if job.is_holder and job.key), None)
    linked = next((job for job in jobs if job.blockers), None)
    found = [f"jobs/{letter.id}", f"why?q={letter.id}"] if letter else []
    found += [f"keys/{holder.key.hex()}"] if holder and holder.key else []
    found += [f"chains/{linked.chain_id}"] if linked else []
    return [*NAMES, *found, "why?q=send_invoice order=7", "jobs?q=state:completed"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("content", ["empty", "full"])
def test_every_page_is_clean(
    request: pytest.FixtureRequest, watch: Open, content: str, scheme: str, size: str
) -> None:
    """No error, nothing that the policy forbids, nothing too wide, nothing that axe objects to."""
    site: Site = request.getfixturevalue(content)
    watched = watch(site.url, scheme=scheme, size=size)
    page = watched.page
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    for path in pages_of(site):
        response = page.goto(f"{site.url}/{path}")
        assert response is not None
        assert response.status == 200, path
        page.evaluate("document.fonts.ready")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= SIZES[size][0], (path, width)
        if size == "wide" or scheme == "light":  # colours do not depend on the width
            page.evaluate(axe)
            found = page.evaluate(AXE)["violations"]
            assert [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found] == [], (
                path
            )
        name = path.partition("?")[0].replace("/", "-")[:20] or "overview"
        page.screenshot(path=site.shots / f"{name}-{scheme}-{size}.png", full_page=True)
        assert (site.shots / f"{name}-{scheme}-{size}.png").stat().st_size > 5_000
    assert watched.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_advice_is_readable_with_its_other_policies(watch: Open, tmp_path: Path, scheme: str) -> None:
    for site in served(tmp_path, filled=False):
        calls = [site.app.tasks["fetch"].call(number % 20) for number in range(60)]
        blocking(site.app.enqueue_many_sync, calls)
        blocking(site.app.activity.absorbed_sync)  # writes what was recorded
        watched = watch(f"{site.url}/dedup?by=advice", scheme=scheme)
        page = watched.page
        expect(page.locator(".verdict")).to_contain_text("Unique.coalesce() would have absorbed 40 of 60")
        page.locator("summary", has_text="Other policies for the same key").click()
        expect(page.get_by_role("cell", name="Unique.until_executed()")).to_be_visible()
        page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
        assert page.evaluate(AXE)["violations"] == []
        assert watched.errors == []


LONG = "com.example.billing.reconcile_all_outstanding_subscriptions_of_enterprise_customers"
CLIPPED = """() => [...document.querySelectorAll('.panel')]
    .filter(panel => panel.scrollWidth > panel.clientWidth + 1)
    .map(panel => [panel.innerText.slice(0, 60), panel.scrollWidth, panel.clientWidth])"""


async def store_long_names(app: App) -> list[str]:
    """Put jobs with long names and arguments into the store; return the pages of one job and one key."""
    app.queue(f"queue_of_{LONG}", concurrency=3, rate="100/1m", max_depth=5000)

    @app.cron("30 8 * * 1-5", name=f"schedule_of_{LONG}")
    @app.task(name=LONG, unique=Unique(by="account"), queue=f"queue_of_{LONG}", retry=Retry(attempts=1))
    async def reconcile(account: str = "", comment: str = "") -> None:  # noqa: ARG001 - outside the key
        raise RuntimeError("no such account: " + 300 * "x")

    for number in range(3):
        await reconcile.enqueue(f"{number}-{60 * 'y'}", comment=200 * "words ")
    await app.worker(drain=True).run()
    letter = (await app.jobs(state="discarded"))[0]
    held = (await reconcile.options(delay="1h").enqueue(letter.arguments["account"])).job
    await reconcile.enqueue(letter.arguments["account"])
    assert held.key is not None
    return [f"jobs/{letter.id}", f"keys/{held.key.hex()}", f"dead?task={LONG}", f"why?q={letter.id}"]


@pytest.mark.parametrize("width", [360, 621, 861, 1024, 1360])
def test_no_panel_hides_a_part_of_a_table(watch: Open, width: int) -> None:
    app, own = App(store=MemoryStore()), list[str]()

    async def prepare() -> None:
        own.extend(await store_long_names(app))

    run(prepare())
    with Serving(app) as serving:
        page = watch(serving.url).page
        page.set_viewport_size({"width": width, "height": 800})
        for path in [*NAMES, *own]:
            page.goto(f"{serving.url}/{path}")
            page.evaluate("document.fonts.ready")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            found = [] if path == "dedup?by=tasks" else page.evaluate(CLIPPED)  # that one scrolls
            assert found == [], path


def test_the_present_page_is_visible_in_a_narrow_menu(watch: Open, full: Site) -> None:
    page = watch(f"{full.url}/system", size="narrow").page
    box = page.locator("#nav [aria-current]").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 360 - box["width"]


def test_a_search_is_a_url_and_back_works(watch: Open, full: Site) -> None:
    page = watch(f"{full.url}/jobs").page
    page.keyboard.press("/")
    page.keyboard.type("task:embed")
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-row]")).to_have_count(2)
    assert "q=task%3Aembed" in page.url
    page.go_back()
    assert page.url == f"{full.url}/jobs"


def test_the_search_offers_terms_for_the_last_word(watch: Open, full: Site) -> None:
    page = watch(f"{full.url}/jobs").page
    page.locator("#search").press_sequentially("state:active que")
    offered = page.eval_on_selector_all("#words option", "all => all.map(one => one.value)")
    assert "state:active queue:mail" in offered


def test_the_keyboard_moves_and_opens(watch: Open, full: Site) -> None:
    page = watch(full.url).page
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/dedup")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr:focus-within")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/keys/*")
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).to_be_hidden()


def test_a_page_changes_while_a_worker_runs(watch: Open, tmp_path: Path) -> None:
    for site in served(tmp_path, filled=False):
        watched = watch(f"{site.url}/jobs")
        page = watched.page
        expect(page.locator("#heard")).to_contain_text("live", timeout=15_000)
        page.locator("#search").fill("half typed")
        page.locator("h1").click()
        page.keyboard.press("?")  # what is open stays open
        admission = blocking(site.app.tasks["fetch"].enqueue_sync, 1)
        row = page.locator(f"#job-{admission.job.id}")
        expect(row).to_contain_text("available", timeout=15_000)
        run(site.app.worker(drain=True).run())
        expect(row).to_contain_text("completed", timeout=15_000)
        assert page.locator("#search").input_value() == "half typed"
        expect(page.locator("dialog#keys")).to_be_visible()
        assert watched.errors == []


HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_page_pauses_and_shows_what_it_missed(watch: Open, tmp_path: Path) -> None:
    for site in served(tmp_path, filled=False):
        page = watch(f"{site.url}/jobs").page
        expect(page.locator("#heard")).to_contain_text("live", timeout=15_000)
        page.evaluate(HIDE, True)  # noqa: FBT003 - an argument of the script
        page.wait_for_function("document.getElementById('heard')._htmx.sse.reader === null")
        admission = blocking(site.app.tasks["fetch"].enqueue_sync, 1)
        row = page.locator(f"#job-{admission.job.id}")
        with page.expect_request("**/live*") as again:  # only when it is seen again
            expect(row).to_have_count(0)
            page.evaluate(HIDE, False)  # noqa: FBT003
        assert again.value.headers["last-event-id"]
        expect(row).to_contain_text("available", timeout=15_000)


def test_times_go_on_while_nothing_changes(watch: Open, full: Site) -> None:
    page = watch(full.url).page
    page.clock.install()
    page.goto(f"{full.url}/jobs")
    page.clock.fast_forward("03:00:00")
    expect(page.locator("tr[data-row] time").first).to_contain_text("3\u202fh 0", timeout=15_000)


def test_live_updates_begin_however_late_the_extension_loads(watch: Open, full: Site) -> None:
    page = watch(f"{full.url}/queues").page

    def late(route: Route) -> None:
        page.wait_for_timeout(500)
        route.continue_()

    page.route("**/hx-sse-*", late)
    page.reload()
    expect(page.locator("#heard")).to_contain_text("live", timeout=15_000)


def test_a_live_update_leaves_what_was_opened_and_focused(watch: Open, tmp_path: Path) -> None:
    for site in served(tmp_path, filled=True):
        letter = blocking(site.app.jobs_sync, state="discarded")[0]
        page = watch(f"{site.url}/jobs/{letter.id}").page
        details = page.locator("details.failure")
        details.locator("summary").click()  # the newest is open at first
        assert details.get_attribute("open") is None
        page.locator("#args").focus()
        page.keyboard.type("x")
        page.locator("#args").blur()
        expect(page.locator("#heard")).to_contain_text("live", timeout=15_000)
        count = page.locator("#nav a[href='/jobs'] .count")
        number = int(count.inner_text())
        blocking(site.app.tasks["fetch"].enqueue_sync, 1)
        expect(count).to_have_text(str(number + 1), timeout=15_000)
        assert details.get_attribute("open") is None
        assert "x" in page.locator("#args").input_value()


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_a_store_that_goes_away_and_returns_while_a_page_is_open(
    request: pytest.FixtureRequest, watch: Open, store: str
) -> None:
    with through(request.getfixturevalue(f"{store}_url")) as (proxy, url):
        theirs = make_shop(url, store_timeout=2)
        run(fill_and_close(make_shop(url)))
        with Serving(theirs) as serving:
            page = watch(f"{serving.url}/jobs").page
            expect(page.locator("#heard")).to_contain_text("live", timeout=15_000)
            rows = page.locator("tr[data-row]").count()
            assert rows > 0
            proxy.silence(new=True)
            expect(page.locator("#heard")).to_contain_text("the store does not answer", timeout=30_000)
            assert page.locator("tr[data-row]").count() == rows  # what was shown stays
            response = page.goto(f"{serving.url}/jobs")
            assert response is not None
            assert response.status == 503
            expect(page.locator("main")).to_contain_text("works again as soon as the store answers")
            proxy.heal()
            page.goto(f"{serving.url}/jobs")
            expect(page.locator("tr[data-row]")).to_have_count(rows)
            expect(page.locator("#heard")).to_contain_text("live", timeout=30_000)


def test_a_key_is_released_and_a_dead_letter_replayed(watch: Open, tmp_path: Path) -> None:
    for site in served(tmp_path, filled=True):
        [holder] = blocking(site.app.jobs_sync, task="send_invoice")
        assert holder.key is not None
        watched = watch(f"{site.url}/keys/{holder.key.hex()}")
        page = watched.page
        page.get_by_role("link", name="Release…").click()
        page.get_by_label("Reason").fill("wrong customer")
        page.get_by_role("button", name="Release the key").click()
        expect(page.locator(".note")).to_contain_text("The key is free")
        assert not site.app.is_holding(blocking(site.app.job_sync, holder.id))

        page.goto(f"{site.url}/dead")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("row", name="embed").hover()
        page.get_by_role("button", name="Replay").click()
        expect(page.locator(".note")).to_contain_text("2 replayed")
        assert blocking(site.app.stats_sync).dead == 0
        assert watched.errors == []


def test_the_selected_jobs_are_counted_before_they_are_cancelled(watch: Open, tmp_path: Path) -> None:
    for site in served(tmp_path, filled=True):
        page = watch(f"{site.url}/jobs?q=task:sync_customer").page
        page.locator("input[name=id]").first.check()
        page.get_by_role("button", name="Cancel…").click()
        expect(page.locator("h1")).to_have_text("Cancel 1 job?")
        page.get_by_role("button", name="Cancel 1 job").click()
        expect(page.locator(".note")).to_contain_text("1 job cancelled")


def test_every_page_is_readable_without_javascript(watch: Open, full: Site) -> None:
    page = watch(full.url, java_script_enabled=False).page
    for path in pages_of(full):
        page.goto(f"{full.url}/{path}")
        expect(page.locator("h1")).to_be_visible()
    page.goto(f"{full.url}/queues")
    page.get_by_role("row", name="mail").hover()
    page.get_by_role("button", name="Pause queue mail").click()
    expect(page.locator(".note")).to_contain_text("is paused")
    page.get_by_role("row", name="mail").hover()
    page.get_by_role("button", name="Resume queue mail").click()
    expect(page.locator(".note")).to_contain_text("runs again")
