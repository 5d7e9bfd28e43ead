"""Texts that users give: which can be names, and how others are shown."""

from __future__ import annotations


def is_name(value: object) -> bool:
    """Return whether a value is text without line breaks, control characters and lone surrogates."""
    return isinstance(value, str) and bool(value) and value.isprintable()


def number_of(count: int, noun: str) -> str:
    """Return a number with its noun: 1 job, 2 jobs."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def storable(text: str) -> str:
    """Return text with lone surrogates escaped, which file names have and no store can write."""
    return text.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """Return text with line breaks and control characters escaped: it cannot forge a line of a log."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
