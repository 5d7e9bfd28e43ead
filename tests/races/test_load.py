"""Clients, workers and meddlers race on a few keys of a real store, and every answer they got is checked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.races.check import check
from tests.races.history import ENDED, Admitted, History, Op, read
from tests.races.stores import STORES

pytestmark = pytest.mark.races

ROOT = Path(__file__).parents[2]
HARM = {
    "nobody dies": ("--worker-kills=0", "--client-kills=0"),
    "some die": ("--worker-kills=4", "--client-kills=4"),
}
PATIENCE = 100.0  # seconds


def race(url: str, folder: Path, *options: str) -> None:
    """Run the load as `make races` does, but less of it."""
    admissions = 1500 if url.startswith("postgresql") else 4000
    size = ("--clients=8", "--keys=20", f"--admissions={admissions}", "--seconds=60")
    command = [sys.executable, "-m", "tests.races", "--url", url, "--folder", str(folder), *size, *options]
    run(command, folder / "said", PATIENCE)


def run(command: Sequence[str], said: Path, patience: float) -> None:
    """Run a command and its children, but not for ever; if it goes wrong, tell what it said last."""
    with said.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        ended = f"with {process.wait(patience)}"
    except subprocess.TimeoutExpired:
        ended = f"by us, after {patience:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert ended == "with 0", f"ended {ended}, and said: {said.read_text()[-5000:]}"


def test_a_load_that_does_not_end_is_ended_and_tells_how_far_it_was(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    hanging = 'exec 3>"$0"; sleep 600 & echo checking keep/1; wait'
    with pytest.raises(AssertionError, match=r"by us, after 1 s, and said: checking keep/1"):
        run(["/bin/sh", "-c", hanging, str(tmp_path / "held")], tmp_path / "said", 1)

    os.set_blocking(held, True)
    assert os.read(held, 1) == b""  # once nobody has it open, the sleeping child neither
    os.close(held)


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("store", STORES)
def test_every_answer_under_load_is_true(store: str, harm: str, tmp_path: Path) -> None:
    with STORES[store](tmp_path) as url:
        race(url, tmp_path, *HARM[harm])

    history = read(tmp_path / "given")
    assert len(history.samples) > 10
    for _ in range(5):
        assert check(forge(history)), "a forged answer was believed"


def forge(history: History) -> History:
    """Change one answer to one that could not be given."""
    answered = [
        (key, index)
        for key, ops in history.keys.items()
        for index, op in enumerate(ops)
        if isinstance(op.answer, Admitted) and op.answer.job.state not in ENDED
    ]
    key, index = random.choice(answered)
    ops = list(history.keys[key])
    ops[index] = forged(ops[index], ops)
    return History({key: ops}, jobs=history.jobs, leases_lost=history.leases_lost)


def forged(op: Op, ops: list[Op]) -> Op:
    """Change the job that an answer names, or what it shows of it."""
    assert isinstance(op.answer, Admitted)
    job = op.answer.job
    others = [
        seen
        for other in ops
        if isinstance(other.answer, Admitted) and (seen := other.answer.job).job != job.job
    ]
    other = random.choice(others)
    lies = [
        replace(job, job=other.job),
        replace(job, payload=other.payload),
        replace(job, token=job.token + 1),
        replace(job, attempt=job.attempt + 1),
    ]
    return replace(op, answer=replace(op.answer, job=random.choice(lies)))
