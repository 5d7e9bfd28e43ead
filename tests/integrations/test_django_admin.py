"""Django's admin in a real browser: its link opens the dashboard that is mounted beside the site."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests import chromium

PROJECT = Path(__file__).parents[2] / "examples" / "django_shop"
PASSWORD = "secret"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Serve the example with a superuser, and return its URL."""
    surroundings = os.environ | {
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
        "SHOP_FOLDER": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for command in (
        ["migrate", "--verbosity", "0"],
        ["createsuperuser", "--noinput", "--username", "ada", "--email", "ada@localhost"],
        ["onejob", "enqueue", "send_invoice", "order_id=7"],
    ):
        subprocess.run([sys.executable, "manage.py", *command], cwd=PROJECT, env=surroundings, check=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serve = [sys.executable, "-m", "uvicorn", "--fd", str(listening.fileno()), "shop.asgi:site"]
        server = subprocess.Popen(serve, cwd=PROJECT, env=surroundings, pass_fds=[listening.fileno()])
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.terminate()
            server.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_link_in_the_admin_opens_the_dashboard(site: str) -> None:
    found = chromium.find()
    assert found is not None, "No browser: run make .venv/.browser, or name one in ONEJOB_TEST_CHROMIUM."

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=list(chromium.FLAGS), env=dict(chromium.environment(found))
        )
        page = browser.new_page()
        page.goto(f"{site}/admin/")
        page.get_by_label("Username").fill("ada")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Dashboard", exact=True).first.click()

        expect(page).to_have_url(f"{site}/jobs/")
        expect(page).to_have_title(re.compile("Overview"))
        page.locator("a[href='/jobs/jobs']").first.click()
        expect(page.get_by_text("send_invoice").first).to_be_visible()
        browser.close()
