"""How the words of the command line are read where click has no type for them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

STATES = ("scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded")


def read_duration(text: str) -> timedelta:
    """Read a span of time in the forms that onejob reads everywhere; a bare number is seconds."""
    from onejob.errors import InvalidDuration
    from onejob.schedule import duration

    try:
        return duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except InvalidDuration as error:
        raise click.BadParameter(str(error)) from error


def read_queues(text: str) -> dict[str, int | None]:
    """Read queues and how many places each has: a:3,b."""
    return dict(_read_queue(part.strip()) for part in text.split(","))


def _read_queue(part: str) -> tuple[str, int | None]:
    queue, colon, places = part.rpartition(":")
    if not colon and part:
        return part, None
    if queue and places.isdecimal() and int(places):
        return queue, int(places)
    raise click.BadParameter(f"{part!r} is not a queue: write a, or a:3 for three places.")


def read_pair(text: str) -> tuple[str, str]:
    """Read a name and a value: name=value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not a pair: write name=value.")
    return name, value


def read_object(text: str) -> dict[str, Any]:
    """Read a JSON object; anything else is refused."""
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
