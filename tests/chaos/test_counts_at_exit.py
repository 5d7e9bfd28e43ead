"""Absorbed requests are counted when a process ends normally; a silent store delays the end by 2 s."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onejob import App
from onejob.engine.counters import EXIT_LIMIT
from tests.chaos.children import PATIENCE
from tests.chaos.proxy import Proxy, through
from tests.contract.steps import absorbed

SHOP = """
import asyncio, multiprocessing, os, sys, threading
from onejob import App, Unique

app = App(sys.argv[1])

@app.task(unique=Unique(by="n"))
async def mail(n: int) -> None: ...

@app.task(unique=Unique.coalesce(by="n"))
async def tidy(n: int, text: str) -> None: ...

def twice() -> None:
    for text in "ab":
        mail.enqueue_sync(1)
        tidy.enqueue_sync(1, text)
"""

ENDINGS = {
    "blocking code": "twice()",
    "exit code 1": "twice(); sys.exit(1)",
    "an exception": "twice(); raise ValueError",
    "an event loop": """
async def main():
    for text in "ab":
        await mail.enqueue(1)
        await tidy.enqueue(1, text)
asyncio.run(main())
""",
    "a thread that outlives main": "threading.Timer(0.3, twice).start()",
    "a child of multiprocessing": """
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=twice)
    child.start()
    child.join()
""",
    "a spawned child": """
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=twice)
    child.start()
    child.join()
""",
    "a forked child": """
app.stats_sync()
if not os.fork():
    twice()
else:
    os.wait()
""",
}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def start(folder: Path, program: str, url: str) -> subprocess.Popen[str]:
    """Start a program on the shop's app."""
    path = folder / "program.py"
    path.write_text(SHOP + program)
    pipe = subprocess.PIPE
    command = [sys.executable, str(path), url]
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_counts_are_exact_when_a_process_ends(url: str, tmp_path: Path, ending: str) -> None:
    with start(tmp_path, ENDINGS[ending], url) as process:
        process.communicate(timeout=PATIENCE)
    async with App(url) as app:
        assert await absorbed(app) == {"kept": 1, "updated": 1}


@pytest.fixture(params=["postgres", "redis"])
def silent(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str]]:
    with through(request.getfixturevalue(f"{request.param}_url")) as both:
        yield both


def test_a_process_ends_although_the_store_does_not_answer(silent: tuple[Proxy, str], tmp_path: Path) -> None:
    proxy, url = silent
    program = """
twice()
print("ready", flush=True)
sys.stdin.read(1)
from onejob.stores.contract import Tally
for outcome in ("kept", "kept", "stale"):
    app._engine.counters.count(Tally("", "mail", outcome, "job", 1))
"""
    with start(tmp_path, program, url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        proxy.silence(new=True)
        begun = time.monotonic()
        _, errors = process.communicate("x", timeout=PATIENCE)
    assert time.monotonic() - begun < EXIT_LIMIT + 2
    assert process.returncode == 0
    assert "not counted as absorbed: " in errors
    assert "1 stale of mail" in errors
