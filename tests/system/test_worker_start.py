"""A worker that starts while its server is down waits for it, says so, and ends when it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onejob import App
from tests.chaos.proxy import through
from tests.system.live import eventually

ONEJOB = str(Path(sys.executable).with_name("onejob"))
DOWN = ("postgresql://shop:{}@127.0.0.1:1/shop?connect_timeout=1", "redis://shop:{}@127.0.0.1:1/0")
PASSWORD = "s3cr3t-word"
SHOP = """
from onejob import App

app = App({url!r})


@app.task
def work() -> None: ...
"""


@pytest.mark.parametrize("secret", [None, "k" * 32])  # a secret is compared with the store's at the start
@pytest.mark.parametrize("url", DOWN)
async def test_a_worker_waits_for_a_server_and_says_so(
    url: str, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url.format(PASSWORD), secret=secret, store_timeout=2)

    @app.task
    async def work() -> None: ...

    def warned() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.levelno == logging.WARNING and "trying again in" in record.getMessage()
        ]

    async def twice() -> bool:
        return len(warned()) > 1

    async with app.worker():
        await eventually(twice)
    assert all("127.0.0.1:1" in line for line in warned())
    assert " cannot record that it is alive: " in caplog.text
    assert " cannot make the ticks of schedules: " in caplog.text
    assert " cannot look for jobs whose task it does not have: " in caplog.text
    assert PASSWORD not in caplog.text
    await app.close()


@pytest.mark.parametrize("store", ["postgres", "redis"])
async def test_a_worker_runs_jobs_once_its_server_answers(
    store: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    url: str = request.getfixturevalue(f"{store}_url")
    with through(url) as (proxy, way):
        app, ran = App(way, store_timeout=2), asyncio.Event()

        @app.task
        async def work() -> None:
            ran.set()

        async def warned() -> bool:
            return "trying again in" in caplog.text

        proxy.close()
        async with app.worker(), asyncio.timeout(60):
            await eventually(warned)
            healed = proxy.again()
            await work.enqueue()
            await ran.wait()
        await app.close()
        healed.close()


@pytest.mark.parametrize("url", DOWN)
def test_the_command_waits_until_it_is_stopped(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(url=url.format(PASSWORD)))
    command = [ONEJOB, "worker", "shop:app"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        warning = next(line for line in process.stderr if "trying again in" in line)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    assert " waits for " in first
    assert "WARNING" in warning
    assert "stops: no job is running" in errors
    assert "stopped after" in rest
    assert process.returncode == 0
    assert PASSWORD not in first + warning + rest + errors


@pytest.mark.parametrize("url", [*DOWN, "sqlite:////nowhere/jobs.db"])
def test_a_draining_command_does_not_wait(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(url=url.format(PASSWORD)))
    command = [ONEJOB, "worker", "shop:app", "--drain"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: ")
    assert PASSWORD not in ended.stderr
