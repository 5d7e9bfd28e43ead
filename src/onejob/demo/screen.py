"""The demo's output: a progress line on a terminal, one plain line per step anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TextIO

from onejob.demo.checks import Line, total

ERASE = "\r\x1b[K"
BAR = 24


class Screen:
    """Writes to a stream; colours and the progress line are for terminals only."""

    def __init__(self, stream: TextIO | None = None, *, silent: bool = False) -> None:
        self._stream = stream or sys.stdout
        if isinstance(self._stream, TextIOWrapper):
            self._stream.reconfigure(errors="replace")  # a terminal without ✓ shows a question mark
        self._silent = silent
        self._moves = not silent and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self._moves and not os.environ.get("NO_COLOR")
        self._moving = ""

    def say(self, text: str = "") -> None:
        """Write a line above the progress line."""
        if not self._silent:
            self._stream.write(f"{ERASE if self._moving else ''}{text}\n{self._moving}")
            self._stream.flush()

    def open_scene(self, number: int, title: str) -> None:
        """Begin a scenario."""
        self.say()
        self.say(self._paint("1", f"{number}. {title}"))

    def move(self, requests: int, absorbed: int, ran: int) -> None:
        """Update the progress line; the bar is the share of requests that were absorbed."""
        if self._moves:
            filled = round(BAR * absorbed / max(requests, 1))
            bar = self._paint("36", "█" * filled) + "░" * (BAR - filled)
            self._moving = f"   {bar} {requests} requests, {absorbed} absorbed, {ran} ran"
            self._stream.write(ERASE + self._moving)
            self._stream.flush()

    def close_scene(self, line: Line) -> None:
        """End a scenario, and print its claims."""
        if self._moving:
            self._stream.write(ERASE)
            self._moving = ""
        for claim, holds in line.claims:
            self.say(f"   {self._paint('32', '✓') if holds else self._paint('31', '✗')} {claim}")

    def table(self, lines: Sequence[Line], seconds: float) -> None:
        """Write the numbers, one line per scenario, and their sum in a sentence."""
        self.say()
        self.say(self._paint("1", f"{'scenario':<18}{'requests':>10}{'ran':>6}{'absorbed':>10}{'lost':>6}"))
        for line in lines:
            mark = self._paint("32", "  ✓") if line.is_true else self._paint("31", "  ✗")
            self.say(
                f"{line.scenario:<18}{space_thousands(line.requests):>10}{line.ran:>6}{line.absorbed:>10}{line.lost:>6}{mark}"
            )
        summary = sentence(total(lines))
        self.say()
        self.say(self._paint("1", f"{summary} · {seconds:.1f} s"))

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


def sentence(line: Line) -> str:
    """Return a line's numbers in a sentence."""
    return (
        f"{space_thousands(line.requests)} requests · {space_thousands(line.ran)} ran · "
        f"{space_thousands(line.absorbed)} absorbed · {space_thousands(line.lost)} lost"
    )


def space_thousands(number: int) -> str:
    """Return a number with a space between thousands."""
    return f"{number:,}".replace(",", " ")
