"""`onejob tail` and `onejob stats --watch`, in processes of their own: what they print, and how they end."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onejob import App, Retry, Unique
from onejob.cli import main
from onejob.testing import drain
from tests.chaos.proxy import through

ONEJOB = str(Path(sys.executable).with_name("onejob"))
# A process that a shell has started in the background ignores Ctrl-C, and so do its children.
HEEDS_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
COMMAND = (sys.executable, "-c", HEEDS_CTRL_C, ONEJOB)
URL = "sqlite:///jobs.db"
JOB = r"[0-9a-f-]{36}"
CLOCK = r"\d\d:\d\d:\d\d\.\d{3}"


class Shop:
    """An app whose events are followed."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.sync = self.app.task(unique=Unique(by="user"), name="sync")(self._sync)
        self.explode = self.app.task(retry=Retry.never(), name="explode", queue="risky")(self._explode)

    @staticmethod
    async def _sync(user: int, note: str = "") -> str:
        return f"{user} {note}"

    @staticmethod
    async def _explode() -> None:
        raise RuntimeError("boom\x1b[31m")


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEJOB_APP", raising=False)
    shop = Shop(URL)
    async with shop.app:
        shop.app.maintenance.migrate()
        yield shop


def onejob(*args: str, code: int = 0) -> Result:
    """Run a command in a thread of this process, which has no event loop."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(CliRunner().invoke, main, args, catch_exceptions=False, prog_name="onejob")
    result = running.result()
    assert result.exit_code == code, result.output
    return result


@contextmanager
def started(*args: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command whose output is read line by line."""
    process = subprocess.Popen(
        [*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def next_event(process: subprocess.Popen[str]) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(next_line(process))
    return event


async def test_the_last_events_are_printed_as_lines(shop: Shop) -> None:
    first = await shop.sync.enqueue(1)
    await shop.sync.enqueue(1, "newer")
    await shop.explode.enqueue()
    await drain(shop.app)
    cancelled = await shop.explode.enqueue()
    await shop.app.cancel(cancelled.job.id)
    await shop.app.close()  # writes the log

    day, *lines = onejob("tail", URL, "--no-follow").stdout.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d UTC", day)
    key, took = str(first.key)[:12], rf"started {CLOCK}, took \S+"
    kept = r"kept: The same work is already available; the policy keeps it\. Its payload differs\."
    patterns = [
        rf"{CLOCK}  created       sync              {first.job.id}  queue default, key {key}…",
        rf"{CLOCK}  deduplicated  sync              {first.job.id}  {kept} From .*:\d+, process \d+ on .+\.",
        rf"{CLOCK}  created       explode           {JOB}  queue risky",
        rf"{CLOCK}  completed     sync              {JOB}  attempt 1 of 5, {took}",
        rf"{CLOCK}  discarded     explode           {JOB}  failed, {took}: RuntimeError: boom\\x1b\[31m",
        rf"{CLOCK}  created       explode           {cancelled.job.id}  queue risky",
        rf"{CLOCK}  cancelled     explode           {cancelled.job.id}  cancelled",
    ]
    assert len(lines) == len(patterns)
    for pattern in patterns:  # those of the same moment may be in another order
        assert any(re.fullmatch(pattern, line) for line in lines), (pattern, lines)
    assert onejob("tail", URL, "--no-follow", "--limit", "2").stdout.splitlines()[1:] == lines[-2:]


async def test_filters_choose_events(shop: Shop) -> None:
    await shop.sync.enqueue(1)
    duplicate = await shop.sync.enqueue(1)
    await shop.sync.enqueue(2)
    await shop.explode.enqueue()
    await shop.app.close()

    def found(*options: str) -> list[tuple[str, str]]:
        lines = onejob("tail", URL, "--no-follow", "--json", *options).stdout.splitlines()
        events = [json.loads(line) for line in lines]
        return [(event["kind"], event["task"]) for event in events]

    created, kept, exploded = ("created", "sync"), ("deduplicated", "sync"), ("created", "explode")
    assert sorted(found()) == [exploded, created, created, kept]
    assert found("--task", "explode") == found("--queue", "risky") == [exploded]
    assert found("--outcome", "kept") == [kept]
    assert sorted(found("--key", duplicate.key or "")) == [created, kept]
    assert found("--limit", "0") == []
    assert "is not a key" in onejob("tail", URL, "--key", "xyz", code=1).output
    assert "--outcome" in onejob("tail", URL, "--outcome", "lost", code=2).output


async def test_another_process_is_followed_until_ctrl_c(shop: Shop) -> None:
    await shop.sync.enqueue(0)
    with started("tail", URL, "--json", "--limit", "1") as process:
        assert next_event(process)["kind"] == "created"  # from before; the rest is seen as it happens
        job = (await shop.sync.enqueue(1)).job
        assert (created := next_event(process))["kind"] == "created"
        assert created["job"] == job.id
        again = await shop.sync.enqueue(1)
        await shop.app.close()  # writes the log
        duplicate = next_event(process)
        assert (duplicate["kind"], duplicate["outcome"]) == ("deduplicated", "kept")
        assert (duplicate["job"], duplicate["reason"]) == (job.id, again.reason)
        await drain(shop.app)
        ended = {job.id: "", (await shop.app.jobs())[-1].id: ""}
        while not all(ended.values()):
            event = next_event(process)
            assert event["kind"] in {"started", "completed"}
            ended[event["job"]] = event["started_at"] if event["kind"] == "completed" else ""
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


async def test_a_closed_pipe_ends_it(shop: Shop) -> None:
    await shop.sync.enqueue(1)
    for command in (
        ("tail", URL),
        ("stats", URL, "--watch", "0.1"),
        ("stats", URL, "--watch", "0.1", "--json"),
    ):
        with started(*command) as process:
            assert next_line(process)
            assert process.stdout is not None
            process.stdout.close()  # and nothing happens that would be printed
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
            process.stdout = None


@pytest.mark.parametrize("server", ["postgres", "redis"])
async def test_an_outage_of_the_store_is_a_sentence_and_survived(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    shop = Shop(url)
    with through(url) as (proxy, detour):
        async with shop.app:
            await shop.sync.enqueue(1)
            with started("tail", detour, "--json") as process:
                assert process.stderr is not None
                assert next_event(process)["kind"] == "created"
                proxy.close()
                assert re.fullmatch(r".+ Trying again every second\.\n", process.stderr.readline())
                missed = await shop.sync.enqueue(2)
                healed = proxy.again()
                assert process.stderr.readline() == "The store answers again.\n"
                assert next_event(process)["job"] == missed.job.id
                healed.close()


async def test_the_numbers_are_printed_again_and_again(shop: Shop) -> None:
    await shop.sync.enqueue(1)
    with started("stats", URL, "--watch", "0.1", "--json") as process:
        assert next_event(process)["waiting"] == 1
        await shop.sync.enqueue(2)
        while next_event(process)["waiting"] == 1:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    with started("stats", URL, "--watch", "0.1") as process:
        shown = [next_line(process) for _ in range(20)]
        assert shown.count("waiting       2") >= 2
        assert "\x1b" not in "".join(shown)
    assert "--watch" in onejob("stats", URL, "--watch", "soon", code=2).output


async def test_a_terminal_shows_the_numbers_in_place(shop: Shop) -> None:
    await shop.sync.enqueue(1)
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "100", "LINES": "6"}
    with started_on(theirs, "stats", URL, "--watch", "0.1", env=environment) as process:
        shown = read_until(ours, lambda text: text.count("\x1b[H") == 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    os.close(ours)
    first, second = shown.split("\x1b[H")[1:3]
    assert shown.startswith("\x1b[2J")
    for drawn in (first, second):  # the cursor moves to the top, and each line is written over
        assert drawn.startswith("\x1b[1mwaiting")
        assert drawn.endswith("\x1b[J")
        assert drawn.count("\x1b[K\r\n") == 5  # no more than the terminal has


@contextmanager
def started_on(terminal: int, *args: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*COMMAND, *args], stdout=terminal, **options)
    os.close(terminal)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(screen: int, condition: Callable[[str], bool]) -> str:
    shown = ""
    while not condition(shown):
        shown += os.read(screen, 65536).decode()
    return shown
