"""Processes race on few keys of a real store, and every answer that they got is checked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.races.check import check
from tests.races.history import ENDED, Admitted, History, Op, read
from tests.races.stores import STORES

pytestmark = [pytest.mark.races, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
KILLS = {
    "without kills": ("--worker-kills=0", "--client-kills=0"),
    "with kills": ("--worker-kills=4", "--client-kills=4"),
}
PATIENCE = 600.0  # seconds; reached only by a race that is stuck


def race(url: str, folder: Path, *options: str) -> None:
    """Run the load as `make races` does, but less of it."""
    admissions = 1500 if url.startswith("postgresql") else 4000
    size = ("--clients=8", "--keys=20", f"--admissions={admissions}", f"--seconds={PATIENCE}")
    command = [sys.executable, "-m", "tests.races", "--url", url, "--folder", str(folder), *size, *options]
    ends = time.monotonic() + PATIENCE
    run(command, folder / "output", lambda: time.monotonic() > ends)


def run(command: Sequence[str], output: Path, is_over: Callable[[], bool]) -> None:
    """Run a command and its children until the time is over; if it fails, show the end of its output."""
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
    try:
        while process.poll() is None and not is_over():
            time.sleep(0.02)
        ended = "it was killed" if process.poll() is None else f"it ended with {process.returncode}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert ended == "it ended with 0", f"{ended}; its output: {output.read_text()[-5000:]}"


def test_a_load_that_does_not_end_is_killed_and_shows_how_far_it_was(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    hanging = 'exec 3>"$0"; sleep 600 & echo checking keep/1; wait'
    output = tmp_path / "output"
    with pytest.raises(AssertionError, match=r"it was killed; its output: checking keep/1"):
        run(["/bin/sh", "-c", hanging, str(tmp_path / "held")], output, lambda: bool(output.read_text()))

    os.set_blocking(held, True)
    assert os.read(held, 1) == b""  # no process has it open any more, neither has the sleeping child
    os.close(held)


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("store", STORES)
def test_every_answer_under_load_is_true(
    store: str, kills: str, tmp_path: Path, chance: random.Random
) -> None:
    with STORES[store](tmp_path) as url:
        race(url, tmp_path, *KILLS[kills], f"--seed={chance.getrandbits(32)}")

    history = read(tmp_path / "given")
    assert len(history.samples) > 10
    for _ in range(5):
        assert check(forge(history, chance)), "a forged answer was believed"


def forge(history: History, chance: random.Random) -> History:
    """Change one answer to one that could not be given."""
    answered = [
        (key, index)
        for key, ops in history.keys.items()
        for index, op in enumerate(ops)
        if isinstance(op.answer, Admitted) and op.answer.job.state not in ENDED
    ]
    key, index = chance.choice(answered)
    ops = list(history.keys[key])
    ops[index] = forged(ops[index], ops, chance)
    return History({key: ops}, jobs=history.jobs, leases_lost=history.leases_lost)


def forged(op: Op, ops: list[Op], chance: random.Random) -> Op:
    """Change the job that an answer names, or what it shows of it."""
    assert isinstance(op.answer, Admitted)
    job = op.answer.job
    others = [
        seen
        for other in ops
        if isinstance(other.answer, Admitted) and (seen := other.answer.job).job != job.job
    ]
    lies = [replace(job, token=job.token + 1), replace(job, attempt=job.attempt + 1)]
    if others:  # on a slow machine a key may have had one job only
        other = chance.choice(others)
        lies += [replace(job, job=other.job), replace(job, payload=other.payload)]
    return replace(op, answer=replace(op.answer, job=chance.choice(lies)))
