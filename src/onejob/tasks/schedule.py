"""Schedule: which task runs when, as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from onejob.core import cron
from onejob.core.policy import Unique
from onejob.core.ticks import Missed

KEEP = Unique()
SHOWN = 5  # next runs


@dataclass(frozen=True)
class Schedule:
    """A task with its arguments, when it runs, and what happens to a tick that meets a run or is missed.

    Attributes:
        name: The schedule's name.
        task: The name of the task that it runs.
        line: The cron line or interval, such as "*/5 * * * *" or "every 30s".
        timezone: The time zone in which the line is read.
        arguments: The task's arguments as JSON values.
        overlap: What happens to a tick while an earlier job of the schedule is unfinished; None allows both.
        missed: What happens to ticks that were due while no worker ran: "skip", "one" or "all".
        paused: Whether the schedule is paused.
        declared: Whether it is declared in code; then the store keeps only the pause.
    """

    name: str
    task: str
    line: str
    timezone: str = "UTC"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    overlap: Unique | None = KEEP
    missed: Missed = "one"
    paused: bool = False
    declared: bool = False

    @cached_property
    def parsed(self) -> cron.Line:
        """The line, parsed."""
        return cron.read(self.line)

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return cron.zone_named(self.timezone)

    @property
    def description(self) -> str:
        """The line in English, with its time zone."""
        said = cron.describe(self.parsed)
        return said if isinstance(self.parsed, cron.Every) else f"{said}, {self.timezone} time"

    def upcoming(self, after: datetime, most: int = SHOWN) -> list[datetime]:
        """Return the next ticks, in the schedule's own time zone.

        Args:
            after: An aware time; later ticks are returned.
            most: How many to return at most.
        """
        found = islice(cron.ticks(self.parsed, self.zone, after), most)
        return [one.astimezone(self.zone) for one in found]
