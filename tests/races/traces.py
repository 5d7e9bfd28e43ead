"""What may a request without an answer have done? Hardly anything, for a payload belongs to one request.

The request either made one job or changed the payload of one, or it did nothing. So if its payload was ever
shown, it was that job's; and if that job replaced another, the other names it in the end. If the payload was
never shown, what the request did was undone before anybody looked, which only another such request can do,
where policies update:

- it may have made a job that was updated at once; of that job, no answer tells the birth: an orphan;
- it may have given a waiting job new attempts; that matters only if the job was then leased, unseen too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from tests.races.history import Cancel, Ended, Enqueue, Op, Seen, Start
from tests.races.lives import mentioned
from tests.races.model import Key, Rules, find

LIVE = frozenset({"scheduled", "available", "active", "retryable", "pending"})


class Traces:
    """Which jobs were shown with which payload, and which have a birth or a lease that nobody tells of."""

    def __init__(
        self, rules: Rules, ops: Sequence[Op], orphans: Sequence[str], ended: Sequence[Ended]
    ) -> None:
        seen = [(seen, vouched(op, seen)) for op in ops for seen in mentioned(op)]
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

    def births(self, ask: Enqueue) -> Collection[str]:
        """List the jobs that it may have made."""
        homes = self._homes.get(ask.payload)
        return self._orphans & homes if homes else self._masked

    def replaces(self, orphan: str, jobs: Iterable[str]) -> bool:
        """Tell whether it may be for this one that others gave way."""
        return all(self._heirs.get(job, orphan) == orphan for job in jobs)

    def updates(self, ask: Enqueue) -> Collection[str]:
        """List the jobs that it may have changed."""
        return self._homes.get(ask.payload) or self._leased | self._hints.get(ask.payload, set())

    def matters(self, key: Key, ask: Enqueue) -> bool:
        """Tell whether it may still do anything."""
        return any(job not in key.gone for job in self.updates(ask)) or any(unborn(key, self.births(ask)))


def by_payload(jobs: Iterable[Seen]) -> dict[int, set[str]]:
    """Tell which jobs had which payload."""
    homes: defaultdict[int, set[str]] = defaultdict(set)
    for job in jobs:
        homes[job.payload].add(job.job)
    return dict(homes)


def vouched(op: Op, seen: Seen) -> bool:
    """Tell whether an answer is believed only if the job has this payload; of one that has ended, any is."""
    return seen.state in LIVE or not isinstance(op.ask, Cancel | Enqueue)


def unborn(key: Key, orphans: Iterable[str]) -> Iterator[str]:
    """List those that have not been made yet."""
    return (orphan for orphan in orphans if orphan not in key.gone and find(key, orphan) is None)
