"""The demo ends well, in time, with numbers that are checked; and a wrong number is found out."""

import io
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from onejob.demo import play
from onejob.demo.checks import Line, all_faults, faults, report_unfinished, total
from onejob.demo.play import Played
from onejob.demo.screen import Screen, sentence

ONEJOB = Path(sys.executable).with_name("onejob")
SCENARIOS = ["notes archive", "unique modes", "embedding queue", "keyed start", "dimensions"]


def processor_time() -> float:
    """Return the processor time of all child processes that have ended; a busy machine adds nothing to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(tmp_path: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ── as it is run ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Done:
    """A demo that was run as a command."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float  # of processor time


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    began = processor_time()
    ended = run(tmp_path_factory.mktemp("demo"), sys.executable, "-W", "error", "-m", "onejob.demo")
    return Done(ended.returncode, ended.stdout, ended.stderr, processor_time() - began)


def test_the_demo_ends_well_with_a_table_and_a_next_step(done: Done) -> None:
    assert done.seconds < 10
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\x1b" not in done.stdout  # not a terminal: plain lines
    assert "✗" not in done.stdout

    rows = re.findall(r"^(\S[a-z ]+\S) +(\d+) +(\d+) +(\d+) +(\d+)  ✓$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == SCENARIOS
    requests, ran, absorbed, lost = (sum(int(row[column]) for row in rows) for column in range(1, 5))
    assert requests == ran + absorbed
    assert requests >= 1000
    assert ran < 100
    assert lost == 0
    assert f"1 000 requests · {ran} ran · {absorbed} absorbed · 0 lost" in done.stdout
    assert "onejob.core.decide" in done.stdout


def test_the_commands_that_the_demo_ends_with_can_be_copied(done: Done, tmp_path: Path) -> None:
    commands = [line.strip() for line in done.stdout.splitlines() if "sqlite:///" in line]
    assert [shlex.split(command)[1] for command in commands] == ["why", "stats"]
    for command in commands:
        copied = run(tmp_path, ONEJOB, *shlex.split(command)[1:])
        assert copied.returncode == 0, copied.stderr
        assert copied.stdout


def test_the_command_gives_json(tmp_path: Path) -> None:
    ended = run(tmp_path, sys.executable, "-m", "onejob.demo", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert [line["scenario"] for line in told["scenarios"]] == SCENARIOS
    assert told["faults"] == []
    assert told["total"]["requests"] == told["total"]["ran"] + told["total"]["absorbed"]
    assert all(line["ok"] and all(line["claims"].values()) for line in told["scenarios"])
    assert list(tmp_path.iterdir()) == []


# ── a planted fault is found ──────────────────────────────────────────────────────────────────────

GOOD = Line("good", requests=100, ran=3, absorbed=97, lost=0, handled=3, claims=[("the last one ran", True)])
BAD = [
    (replace(GOOD, absorbed=96), "100 requests are not 3 that ran and 96 absorbed"),
    (replace(GOOD, ran=4, absorbed=96), "the store started 4 jobs, but handlers saw 3"),
    (replace(GOOD, handled=5), "the store started 3 jobs, but handlers saw 5"),
    (replace(GOOD, lost=1), "1 requests were lost"),
    (replace(GOOD, claims=[("the last one ran", False)]), "it is not so that the last one ran"),
    (replace(GOOD, claims=[]), "nothing was shown"),
    (report_unfinished("good", 8), "it is not so that it ended within 8 s"),
]


def test_a_true_line_has_no_fault() -> None:
    assert faults(GOOD) == []
    assert all_faults([GOOD, GOOD]) == []
    assert sentence(total([GOOD] * 12)) == "1 200 requests · 36 ran · 1 164 absorbed · 0 lost"


@pytest.mark.parametrize(("line", "fault"), BAD, ids=[fault for _, fault in BAD])
def test_a_wrong_line_is_found_out(line: Line, fault: str) -> None:
    assert f"good: {fault}" in faults(line)
    assert f"good: {fault}" in all_faults([GOOD, line])
    assert not line.is_true
    assert not total([GOOD, line]).is_true


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_line_makes_the_demo_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, *, as_json: bool
) -> None:
    async def play_badly(_folder: Path, _screen: Screen) -> Played:
        return Played([GOOD, replace(GOOD, lost=2)], 1.0, "id")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(play, "play", play_badly)
    assert play.main(json=as_json) == 1
    told = capsys.readouterr()
    assert "onejob demo: FAILED: good: 2 requests were lost." in told.err
    assert ("2 requests were lost" if as_json else "✗") in told.out


# ── the screen ────────────────────────────────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, lines: Sequence[Line] = (GOOD,)) -> str:
    screen = Screen(stream)
    screen.open_scene(1, "Good")
    screen.move(10, 9, 1)
    screen.say("a step")
    screen.close_scene(lines[0])
    screen.table(lines, 1.0)
    return stream.getvalue()


def test_a_terminal_sees_colour_and_motion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = show(Terminal())
    assert "\x1b[1m" in shown
    assert "10 requests, 9 absorbed, 1 ran" in shown
    assert "\r\x1b[K" in shown


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = show(Terminal())
    assert re.findall(r"\x1b\[[0-9;]*m", shown) == []
    assert "10 requests, 9 absorbed, 1 ran" in shown


def test_elsewhere_it_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = show(io.StringIO())
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "a step\n" in shown
