"""What commands print: JSON for machines, aligned tables and plain sentences for people."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from onejob import Admission, Job

NARROWEST = 8  # columns that a shortened cell keeps
GAP = "  "
STEPS = (
    (timedelta(days=1), timedelta(hours=1)),
    (timedelta(hours=1), timedelta(minutes=1)),
    (timedelta(seconds=10), timedelta(seconds=1)),
    (timedelta(seconds=1), timedelta(milliseconds=100)),
)
COLOURS = {
    "active": "cyan",
    "available": "blue",
    "scheduled": "blue",
    "pending": "blue",
    "retryable": "yellow",
    "completed": "green",
    "cancelled": "bright_black",
    "discarded": "red",
    "created": "green",
    "forced": "green",
    "replaced": "green",
    "kept": "yellow",
    "updated": "yellow",
    "rerun": "yellow",
    "rejected": "red",
    "stale": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}


# ── for machines ──────────────────────────────────────────────────────────────────────────────────


def emit(document: Any) -> None:
    """Print one JSON document; on a terminal it is indented."""
    click.echo(json.dumps(document, indent=2 if sys.stdout.isatty() else None, default=str))


def job_document(job: Job) -> dict[str, Any]:
    """Write a job under the names that every edge of onejob uses."""
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": str(job.state),
        "namespace": job.namespace,
        "priority": job.priority,
        "args": job.arguments,
        "meta": job.metadata,
        "attempt": job.attempt,
        "max_attempts": job.retry.attempts,
        "replays": job.replays,
        "returns_at": stamp(job.returns_at),
        "created_at": stamp(job.created_at),
        "run_at": stamp(job.run_at),
        "started_at": stamp(job.started_at),
        "finished_at": stamp(job.finished_at),
        "reason": job.reason,
        "superseded_by": job.superseded_by,
        "key": job.key.hex() if job.key else None,
        "held_at": stamp(job.held_at),
        "holds_until": stamp(job.holds_until),
        "version": job.version,
        "chain_id": job.chain_id,
        "chain_index": job.chain_index,
        "parent_id": job.parent_id,
        "worker": job.worker,
        "lease_until": stamp(job.lease_until),
        "cancel_requested": job.cancel_requested,
        "errors": job.failures,
        "result": decoded(job.result),
        "progress": decoded(job.progress),
    }


def admission_document(admission: Admission[Any]) -> dict[str, Any]:
    """Write the answer of an enqueue."""
    return {
        "outcome": str(admission.outcome),
        "deduplicated": admission.deduplicated,
        "job": admission.job.id,
        "state": str(admission.job.state),
        "holder": admission.holder.id if admission.holder else None,
        "key": admission.key,
        "payload_differs": admission.payload_differs,
        "reason": admission.reason,
    }


def stamp(moment: datetime | None) -> str | None:
    """Write a time as ISO 8601 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


def decoded(value: bytes | None) -> Any:
    """Read stored JSON."""
    return None if value is None else json.loads(value)


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, yields: Sequence[str] = (), empty: str
) -> None:
    """Print aligned columns; on a terminal those named in `yields` are shortened until the table fits."""
    cells = [[plain(str(cell)).replace("\n", " ") for cell in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    fit(widths, [titles.index(title) for title in yields])
    click.secho(line(titles, widths), bold=True)
    for row in cells:
        click.echo(line(row, widths, coloured=True))


def fit(widths: list[int], flexible: Sequence[int]) -> None:
    """Narrow the flexible columns, the first named first, until the terminal is wide enough."""
    if not sys.stdout.isatty():
        return
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - shutil.get_terminal_size().columns
    for column in flexible:
        cut = min(max(excess, 0), max(widths[column] - NARROWEST, 0))
        widths[column] -= cut
        excess -= cut


def line(cells: Sequence[str], widths: Sequence[int], *, coloured: bool = False) -> str:
    """Pad, shorten and colour one row."""
    padded = [shorten(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True)]
    painted = [paint(cell) for cell in padded] if coloured else padded
    return GAP.join(painted).rstrip()


def shorten(text: str, width: int) -> str:
    """Cut a text that is too long and say so."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def paint(text: str) -> str:
    """Colour a word that has a colour."""
    colour = COLOURS.get(text.strip().lower())
    return click.style(text, fg=colour) if colour else text


def facts(pairs: Mapping[str, object]) -> None:
    """Print names and values below each other; what is None is left out."""
    known = {name: plain(str(value)) for name, value in pairs.items() if value is not None}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        first, *more = value.splitlines() or [""]
        click.echo(f"{click.style(name.ljust(width), bold=True)}{GAP}{paint(first)}")
        for further in more:
            click.echo(f"{' ' * width}{GAP}{further}")


def plain(text: str) -> str:
    """Spell out control characters: what a job carries must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def compact(value: object) -> str:
    """Write a value as JSON on one line, in the characters that it has."""
    return json.dumps(value, ensure_ascii=False)


def readable(value: object) -> str:
    """Write a value on one line, or that it is sealed."""
    from onejob.job import SEALED_FIELD

    return "sealed" if isinstance(value, dict) and value.keys() == {SEALED_FIELD} else compact(value)


def when(moment: datetime | None) -> str | None:
    """Tell a time and how far away it is."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({away(moment)})"


def away(moment: datetime | None) -> str:
    """Tell how far away a time is, in one or two units."""
    if moment is None:
        return ""
    distance = moment - datetime.now(UTC)
    return f"in {rough(distance)}" if distance > timedelta(0) else f"{rough(-distance)} ago"


def rough(span: timedelta) -> str:
    """Spell a duration as people say it: in two units at most, to the millisecond only below a second."""
    from onejob.schedule import spell

    for unit, step in STEPS:
        if span >= unit:
            return spell(span // step * step)
    return spell(span // timedelta(milliseconds=1) * timedelta(milliseconds=1))


def number_of(count: int, noun: str) -> str:
    """Count things: 1 job, 2 jobs."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
