"""Draw what each policy does on a time line, from the real decisions.

Each scenario makes requests on a memory store with a manual clock, starts and ends runs by the real steps,
and reads the jobs and holds after every tick. `python -m tools.timelines` writes the pictures into
`docs/images/timelines`; a test fails if one of them is out of date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from html import escape
from itertools import groupby
from pathlib import Path

from onejob import Admission, App, Job, State, Task, Unique
from onejob.core import runs
from onejob.core.leasing import Lease
from onejob.core.runs import Completed
from onejob.core.step import Step
from onejob.testing import Clock, MemoryStore

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "timelines"

LEFT, UNIT, ROW, TOP = 84, 30, 42, 74
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11px; fill: #59636e }
  .in { fill: #fff; font-size: 12px }
  .tick { stroke: #59636e }
  .axis { stroke: #d1d9e0 }
  .created { fill: #1a7f37 } .absorbed { fill: #9a6700 }
  .waits { fill: none; stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .active { fill: #0969da }
  .hold { fill: #8250df; opacity: .55 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .in { fill: #0d1117 } .tick { stroke: #9198a1 }
    .axis { stroke: #3d444d } .created { fill: #3fb950 } .absorbed { fill: #d29922 }
    .waits { stroke: #58a6ff } .active { fill: #58a6ff } .hold { fill: #bc8cff }
  }
"""


@dataclass(frozen=True)
class Scenario:
    """Requests on one key: when, and with which text and version."""

    unique: Unique
    requests: tuple[tuple[int, str, int], ...]
    length: int = 20  # ticks to draw
    pickup: int = 3  # ticks from when a job is due until a worker starts it
    run: int = 4  # ticks that a run takes


@dataclass
class Moment:
    """What was true during one tick."""

    jobs: list[Job]
    holders: set[str]


@dataclass
class Record:
    """Everything that a scenario showed."""

    moments: list[Moment] = field(default_factory=list)
    answers: list[tuple[int, str, Admission[None]]] = field(default_factory=list)


SCENARIOS = {
    "until_executed": Scenario(
        Unique.until_executed(by="key"), ((0, "A", 0), (2, "B", 0), (5, "C", 0), (10, "D", 0))
    ),
    "until_executing": Scenario(
        Unique.until_executing(by="key"), ((0, "A", 0), (2, "B", 0), (5, "C", 0), (7, "D", 0)), run=7
    ),
    "throttle": Scenario(
        Unique.throttle(10, by="key"),
        ((0, "A", 0), (3, "B", 0), (7, "C", 0), (12, "D", 0), (15, "E", 0)),
        24,
        1,
    ),
    "throttle_first_last": Scenario(
        Unique.throttle(10, "first+last", by="key"),
        ((0, "A", 0), (3, "B", 0), (7, "C", 0), (13, "D", 0)),
        25,
        0,
    ),
    "debounce": Scenario(
        Unique.debounce(4, 12, by="key"),
        (
            (0, "A", 0),
            (2, "B", 0),
            (4, "C", 0),
            *((t, x, 0) for t, x in zip(range(12, 24, 2), "DEFGHI", strict=True)),
        ),
        28,
        0,
        3,
    ),
    "latest": Scenario(
        Unique.latest(by="key", version="seq"),
        ((0, "v1", 1), (2, "v3", 3), (4, "v2", 2), (8, "v2", 2), (10, "v4", 4)),
        22,
        5,
        6,
    ),
    "coalesce": Scenario(
        Unique.coalesce(by="key"), ((0, "A", 0), (2, "B", 0), (5, "C", 0), (7, "D", 0), (9, "E", 0)), 18, 4, 6
    ),
    "once": Scenario(Unique.once(by="key"), ((0, "A", 0), (5, "B", 0), (12, "C", 0))),
    "singleton": Scenario(Unique.singleton(), ((0, "A", 0), (2, "B", 0), (5, "C", 0), (11, "D", 0))),
}


# ── playing ───────────────────────────────────────────────────────────────────────────────────────


class Simulation:
    """An app on a memory store, and a worker that is moved tick by tick."""

    def __init__(self, scenario: Scenario) -> None:
        self.clock, self.record, self.scenario = Clock(), Record(), scenario
        self.store = MemoryStore(clock=self.clock)
        self.app = App(store=self.store)
        self.task = self._declare()
        self.due: dict[str, int] = {}  # since which tick a job is available
        self.running: list[tuple[int, Job]] = []  # when a run ends

    def _declare(self) -> Task[[str, str, int], None]:
        @self.app.task(unique=self.scenario.unique)
        async def work(key: str, text: str, seq: int) -> None: ...

        return work

    async def play(self) -> Record:
        """Play the scenario."""
        async with self.app:
            for tick in range(self.scenario.length):
                await self._end_runs(tick)
                for at, text, seq in self.scenario.requests:
                    if at == tick:
                        self.record.answers.append((at, text, await self.task.enqueue("k", text, seq)))
                await self._start_runs(tick)
                jobs = (await self.app.jobs())[::-1]
                holders = {job.id for job in jobs if self.app.is_holding(job)}
                self.record.moments.append(Moment(jobs, holders))
                self.clock.advance(1)
        return self.record

    async def _end_runs(self, tick: int) -> None:
        for end, job in [run for run in self.running if run[0] == tick]:
            settle = partial(runs.settle, token=job.token, result=Completed(b"null"), merge=None)
            await self.store.apply([Step(settle, job.id, seen=job)])
            self.running.remove((end, job))

    async def _start_runs(self, tick: int) -> None:
        ready = [job for job in await self.app.jobs() if self._is_due(job)]
        for job in ready:
            self.due.setdefault(job.id, tick)
        wanted = sum(tick - self.due[job.id] >= self.scenario.pickup for job in ready)
        lease = Lease(
            namespace="",
            worker="worker",
            queues={"default": wanted},
            total=wanted,
            duration=timedelta(days=1),
            tasks=self.app.tasks.keys(),
        )
        leased = await self.store.lease(lease) if wanted else None
        self.running += [(tick + self.scenario.run, job) for job in (leased.jobs if leased else [])]

    def _is_due(self, job: Job) -> bool:
        return job.state in {State.AVAILABLE, State.SCHEDULED} and job.run_at <= self.clock()


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────


def x(tick: float) -> float:
    """Return where a tick is drawn."""
    return LEFT + tick * UNIT


def label(job: Job) -> str:
    """Return the word in a job's bar."""
    text = escape(str(job.arguments["text"]))
    return f"runs {text}" if job.state == State.ACTIVE else f"waits, {text}"


def spans(states: list[tuple[str, str] | None]) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Return runs of equal values as (begin, end, value); None is left out."""
    for value, group in groupby(enumerate(states), key=lambda pair: pair[1]):
        ticks = [tick for tick, _ in group]
        if value is not None:
            yield ticks[0], ticks[-1] + 1, value


def bar_of(moment: Moment, job_id: str) -> tuple[str, str] | None:
    """Return how a job is drawn in a moment: its class and its text."""
    for job in moment.jobs:
        if job.id == job_id and job.finished_at is None:
            return ("active" if job.state == State.ACTIVE else "waits"), label(job)
    return None


def draw_requests(record: Record) -> Iterator[str]:
    """Draw the requests and their answers; answers that stand close together take two lines."""
    for number, (tick, text, answer) in enumerate(record.answers):
        kind = "absorbed" if answer.deduplicated else "created"
        yield f'<line class="tick" x1="{x(tick)}" x2="{x(tick)}" y1="26" y2="{TOP - 10}"/>'
        yield f'<text x="{x(tick)}" y="18" text-anchor="middle" font-weight="600">{escape(text)}</text>'
        y = 38 if number % 2 == 0 else 54
        yield f'<text class="small {kind}" x="{x(tick) + 4}" y="{y}">{answer.outcome}</text>'


def draw_jobs(record: Record, jobs: list[str]) -> Iterator[str]:
    """Draw one row per job."""
    for row, job_id in enumerate(jobs):
        y = TOP + row * ROW
        yield f'<text class="small" x="8" y="{y + 18}">job {row + 1}</text>'
        for begin, end, (kind, text) in spans([bar_of(moment, job_id) for moment in record.moments]):
            width = (end - begin) * UNIT - 2
            yield f'<rect class="{kind}" x="{x(begin) + 1}" y="{y}" width="{width}" height="26" rx="5"/>'
            fitting = text if width > 8 * len(text) else text.split()[-1]
            style = ' class="in"' if kind == "active" else ""
            middle = f'x="{x(begin) + width / 2}" y="{y + 18}" text-anchor="middle"'
            yield f"<text{style} {middle}>{fitting}</text>"


def draw_holds(record: Record, y: int) -> Iterator[str]:
    """Draw when the key is held, a new bar for each holder."""
    yield f'<text class="small" x="8" y="{y + 11}">key held</text>'
    held = [(next(iter(moment.holders)), "") if moment.holders else None for moment in record.moments]
    for begin, end, _ in spans(held):
        width = (end - begin) * UNIT - 2
        yield f'<rect class="hold" x="{x(begin) + 1}" y="{y}" width="{width}" height="12" rx="3"/>'


def draw(name: str, record: Record) -> str:
    """Return the picture of a scenario."""
    jobs = list(dict.fromkeys(job.id for moment in record.moments for job in moment.jobs))
    bottom = TOP + len(jobs) * ROW
    width, height = int(x(len(record.moments)) + 16), bottom + 50
    axis = bottom + 26
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{name}: requests, jobs and the key on a time line</title>",
        f"<style>{STYLE}</style>",
        '<text class="small" x="8" y="18">request</text>',
        '<text class="small" x="8" y="38">answer</text>',
        *draw_requests(record),
        *draw_jobs(record, jobs),
        *draw_holds(record, bottom),
        f'<line class="axis" x1="{x(0)}" x2="{x(len(record.moments))}" y1="{axis}" y2="{axis}"/>',
        *(
            f'<text class="small" x="{x(tick)}" y="{axis + 16}" text-anchor="middle">{tick} s</text>'
            for tick in range(0, len(record.moments) + 1, 5)
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def pictures() -> dict[str, str]:
    """Return every picture by its file name."""
    records = {name: asyncio.run(Simulation(scenario).play()) for name, scenario in SCENARIOS.items()}
    return {f"{name}.svg": draw(name, record) for name, record in records.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, picture in pictures().items():
        (FOLDER / file).write_text(picture)
