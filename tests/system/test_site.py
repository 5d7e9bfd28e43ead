"""The site: pictures from the real decisions, a strict build, and pages that ask no other host."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml  # type: ignore[import-untyped]
from playwright.sync_api import sync_playwright

import onejob
from onejob import errors, testing
from tests import chromium
from tools import site, timelines

pytestmark = pytest.mark.timeout(600)  # the site is built, and a browser opens its pages

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_those_of_the_real_decisions() -> None:
    stored = {path.name: path.read_text() for path in timelines.FOLDER.glob("*.svg")}

    assert stored == timelines.pictures(), "run python -m tools.timelines"


def test_every_error_is_explained() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    defined = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.OnejobError)
    }

    assert set(re.findall(r"^## `(\w+)`$", page, re.MULTILINE)) == defined


def test_every_public_name_has_its_docstring_on_the_api_page() -> None:
    described = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    names = {name for name in onejob.__all__ if not is_error(getattr(onejob, name))} - {"unique"}  # Fluent
    kit = {name for name in testing.__all__ if not name.endswith("_sync")}

    assert {f"onejob.{name}" for name in names} - described == set()
    assert {f"onejob.testing.{name}" for name in kit} - described == set()


def is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, errors.OnejobError)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def built() -> Iterator[str]:
    """Build the site strictly and serve it."""
    run = subprocess.run(
        [sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site.SITE)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def foreign(url: str, own: str) -> list[str]:
    return [] if url.startswith(own) else [url]


def test_pages_open_and_ask_no_other_host(built: str) -> None:
    pages = sorted(path.relative_to(site.SITE).as_posix() for path in site.SITE.rglob("*.html"))
    pages = [name for name in pages if not name.startswith("adr/0") or "0001" in name]  # one ADR
    found, complaints = chromium.find(), list[str]()
    assert found is not None, "No browser: run make .venv/.browser, or name one in ONEJOB_TEST_CHROMIUM."
    assert len(pages) > 45

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=list(chromium.FLAGS), env=dict(chromium.environment(found))
        )
        page = browser.new_page()
        page.on("request", lambda request: complaints.extend(foreign(request.url, built)))
        page.on("console", lambda message: complaints.extend([message.text] * (message.type == "error")))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for name in pages:
            answer = page.goto(f"{built}/{name}")
            assert answer is not None
            assert answer.ok, name
            assert page.locator("h1").count() >= 1, name
        browser.close()

    assert complaints == []


def test_assistants_get_every_page_of_the_navigation(built: str) -> None:
    assert built
    paths = [path for _, path in site.listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])]
    listing, whole = (site.SITE / "llms.txt").read_text(), (site.SITE / "llms-full.txt").read_text()

    for path in paths:
        assert f"]({site.address(path)})" in listing
        assert (site.SITE / site.address(path)).exists()
        assert f"<!-- {path} -->" in whole
    assert "\n::: " not in whole
    assert "Wait for the job that serves this request" in whole  # a docstring


def test_every_page_has_a_place_in_the_navigation() -> None:
    listed = {path for _, path in site.listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])}
    commented = set(re.findall(r"^ +# +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}

    assert {page for page in pages if not page.startswith("adr/0")} - listed - commented == set()
