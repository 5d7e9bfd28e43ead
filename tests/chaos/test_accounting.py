"""Producers in real processes: what one that ends normally was answered is counted exactly.

A producer that is killed with kill -9 loses what it had not written: never more than it was answered since
its last written flush, and none of the requests that were updated or rerun, which are counted with their
writes. A job exists for every answer that names a new one.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onejob import App
from tests.chaos.children import PATIENCE, eventually, kill

PRODUCER = """
import os, random, sys, threading
from onejob import App, Duplicate, Unique

url, journal, seed, requests = sys.argv[1:]
app, chance = App(url), random.Random(int(seed))

def declare(name, policy):
    @app.task(name=name, unique=policy)
    def task(to: int, seq: int) -> None: ...
    return task

tasks = [
    declare("keep", Unique(by="to")),
    declare("reject", Unique(by="to", on_conflict="reject")),
    declare("update", Unique.coalesce(by="to")),
    declare("replace", Unique(by="to", on_conflict="replace")),
    declare("latest", Unique.latest(by="to", version="seq")),
]
file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(*words):
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())

counters, store = app._engine.counters, app._engine.store
begin_batch, count = counters._begin_batch, store.count

def noted_begin():
    note("begin")
    begin_batch()

def noted_count(tallies, batch=""):
    count(tallies, batch)
    for one in tallies:
        note("written", one.task, one.outcome, one.count)
    note("end")

counters._begin_batch, store.count = noted_begin, noted_count

def ask(task, *args):
    try:
        return str(task.enqueue_sync(*args).outcome)
    except Duplicate:
        return "rejected"

def produce(times):
    while times:
        task = chance.choice(tasks)
        bound = task.options(force=True) if chance.random() < 0.05 else task
        note("asks", task.name)
        note("told", task.name, ask(bound, chance.randrange(4), chance.randrange(9)))
        times -= 1

produce(int(requests))
"""
REQUESTS = 400  # of the producer that ends normally
FLUSHES = 2  # that a producer has written before it is killed
MAKING = {"created", "forced", "replaced", "rerun"}
COUNTED_AT_ONCE = {"updated", "rerun"}  # in the write that they make anyway

pytestmark = [pytest.mark.timeout(240), pytest.mark.races]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


Numbers = Counter[tuple[str, str]]


@dataclass
class Journal:
    """What a producer has noted: its questions, its answers, and its flushes."""

    asked: Counter[str] = field(default_factory=Counter)
    told: Numbers = field(default_factory=Counter)
    written: Numbers = field(default_factory=Counter)
    unwritten: Numbers = field(default_factory=Counter)  # answers since the last flush that was written began

    @property
    def unanswered(self) -> int:
        """How many questions have no answer: one, if the producer was killed while it asked."""
        return self.asked.total() - self.told.total()


def read(path: Path) -> Journal:
    """Read a journal; the kill may have cut off its last line."""
    journal, since_begin = Journal(), Counter[tuple[str, str]]()
    for line in path.read_text().split("\n")[:-1]:
        match line.split():
            case ["asks", task]:
                journal.asked[task] += 1
            case ["told", task, outcome]:
                journal.told[task, outcome] += 1
                journal.unwritten[task, outcome] += 1
                since_begin[task, outcome] += 1
            case ["written", task, outcome, number]:
                journal.written[task, outcome] += int(number)
            case ["begin"]:
                since_begin.clear()
            case ["end"]:
                journal.unwritten = since_begin.copy()
            case _:
                raise AssertionError(line)
    return journal


def absorbed_only(numbers: Numbers) -> Numbers:
    """Return the answers that are counted as absorbed."""
    return Counter(
        {name: number for name, number in numbers.items() if name[1] not in MAKING - {"rerun"} and number}
    )


def launch(url: str, journal: Path, chance: random.Random, requests: int) -> subprocess.Popen[bytes]:
    journal.touch()
    command = [sys.executable, "-c", PRODUCER, url, str(journal), str(chance.getrandbits(32)), str(requests)]
    return subprocess.Popen(command)


def flushes(journal: Path) -> int:
    return journal.read_text().split("\n").count("end")


async def stored(url: str) -> tuple[Numbers, Counter[str]]:
    """Return the absorbed requests by task and outcome, and the jobs by task."""
    async with App(url) as app:
        absorbed = (await app.stats()).absorbed
        jobs = await app.jobs(limit=100_000)
    found = {(task, outcome): n for task, outcomes in absorbed.items() for outcome, n in outcomes.items()}
    return Counter(found), Counter(job.task for job in jobs)


async def test_producers_that_end_normally_and_by_kill_9_are_accounted_for(
    url: str, tmp_path: Path, chance: random.Random
) -> None:
    paths = [tmp_path / f"journal-{number}" for number in range(3)]
    normal, *killed = [
        launch(url, path, chance, n) for path, n in zip(paths, (REQUESTS, -1, -1), strict=True)
    ]
    try:
        for process, path in zip(killed, paths[1:], strict=True):
            eventually(lambda path=path: flushes(path) >= FLUSHES, "flushes of a producer")  # type: ignore[misc]
            kill(process.pid)
            process.wait(PATIENCE)
        assert normal.wait(PATIENCE) == 0
    finally:
        for process in (normal, *killed):
            if process.poll() is None:
                process.kill()
                process.wait()

    exact, *cut_short = [read(path) for path in paths]
    assert exact.told.total() == REQUESTS
    told = absorbed_only(exact.told)  # the one that ended normally has counted everything
    counted = {name: number for name, number in told.items() if name[1] not in COUNTED_AT_ONCE}
    assert counted == +exact.written
    check(await stored(url), [exact, *cut_short])


def check(found: tuple[Numbers, Counter[str]], journals: list[Journal]) -> None:
    """Compare what the store has with what all producers were told."""
    counted, jobs = found
    told = sum((journal.told for journal in journals), Counter[tuple[str, str]]())
    unanswered = sum(journal.unanswered for journal in journals)
    assert 0 <= unanswered <= len(journals) - 1

    lost = absorbed_only(told)
    lost.subtract(counted)
    assert sum(max(-number, 0) for number in lost.values()) <= unanswered  # counted, and the answer not noted
    window = sum((journal.unwritten for journal in journals[1:]), Counter[tuple[str, str]]())
    for name, number in lost.items():
        assert number <= (0 if name[1] in COUNTED_AT_ONCE else window[name]), name

    made = Counter[str]()
    for (task, outcome), number in told.items():
        made[task] += number if outcome in MAKING else 0
    assert jobs >= made
    assert (jobs - made).total() <= unanswered
