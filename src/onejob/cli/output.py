"""What commands print: JSON for programs, aligned tables and sentences for people."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_named

if TYPE_CHECKING:
    from onejob import Finding, Job

NARROWEST = 8  # columns that a shortened cell keeps
GAP = "  "
SEALED = "onejob:sealed"  # the one field of a sealed value
COLOURS = {
    "active": "cyan",
    "available": "blue",
    "scheduled": "blue",
    "pending": "blue",
    "retryable": "yellow",
    "completed": "green",
    "cancelled": "bright_black",
    "discarded": "red",
    "started": "cyan",
    "created": "green",
    "deduplicated": "yellow",
    "forced": "green",
    "replaced": "green",
    "kept": "yellow",
    "updated": "yellow",
    "rerun": "yellow",
    "rejected": "red",
    "stale": "yellow",
    "alive": "green",
    "dead": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}


# ── for programs ──────────────────────────────────────────────────────────────────────────────────


def emit(document: Any) -> None:
    """Print one JSON document, indented on a terminal."""
    click.echo(json.dumps(document, indent=2 if sys.stdout.isatty() else None, default=str))


def stamp(moment: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


def decode_json(value: bytes | None) -> Any:
    """Return stored JSON as a value."""
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
    """Return one row, padded, shortened and coloured."""
    padded = [shorten(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True)]
    painted = [paint(cell) for cell in padded] if coloured else padded
    return GAP.join(painted).rstrip()


def shorten(text: str, width: int) -> str:
    """Return a text cut to a width, with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def paint(text: str) -> str:
    """Return a word in its colour, if it has one."""
    colour = COLOURS.get(text.strip().lower())
    return click.style(text, fg=colour) if colour else text


def facts(pairs: Mapping[str, object]) -> None:
    """Print names and values below each other; None is left out."""
    known = {name: plain(str(value)) for name, value in pairs.items() if value is not None}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        first, *more = value.splitlines() or [""]
        click.echo(f"{click.style(name.ljust(width), bold=True)}{GAP}{paint(first)}")
        for further in more:
            click.echo(f"{' ' * width}{GAP}{further}")


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print one sentence per finding, and what to do about it, with the app's name; return the exit code."""
    findings = [replace(one, advice=one.advice.replace(" APP", f" {app_named()}")) for one in findings]
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        emit({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
        return int(failed)
    for finding in findings:
        click.echo(f"{paint(finding.level.ljust(4))}  {plain(finding.message)}")
        if finding.advice:
            click.echo(f"      {plain(finding.advice)}")
    return int(failed)


def plain(text: str) -> str:
    """Return a text with control characters spelled out, so that a payload cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def compact(value: object) -> str:
    """Return a value as JSON on one line, without escaping its characters."""
    return json.dumps(value, ensure_ascii=False)


def readable(value: object) -> str:
    """Return a value on one line, or "sealed"."""
    return "sealed" if isinstance(value, dict) and value.keys() == {SEALED} else compact(value)


def arguments_of(job: Job) -> str:
    """Return a job's arguments on one line, or "sealed"."""
    return readable(job.arguments)


def when(moment: datetime | None) -> str | None:
    """Return a time and how far away it is."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({away(moment)})"


def away(moment: datetime | None) -> str:
    """Return how far away a time is, in one or two units."""
    if moment is None:
        return ""
    distance = moment - datetime.now(UTC)
    return f"in {rough(distance)}" if distance > timedelta(0) else f"{rough(-distance)} ago"


def rough(span: timedelta) -> str:
    """Return a duration in two units at most."""
    from onejob import rough

    return rough(span)


def brief(seconds: float) -> str:
    """Return a number of seconds as a short duration."""
    return "<1ms" if seconds < 0.001 else rough(timedelta(seconds=seconds))  # noqa: PLR2004 - a millisecond


def number_of(count: int, noun: str) -> str:
    """Return a number with its noun: 1 job, 2 jobs."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
