"""Check the demo's claims. Pure: the numbers come from the store and the handlers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One scenario in numbers, each counted in a different place."""

    scenario: str
    requests: int = 0  # by the caller: answers that came back
    ran: int = 0  # by the store: jobs that a worker started
    absorbed: int = 0  # by the store: absorbed requests, and jobs superseded before they ran
    lost: int = 0  # by the store: requests that no completed job serves
    handled: int = 0  # by the handlers: distinct jobs for which they were called
    claims: Sequence[tuple[str, bool]] = ()  # what the scenario claims, and whether it holds

    @property
    def is_true(self) -> bool:
        """Whether nothing is wrong with this line."""
        return not faults(self)


def faults(line: Line) -> list[str]:
    """Return everything that is wrong with a line; nothing if it is correct."""
    found = [f"it is not so that {claim}" for claim, holds in line.claims if not holds]
    if line.requests != line.ran + line.absorbed:
        found.append(f"{line.requests} requests are not {line.ran} that ran and {line.absorbed} absorbed")
    if line.handled != line.ran:
        found.append(f"the store started {line.ran} jobs, but handlers saw {line.handled}")
    if line.lost:
        found.append(f"{line.lost} requests were lost")
    if not line.requests or not line.claims:
        found.append("nothing was shown")
    return [f"{line.scenario}: {fault}" for fault in found]


def total(lines: Sequence[Line]) -> Line:
    """Return the sum of the lines."""
    return Line(
        scenario="total",
        requests=sum(line.requests for line in lines),
        ran=sum(line.ran for line in lines),
        absorbed=sum(line.absorbed for line in lines),
        lost=sum(line.lost for line in lines),
        handled=sum(line.handled for line in lines),
        claims=[(f"{line.scenario} holds", line.is_true) for line in lines],
    )


def all_faults(lines: Sequence[Line]) -> list[str]:
    """Return everything that is wrong with the whole demo."""
    return [fault for line in lines for fault in faults(line)] or faults(total(lines))


def report_unfinished(scenario: str, seconds: float) -> Line:
    """Return the line of a scenario that did not end."""
    return Line(scenario, claims=[(f"it ended within {seconds:g} s", False)])
