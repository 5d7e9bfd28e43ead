"""`onejob top` in a real pseudo-terminal: what it draws, its keys, its size, and how it leaves."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from onejob import App, Percentiles, Retry, Times, Timings, Unique
from onejob.cli.picture import LastMinute, Picture, Reader
from onejob.cli.store import times_of
from onejob.cli.top_view import View, bars, draw, shares
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock, drain
from tests.chaos.proxy import through

ONEJOB = str(Path(sys.executable).with_name("onejob"))
URL = "sqlite:///jobs.db"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# A process that a shell has started in the background ignores Ctrl-C, and so do its children.
IN_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.login_tty(0)
os.execv(sys.argv[1], sys.argv[1:])
"""
FRAME = re.compile(r"\x1b\[H(.*?)\x1b\[K\x1b\[J", re.DOTALL)


def declare(app: App) -> Any:
    """Declare tasks, and return the first."""

    @app.task(unique=Unique(by="user"), queue="mail")
    async def sync(user: int) -> int:
        return user

    @app.task(retry=Retry.never())
    async def explode() -> None:
        raise RuntimeError("boom")

    for number in range(30):

        @app.task(name=f"task_{number:02}_with_a_name_that_is_long_for_a_terminal", queue=f"queue_{number}")
        async def idle() -> None: ...

    return sync


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """Return an app with a dead letter, a held key that absorbed two requests, and many tasks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEJOB_APP", raising=False)
    async with App(URL) as app:
        sync = declare(app)
        await app.task_named("explode").enqueue()
        await app.enqueue_many([task.call() for name, task in app.tasks.items() if name.startswith("task_")])
        await drain(app)
        for user in (1, 2, 2, 2):
            await sync.enqueue(user)
        await app.absorbed()  # writes the counters
        yield app


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("height", [16, 24, 60])
async def test_a_picture_fits_the_terminal(app: App, width: int, height: int) -> None:
    picture = await Reader(app).read()
    for view in (View(), View().next_order(), View().toggle_busy()):
        lines = [click.unstyle(line) for line in draw(picture, view, "shop:app", width=width, height=height)]
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        assert all(any(line.startswith(title) for line in lines) for title in ("QUEUE", "TASK", "HELD BY"))
        assert lines[-1].startswith("q leave")


async def test_a_picture_says_what_happens(app: App) -> None:
    shown = "\n".join(map(click.unstyle, draw(await Reader(app).read(), View(), "shop:app", width=100)))
    assert re.search(r"^waiting 2  running 0  dead 1  keys waiting 2  workers 0$", shown, re.MULTILINE)
    assert re.search(r"^1 min: created 33  absorbed 2  ended 31  ", shown, re.MULTILINE)
    assert re.search(r"^mail +2 +0 +\S+ +0\.0$", shown, re.MULTILINE)
    assert re.search(r"^sync +2 +0 +0 +2  kept:2$", shown, re.MULTILINE)
    assert re.search(r"^explode +1 +0 +1 +\S+ +0$", shown, re.MULTILINE)
    first, second = re.findall(r"^sync +[0-9a-f]{12}…  available +(\d)$", shown, re.MULTILINE)
    assert (first, second) == ("2", "0")
    assert "No worker has reported." in shown


async def test_the_busiest_holder_is_shown_however_many_keys_are_held(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.cli.picture.HOLDS", 1)
    newest = await app.task_named("sync").enqueue(3)
    held = (await Reader(app).read()).holds
    assert [number for _, number in held] == [2, 0]
    assert held[1][0].id == newest.job.id


async def test_a_task_whose_first_run_goes_on_has_no_percentile_of_runs() -> None:
    waited, no_run = Percentiles(1, 2.0, 2.0, 2.0), Percentiles(0, 0.0, 0.0, 0.0)
    timings = {window: Timings({"sync": Times(waited, no_run)}, {}) for window in ("5m", "1h")}
    stats = replace(await App("memory://").stats(), absorbed={"sync": {"kept": 1}}, timings=timings)
    picture = Picture(datetime.now(UTC), stats, (), (), LastMinute())
    assert re.search(
        r"^sync +0 +0 +0 +1  kept:1$", "\n".join(draw(picture, View(), "", width=80)), re.MULTILINE
    )
    assert times_of(stats)[0] == ("task sync", "5m", 0, "2s", "2s", "2s", "", "", "")


async def test_rows_are_sorted_and_filtered(app: App) -> None:
    picture = await Reader(app).read()

    def first_task(view: View) -> str:
        lines = [click.unstyle(line) for line in draw(picture, view, "", width=200)]
        start = next(number for number, line in enumerate(lines) if line.startswith("TASK"))
        return lines[start + 1].split()[0]

    view = View()
    assert first_task(view) == "explode"
    assert first_task(view.next_order()) == "sync"  # by waiting
    assert view.next_order().next_order().next_order().next_order() == view
    quiet = Picture(picture.at, await App("memory://").stats(), (), (), LastMinute())
    assert draw(quiet, View(busy_only=True), "", width=80)[-1] == "No key is held."


def test_bars_grow_with_numbers() -> None:
    assert bars([0, 1, 4, 8], 10) == " ▁▄█"
    assert bars([1, 1, 2, 2] * 10, 20) == "▄█" * 10
    assert bars([0] * 60, 60) == " " * 60
    assert bars([1] * 60, 9) == ""


def test_tables_share_the_height() -> None:
    assert shares([10, 1, 0, 3], 10) == [5, 1, 1, 3]
    assert shares([1, 1, 1, 1], 100) == [1, 1, 1, 1]
    assert shares([9, 9, 9, 9], 2) == [1, 1, 1, 1]
    assert shares([3, 0], None) == [3, 1]


# ── without a terminal ────────────────────────────────────────────────────────────────────────────


def onejob(*args: str, code: int = 0) -> str:
    done = subprocess.run([ONEJOB, *args], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout


async def test_without_a_terminal_one_picture_is_printed(app: App) -> None:
    assert app.url == URL
    shown = onejob("top", URL)
    assert "\x1b" not in shown
    assert shown.startswith(f"onejob top  {URL}  ")
    assert "q leave" not in shown
    found = json.loads(onejob("top", URL, "--json"))
    assert found["stats"]["by_task"]["sync"]["available"] == 2
    assert found["last_minute"]["created"] == 33
    assert len(found["last_minute"]["ended_by_second"]) == 60
    assert [hold["absorbed"] for hold in found["holds"]] == [2, 0]
    assert onejob("top", URL, "--interval", "0s", code=2) == ""


# ── in a terminal ─────────────────────────────────────────────────────────────────────────────────


class Terminal:
    """A command in a pseudo-terminal, and what it has drawn."""

    def __init__(self, *args: str, columns: int = 80, lines: int = 24, **environment: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.theirs)
        kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, ONEJOB, *args],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=kept | environment,
        )
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def frame(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Read until a frame that is drawn from now on fits a condition."""
        seen = len(FRAME.findall(self.shown))
        while True:
            for drawn in FRAME.findall(self.shown)[seen:]:
                seen += 1
                lines = [click.unstyle(line) for line in drawn.split("\x1b[K\r\n")]
                if condition(lines):
                    return lines
            self.shown += os.read(self.ours, 65536).decode()

    def end(self) -> int:
        """Read the rest, and return the exit code."""
        os.set_blocking(self.ours, False)
        code = self.process.wait(20)
        while True:
            try:
                self.shown += os.read(self.ours, 65536).decode()
            except BlockingIOError:
                return code


@contextmanager
def opened(*args: str, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(*args, **options)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.ours)
        os.close(terminal.theirs)


def assert_restored(terminal: Terminal) -> None:
    assert terminal.shown.startswith(ENTER)
    assert terminal.shown.endswith(LEAVE)
    assert termios.tcgetattr(terminal.theirs) == terminal.before


async def test_the_picture_follows_the_store_and_q_leaves(app: App) -> None:
    with opened("top", URL, "--interval", "0.1s") as terminal:
        first = terminal.frame(lambda lines: len(lines) == 24)
        assert "waiting 2  running 0  dead 1" in first[1]
        assert not termios.tcgetattr(terminal.theirs)[3] & termios.ICANON  # keys need no Enter
        await app.task_named("sync").enqueue(3)
        terminal.frame(lambda lines: "waiting 3 " in lines[1])
        terminal.press("q")
        assert terminal.end() == 0
        assert_restored(terminal)
        assert "\x1b[2J" not in terminal.shown  # the screen is never cleared: nothing flickers


@pytest.mark.parametrize("way", ["ctrl-c", "sigterm"])
async def test_other_ways_to_leave_restore_the_terminal(app: App, way: str) -> None:
    assert app.url == URL
    with opened("top", URL) as terminal:
        terminal.frame(lambda lines: len(lines) == 24)
        if way == "ctrl-c":
            terminal.press("\x03")
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
        assert_restored(terminal)


async def test_keys_sort_and_filter_at_once(app: App) -> None:
    assert app.url == URL
    with opened("top", URL, "--interval", "1h") as terminal:  # so that only keys draw
        terminal.frame(lambda lines: "by name" in lines[0])
        terminal.press("s")
        assert terminal.frame(lambda lines: "by waiting" in lines[0])[-1].startswith(
            "q leave  s sort by running"
        )
        terminal.press("f")
        terminal.frame(lambda lines: lines[0].endswith("by waiting, busy only"))
        terminal.press("xQ")
        assert terminal.end() == 0


async def test_a_resize_draws_at_once_in_the_new_size(app: App) -> None:
    assert app.url == URL
    with opened("top", URL, "--interval", "1h") as terminal:
        wide = terminal.frame(lambda lines: len(lines) == 24)
        assert any(line.split()[-1:] == ["AS"] for line in wide)
        terminal.resize(60, 20)
        narrow = terminal.frame(lambda lines: len(lines) == 20)
        assert max(map(len, narrow)) <= 60
        assert not any(line.split()[-1:] == ["AS"] for line in narrow)
        terminal.press("q")
        assert terminal.end() == 0


async def test_colours_can_be_switched_off(app: App) -> None:
    assert app.url == URL
    for environment, coloured in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
        with opened("top", URL, **environment) as terminal:
            terminal.frame(lambda lines: len(lines) == 24)
            terminal.press("q")
            terminal.end()
            assert bool(re.search(r"\x1b\[[0-9;]*m", terminal.shown)) == coloured
    with opened("top", URL, "--once") as terminal:
        assert terminal.end() == 0
        assert ENTER not in terminal.shown


async def test_an_outage_is_a_sentence_at_the_foot_and_survived(redis_url: str) -> None:
    with through(redis_url) as (proxy, detour):
        async with App(redis_url) as app:
            sync = declare(app)
            await sync.enqueue(1)
            with opened("top", detour, "--interval", "0.1s") as terminal:
                terminal.frame(lambda lines: "waiting 1 " in lines[1])
                proxy.close()
                lost = terminal.frame(lambda lines: lines[-1].endswith(("Trying again.", "…")))
                assert "waiting 1 " in lost[1]  # the last picture stays
                await sync.enqueue(2)
                healed = proxy.again()
                back = terminal.frame(lambda lines: "waiting 2 " in lines[1])
                assert back[-1].startswith("q leave")
                terminal.press("q")
                assert terminal.end() == 0
                healed.close()


async def test_the_minute_counts_what_ended_in_each_second(app: App) -> None:
    reader = Reader(app)
    first = (await reader.read()).minute
    await app.task_named("sync").enqueue(9)
    await drain(app)
    second = (await reader.read()).minute
    assert sum(second.ended) == sum(first.ended) + 3
    assert second.created == first.created + 1
    assert (await reader.read()).minute.created == second.created
    assert (await reader.read()).at <= datetime.now(UTC)


async def test_the_minute_is_one_of_the_stores_clock() -> None:
    clock = Clock()  # it stands, hours from that of this process
    async with App(store=MemoryStore(clock=clock)) as app:
        sync = declare(app)
        reader = Reader(app)
        await sync.enqueue(1)
        clock.advance("59s")
        await sync.enqueue(2)
        picture = await reader.read()
        assert (picture.at, picture.minute.created) == (clock(), 2)
        clock.advance("2s")
        assert (await reader.read()).minute.created == 1
