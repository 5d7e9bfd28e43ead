"""An app whose tasks run in processes of their own: imported by the tests of those, and by the processes."""

import ctypes
import logging
import os
import signal
import subprocess
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

from onejob import Admission, App, Cancel, Discard, Retry, RetryLater, Snooze, Unique, current
from tests.journal import Journal

if "CRUNCH_SLOWLY" in os.environ:
    time.sleep(float(os.environ["CRUNCH_SLOWLY"]))
if "CRUNCH_NOT" in os.environ:
    raise ImportError(os.environ["CRUNCH_NOT"])

app = App(os.environ["CRUNCH_URL"])
log = logging.getLogger("crunch")
FOLDER = Path(os.environ["CRUNCH_FOLDER"])
journal = Journal(FOLDER / "journal")
ONCE = Retry.never()


@app.task(process=True)
def where() -> int:
    return os.getpid()


@app.task(process=True)
def born(on: date, in_years: int = 0) -> date:
    return on.replace(year=on.year + in_years)


@app.task(process=True)
def double(text: str) -> str:
    return text * 2


@app.task(process=True, timeout="1h")
def look() -> dict[str, Any]:
    run = current()
    assert run.deadline is not None
    run.progress(0.5, "half way")
    return {
        "job": run.job.id,
        "attempt": run.attempt,
        "cancelled": run.cancelled,
        "meta": run.job.metadata,
        "deadline": run.deadline.timestamp(),
        "latest": run.is_latest_sync() if not app.url.startswith("memory") else True,
    }


@app.task(process=True)
def tell_and_wait(name: str) -> None:
    """Report progress, and wait for a file."""
    for step in range(1000):
        current().progress(step / 1000, "computing")
    current().progress(0.75, "nearly there")
    while not (FOLDER / name).exists():
        time.sleep(0.01)


@app.task(process=True, retry=ONCE)
def count_down(n: int) -> int:
    """Go on with the chain until nothing is left."""
    if n:
        current().continue_with(count_down.options(delay="1ms").call(n - 1))
    if n == 9:
        current().continue_with(count_down.call(n))
    return n


@app.task(process=True, retry=ONCE)
def book(n: int, then: str) -> int:
    """Complete the job together with a write of its own, and go on for a while, or not."""
    with current().transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS books (n int)")
        connection.execute("INSERT INTO books VALUES (?)", [n])
        current().returns(n)
    note(f"{then} {n}", os.getpid())
    if then == "die":
        os._exit(1)
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    note("end", os.getpid())
    return n


@app.task(process=True)
def collect() -> list[date]:
    return [blocker.result for blocker in current().blockers]


@app.task(unique=Unique(by="n"))
def other(n: int) -> int:
    return n


@app.task(process=True, unique=Unique(by="n"))
def enqueue(n: int, again: bool = False) -> list[str | None]:  # noqa: FBT001, FBT002 - arguments of a job
    """Ask for another job, and for this one once more: inside of its run that makes a successor."""
    asked: list[Admission[Any]] = [other.enqueue_sync(n)]
    if not again:
        asked.append(enqueue.enqueue_sync(n, again=True))
    return [value for one in asked for value in (one.outcome, one.job.parent_id)]


@app.task(process=True, retry=Retry(attempts=2, base="1ms"), give_up_on=(LookupError,))
def end_as(how: str) -> Any:
    if current().attempt > 1 and how not in {"error", "lookup"}:
        return "second attempt"
    match how:
        case "retry later":
            raise RetryLater("1ms", "not now")
        case "snooze" if not (FOLDER / "snoozed").exists():
            (FOLDER / "snoozed").touch()
            raise Snooze("1ms")
        case "cancel":
            raise Cancel("not needed")
        case "discard":
            raise Discard("never again")
        case "error":
            raise ValueError("wrong \ud800")
        case "lookup":
            raise KeyError("nowhere")
        case "exit":
            raise SystemExit(3)
        case "unencodable":
            return object()
        case _:
            return "done"


@app.task(process=True, retry=ONCE)
def die(by: int) -> None:
    """End without returning: with an exit code, or by a signal if it is negative."""
    if by >= 0:
        os._exit(by)
    os.kill(os.getpid(), -by)
    time.sleep(60)


@app.task(process=True, retry=ONCE)
def die_before_its_child() -> None:
    """Leave a process behind that has all that this one had open."""
    if (left := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    note("left", left)
    os._exit(4)


@app.task(process=True, retry=ONCE)
def hang(name: str, deaf: bool = True) -> str:  # noqa: FBT001, FBT002 - arguments of a job
    """Never end, unless it listens and is told to; with a program of its own under way."""
    with subprocess.Popen(["sleep", "60"]) as program:  # noqa: S607 - the system's own
        note(name, os.getpid(), program.pid)
        while deaf or not current().cancelled:
            time.sleep(0.01)
        program.kill()
    return "stopped in time"


@app.task(process=True, timeout="1s", retry=ONCE)
def too_long(name: str, seconds: float) -> str:
    note(name, os.getpid())
    time.sleep(seconds)
    return name


@app.task(process=True, retry=ONCE)
def hold_the_gil(name: str) -> str:
    """Be in one call from C, which lets no other thread run, until the test opens a named pipe."""
    note(name, os.getpid())
    stand_still(FOLDER / f"{name}.pipe")
    return name


AGAIN = Retry(attempts=10, base="1ms", factor=1)


@app.task(process=True, retry=AGAIN)
def hold_the_gil_at_first(name: str) -> str:
    if current().attempt == 1:
        hold_the_gil(name)
    return f"attempt {current().attempt}"


@app.task(retry=AGAIN)
def starve_the_worker_at_first(name: str) -> str:
    """Hold the GIL of the worker itself."""
    if current().attempt == 1:
        hold_the_gil(name)
    return f"attempt {current().attempt}"


def stand_still(pipe: Path) -> None:
    """Wait for a named pipe to be opened, with the GIL: ctypes lets it go for CDLL, and not for PyDLL."""
    os.close(ctypes.PyDLL(None).open(os.fsencode(pipe), os.O_RDONLY))


@app.task(process=True, retry=AGAIN)
def write_down(n: int, seconds: float) -> int:
    """Note the start and the end of every attempt."""
    facts = {"n": n, "attempt": current().attempt, "pid": os.getpid()}
    journal.add(event="start", **facts)
    time.sleep(seconds)
    journal.add(event="end", **facts)
    log.info("number %d is written down", n)
    return n


@app.task(process=True)
def signalled() -> str:
    """Be sent what a terminal or a supervisor sends to a whole group, and go on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    return "still here"


@app.task(process=True)
def meet(name: str, others: int) -> datetime:
    """Note that this runs, and wait until so many do."""
    note(name, os.getpid())
    while len(list(FOLDER.glob("meet*"))) < others:
        time.sleep(0.01)
    return datetime.now().astimezone()


@app.task
def beside() -> str:
    return "beside"


def note(name: str, *pids: int) -> None:
    """Write process ids into a file that is whole as soon as it is there."""
    hidden = FOLDER / f".{name}"
    hidden.write_text(" ".join(map(str, pids)))
    hidden.rename(FOLDER / name)
