"""What a worker logs for operators: retries, ends, blocked loops; as text and as JSON, without arguments."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onejob import App, Retry, Unique
from onejob.testing import Clock, MemoryStore, drain

ONEJOB = str(Path(sys.executable).with_name("onejob"))
FIELDS = ("job", "task", "queue", "key", "attempt")
PRIVATE = "ada@example.org"
SHOP = f"""
from onejob import App, Retry

app = App("sqlite:///jobs.db")


@app.task(retry=Retry(attempts=1))
async def fail(mail: str) -> None:
    raise ValueError("no luck\\n2026-01-01 00:00:00,000 ERROR onejob: forged")


@app.task(retry=Retry(attempts=1), process=True)
def fail_elsewhere(mail: str) -> None:
    raise ValueError("no luck\\n2026-01-01 00:00:00,000 ERROR onejob: forged")


if __name__ == "__main__":
    fail.enqueue_sync("{PRIVATE}")
    fail_elsewhere.enqueue_sync("{PRIVATE}")
"""


def lines_about_jobs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "onejob" and "job " in record.message]


async def test_a_retry_is_a_warning_and_the_end_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="onejob")
    clock = Clock()
    async with App(store=MemoryStore(clock=clock)) as app:

        @app.task(unique=Unique(), retry=Retry(attempts=2, base=1, jitter=0))
        async def fail(mail: str) -> None:
            raise ValueError("no\nluck" if mail else "")

        job = (await fail.enqueue(PRIVATE)).job
        await drain(app)
        clock.advance("1m")
        await drain(app)
    retry, end = lines_about_jobs(caplog)
    assert retry.levelno == logging.WARNING
    wanted = f"job {job.id} (fail) failed, attempt 1 of 2: ValueError: no\\nluck; again in 1 s"
    assert retry.message == wanted
    assert (retry.exc_info, end.levelno) == (None, logging.ERROR)
    assert isinstance(end.exc_info and end.exc_info[1], ValueError)
    ended = r"ended discarded after 2 attempts and 0\.\d+ s: ValueError: no\\nluck"
    assert re.fullmatch(rf"job {job.id} \(fail, key \w+\) {ended}", end.message)
    assert job.key is not None
    for record, attempt in (retry, 1), (end, 2):
        fields = [vars(record)[name] for name in FIELDS]
        assert fields == [job.id, "fail", "default", job.key.hex(), attempt]
        assert vars(record)["duration"] < 5
    assert PRIVATE not in caplog.text


async def test_the_end_of_a_run_has_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="onejob")
    async with App("memory://") as app:
        await app.task(name="use")(len).enqueue("a")
        await drain(app)
    [end] = lines_about_jobs(caplog)
    assert end.levelno == logging.DEBUG
    assert re.fullmatch(r"job \S+ \(use\), attempt 1: completed after 0\.\d{3} s", end.message)


async def test_a_handler_that_blocks_the_loop_is_named_while_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with App("memory://") as app:

        def named() -> list[logging.LogRecord]:
            return [record for record in caplog.records if "blocks the event loop" in record.message]

        @app.task
        async def block() -> None:
            ends = time.monotonic() + 20
            while not named() and time.monotonic() < ends:
                time.sleep(0.05)  # noqa: ASYNC251 - this is what the warning is about

        @app.task
        async def behave() -> None:
            await asyncio.sleep(0)

        await behave.enqueue()
        job = (await block.enqueue()).job
        await drain(app)
        [warning] = named()
    assert f"job {job.id} (block) blocks the event loop for 1." in warning.message
    assert vars(warning)["task"] == "block"


async def test_a_loop_that_waits_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    async with App("memory://") as app:

        @app.task
        async def wait() -> None:
            await asyncio.sleep(1.6)

        await wait.enqueue()
        await drain(app)
    assert "blocks the event loop" not in caplog.text


# ── the command ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True)
    return tmp_path


def log_of(folder: Path, *options: str, **variables: str) -> list[str]:
    command = [ONEJOB, "worker", "shop:app", "--drain", "--verbose", *options]
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return ran.stderr.splitlines()


def test_lines_for_people_cannot_be_forged(shop: Path) -> None:
    lines = log_of(shop)
    assert sum("ended discarded after 1 attempt" in line for line in lines) == 2
    assert any(line.startswith("    Traceback") for line in lines)
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert not any(PRIVATE in line for line in lines)


@pytest.mark.parametrize("by", ["option", "variable"])
def test_lines_for_programs_are_json(shop: Path, by: str) -> None:
    options = ["--log-format", "json"] if by == "option" else []
    variables = {} if by == "option" else {"ONEJOB_LOG_FORMAT": "json"}
    lines: list[dict[str, Any]] = [json.loads(line) for line in log_of(shop, *options, **variables)]
    ends = {line["task"]: line for line in lines if line["level"] == "ERROR"}
    assert ends.keys() == {"fail", "fail_elsewhere"}
    end = ends["fail"]
    assert end.keys() == {
        *("time", "level", "logger", "message", "job", "task", "queue", "attempt", "duration"),
        *("error", "traceback"),
    }
    assert (end["logger"], end["queue"], end["attempt"], end["error"]) == (
        "onejob",
        "default",
        1,
        "ValueError",
    )
    assert "Traceback" in ends["fail_elsewhere"]["message"]
    assert PRIVATE not in str(lines)
