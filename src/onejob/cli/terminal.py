"""The terminal as a whole: drawn in place, with keys that need no Enter, and restored however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import click

OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def size() -> tuple[int, int]:
    """Return the columns and lines of the terminal; 80 and 24 if it does not say."""
    with contextlib.suppress(OSError, ValueError):
        found = os.get_terminal_size(sys.stdout.fileno())
        if found.columns and found.lines:
            return found.columns, found.lines
    fallback = shutil.get_terminal_size()
    return fallback.columns, fallback.lines


def show(lines: Sequence[str], *, colours: bool) -> None:
    """Draw lines over those before, in one write, so that nothing flickers."""
    shown = [line if colours else click.unstyle(line) for line in lines]
    text = f"{CLEAR_LINE}\n".join(shown)
    sys.stdout.write(f"{HOME}{text}{CLEAR_LINE}{CLEAR_BELOW}")
    sys.stdout.flush()


@contextlib.contextmanager
def full_screen(on_key: Callable[[str], None], on_resize: Callable[[], None]) -> Iterator[None]:
    """Use the whole terminal inside the block, and call functions for keys and changes of its size."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        stack.enter_context(unbuffered_keys(loop, on_key))
        if hasattr(signal, "SIGWINCH"):
            loop.add_signal_handler(signal.SIGWINCH, on_resize)
            stack.callback(loop.remove_signal_handler, signal.SIGWINCH)
            loop.add_signal_handler(signal.SIGTERM, on_key, "q")
            stack.callback(loop.remove_signal_handler, signal.SIGTERM)
        stack.callback(write, SHOW_CURSOR + OWN_SCREEN)
        write(OTHER_SCREEN + HIDE_CURSOR)
        yield


def write(codes: str) -> None:
    """Write control codes; a terminal that is gone needs none."""
    with contextlib.suppress(OSError):
        sys.stdout.write(codes)
        sys.stdout.flush()


@contextlib.contextmanager
def unbuffered_keys(loop: asyncio.AbstractEventLoop, on_key: Callable[[str], None]) -> Iterator[None]:
    """Call a function for every key that is pressed, without Enter, where standard input is a terminal."""
    try:
        import termios
        import tty
    except ImportError:  # on Windows there is only Ctrl-C
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        pressed = os.read(keyboard, 1024).decode(errors="replace")
        for key in pressed or "q":  # nothing to read: the terminal is gone
            on_key(key)

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
