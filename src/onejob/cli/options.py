"""Readers for arguments that click has no type for."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="List at most this many."
)
task_option = click.option("--task", help="Only of this task.")
queue_option = click.option("--queue", help="Only in this queue.")
key_option = click.option("--key", help="Only of this key, in hexadecimal digits.")

STATES = ("scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded")


def read_duration(text: str) -> timedelta:
    """Return a duration; a bare number is seconds."""
    from onejob import duration
    from onejob.errors import InvalidDuration

    try:
        return duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except InvalidDuration as error:
        raise click.BadParameter(str(error)) from error


def read_time(text: str) -> datetime:
    """Return a time with its time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a time: write 2026-01-31T09:00:00+01:00.") from error
    if found.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone: write {text}Z, or {text}+01:00.")
    return found


def read_queues(text: str) -> dict[str, int | None]:
    """Return queues with how many jobs of each run at once: a:3,b."""
    return dict(_read_queue(part.strip()) for part in text.split(","))


def _read_queue(part: str) -> tuple[str, int | None]:
    queue, colon, places = part.rpartition(":")
    if not colon and part:
        return part, None
    if queue and places.isdecimal() and int(places):
        return queue, int(places)
    raise click.BadParameter(f"{part!r} is not a queue: write a, or a:3 for three jobs at once.")


def read_pair(text: str) -> tuple[str, str]:
    """Return the name and the value of name=value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not a pair: write name=value.")
    return name, value


def read_object(text: str) -> dict[str, Any]:
    """Return a JSON object; raise for any other value."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f"""{text!r} is not an object: write '{{"user_id": 42}}'.""")
    return found


def json_or_text(text: str) -> Any:
    """Read a value as JSON if it is that, and as text if not."""
    try:
        return json.loads(text)
    except ValueError:
        return text
