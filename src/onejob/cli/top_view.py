"""How a picture is drawn: four tables that share the height of the terminal, each as wide as it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from onejob.cli.output import GAP, brief, paint, plain, shorten

if TYPE_CHECKING:
    from onejob import State
    from onejob.cli.picture import Picture

BARS = " ▁▂▃▄▅▆▇█"
WIDE = 80  # columns from which everything is shown
NAME = 10  # columns that a name keeps
WAITING = ("scheduled", "available", "pending", "retryable")
ORDERS = ("name", "waiting", "running", "absorbed")
WINDOW, MINUTES = "5m", 5  # over which rates and percentiles are measured


@dataclass(frozen=True)
class View:
    """What the operator chose: the order of queues and tasks, and whether idle ones are left out."""

    order: str = ORDERS[0]
    busy_only: bool = False

    def next_order(self) -> View:
        """Return the view in the next order."""
        return View(ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)], self.busy_only)

    def toggle_busy(self) -> View:
        """Return the view with the other choice of rows."""
        return View(self.order, not self.busy_only)


@dataclass(frozen=True)
class Table:
    """Rows under titles: the first column takes the width that the others leave."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str
    numbers: frozenset[int] = frozenset()  # columns that are aligned to the right


def draw(
    picture: Picture, view: View, place: str, *, width: int, height: int | None = None, message: str = ""
) -> list[str]:
    """Return the lines of a picture, at most `height` of them; `message` replaces the last line."""
    head = headline(picture, view, place, width)
    tables = [queues(picture, view), tasks(picture, view, width), workers(picture, width), holds(picture)]
    room = None if height is None else height - len(head) - 1 - 2 * len(tables)
    rows = shares([len(table.rows) for table in tables], room)
    lines = [*head]
    for table, most in zip(tables, rows, strict=True):
        lines += ["", *render(table, most, width)]
    foot = message or ("" if height is None else keys(view))
    lines = lines if height is None else [*lines, *[""] * height][: height - 1]
    return [*lines, shorten(foot, width)] if foot else lines


def shares(lengths: Sequence[int], room: int | None) -> list[int]:
    """Return how many rows each table gets: at least one, and the rest in turn while it has more."""
    if room is None:
        return [max(length, 1) for length in lengths]
    given = [1 for _ in lengths]
    while sum(given) < room and any(got < length for got, length in zip(given, lengths, strict=True)):
        for index, length in enumerate(lengths):
            if given[index] < length and sum(given) < room:
                given[index] += 1
    return given


# ── the head and the foot ─────────────────────────────────────────────────────────────────────────


def headline(picture: Picture, view: View, place: str, width: int) -> list[str]:
    """Return the first lines: where and when, the sums, and the last minute."""
    stats, minute = picture.stats, picture.minute
    rows = ", busy only" if view.busy_only else ""
    title = f"onejob top{GAP}{plain(place)}{GAP}{picture.at:%H:%M:%S} UTC{GAP}by {view.order}{rows}"
    alive = sum(worker.alive for worker in picture.workers)
    lost = f"{GAP}lost {stats.lost:,}" if stats.lost else ""
    sums = (
        f"waiting {stats.waiting:,}{GAP}running {stats.running:,}{GAP}dead {stats.dead:,}{lost}"
        f"{GAP}keys waiting {stats.keys_waiting:,}{GAP}workers {alive:,}"
    )
    least = "" if minute.is_complete else "at least "
    text = (
        f"1 min: {least}created {minute.created:,}{GAP}absorbed {minute.absorbed:,}"
        f"{GAP}ended {sum(minute.ended):,}"
    )
    bar = bars(minute.ended, min(60, width - len(text) - len(GAP))).rstrip()
    colour = "red" if stats.lost or not alive else None
    return [
        click.style(shorten(title, width), bold=True),
        click.style(shorten(sums, width), fg=colour),
        f"{shorten(text, width)}{GAP if bar else ''}{click.style(bar, fg='green')}",
    ]


def bars(numbers: Sequence[int], width: int) -> str:
    """Return numbers as a line of bars, several numbers to a bar if there is not room for each."""
    if width < NAME:
        return ""
    per_bar = -(-len(numbers) // width)
    sums = [sum(numbers[start : start + per_bar]) for start in range(0, len(numbers), per_bar)]
    highest = max(sums)
    steps = len(BARS) - 1
    return "".join(BARS[-(-number * steps // highest)] if number else BARS[0] for number in sums)


def keys(view: View) -> str:
    """Return the last line: what keys do."""
    shown = "all rows" if view.busy_only else "busy rows only"
    following = view.next_order().order
    return f"q leave{GAP}s sort by {following}{GAP}f {shown}"


# ── the tables ────────────────────────────────────────────────────────────────────────────────────


def queues(picture: Picture, view: View) -> Table:
    """Return the table of queues."""
    stats = picture.stats
    timed = stats.timings[WINDOW].by_queue
    rows = []
    for queue, found in stats.by_queue.items():
        states = by_name(found)
        waiting, running = waiting_of(states), states["active"]
        oldest, runs = stats.oldest_due.get(queue), timed[queue].run.count if queue in timed else 0
        if not view.busy_only or waiting or running or runs:
            cells = (
                plain(queue),
                f"{waiting:,}",
                f"{running:,}",
                "" if oldest is None else brief(oldest),
                f"{runs / MINUTES:,.1f}",
            )
            rows.append(((waiting, running, 0), cells))
    titles = ("QUEUE", "WAITING", "RUNNING", "OLDEST DUE", "RUNS/MIN")
    return Table(titles, sort_rows(rows, view), "No queue has jobs.", frozenset({1, 2, 3, 4}))


def tasks(picture: Picture, view: View, width: int) -> Table:
    """Return the table of tasks."""
    stats = picture.stats
    timed = stats.timings[WINDOW].by_task
    rows = []
    for task in {**stats.by_task, **stats.absorbed}:
        states, outcomes = by_name(stats.by_task.get(task, {})), stats.absorbed.get(task, {})
        waiting, running, dead = waiting_of(states), states["active"], states["discarded"]
        absorbed, is_timed = sum(outcomes.values()), task in timed and timed[task].run.count > 0
        if not view.busy_only or waiting or running or dead or is_timed:
            cells = (
                plain(task),
                f"{sum(states.values()):,}",
                f"{running:,}",
                f"{dead:,}",
                brief(timed[task].run.p95) if is_timed else "",
                f"{absorbed:,}",
                by_outcome(outcomes),
            )
            rows.append(((waiting, running, absorbed), cells if width >= WIDE else cells[:-1]))
    titles = ("TASK", "JOBS", "RUNNING", "DEAD", "P95 RUN", "ABSORBED", "AS")
    shown = titles if width >= WIDE else titles[:-1]
    return Table(shown, sort_rows(rows, view), "No task has jobs.", frozenset({1, 2, 3, 4, 5}))


def by_name(states: Mapping[State, int]) -> Counter[str]:
    """Return how many jobs are in each state, by its name; 0 for one that is missing."""
    return Counter({str(state): number for state, number in states.items()})


def waiting_of(states: Counter[str]) -> int:
    """Return how many jobs wait, retries included."""
    return sum(states[state] for state in WAITING)


def by_outcome(outcomes: Mapping[str, int]) -> str:
    """Return absorbed requests by outcome, most first."""
    most_first = sorted(outcomes.items(), key=lambda one: -one[1])
    return shorten(" ".join(f"{outcome}:{number:,}" for outcome, number in most_first), 24)


def sort_rows(rows: Iterable[tuple[tuple[int, int, int], Sequence[str]]], view: View) -> list[Sequence[str]]:
    """Return rows in the order of the view: each has its numbers of ORDERS; equal ones go by name."""
    by_name = sorted(rows, key=lambda row: row[1][0])
    if view.order == "name":
        return [cells for _, cells in by_name]
    column = ORDERS.index(view.order) - 1
    return [cells for _, cells in sorted(by_name, key=lambda row: -row[0][column])]


def workers(picture: Picture, width: int) -> Table:
    """Return the table of workers, those alive first."""
    rows = []
    for one in sorted(picture.workers, key=lambda one: (not one.alive, one.name)):
        cells = (
            plain(one.name),
            "alive" if one.alive else "dead",
            f"{len(one.running)}/{one.concurrency}",
            f"{brief(max((picture.at - one.seen_at).total_seconds(), 0))} ago",
            shorten(" ".join(f"{plain(queue)}:{most}" for queue, most in one.queues.items()), 24),
        )
        rows.append(cells if width >= WIDE else cells[:-1])
    titles = ("WORKER", "STATE", "RUNNING", "SEEN", "QUEUES")
    shown = titles if width >= WIDE else titles[:-1]
    return Table(shown, rows, "No worker has reported.", frozenset({2, 3}))


def holds(picture: Picture) -> Table:
    """Return the table of held keys, the one that absorbed most first."""
    rows = [
        (plain(job.task), f"{(job.key or b'').hex()[:12]}…", str(job.state), f"{number:,}")
        for job, number in picture.holds
    ]
    return Table(("HELD BY", "KEY", "STATE", "ABSORBED"), rows, "No key is held.", frozenset({3}))


def render(table: Table, most: int, width: int) -> list[str]:
    """Return a table as lines: its titles and at most `most` rows; the last one counts the others."""
    if not table.rows:
        return [click.style(shorten(table.titles[0], width), bold=True), shorten(table.empty, width)]
    shown = table.rows[:most] if len(table.rows) <= most else table.rows[: most - 1]
    widths = [max(map(len, column)) for column in zip(table.titles, *table.rows, strict=True)]
    others = sum(widths[1:]) + len(GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], max(width - others, NAME))
    lines = [click.style(line(table.titles, widths, table.numbers, width), bold=True)]
    lines += [line(row, widths, table.numbers, width, coloured=True) for row in shown]
    left_out = len(table.rows) - len(shown)
    return [*lines, shorten(f"… and {left_out:,} more", width)] if left_out else lines


def line(
    cells: Sequence[str],
    widths: Sequence[int],
    numbers: frozenset[int],
    width: int,
    *,
    coloured: bool = False,
) -> str:
    """Return one row, padded, cut to the terminal's width, and coloured where it fits."""
    padded = [
        text.rjust(size) if index in numbers else text.ljust(size)
        for index, (cell, size) in enumerate(zip(cells, widths, strict=True))
        for text in [shorten(cell, size)]
    ]
    whole = GAP.join(padded).rstrip()
    if len(whole) > width:
        return shorten(whole, width)
    return GAP.join(map(paint, padded)).rstrip() if coloured else whole
