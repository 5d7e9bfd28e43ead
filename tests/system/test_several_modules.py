"""Projects of more than one file: modules, factories, tasks without an app, and worker processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_overloads

import pytest

from onejob import App, Tasks, Unique
from onejob.errors import InvalidCall, InvalidPolicy
from onejob.tasks.collection import ScheduleOptions, TaskOptions
from tests.system.test_docs import blocks

PATIENCE = 30.0
ROOT = Path(__file__).parents[2]
ONEJOB = [sys.executable, "-m", "onejob"]


# ── tasks without an app ──────────────────────────────────────────────────────────────────────────


def test_tasks_without_an_app_are_taken_in_by_one(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    @tasks.cron("0 9 * * *", name="mornings", kwargs={"number": 3})
    @tasks.task(queue="mail", unique=Unique(by="number"))
    def double(number: int) -> int:
        return number * 2

    @tasks.cron(every="1h")
    def tidy() -> None: ...

    @tasks.task
    async def plain(text: str) -> str:
        return text

    assert double(4) == 8
    for use in (
        lambda: double.enqueue_sync(1),
        lambda: double.options(delay=1),
        lambda: double.pending_sync(1),
    ):
        with pytest.raises(InvalidCall, match=r"double belongs to no app yet: call app\.include"):
            use()

    app = App("memory://")
    app.include(tasks)
    assert set(app.tasks) == {"double", "tidy", "plain"}
    assert [one.name for one in app.schedules.all_sync()] == ["mornings", "tidy"]
    assert double.enqueue_sync(1).job.queue == "mail"
    assert app.task_named("double").enqueue_sync(1).outcome == "kept"
    assert plain.options(delay="1h").enqueue_sync("a").job.state == "scheduled"
    with pytest.raises(InvalidPolicy, match="double is included already"):
        app.include(tasks)
    assert caplog.records == []

    other = App("memory://", namespace="other")
    other.include(tasks)
    assert "it is enqueued through the newer app now" in caplog.text
    assert double.enqueue_sync(1).outcome == "created"
    assert len(other.jobs_sync()) == 1
    app.close_sync()
    other.close_sync()


def test_mistakes_with_tasks_say_what_to_write() -> None:
    tasks, app = Tasks(), App("memory://")

    @tasks.task
    def work() -> None: ...

    @app.task
    def elsewhere() -> None: ...

    mistakes: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: tasks.task("mail"), InvalidPolicy, "write name='mail'"),  # type: ignore[call-overload]
        (lambda: tasks.task(name="work")(elsewhere.function), InvalidPolicy, "Two tasks are named 'work'"),
        (lambda: tasks.task(work), InvalidPolicy, "is a task already"),
        (lambda: tasks.cron("* * * * *")(elsewhere), InvalidPolicy, "write @tasks.cron above @tasks.task"),
        (lambda: app.include([work]), InvalidCall, r"write app.include\(tasks\)"),  # type: ignore[arg-type]
    ]
    for mistake, kind, sentence in mistakes:
        with pytest.raises(kind, match=sentence):
            mistake()
    app.close_sync()


def test_tasks_accept_what_an_app_accepts() -> None:
    [options] = [one for one in get_overloads(App.task) if "queue" in one.__annotations__]
    assert TaskOptions.__annotations__.keys() == options.__annotations__.keys() - {"return"}
    assert ScheduleOptions.__annotations__.keys() == App.cron.__annotations__.keys() - {"return", "line"}


# ── on the command line ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write the project of the page "several modules", and return its folder."""
    for block in blocks(ROOT / "docs" / "several-modules.md"):
        first, _, rest = block.text.partition("\n")
        if first.startswith("# shop/"):
            path = tmp_path / first.removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(rest)
    return tmp_path


def call(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ONEJOB, *words], cwd=project, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_project_of_the_page_runs(project: Path) -> None:
    assert call(project, "enqueue", "shop:app", "send", "to=ada", "--import", "shop.mail").returncode == 0
    blind = call(project, "worker", "shop:app", "--drain")
    assert "runs 0 tasks" in blind.stdout
    assert "has no tasks to run" in blind.stderr
    assert "--import" in blind.stderr
    assert "(send: 1)" in blind.stderr
    seeing = call(project, "worker", "shop:app", "--drain", "--import", "shop.mail")
    assert "1 completed" in seeing.stdout

    assert call(project, "enqueue", "shop:create_app", "resize", "name=a.png").returncode == 0
    made = call(project, "worker", "shop:create_app", "--drain")
    assert "1 completed" in made.stdout, made.stderr


def test_an_app_that_cannot_be_made_is_one_sentence(project: Path) -> None:
    (project / "bad.py").write_text("def create(name): ...\ndef nothing(): ...\ndef fail(): 1 / 0\n")
    wanted = {
        "bad:create": "bad:create() did not return an app: TypeError: create() missing 1 required",
        "bad:nothing": "bad:nothing() is of type NoneType, not an onejob App.",
        "bad:fail": "ZeroDivisionError",
    }
    for place, sentence in wanted.items():
        assert sentence in call(project, "worker", place).stderr
    assert "no module 'shop.absent'" in call(project, "stats", "shop:app", "--import", "shop.absent").stderr


# ── worker processes ──────────────────────────────────────────────────────────────────────────────


class Supervised:
    """`onejob worker` with a supervisor, in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / "log"
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                [*ONEJOB, "worker", *words], cwd=folder, stdout=output, stderr=output
            )

    def says(self, text: str, times: int = 1) -> str:
        """Wait until the log contains a text, and return the log."""
        until = time.monotonic() + PATIENCE
        while (log := self._log.read_text()).count(text) < times:
            assert time.monotonic() < until, log
            assert self.process.poll() is None or log.count(text) >= times, log
            time.sleep(0.02)
        return log

    def workers(self) -> list[int]:
        """Return the ids of the worker processes that were started, oldest first."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("Worker ")]
        return [int(line.split(":")[1]) for line in lines if " runs " in line]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    (tmp_path / "one.py").write_text(APP.format(name="one"))
    (tmp_path / "two.py").write_text(APP.format(name="two"))
    started: list[Supervised] = []

    def start(*words: str) -> Supervised:
        started.append(Supervised(tmp_path, *words))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


APP = """
import asyncio
from pathlib import Path
from onejob import App
app = App("sqlite:///{name}.db")

@app.task
async def hold():
    Path("begun").touch()
    await asyncio.sleep(3600)
"""


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_process_that_is_killed_starts_again(supervise: Callable[..., Supervised]) -> None:
    supervisor = supervise("one:app", "--processes", "2", "--grace", "1s")
    supervisor.says(" runs 1 task", 2)
    first, second = supervisor.workers()

    os.kill(first, signal.SIGKILL)
    assert f"worker process {first} was ended by SIGKILL" in supervisor.says("starts again in 0.5 s")
    supervisor.says(" runs 1 task", 3)
    third = supervisor.workers()[-1]
    os.kill(third, signal.SIGKILL)
    supervisor.says("starts again in 1.0 s")
    supervisor.says(" runs 1 task", 4)
    assert is_alive(second)

    supervisor.process.terminate()
    assert supervisor.process.wait(11) == 0
    assert not any(is_alive(process) for process in supervisor.workers())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_worker_processes(
    supervise: Callable[..., Supervised], tmp_path: Path, number: int
) -> None:
    assert call(tmp_path, "enqueue", "one:app", "hold").returncode == 0
    supervisor = supervise("one:app", "two:app", "--grace", "300ms")
    supervisor.says(" runs 1 task", 2)
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until
        time.sleep(0.02)

    began = time.monotonic()
    supervisor.process.send_signal(number)
    assert supervisor.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < 10.3
    assert "1 handed back" in supervisor.says("handed back")
    assert not any(is_alive(process) for process in supervisor.workers())


def test_worker_processes_stop_when_their_supervisor_is_killed(supervise: Callable[..., Supervised]) -> None:
    supervisor = supervise("one:app", "--processes", "2", "--grace", "1s")
    supervisor.says(" runs 1 task", 2)

    supervisor.process.kill()
    supervisor.process.wait()
    until = time.monotonic() + PATIENCE
    while any(is_alive(process) for process in supervisor.workers()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_change_of_a_file_starts_the_worker_again(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervisor = supervise("one:app", "--reload")
    supervisor.says(" runs 1 task")
    more = APP.format(name="one") + "\n@app.task\ndef more(): ...\n"

    (tmp_path / "one.py").write_text("this is no Python (")
    supervisor.says("one.py has changed")
    supervisor.says("could not be imported: SyntaxError")
    (tmp_path / "one.py").write_text(more)
    supervisor.says(" runs 2 tasks")


def test_an_app_that_does_not_exist_ends_the_supervisor(supervise: Callable[..., Supervised]) -> None:
    supervisor = supervise("absent:app", "--processes", "2")
    assert supervisor.process.wait(PATIENCE) == 2


def test_the_supervisors_log_is_quiet_while_all_is_well(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervisor = supervise("one:app", "two:app", "--drain", "--queues", "default:3", "--lease", "20s")
    assert supervisor.process.wait(PATIENCE) == 0
    assert logging.getLevelName(logging.ERROR) not in (tmp_path / "log").read_text()
