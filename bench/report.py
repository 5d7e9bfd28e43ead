"""The table, the JSON, and the progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from bench.machine import Machine
from bench.measure import Reading

WIDTH = 40
HEAD = ("", "measured", "reference", "against", "ratio", "bar", "")
GREEN, RED, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"


class Progress:
    """A bar on a terminal, dots elsewhere; on stderr, so that stdout has only the table."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._total = total
        self._stream = stream
        self._done = -1
        self._name = ""
        self._after = ""

    def enter(self, name: str) -> None:
        """Print what is measured next."""
        self._done += 1
        self._name, self._after = name, " "
        self._write(f"{' ' * (self._done > 0)}{name} ")

    def tick(self) -> None:
        """Count half a round."""
        self._after += "."
        self._write(".")

    def say(self, text: str) -> None:
        """Print what takes long."""
        self._after = f" {text} "
        self._write(f" [{text}] ")

    def _write(self, text: str) -> None:
        if self._stream.isatty():
            full = WIDTH * self._done // max(self._total, 1)
            bar = "█" * full + "░" * (WIDTH - full)
            text = f"\r\x1b[K{bar} {self._name}{self._after}"
        self._stream.write(text)
        self._stream.flush()

    def leave(self) -> None:
        """Clear the line for the table."""
        self._stream.write("\r\x1b[K" if self._stream.isatty() else "\n")
        self._stream.flush()


def table(readings: Sequence[Reading], machine: Machine, *, rounds: int, color: bool) -> str:
    """Return the readings in columns."""
    lines = [HEAD, *(cells(reading) for reading in readings)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    aligned = [
        "  ".join(
            cell.ljust(width) if column in {0, 3, 5, 6} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    marks = [None, *(reading.passed for reading in readings)]
    body = "\n".join(paint(line, mark) if color else line for line, mark in zip(aligned, marks, strict=True))
    return f"{heading(machine, rounds)}\n\n{body}\n"


def heading(machine: Machine, rounds: int) -> str:
    """Return the lines that describe the machine."""
    warning = (
        "  (in memory: durability means nothing here)" if machine.file_system in {"tmpfs", "ramfs"} else ""
    )
    servers = "".join(f"{server}\n" for server in machine.servers)
    return (
        f"{machine.system}, {machine.cores} cores, Python {machine.python}, SQLite {machine.sqlite}\n"
        f"{servers}"
        f"{machine.folder} on {machine.file_system}{warning}, "
        f"fsync of one page p50 {machine.fsync_p50_ms:.3f} ms\n"
        f"medians of {rounds} rounds in which both sides take turns; the ratio is the median of the ratios"
    )


def cells(reading: Reading) -> tuple[str, ...]:
    """Return a reading as the cells of a line."""
    reference = "" if reading.reference is None else quantity(reading.reference, reading.unit)
    ratio = "" if reading.ratio is None else f"{reading.ratio:.2f}"
    verdict = {True: "pass", False: "MISS", None: ""}[reading.passed]
    measured = quantity(reading.measured, reading.unit)
    return (reading.name, measured, reference, reading.against, ratio, reading.bar, verdict)


def quantity(value: float, unit: str) -> str:
    """Return a number with its unit."""
    return f"{value:.3f} {unit}" if unit == "ms" else f"{value:,.0f} {unit}".rstrip()


def paint(line: str, passed: bool | None) -> str:  # noqa: FBT001 - a reading's own mark
    """Return a line in the color of its verdict."""
    return line if passed is None else f"{GREEN if passed else RED}{line}{PLAIN}"


def as_json(readings: Sequence[Reading], machine: Machine, *, rounds: int) -> str:
    """Return everything as JSON."""
    found = {
        "machine": asdict(machine),
        "rounds": rounds,
        "readings": [asdict(reading) for reading in readings],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)
