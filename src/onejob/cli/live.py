"""What commands that look again and again share: how they draw, how they end, how they survive an outage."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import select
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click

from onejob.errors import StoreUnavailable

T = TypeVar("T")
CLOSED = {errno.EPIPE, errno.ESHUTDOWN}
CLEAR, HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"
AGAIN = 1.0  # seconds between two attempts to read a store that does not answer


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends, Ctrl-C is pressed, or no process reads standard output any more."""
    try:
        await work
    except asyncio.CancelledError:  # by Ctrl-C
        task = asyncio.current_task()
        assert task is not None  # this is a coroutine
        task.uncancel()
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        discard_output()


def discard_output() -> None:
    """Discard what is still to be printed: Python would complain about a closed pipe at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_output_closed() -> bool:
    """Return whether standard output is a pipe or a terminal that is closed at its other end."""
    if not hasattr(select, "poll"):  # on Windows the next write fails
        return False
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:  # it is no file
        return False
    return bool(poll.poll(0))


async def through_outages(read: Callable[[], Awaitable[T]]) -> T:
    """Return what is read; while the store does not answer, say so once and try again."""
    is_away = False
    while True:
        try:
            found = await read()
        except StoreUnavailable as error:
            if not is_away:
                click.echo(f"{error} Trying again every second.", err=True)
            is_away = True
            await asyncio.sleep(AGAIN)
        else:
            if is_away:
                click.echo("The store answers again.", err=True)
            return found


class Captured(io.StringIO):
    """Text that is printed as if to the terminal."""

    def isatty(self) -> bool:
        """Return True, so that colours and widths are those of the terminal."""
        return True


def print_in_place(show: Callable[[], None], *, is_first: bool) -> None:
    """Print to the terminal over what was printed there before, in one write, so that nothing flickers."""
    with contextlib.redirect_stdout(Captured()) as captured:
        show()
    lines = captured.getvalue().splitlines()[: shutil.get_terminal_size().lines - 1]
    drawn = "".join(f"{line}{CLEAR_LINE}\n" for line in lines)
    sys.stdout.write(f"{CLEAR if is_first else ''}{HOME}{drawn}{CLEAR_BELOW}")
    sys.stdout.flush()
