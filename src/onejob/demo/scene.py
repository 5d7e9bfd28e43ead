"""One scenario of the demo: it makes requests, keeps every answer, and counts the runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from onejob import Admission, App, Call, Duplicate, Outcome, State, Worker, current
from onejob.demo.checks import Line
from onejob.demo.screen import Screen

MOST = 100_000  # jobs that the demo could ever make
TIME_LIMIT = 8.0  # seconds after which a scenario that hangs is aborted


class Scene:
    """The requests, answers and runs of one scenario."""

    def __init__(self, app: App, name: str, screen: Screen) -> None:
        self.app = app
        self.name = name
        self.answers: list[Admission[Any]] = []
        self.folded = 0  # answers that made no job of their own
        self.runs: list[Any] = []  # what handlers were called with, in order
        self.handled: Counter[str] = Counter()  # calls of handlers, per job
        self.running: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.claims: list[tuple[str, bool]] = []
        self._screen = screen

    # ── asking ────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, request: Awaitable[Admission[Any]]) -> Admission[Any]:
        """Make one request and keep the answer; a rejection is an answer, too."""
        try:
            answer = await request
        except Duplicate as duplicate:
            answer = duplicate.admission
        return self.note(answer)

    def note(self, answer: Admission[Any]) -> Admission[Any]:
        """Keep an answer."""
        self.answers.append(answer)
        self.folded += answer.deduplicated and answer.outcome is not Outcome.RERUN
        self._move()
        return answer

    async def ask_at_once(self, *requests: Awaitable[Admission[Any]]) -> list[Admission[Any]]:
        """Make requests at the same time, as many users would."""
        return list(await asyncio.gather(*map(self.ask, requests)))

    async def ask_in_bulk(self, app: App, calls: Sequence[Call[Any]]) -> list[Admission[Any]]:
        """Make requests in one batch."""
        return [self.note(answer) for answer in await app.enqueue_many(calls)]

    def worker(self, concurrency: int) -> Worker:
        """Return a worker that does not wait long for a run that hangs."""
        return self.app.worker(concurrency=concurrency, grace="1s")

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def run(self, group: str, *what: Any) -> AsyncIterator[None]:
        """Record a run: its arguments, and how many runs of its group are active."""
        self.runs.append((group, *what))
        self.handled[current().job.id] += 1
        self.running[group] += 1
        self.most_at_once[group] = max(self.most_at_once[group], self.running[group])
        self._move()
        try:
            yield
        finally:
            self.running[group] -= 1

    def ran(self, group: str) -> list[Any]:
        """Return the arguments with which the handlers of a group were called."""
        return [run[1:] for run in self.runs if run[0] == group]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(TIME_LIMIT):
            while not condition():  # noqa: ASYNC110 - plain numbers cannot be awaited
                await asyncio.sleep(0.005)

    async def until_free(self, answer: Admission[Any]) -> None:
        """Wait until the window that an answer's job opened has ended."""
        ends = answer.job.holds_until
        await self.until(lambda: ends is not None and datetime.now(UTC) > ends)

    async def until_done(self) -> None:
        """Wait until no job waits or runs."""
        async with asyncio.timeout(TIME_LIMIT):
            while (stats := await self.app.stats()).waiting or stats.running:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    # ── counting ──────────────────────────────────────────────────────────────────────────────────

    def claim(self, text: str, *, holds: bool) -> None:
        """Record whether a claim of the scenario holds."""
        self.claims.append((text, holds))

    async def line(self, tasks: Sequence[str]) -> Line:
        """Count the requests here, in the handlers and in the store."""
        jobs = [job for task in tasks for job in await self.app.jobs(task=task, limit=MOST)]
        absorbed = (await self.app.stats()).absorbed
        folded = sum(
            number
            for task in tasks
            for outcome, number in absorbed.get(task, {}).items()
            if outcome != Outcome.RERUN  # such a request has a job of its own, which is counted with the jobs
        )
        return Line(
            scenario=self.name,
            requests=len(self.answers),
            ran=sum(job.started_at is not None for job in jobs),
            absorbed=folded + sum(job.started_at is None for job in jobs),
            lost=sum([await self._is_lost(answer) for answer in self.answers]),
            handled=len(self.handled),
            claims=tuple(self.claims),
        )

    async def _is_lost(self, answer: Admission[Any]) -> bool:
        job = await self.app.job(answer.job.id)
        while job.superseded_by is not None:
            job = await self.app.job(job.superseded_by)
        return job.state is not State.COMPLETED

    def _move(self) -> None:
        self._screen.move(len(self.answers), self.folded, len(self.handled))
