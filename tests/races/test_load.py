"""Clients, workers and meddlers race on a few keys of a real store, and every answer they got is checked."""

from __future__ import annotations

import random
import subprocess
import sys
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


def race(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the load as `make races` does, but less of it: calls that overlap long are searched long."""
    admissions = 1500 if url.startswith("postgresql") else 4000
    size = ("--clients=8", "--keys=20", f"--admissions={admissions}", "--seconds=60")
    return subprocess.run(
        [sys.executable, "-m", "tests.races", "--url", url, "--folder", str(folder), *size, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("store", STORES)
def test_every_answer_under_load_is_true(store: str, harm: str, tmp_path: Path) -> None:
    with STORES[store](tmp_path) as url:
        report = race(url, tmp_path, *HARM[harm])
    assert report.returncode == 0, report.stdout + report.stderr

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
