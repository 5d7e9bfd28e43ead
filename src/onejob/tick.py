"""A schedule's tick: one atomic step on the schedule's own key, whoever makes it.

The key's mark remembers the last tick, as microseconds in its version. A tick is made only if the mark
still stands where its maker saw it, so of all who try one wins, on every store and whatever crashes. The
mark names no job: it stands for the schedule, so nothing that becomes of a job takes it away.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from onejob import cron
from onejob.cron import Line
from onejob.decide import Outcome, Request, Verdict, decide, make
from onejob.errors import InvalidSchedule
from onejob.job import EPOCH, Changes, Job, Mark, Trait, View, alter
from onejob.policy import Unique
from onejob.schedule import MINUTE

Missed = Literal["skip", "one", "all"]
"""What becomes of ticks that nobody was there to make."""

LATE = MINUTE  # a tick that is later than this counts as missed
MOST = 100  # ticks that are made up for
COUNTED = 10_000  # missed ticks that are counted at once

SCHEDULE = "cron"  # stands in the mark where a job would


class Tick(msgspec.Struct, frozen=True):
    """One step on from the tick before: to which, whether it runs, and how many were missed between."""

    at: datetime
    since: datetime
    runs: bool
    missed: int = 0


class Ticked(msgspec.Struct, frozen=True):
    """The answer of a tick that was made: what became of its request, if it had one."""

    verdict: Verdict | None = None


# ── planning ──────────────────────────────────────────────────────────────────────────────────────


def plan(line: Line, zone: ZoneInfo, missed: Missed, since: datetime, now: datetime) -> list[Tick]:
    """Tell which ticks are due, in their order, given the last one that was made."""
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
    """Tell a schedule's last tick; None if it has not begun."""
    if mark is None or mark.version is None:
        return None
    return EPOCH + timedelta(microseconds=mark.version)


def begin(view: View, *, key: bytes, at: datetime | None = None) -> Changes:
    """Let a schedule begin, if it has not: now, having missed nothing, or where it stood elsewhere."""
    if view.mark is not None:
        return Changes()
    return Changes(answer=Ticked(), mark=marked(view, key, at or view.now))


def reset(view: View, *, key: bytes) -> Changes:
    """Let a schedule go on from now: whatever was due before is not missed."""
    last = last_tick(view.mark)
    at = view.now if last is None else max(view.now, last)
    return Changes(answer=Ticked(), mark=marked(view, key, at))


def end(view: View) -> Changes:
    """Forget a schedule; the jobs that it made stay."""
    return Changes(mark=None if view.mark is None else msgspec.structs.replace(view.mark, job=""))


def tick(view: View, *, key: bytes, one: Tick, request: Request | None) -> Changes:
    """Make a tick if nobody else has; answer None if somebody has.

    The request goes through the overlap policy like any other; without a policy it is admitted freely. The
    mark moves on whatever comes of it.
    """
    if last_tick(view.mark) != one.since:
        return Changes()
    mark = marked(view, key, one.at)
    if request is None:
        return Changes(answer=Ticked(), mark=mark)
    changes = admit(request, view) if request.policy is None else decide(known(request, view), view)
    jobs = {job.id: told(job, request) for job in changes.inserts}
    verdict = changes.answer
    verdict = msgspec.structs.replace(verdict, job=jobs.get(verdict.job.id, verdict.job))
    return msgspec.structs.replace(changes, answer=Ticked(verdict), inserts=tuple(jobs.values()), mark=mark)


def told(job: Job, request: Request) -> Job:
    """Tell a new job which tick it is for; it gives way to nobody, for the mark does not name the newest."""
    return alter(job, meta=request.job.meta, traits=job.traits & ~Trait.NEWEST_WINS)


def marked(view: View, key: bytes, at: datetime) -> Mark:
    """Make the mark of a tick; it is void, so that no job gives way to it."""
    version = (at - EPOCH) // timedelta.resolution
    return Mark(key, version, SCHEDULE, void=True, touched_at=view.now)


def known(request: Request, view: View) -> Request:
    """Take the metadata of a job that waits with the same payload: which tick it is for is no difference."""
    standing = view.successor or view.holder
    if standing is None or standing.payload_digest != request.job.payload_digest:
        return request
    return msgspec.structs.replace(request, job=alter(request.job, meta=standing.meta))


def admit(request: Request, view: View) -> Changes:
    """Admit a tick beside whatever runs."""
    job = make(request, view.now)
    return Changes(
        answer=Verdict(Outcome.CREATED, job, None, "Runs of the schedule may overlap."), inserts=(job,)
    )


# ── what a schedule may say ───────────────────────────────────────────────────────────────────────


def check(overlap: Unique | None, missed: str) -> None:
    """Refuse, when a schedule is made, what has no meaning for ticks."""
    if missed not in get_args(Missed):
        raise InvalidSchedule(f"missed={missed!r}: write one of 'skip', 'one', 'all'.")
    for name in () if overlap is None else meaningless(overlap):
        raise InvalidSchedule(
            f"overlap=Unique({name}=…): ticks of a schedule are the same work, each newer than the last; "
            f"leave {name} out."
        )


def meaningless(overlap: Unique) -> Collection[str]:
    """Name what an overlap policy says that the schedule says itself."""
    return [
        name
        for name in ("by", "key", "queue", "meta", "family", "version", "merge")
        if getattr(overlap, name)
    ]
