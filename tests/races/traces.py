"""What a request without an answer may have done: little, for a payload belongs to one request.

The request either made one job or changed the payload of one, or it did nothing. So if any answer shows its
payload, it shows that job; and if that job replaced another, the other names it in the end. If no answer
shows the payload, what the request did was undone before any answer, which only another request without an
answer can do, where policies update:

- it may have made a job that was updated at once; no answer reports the creation of that job: an orphan;
- it may have given a waiting job new attempts; that matters only if an unanswered lease followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from tests.races.history import Cancel, Ended, Enqueue, Op, Seen, Start
from tests.races.model import Key, Rules, find
from tests.races.records import mentioned

LIVE = frozenset({"scheduled", "available", "active", "retryable", "pending"})


class Traces:
    """Which jobs were shown with which payload, and which have a creation or a lease without an answer."""

    def __init__(
        self, rules: Rules, ops: Sequence[Op], orphans: Sequence[str], ended: Sequence[Ended]
    ) -> None:
        seen = [(seen, proves(op, seen)) for op in ops for seen in mentioned(op)]
        self._homes = by_payload([*(end.job for end in ended), *(job for job, sure in seen if sure)])
        self._hints = by_payload(job for job, sure in seen if not sure)
        self._heirs = {end.job.job: end.superseded_by for end in ended if end.superseded_by is not None}
        self._orphans = frozenset(orphans)
        self._leased = {op.ask.job for op in ops if op.unknown and isinstance(op.ask, Start)}
        self._masked = self._orphans
        if "update" not in {
            rules.on_conflict,
            rules.on_active,
        }:  # a job keeps the payload that it was made with
            self._leased = set()
            self._masked = self._orphans.difference(*self._homes.values())

    def creations(self, ask: Enqueue) -> Collection[str]:
        """Return the jobs that a request may have made."""
        homes = self._homes.get(ask.payload)
        return self._orphans & homes if homes else self._masked

    def replaces(self, orphan: str, jobs: Iterable[str]) -> bool:
        """Return whether these jobs may have been superseded by an orphan."""
        return all(self._heirs.get(job, orphan) == orphan for job in jobs)

    def updates(self, ask: Enqueue) -> Collection[str]:
        """Return the jobs that a request may have changed."""
        return self._homes.get(ask.payload) or self._leased | self._hints.get(ask.payload, set())

    def matters(self, key: Key, ask: Enqueue) -> bool:
        """Return whether a request may still change anything."""
        return any(job not in key.gone for job in self.updates(ask)) or any(
            uncreated(key, self.creations(ask))
        )


def by_payload(jobs: Iterable[Seen]) -> dict[int, set[str]]:
    """Return the jobs by their payload."""
    homes: defaultdict[int, set[str]] = defaultdict(set)
    for job in jobs:
        homes[job.payload].add(job.job)
    return dict(homes)


def proves(op: Op, seen: Seen) -> bool:
    """Return whether an answer proves the job's payload; of an ended job it may be any."""
    return seen.state in LIVE or not isinstance(op.ask, Cancel | Enqueue)


def uncreated(key: Key, orphans: Iterable[str]) -> Iterator[str]:
    """Yield orphans that have not been made yet."""
    return (orphan for orphan in orphans if orphan not in key.gone and find(key, orphan) is None)
