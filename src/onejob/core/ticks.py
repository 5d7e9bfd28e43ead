"""A schedule's tick: one atomic step on the schedule's own key.

The key's mark stores the last tick, as microseconds in its version. A worker makes a tick only if the mark is
still where the worker saw it, so exactly one of several workers succeeds, on every store and after any crash.
The mark names no job but the schedule, so the end of a job does not change it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from onejob.core import cron
from onejob.core.cron import Line
from onejob.core.decide import Outcome, Request, Verdict, decide, differs, make
from onejob.core.durations import MINUTE
from onejob.core.job import EPOCH, Job, Mark, Trait, alter
from onejob.core.policy import Unique
from onejob.core.step import NO_CHANGES, Changes, View
from onejob.errors import InvalidSchedule

Missed = Literal["skip", "one", "all"]
"""What happens to ticks that were due while no worker was running."""

LATE = MINUTE  # a tick that is later than this counts as missed
MOST = 100  # missed ticks that are made later
COUNTED = 10_000  # missed ticks that are counted at once

SCHEDULE = "cron"  # what the mark names instead of a job


class Tick(msgspec.Struct, frozen=True):
    """One tick: its time, the tick before it, whether it runs, and how many were missed in between."""

    at: datetime
    since: datetime
    runs: bool
    missed: int = 0


class Ticked(msgspec.Struct, frozen=True):
    """The answer of a tick that was made: the verdict on its request, if it had one."""

    verdict: Verdict | None = None


# ── planning ──────────────────────────────────────────────────────────────────────────────────────


def plan(line: Line, zone: ZoneInfo, missed: Missed, since: datetime, now: datetime) -> list[Tick]:
    """Return the ticks that are due, in order, given the last one that was made."""
    due = cron.recent(line, zone, since, now, MOST if missed == "all" else 1)
    if not due:
        return []
    before = cron.count(line, zone, since, due[0], COUNTED)
    if missed == "skip" and now - due[0] > LATE:
        return [Tick(due[0], since, runs=False, missed=before + 1)]
    first = Tick(due[0], since, runs=True, missed=before)
    return [first, *(Tick(at, last, runs=True) for last, at in pairwise(due))]


# ── ticking ───────────────────────────────────────────────────────────────────────────────────────


def last_tick(mark: Mark | None) -> datetime | None:
    """Return a schedule's last tick; None if it has not begun."""
    if mark is None or mark.version is None:
        return None
    return EPOCH + timedelta(microseconds=mark.version)


def begin(view: View, *, key: bytes, at: datetime | None = None) -> Changes[Ticked | None]:
    """Start a schedule that has not started: now, or at the tick that it reached in another store."""
    if view.mark is not None:
        return NO_CHANGES
    return Changes(Ticked(), mark=mark_tick(view, key, at or view.now))


def reset(view: View, *, key: bytes) -> Changes[Ticked]:
    """Continue a schedule from now; earlier ticks do not count as missed."""
    last = last_tick(view.mark)
    at = view.now if last is None else max(view.now, last)
    return Changes(Ticked(), mark=mark_tick(view, key, at))


def end(view: View) -> Changes[None]:
    """Remove a schedule; its jobs stay."""
    return Changes(None, mark=None if view.mark is None else msgspec.structs.replace(view.mark, job=""))


def tick(view: View, *, key: bytes, one: Tick, request: Request | None) -> Changes[Ticked | None]:
    """Make a tick; answer None if another worker has made it.

    The request is decided by the overlap policy like any other; without a policy it is always admitted. The
    mark moves whatever the outcome is.
    """
    if last_tick(view.mark) != one.since:
        return NO_CHANGES
    mark = mark_tick(view, key, one.at)
    if request is None:
        return Changes(Ticked(), mark=mark)
    changes = admit(request, view) if request.policy is None else decide(known(request, view), view)
    jobs = {job.id: for_tick(job, request) for job in changes.inserts}
    verdict = changes.answer
    verdict = msgspec.structs.replace(verdict, job=jobs.get(verdict.job.id, verdict.job))
    return Changes(Ticked(verdict), changes.updates, tuple(jobs.values()), changes.deletes, mark)


def for_tick(job: Job, request: Request) -> Job:
    """Return a new job with its tick in its metadata; it never gives way, because the mark names no job."""
    return alter(job, meta=request.job.meta, traits=job.traits & ~Trait.NEWEST_WINS)


def mark_tick(view: View, key: bytes, at: datetime) -> Mark:
    """Return the mark of a tick; it is void, so that no job gives way to it."""
    version = (at - EPOCH) // timedelta.resolution
    return Mark(key, version, SCHEDULE, void=True, touched_at=view.now)


def known(request: Request, view: View) -> Request:
    """Return the request with the metadata of a waiting job of equal payload, so that the two are equal."""
    standing = view.successor or view.holder
    if standing is None or differs(request, standing):
        return request
    return msgspec.structs.replace(request, job=alter(request.job, meta=standing.meta))


def admit(request: Request, view: View) -> Changes[Verdict]:
    """Admit a tick beside the jobs that run."""
    job = make(request, view.now)
    return Changes(
        answer=Verdict(Outcome.CREATED, job, None, "Runs of the schedule may overlap."), inserts=(job,)
    )


# ── checking a schedule ───────────────────────────────────────────────────────────────────────


def check(overlap: Unique | None, missed: str) -> None:
    """Reject options that have no meaning for ticks, when the schedule is declared."""
    if missed not in get_args(Missed):
        raise InvalidSchedule(f"missed={missed!r}: write one of 'skip', 'one', 'all'.")
    for name in () if overlap is None else meaningless(overlap):
        raise InvalidSchedule(
            f"overlap=Unique({name}=…): ticks of a schedule are the same work, each newer than the last; "
            f"leave {name} out."
        )


def meaningless(overlap: Unique) -> Collection[str]:
    """Return the fields of an overlap policy that the schedule already determines."""
    return [
        name
        for name in ("by", "key", "queue", "meta", "family", "version", "merge")
        if getattr(overlap, name)
    ]
