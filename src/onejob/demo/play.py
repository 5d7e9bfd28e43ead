"""The whole demo: run the scenarios, count, check, and print what to look at next."""

from __future__ import annotations

import asyncio
import json as json_format
import logging
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from onejob import App
from onejob.demo.checks import Line, all_faults, report_unfinished, total
from onejob.demo.scenarios import SCENARIOS, Scenario
from onejob.demo.scene import TIME_LIMIT, Scene
from onejob.demo.screen import Screen


@dataclass(frozen=True)
class Played:
    """The result of a whole demo."""

    lines: Sequence[Line]
    seconds: float
    busiest: str  # the id of the job that served most requests
    app: App | None = None  # with the tasks of all scenarios


def main(json: bool = False, show: Callable[[App], None] | None = None) -> int:  # noqa: FBT001, FBT002 - the command's one flag
    """Run the demo, and show its app afterwards; return 0 if all its claims hold, else 1."""
    folder = Path(tempfile.mkdtemp(prefix="onejob-demo-"))
    screen = Screen(silent=json)
    try:
        with quiet_log():
            played = asyncio.run(play(folder, screen))
        found = all_faults(played.lines)
        if json:
            sys.stdout.write(document(played, found))
        else:
            screen.table(played.lines, played.seconds)
            if not found:
                point_onwards(screen, folder, played)
                if show is not None and played.app is not None:
                    show(played.app)
    finally:
        if json:
            shutil.rmtree(folder)
    for fault in found:
        sys.stderr.write(f"onejob demo: FAILED: {fault}.\n")
    return 1 if found else 0


async def play(folder: Path, screen: Screen) -> Played:
    """Run every scenario on one SQLite file."""
    screen.say("Five ways to ask for the same work, on SQLite in a temporary directory.")
    began = perf_counter()
    answers: list[str] = []
    lines: list[Line] = []
    async with App(f"sqlite:///{folder / 'jobs.db'}") as app:
        for number, (name, scenario) in enumerate(SCENARIOS.items(), start=1):
            screen.open_scene(number, f"{name.capitalize()}: {(scenario.__doc__ or '').strip()}")
            scene = Scene(app, name, screen)
            line = await perform(scenario, scene)
            screen.close_scene(line)
            lines.append(line)
            answers += [answer.job.id for answer in scene.answers]
            if not line.requests:
                break  # it hangs, and its jobs would make the others hang
    busiest = max(answers, key=Counter(answers).__getitem__, default="")
    return Played(lines, perf_counter() - began, busiest, app)


async def perform(scenario: Scenario, scene: Scene) -> Line:
    """Run one scenario and count it."""
    try:
        return await scene.line(await scenario(scene))
    except TimeoutError:
        return report_unfinished(scene.name, TIME_LIMIT)


@contextmanager
def quiet_log() -> Iterator[None]:
    """Do not print the log of jobs that fail on purpose."""
    log = logging.getLogger("onejob")
    quiet = logging.NullHandler()
    log.addHandler(quiet)
    propagate, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(quiet)
        log.propagate = propagate


def document(played: Played, found: Sequence[str]) -> str:
    """Return the numbers as JSON."""

    def numbers(line: Line) -> dict[str, Any]:
        return asdict(line) | {"claims": dict(line.claims), "ok": line.is_true}

    everything = {
        "scenarios": [numbers(line) for line in played.lines],
        "total": numbers(total(played.lines)),
        "seconds": round(played.seconds, 3),
        "faults": list(found),
    }
    return json_format.dumps(everything, ensure_ascii=False, indent=2) + "\n"


def point_onwards(screen: Screen, folder: Path, played: Played) -> None:
    """Print commands and the file to look at next."""
    url = f"sqlite:///{folder / 'jobs.db'}"
    screen.say()
    screen.say(
        "Every number was counted in the store and the handlers, and checked. The jobs are still there:"
    )
    screen.say(f"  {command('why', url, played.busiest)}")
    screen.say(f"  {command('stats', url)}")
    screen.say("The rules that decided all this are one pure function, decide() in onejob.core.decide.")


def command(*words: str) -> str:
    """Return a command that can be copied and run from here."""
    program = "onejob"
    if shutil.which("onejob") is None:
        beside = Path(sys.executable).with_name("onejob")
        inside = beside.is_relative_to(Path.cwd())
        program = str(beside.relative_to(Path.cwd()) if inside else beside)
    return shlex.join([program, *words])
