"""Geometry of the charts; the templates draw it as SVG, with the same numbers in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from onejob import AbsorbedRequest, Job
from onejob.http.pages.samples import Point
from onejob.http.pages.text import rate

WIDTH, HEIGHT = 1016, 136
STEPS = (1, 1.6, 2, 3, 4, 5, 6, 8, 10)
BINS = 60
LANE, TOP, LEFT, RIGHT = 31, 22, 124, 220
COLUMN, ROW, BOX_WIDTH, BOX_HEIGHT = 232, 64, 180, 46


# ── requests over time ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Area:
    """Two areas over time: requests, and the part that was absorbed; values are per minute."""

    requests: str  # points of a line
    absorbed: str
    requests_area: str  # points of a closed shape
    absorbed_area: str
    lines: list[tuple[float, str]]  # y and label of the grid
    times: list[tuple[float, str, str]]  # x, anchor and label
    rows: list[tuple[datetime, float, float]]  # the same numbers
    highest: float
    width: int = WIDTH
    height: int = HEIGHT


def draw_area(points: Sequence[Point]) -> Area | None:
    """Return the chart of the last hour or less; None before there are two points."""
    if len(points) < 2:  # noqa: PLR2004 - a line needs two
        return None
    rows = thin_out(points)
    top = nice(max([1.0, *(created + absorbed for _, created, absorbed in rows)]))
    begin, end = rows[0][0], rows[-1][0]
    length = max((end - begin).total_seconds(), 1)

    def x(at: datetime) -> float:
        return round((at - begin).total_seconds() / length * WIDTH, 1)

    def y(value: float) -> float:
        return round(HEIGHT - value / top * HEIGHT, 1)

    requests = [(x(at), y(created + absorbed)) for at, created, absorbed in rows]
    absorbed_points = [(x(at), y(absorbed)) for at, _, absorbed in rows]
    return Area(
        line(requests),
        line(absorbed_points),
        close_shape(requests),
        close_shape(absorbed_points),
        [(y(top * part), rate(top * part)) for part in (0.5, 1)],
        time_labels(begin, end),
        rows,
        top,
    )


def thin_out(points: Sequence[Point]) -> list[tuple[datetime, float, float]]:
    """Return at most BINS rows of time, created and absorbed per minute."""
    size = max(-(-len(points) // BINS), 1)
    rows = []
    for first in range(0, len(points), size):
        some = points[first : first + size]
        seconds = sum(point.seconds for point in some) or 1
        created, absorbed = sum(p.created for p in some), sum(p.absorbed for p in some)
        rows.append((some[-1].at, created * 60 / seconds, absorbed * 60 / seconds))
    return rows


def line(points: Sequence[tuple[float, float]]) -> str:
    """Return points as SVG writes them."""
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def close_shape(points: Sequence[tuple[float, float]]) -> str:
    """Return the shape between a line and the bottom."""
    return line([(points[0][0], HEIGHT), *points, (points[-1][0], HEIGHT)])


def nice(value: float) -> float:
    """Return the next round number."""
    size = 10.0 ** (len(str(int(value))) - 1)
    return next(step * size for step in STEPS if step * size >= value)


def time_labels(begin: datetime, end: datetime) -> list[tuple[float, str, str]]:
    """Return four labels for a time axis."""
    form = "%H:%M" if end - begin >= timedelta(minutes=10) else "%H:%M:%S"
    labels = []
    for part in range(4):
        at = begin + (end - begin) * part / 3
        anchor = "start" if part == 0 else "end" if part == 3 else "middle"  # noqa: PLR2004 - the last
        labels.append((round(WIDTH * part / 3, 1), anchor, f"{at.astimezone(UTC):{form}}"))
    return labels


# ── how many jobs wait in a queue ─────────────────────────────────────────────────────────────────

SPARK_WIDTH, SPARK_HEIGHT = 96, 20


@dataclass(frozen=True)
class Spark:
    """How many jobs of a queue waited, over time."""

    line: str  # points
    lowest: int
    highest: int


def draw_sparks(points: Sequence[Point]) -> dict[str, Spark]:
    """Return a small line for each queue; none before there are two points."""
    rows = depths(points)
    if len(rows) < 2:  # noqa: PLR2004 - a line needs two
        return {}
    return {name: spark([row.get(name, 0) for _, row in rows]) for name in rows[-1][1]}


def spark(values: Sequence[int]) -> Spark:
    """Return the line of one queue; its highest point is at the top."""
    step, top = SPARK_WIDTH / (len(values) - 1), max([1, *values])
    drawn = [
        (round(place * step, 1), round((SPARK_HEIGHT - 2) * (1 - value / top) + 1, 1))
        for place, value in enumerate(values)
    ]
    return Spark(line(drawn), min(values), max(values))


def depths(points: Sequence[Point]) -> list[tuple[datetime, Mapping[str, int]]]:
    """Return at most BINS times with how many jobs waited in each queue, the newest last."""
    size = max(-(-len(points) // BINS), 1)
    return [(point.at, point.depths) for point in points[::-1][::size]][::-1]


# ── the jobs of a key ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Lane:
    """One job on the time line of its key."""

    job: Job
    y: float
    x: float
    width: float  # from when it was created to its end
    held: float  # how far the hold is known to have lasted beyond the end
    label: str
    ticks: list[tuple[float, int]]  # x of an entry of the log, and how many requests it stands for

    @property
    def end(self) -> float:
        """Where the bar and the hold end."""
        return self.x + self.width + self.held


@dataclass(frozen=True)
class Lanes:
    """The jobs of a key on one time line."""

    lanes: list[Lane]
    now: float
    height: float
    begin: datetime
    width: int = WIDTH


def draw_lanes(
    jobs: Sequence[Job],
    absorbed: Mapping[str, int],
    entries: Sequence[AbsorbedRequest] = (),
    holder: Job | None = None,
) -> Lanes | None:
    """Return the jobs of a key, oldest first, from when each was created to its end; None without jobs.

    A job has a tick for each absorbed request of the log; requests that the log joined share one. The
    hold of a job that has ended lasts until now if it is the holder, else until its last absorbed request.
    """
    if not jobs:
        return None
    now = datetime.now(UTC)
    ordered = sorted(jobs, key=lambda job: job.id)
    begin = min(job.created_at for job in ordered)
    end = max([now, *(job.finished_at for job in ordered if job.finished_at)])
    length = max((end - begin), timedelta(milliseconds=1)).total_seconds()
    room = WIDTH - LEFT - RIGHT

    def x(at: datetime) -> float:
        return round(LEFT + max((at - begin).total_seconds(), 0) / length * room, 1)

    lanes = []
    for position, job in enumerate(ordered):
        left, right = x(job.created_at), x(job.finished_at or end)
        width = max(right - left, 3)
        ticks = [(max(x(one.at), left + 1), one.times) for one in entries if one.job == job.id]
        last = x(now) if job == holder else max((at for at, _ in ticks), default=0)
        held = max(round(last - left - width, 1), 0)
        lanes.append(Lane(job, TOP + position * LANE, left, width, held, label(job, absorbed), ticks))
    return Lanes(lanes, x(now), TOP + len(lanes) * LANE + 22, begin)


def label(job: Job, absorbed: Mapping[str, int]) -> str:
    """Return what is written beside a job."""
    word = "successor, waits" if job.is_successor else str(job.state)
    count = absorbed.get(job.id, 0)
    return f"{word} · {count} absorbed" if count else word


# ── the graph of a chain ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Box:
    """A job or chain in the graph."""

    name: str  # the id
    title: str
    state: str
    x: float
    y: float
    link: str


@dataclass(frozen=True)
class Graph:
    """A chain, what it waits for, and what waits for it."""

    boxes: list[Box]
    edges: list[tuple[float, float, float, float]]
    width: float
    height: float
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


def draw_graph(
    jobs: Sequence[Job], blockers: Sequence[tuple[str, str, str]], dependants: Sequence[Job]
) -> Graph:
    """Return a layered graph: blockers (chain, task, state), the chain's jobs, dependants."""
    columns: list[list[tuple[str, str, str, str]]] = [
        [(chain, task, state, f"chains/{chain}") for chain, task, state in blockers],
        *([(job.id, job.task, str(job.state), f"jobs/{job.id}")] for job in jobs),
        [(job.id, job.task, str(job.state), f"jobs/{job.id}") for job in dependants],
    ]
    columns = [column for column in columns if column]
    tallest = max(len(column) for column in columns)
    boxes: list[list[Box]] = []
    for place, column in enumerate(columns):
        top = (tallest - len(column)) * ROW / 2
        boxes.append(
            [
                Box(name, title, state, place * COLUMN + 1, top + row * ROW + 1, link)
                for row, (name, title, state, link) in enumerate(column)
            ]
        )
    middle = BOX_HEIGHT / 2
    edges = [
        (one.x + BOX_WIDTH, one.y + middle, other.x, other.y + middle)
        for left, right in pairwise(boxes)
        for one in left
        for other in right
    ]
    width = (len(columns) - 1) * COLUMN + BOX_WIDTH + 2
    return Graph(
        [box for column in boxes for box in column], edges, width, tallest * ROW - ROW + BOX_HEIGHT + 2
    )
