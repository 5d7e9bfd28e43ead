"""The types of options that several commands share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

STATES = ("scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded")


class DurationType(click.ParamType[timedelta]):
    """A span of time, as onejob reads it everywhere."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read it."""
        from onejob.errors import InvalidDuration
        from onejob.schedule import duration

        try:
            return duration(float(value) if isinstance(value, str) and value.isdecimal() else value)
        except InvalidDuration as error:
            self.fail(str(error), param, ctx)


class QueuesType(click.ParamType[dict[str, int | None]]):
    """Queues and how many places each has: a:3,b."""

    name = "a:3,b"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, int | None]:
        """Read names and, behind a colon, numbers."""
        if isinstance(value, dict):
            return value
        return dict(self._place(part.strip(), param, ctx) for part in value.split(","))

    def _place(
        self, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | None]:
        queue, colon, places = part.rpartition(":")
        if not colon and part:
            return part, None
        if queue and places.isdecimal() and int(places):
            return queue, int(places)
        return self.fail(f"{part!r} is not a queue: write a, or a:3 for three places.", param, ctx)


class PairType(click.ParamType[tuple[str, str]]):
    """A name and a value: name=value."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Part them at the first equals sign."""
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not a pair: write name=value.", param, ctx)
        return name, text


class ObjectType(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Read it; anything but an object is refused."""
        import json

        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}.", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"""{value!r} is not an object: write '{{"user_id": 42}}'.""", param, ctx)
        return found


DURATION, QUEUES, PAIR, OBJECT = DurationType(), QueuesType(), PairType(), ObjectType()


def json_or_text(text: str) -> Any:
    """Read a value as JSON if it is that, and as text if not."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text
