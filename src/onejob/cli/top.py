"""`onejob top`: queues, tasks, workers and held keys, live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command, app_named
from onejob.cli.live import until_stopped
from onejob.cli.options import read_duration
from onejob.cli.output import emit
from onejob.cli.picture import Picture, Reader, document
from onejob.cli.terminal import full_screen, show, size
from onejob.cli.top_view import View, draw
from onejob.errors import StoreUnavailable

if TYPE_CHECKING:
    from onejob import App

SHORTEST = timedelta(seconds=0.1)
SHARE = 4  # a look takes at most one part in five of the time, however many jobs there are


@app_command(example="onejob top shop:app --interval 5")
@click.option("--once", is_flag=True, help="Print one picture and end, as without a terminal.")
@click.option(
    "--interval",
    type=read_duration,
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Look again after this time, such as 5s.",
)
async def top(app: App, *, once: bool, interval: timedelta, as_json: bool) -> None:
    """Show queues, tasks, workers and held keys live, and how many jobs ended in the last minute.

    Keys: q leaves, as does Ctrl-C; s sorts queues and tasks by name, waiting, running or absorbed; f shows
    only rows in which something waits, runs, is dead or ended lately, and again all rows.

    JOBS counts the jobs that are kept. RUNS/MIN and P95 RUN are measured over the last 5 minutes. Of the 200
    keys held last, those that absorbed most requests come first. With --json, or without a terminal, it
    prints one picture and ends.
    """
    if interval < SHORTEST:
        raise click.UsageError("--interval is at least 0.1 seconds.")
    place = app_named()
    reader = Reader(app)
    if as_json:
        return emit(document(await reader.read()))
    if once or not sys.stdout.isatty():
        return click.echo("\n".join(draw(await reader.read(), View(), place, width=size()[0])))
    first = await reader.read()
    return await until_stopped(Top(reader, first, place, interval.total_seconds()).run())


class Top:
    """The live picture: one task reads, the other draws when there is something new."""

    def __init__(self, reader: Reader, first: Picture, place: str, interval: float) -> None:
        self._reader = reader
        self._picture = first
        self._place = place
        self._interval = interval
        self._view = View()
        self._message = ""
        self._is_over = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Draw until a key or a signal ends it; leave the terminal as it was."""
        colours = click.get_current_context().color is not False
        with full_screen(self._press, self._changed.set):
            reading = asyncio.create_task(self._keep_reading())
            reading.add_done_callback(lambda _: self._changed.set())
            try:
                while not self._is_over and not reading.done():
                    show(self._lines(), colours=colours)
                    await self._changed.wait()
                    self._changed.clear()
            finally:
                reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading

    def _lines(self) -> list[str]:
        width, height = size()
        return draw(self._picture, self._view, self._place, width=width, height=height, message=self._message)

    def _press(self, key: str) -> None:
        match key:
            case "q" | "Q":
                self._is_over = True
            case "s":
                self._view = self._view.next_order()
            case "f":
                self._view = self._view.toggle_busy()
            case _:
                return
        self._changed.set()

    async def _keep_reading(self) -> None:
        while True:
            started = time.monotonic()
            try:
                self._picture, self._message = await self._reader.read(), ""
            except StoreUnavailable as error:
                self._message = f"{error} Trying again."
            self._changed.set()
            await asyncio.sleep(max(self._interval, SHARE * (time.monotonic() - started)))
