"""`onejob serve` and `onejob demo --serve` as real processes, and what is said where a package is missing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

ONEJOB = str(Path(sys.executable).with_name("onejob"))
SHOP = """
from onejob import App, Unique

app = App("sqlite:///jobs.db")

@app.task(unique=Unique(by="customer_id"))
async def send_invoice(customer_id: int) -> None: ...

send_invoice.enqueue_sync(7)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that goes on until it is interrupted."""
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [ONEJOB, *words],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(port: int, path: str, process: subprocess.Popen[str], **headers: str) -> httpx2.Response:
    """Ask until the server listens."""
    deadline = time.monotonic() + 40
    while True:
        try:
            return httpx2.get(f"http://127.0.0.1:{port}{path}", headers=headers)
        except httpx2.ConnectError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ONEJOB, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_serve_shows_the_app_and_stops_on_an_interrupt_while_a_page_is_open(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    port = free_port()
    with running(tmp_path, "serve", "shop:app", "--port", str(port)) as process:
        assert "send_invoice" in answer(port, "/jobs", process).text
        with httpx2.stream("GET", f"http://127.0.0.1:{port}/live") as stream:
            assert "event: changed" in next(stream.iter_text())  # this client has seen no page
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            process.wait(10)
        assert time.monotonic() - began < 8
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert f"http://127.0.0.1:{port}/" in process.stdout.read()


def test_serve_asks_for_the_token_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.setenv("ONEJOB_TOKEN", "secret")
    port = free_port()
    with running(tmp_path, "serve", "shop:app", "--host", "0.0.0.0", "--port", str(port)) as process:  # noqa: S104 - with a token
        assert answer(port, "/jobs", process).status_code == 401
        assert answer(port, "/jobs", process, authorization="Bearer secret").status_code == 200


def test_a_port_that_is_taken_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run(tmp_path, "serve", "shop:app", "--json", "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 1
    assert "Nothing can listen at 127.0.0.1 port" in refused.stderr
    assert "Write another --port" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_serve_refuses_an_address_that_others_reach(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    refused = run(tmp_path, "serve", "shop:app", "--host", "0.0.0.0")  # noqa: S104 - refused
    assert refused.returncode == 1
    assert refused.stderr.strip() == (
        "Error: 0.0.0.0 can be reached by others, and no token is set: write --token, or --host 127.0.0.1."
    )


def test_the_demo_leaves_the_dashboard_open(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, "demo", "--serve", "--port", str(port)) as process:
        page = answer(port, "/dedup", process).text
        assert re.search(r'<dt>Absorbed</dt><dd class="figure">9\d\d</dd>', page)
        assert '<option value="' in answer(port, "/why", process).text  # its tasks are known


def test_the_demo_prints_json_or_serves(tmp_path: Path) -> None:
    refused = run(tmp_path, "demo", "--serve", "--json")
    assert refused.returncode == 2
    assert "exclude each other" in refused.stderr


def test_a_missing_package_gets_a_sentence_and_the_core_needs_none() -> None:
    script = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {"starlette", "uvicorn"} else find(name, *rest)
import onejob, onejob.http
from onejob import App
from onejob.errors import InvalidCall
try:
    onejob.http.dashboard(App("memory://"))
except InvalidCall as error:
    print(error)
print({"starlette", "jinja2", "uvicorn"}.isdisjoint(sys.modules))
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [
        "The dashboard needs starlette, uvicorn: install it with pip install 'onejob[dashboard]'.",
        "True",
    ]
