"""Holds: which job occupies a key, which waits behind it, and what every exit does about both."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from onejob.core.job import INCOMPLETE, ORDINAL, SUPERSEDED, Job, Mark, Stand, State, Trait, alter
from onejob.core.step import Changes, View

MARK_AGE = timedelta(days=30)
HISTORY = 50  # errors kept per job
ACTIVE = State.ACTIVE  # Python 3.11 takes 1,700 instructions to find a member of an enum; each job needs it


# ── what a hold is ────────────────────────────────────────────────────────────────────────────────


def phase(job: Job) -> State:
    """Return the state that counts for the key: a chain that has started is active until it ends."""
    return State.ACTIVE if job.chain_index and job.state in INCOMPLETE else job.state


def lapsed(job: Job, now: datetime) -> bool:
    """Return whether the hold's window has ended."""
    return job.holds_until is not None and now >= job.holds_until


def holding(job: Job, now: datetime) -> bool:
    """Return whether the job occupies its key by its own policy, as holder or as successor."""
    if job.stand is None:
        return False
    return bool(job.holds >> ORDINAL[phase(job)] & 1) and not lapsed(job, now)


def hold(job: Job, now: datetime) -> Job:
    """Return the job as holder of its key; the window counts from now, or from a trailing job's run time."""
    since = max(now, job.run_at) if job.traits & Trait.TRAILING else now
    until = None if job.within is None else since + timedelta(seconds=job.within)
    return alter(job, stand=Stand.HOLDER, held_at=since, holds_until=until)


def wait_behind(job: Job) -> Job:
    """Return the job as successor of its key."""
    return alter(job, state=State.PENDING, stand=Stand.SUCCESSOR)


def free(job: Job, now: datetime) -> Job:
    """Return the job without its key; a tombstone that was kept for its hold may be pruned from now on."""
    kept_until = now if job.is_tombstone and job.is_terminal else job.kept_until
    return alter(job, stand=None, kept_until=kept_until)


def detach(job: Job, now: datetime) -> Job:
    """Return the job without its key and independent of it: it gives way to no other job."""
    freed = free(job, now)
    return alter(freed, traits=freed.traits & ~(Trait.NEWEST_WINS | Trait.HAS_SUCCESSOR))


def due(run_at: datetime, now: datetime) -> State:
    """Return the waiting state that a run time means."""
    return State.SCHEDULED if run_at > now else State.AVAILABLE


def ready(job: Job, now: datetime) -> State:
    """Return the waiting state of a job: pending while it has blockers, else by its run time."""
    return State.PENDING if job.is_blocked else due(job.run_at, now)


def too_late(job: Job, at: datetime) -> bool:
    """Return whether a job has expired by a time."""
    return job.expires_at is not None and at >= job.expires_at


def promote(successor: Job, now: datetime, *, not_before: datetime | None = None) -> Job:
    """Return the successor as the holder of its key, ready to run."""
    run_at = max(successor.run_at, not_before) if not_before else successor.run_at
    moved = alter(successor, run_at=run_at)
    return hold(alter(moved, state=ready(moved, now)), now)


def finish(job: Job, state: State, now: datetime, *, reason: str | None = None, **changes: Any) -> Job:
    """Return the job as ended; `leave` decides about its hold."""
    return alter(
        job,
        state=state,
        finished_at=max(now, job.started_at or now),
        kept_until=now + job.retention.of(state),
        reason=reason,
        lease_until=None,
        **changes,
    )


def supersede(job: Job, by: str, now: datetime) -> Job:
    """Return the job as ended in favour of a newer one."""
    return finish(job, State.CANCELLED, now, reason=SUPERSEDED, superseded_by=by, stand=None)


def inherit(heir: Job, job: Job) -> Job:
    """Return the heir as awaited by the jobs that wait for the job whose work it takes over."""
    return alter(heir, traits=heir.traits | job.traits & Trait.AWAITED)


def add_error(job: Job, error: Mapping[str, Any], now: datetime) -> bytes:
    """Return a job's error history with one more error, as JSON."""
    entry = {"attempt": job.attempt, "at": now.isoformat(), **error}
    return msgspec.json.encode([*job.failures, entry][-HISTORY:])


# ── fences: is this job still the newest? ─────────────────────────────────────────────────────────


def newest(mark: Mark | None) -> tuple[int | None, str | None]:
    """Return version and chain of the newest request that was not withdrawn."""
    if mark is None:
        return None, None
    return (mark.prior_version, mark.prior_job) if mark.void else (mark.version, mark.job)


def outdated(job: Job, mark: Mark | None) -> bool:
    """Return whether a newer version was admitted, and not withdrawn, since this job was."""
    version, _ = newest(mark)
    return job.version is not None and version is not None and job.version < version


def overtaken(job: Job, mark: Mark | None) -> bool:
    """Return whether a job without a hold must give way to a newer one of its key."""
    if not job.traits & Trait.NEWEST_WINS or job.traits & Trait.MERGES or job.is_holder:
        return False
    _, chain = newest(mark)
    return chain is not None and chain != job.chain_id


def gives_way(job: Job, mark: Mark | None) -> bool:
    """Return whether the job must end `superseded` instead of running (again)."""
    return outdated(job, mark) or overtaken(job, mark)


def owned(job: Job | None, token: int) -> bool:
    """Return whether the lease with this token is still the job's; every worker's write checks it."""
    return job is not None and job.state is ACTIVE and job.token == token


def waits_behind(view: View, job: Job) -> bool:
    """Return whether this job's own successor waits for it."""
    return job.is_holder and view.successor is not None


# ── every exit decides about the hold and promotes the successor ──────────────────────────────────


def leave(view: View, ended: Job) -> Changes[Job]:
    """Release or keep the hold of a job that ends, and promote its successor, in the same step."""
    if not ended.is_holder:
        updates: tuple[Job, ...] = (ended if ended.stand is None else alter(ended, stand=None),)
    elif view.successor is not None:
        updates = (free(ended, view.now), promote(view.successor, view.now))
    elif ended.holds >> ORDINAL[ended.state] & 1 and not ended.is_superseded:
        updates = (ended,)
    else:
        updates = (free(ended, view.now),)
    return Changes(updates[0], updates=updates, mark=void_mark(view.mark, ended))


def void_mark(mark: Mark | None, ended: Job) -> Mark | None:
    """Return the mark that lets the same version be admitted again if its job did not complete."""
    if mark is None or ended.state is State.COMPLETED:
        return None
    if mark.prior_job == ended.chain_id:
        return msgspec.structs.replace(mark, prior_version=None, prior_job=None)
    if mark.job != ended.chain_id or ended.is_superseded:
        return None
    return msgspec.structs.replace(mark, void=True)


def give_way(view: View, job: Job) -> Changes[Job]:
    """End a job in favour of the newer one that the mark names."""
    _, newer = newest(view.mark)
    ended = finish(job, State.CANCELLED, view.now, reason=SUPERSEDED, superseded_by=newer)
    return leave(view, ended)


def is_remembered(job: Job, view: View) -> bool:
    """Return whether the key's mark still needs this job."""
    if view.mark is None or view.mark.job != job.id or job.finished_at is None:
        return False
    return view.now - job.finished_at < MARK_AGE


def forgotten(view: View, job: Job) -> Mark | None:
    """Return the mark without a job that is removed; a mark without any job is dropped by the store."""
    if view.mark is not None and view.mark.prior_job == job.id:
        return msgspec.structs.replace(view.mark, prior_version=None, prior_job=None)
    if view.mark is None or view.mark.job != job.id:
        return None
    return msgspec.structs.replace(view.mark, job="")
