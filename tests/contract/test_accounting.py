"""Every answered request is accounted for: it made a job, or it is counted as absorbed, once (rule 7).

A random history of requests, runs and pauses is played on every store. The test counts the answers that its
callers got. Afterwards the store must have exactly as many jobs and exactly as many absorbed requests, per
task and outcome; what was rolled back, or refused because a queue was full, is in neither.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onejob import Admission, App, Call, Duplicate, Job, Task, Unique
from onejob.errors import MergeFailed, PayloadMismatch, QueueFull
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.conftest import STORES
from tests.contract.steps import complete, everything, fail, hand_back, inside, lease, mailer
from tests.depth import examples

POLICIES: dict[str, Unique | None] = {
    "plain": None,
    "keep": Unique(by="to"),
    "bump": Unique(by="to", bump=True),
    "mismatch": Unique(by="to", on_mismatch="error"),
    "refuse": Unique(by="to", on_conflict="reject"),
    "coalesce": Unique.coalesce(by="to"),
    "replace": Unique(by="to", on_conflict="replace"),
    "latest": Unique.latest(by="to", version="text"),
    "merge": Unique(by="to", on_conflict="update", merge={"text": "sum"}),
    "broken": Unique(by="to", on_conflict="update", merge=lambda _old, _new: 1 / 0),
    "debounce": Unique.debounce(wait="5s", max_wait="20s", by="to"),
    "throttle": Unique.throttle(every="30s", by="to"),
    "edges": Unique.throttle(every="30s", edges="first+last", by="to"),
    "once": Unique.once(by="to"),
    "early": Unique.until_executing(by="to"),
    "shadow": Unique(by="to", shadow=True),
    "narrow": Unique(by="to"),  # in a queue that is soon full
}
KEYS = 3
STEPS = 300
MAKING = ("created", "forced", "replaced", "rerun")  # the outcomes that make a job
OUTCOMES = {*MAKING, "kept", "updated", "rejected", "stale", "shadow:kept"}

Told = Counter[tuple[str, str]]  # answers, by task and outcome
Connect = Callable[[], Any]


@pytest.fixture(params=[*STORES, "redis in buckets"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Store:
    if request.param in STORES:
        return STORES[request.param](request, clock)
    from onejob.stores.redis.store import RedisStore

    return RedisStore(f"{request.getfixturevalue('redis_url')}?buckets=16", clock=clock)


class History:
    """Makes requests in every way there is, and counts the answers."""

    def __init__(self, app: App, clock: Clock, chance: random.Random, connect: Connect | None) -> None:
        self.app, self.clock, self.chance, self.connect = app, clock, chance, connect
        app.queue("narrow", max_depth=2)
        self.tasks = {
            name: mailer(app, policy, name=name, queue="narrow" if name == "narrow" else "default")
            for name, policy in POLICIES.items()
        }
        self.told: Told = Counter()
        self.running: list[Job] = []

    async def play(self, steps: int) -> None:
        ways: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.ask),
            (2, self.ask_blocking),
            (3, self.ask_at_once),
            (3, self.ask_in_bulk),
            (2, self.ask_in_transaction),
            (2, self.ask_inside_a_run),
            (1, self.replay),
            (4, self.start),
            (4, self.end),
            (2, self.pause),
        ]
        weights, acts = zip(*ways, strict=True)
        for act in self.chance.choices(acts, weights, k=steps):
            await act()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def draw(self) -> tuple[Task[..., str], int, int]:
        """Return a task, whom the mail is to, and its text, which is also its version."""
        task = self.chance.choice(list(self.tasks.values()))
        forced = self.chance.random() < 0.1
        return (
            task.options(force=True) if forced else task,
            self.chance.randrange(KEYS),
            self.chance.randrange(5),
        )

    async def ask(self) -> None:
        task, *args = self.draw()
        await self.hear(self.told, task.name, lambda: task.enqueue(*args))

    async def ask_blocking(self) -> None:
        task, *args = self.draw()
        await self.hear(self.told, task.name, lambda: asyncio.to_thread(task.enqueue_sync, *args))

    async def ask_at_once(self) -> None:
        await asyncio.gather(*(self.ask() for _ in range(self.chance.randrange(2, 9))))

    async def ask_in_bulk(self) -> None:
        self.add(self.told, *await self.app.enqueue_many(self.calls()))
        self.add(self.told, *await asyncio.to_thread(self.app.enqueue_many_sync, self.calls()))

    async def ask_in_transaction(self) -> None:
        """Make several requests in one transaction; what they were answered counts if it is committed."""
        if self.connect is None:
            return
        commits, answers = self.chance.random() < 0.6, Told()
        async with self.connect() as connection:
            for _ in range(self.chance.randrange(1, 4)):
                task, *args = self.draw()
                bound = task.options(connection=connection)
                await self.hear(answers, task.name, partial(bound.enqueue, *args))
            calls = self.calls()
            self.add(answers, *await self.app.enqueue_many(calls, connection=connection))
            ended = connection.commit() if commits else connection.rollback()
            if ended is not None:
                await ended
        if commits:
            self.told += answers

    async def ask_inside_a_run(self) -> None:
        """Ask for the key of the run's own job, which makes or changes its successor, and for another."""
        if self.running:
            job = self.chance.choice(self.running)
            own, args = self.tasks[job.task], (job.arguments["to"], self.chance.randrange(5))
            again = partial(own.enqueue, *args)
            await inside(self.app, job, lambda: self.hear(self.told, own.name, again))
            await inside(self.app, job, self.ask)

    async def replay(self) -> None:
        """Replay a dead letter: a request for its work, which makes no other job."""
        for letter in await self.app.dead.list(limit=1):
            admission = await self.app.dead.replay(letter.id)
            if admission.deduplicated:
                self.add(self.told, admission)

    def calls(self) -> list[Call[Any]]:
        return [task.call(*args) for task, *args in (self.draw() for _ in range(self.chance.randrange(1, 9)))]

    async def hear(self, told: Told, task: str, ask: Callable[[], Awaitable[Admission[Any]]]) -> None:
        """Count the answer of a request, which may be an exception."""
        try:
            self.add(told, await ask())
        except (Duplicate, PayloadMismatch, MergeFailed):
            told[task, "rejected"] += 1
        except QueueFull:
            pass  # an error, not an answer

    def add(self, told: Told, *admissions: Admission[Any]) -> None:
        for admission in admissions:
            if admission.refusal == "full":
                continue
            told[admission.job.task, admission.outcome] += 1
            if admission.shadow is not None:
                told[admission.job.task, f"shadow:{admission.shadow}"] += 1

    # ── what happens meanwhile ────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        self.running += await lease(self.app, total=self.chance.randrange(1, 6))

    async def end(self) -> None:
        if self.running:
            job = self.running.pop(self.chance.randrange(len(self.running)))
            job = await self.app.job(job.id)
            ends: list[Callable[..., Awaitable[Job]]] = [complete, complete, fail, hand_back]
            if self.chance.random() < 0.2:
                await fail(self.app, job, final=True)
            else:
                await self.chance.choice(ends)(self.app, job)

    async def pause(self) -> None:
        """Let time pass, less than a lease lasts in total, so that no run is rescued."""
        self.clock.advance(self.chance.choice([1, 5]))
        await asyncio.gather(*(self.end() for _ in range(len(self.running))))


@pytest.fixture
def connect(request: pytest.FixtureRequest, store: Store) -> Connect | None:
    """Return what opens a caller's transaction, where the store has them."""
    match store.guarantees.store:
        case "sqlite":
            path: Path = request.getfixturevalue("tmp_path") / "jobs.db"

            @asynccontextmanager
            async def open_file() -> AsyncIterator[Any]:
                store.migrate()
                with closing(sqlite3.connect(path)) as connection:
                    yield connection

            return open_file
        case "postgresql":
            url = request.getfixturevalue("postgres_url")

            @asynccontextmanager
            async def open_session() -> AsyncIterator[Any]:
                async with await psycopg.AsyncConnection.connect(url) as connection:
                    yield connection

            return open_session
        case _:
            return None


async def stored(app: App) -> Told:
    """Return what the store has: jobs under "made", and absorbed requests by outcome."""
    found: Told = Counter((job.task, "made") for job in await everything(app))
    for task, outcomes in (await app.stats()).absorbed.items():
        found.update({(task, outcome): number for outcome, number in outcomes.items()})
    return found


def expected(told: Told) -> Told:
    """Return what the store must have then: a rerun is absorbed, and its successor is a job."""
    due: Told = Counter()
    for (task, outcome), number in told.items():
        if outcome in MAKING:
            due[task, "made"] += number
        if outcome not in {"created", "forced", "replaced"}:
            due[task, outcome] += number
    return due


@pytest.mark.parametrize("_part", range(examples(3, deep=30)))
async def test_every_answer_is_a_job_or_a_count(
    app: App, clock: Clock, chance: random.Random, connect: Connect | None, _part: int
) -> None:
    history = History(app, clock, chance, connect)
    await history.play(STEPS)
    assert await stored(app) == expected(history.told)
    assert {outcome for _, outcome in history.told} >= OUTCOMES


async def test_pruning_changes_no_count(
    app: App, clock: Clock, chance: random.Random, connect: Connect | None
) -> None:
    history = History(app, clock, chance, connect)
    await history.play(STEPS // 3)
    await history.pause()
    before = (await app.stats()).absorbed
    for job in await everything(app):
        if not job.is_terminal:
            await app.delete(job.id)
    clock.advance("400d")
    assert await app.maintenance.prune() > 0
    assert (await app.stats()).absorbed == before
