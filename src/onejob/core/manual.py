"""What operators and sweeps do to a job: cancel, reschedule, release, delete, repair, prune, move."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from onejob.core.holds import (
    MARK_AGE,
    detach,
    due,
    finish,
    forgotten,
    free,
    hold,
    holding,
    is_remembered,
    leave,
    phase,
    promote,
    too_late,
    void_mark,
    waits_behind,
)
from onejob.core.job import UNSTARTED, Job, Mark, State, Trait, alter
from onejob.core.replay import stop_replays
from onejob.core.step import NO_CHANGES, Changes, View, answering
from onejob.errors import InvalidCall


class Cancelled(msgspec.Struct, frozen=True):
    """The job after a cancel, and the successor that was cancelled with it, if any."""

    job: Job
    successor: Job | None = None


def cancel(view: View, *, reason: str = "cancelled", successors: bool = False) -> Changes[Cancelled | None]:
    """End a waiting job, or ask a running one to stop; with `successors`, end its successor too."""
    job = view.job
    if job is None:
        return NO_CHANGES
    if job.is_terminal:
        return Changes(Cancelled(job))
    if successors and waits_behind(view, job):
        return cancel_both(view, reason)
    if job.state is State.ACTIVE:
        asked = alter(job, cancel_requested=True)
        return Changes(Cancelled(asked), updates=(asked,))
    changes = leave(view, finish(job, State.CANCELLED, view.now, reason=reason))
    return answering(changes, Cancelled(changes.answer))


def cancel_both(view: View, reason: str) -> Changes[Cancelled | None]:
    """Cancel a job together with its successor."""
    assert view.successor is not None  # waits_behind() says so
    behind = finish(view.successor, State.CANCELLED, view.now, reason=reason, stand=None)
    mark = void_mark(view.mark, behind)
    first = cancel(msgspec.structs.replace(view, successor=None, mark=mark or view.mark), reason=reason)
    assert first.answer is not None  # there is a job
    answer = Cancelled(first.answer.job, behind)
    return Changes(answer, updates=(behind, *first.updates), mark=first.mark or mark)


def reschedule(
    view: View, *, at: datetime | None = None, delay: timedelta | None = None
) -> Changes[Job | None]:
    """Move a waiting job to another time; answer it as it is then, unchanged if it runs or has ended.

    A time in the past counts as now, so that the job does not overtake those that are due. A pending job
    still waits for its blockers and behind the holder of its key.

    Raises:
        InvalidCall: The job expires before that time.
    """
    job = view.job
    if job is None or job.state not in UNSTARTED:
        return Changes(job)
    run_at = max(at or view.now, view.now) + (delay or timedelta(0))
    if too_late(job, run_at):
        raise InvalidCall(f"Job {job.id} expires at {job.expires_at}: choose a time before that.")
    moved = alter(job, run_at=run_at, state=moved_state(job, run_at, view.now))
    if job.is_holder and job.traits & Trait.TRAILING and (job.held_at or view.now) > view.now:
        moved = hold(moved, view.now)  # the window that it opens begins at its run time
    return Changes(moved, updates=(moved,))


def moved_state(job: Job, run_at: datetime, now: datetime) -> State:
    """Return the state of a waiting job that is moved to another time."""
    if job.state is State.PENDING or (job.state is State.RETRYABLE and run_at > now):
        return job.state
    return due(run_at, now)


def release(view: View, *, job: str | None = None, force: bool = False) -> Changes[Job | None]:
    """Release a key: its holder becomes independent, its successor is promoted. Answer the old holder.

    Args:
        view: The rows of the key.
        job: Release it only if this job, or its chain, holds it.
        force: Release it although its holder runs.

    Raises:
        InvalidCall: The holder is running and `force` is false, or it is another one than `job`.
    """
    holder = view.holder
    if holder is None:
        return NO_CHANGES
    if job is not None and job not in {holder.id, holder.chain_id}:
        raise InvalidCall(f"Job {holder.id} holds the key, not job {job}: nothing was released.")
    if phase(holder) is State.ACTIVE and not force:
        raise InvalidCall(f"Job {holder.id} holds the key and is running: release it with force.")
    freed = detach(holder, view.now)
    promoted = (promote(view.successor, view.now),) if view.successor else ()
    return Changes(freed, updates=(freed, *promoted))


def release_own(view: View, *, job: Job) -> Changes[bool]:
    """Release the key that a run's own job holds; answer whether it did."""
    holder = view.holder
    if holder is None or (holder.id, holder.token) != (job.id, job.token):
        return Changes(False)  # noqa: FBT003 - the answer
    return answering(release(view, force=True), True)  # noqa: FBT003 - the answer


def delete(view: View) -> Changes[Job | None]:
    """Remove a job that is not running, and release its key; answer it, or None if it runs."""
    job = view.job
    if job is None or job.state is State.ACTIVE:
        return NO_CHANGES
    freed = alter(job, stand=None)  # before the successor takes the key
    promoted = (promote(view.successor, view.now),) if waits_behind(view, job) and view.successor else ()
    return Changes(job, updates=(freed, *promoted), deletes=(job.id,), mark=forgotten(view, job))


def repair(view: View) -> Changes[Job | None]:
    """Promote a successor whose predecessor is gone; needed only if something outside interfered."""
    job = view.job
    if job is None or not job.is_successor or job.state is not State.PENDING:
        return NO_CHANGES
    if view.holder is not None and not view.holder.is_terminal:
        return NO_CHANGES
    freed = (free(view.holder, view.now),) if view.holder else ()
    promoted = promote(job, view.now)
    return Changes(promoted, updates=(*freed, promoted))


Pruning = Literal["deleted", "emptied"]


def prune(view: View) -> Changes[Pruning | None]:
    """Delete an ended job whose retention is over; leave a tombstone if its hold or its mark is needed."""
    job = view.job
    if job is None or not job.is_terminal or job.kept_until is None or job.kept_until > view.now:
        return NO_CHANGES
    if not holding(job, view.now) and not is_remembered(job, view):
        return Changes("deleted", deletes=(job.id,), mark=forgotten(view, job))
    if job.is_tombstone:
        return Changes(None, updates=(alter(job, kept_until=needed_until(job, view)),))
    return Changes("emptied", updates=(empty(job, view),))


def empty(job: Job, view: View) -> Job:
    """Return a tombstone: the job without its payload, kept while its hold or its mark is needed."""
    kept_until = needed_until(job, view)
    cleared = stop_replays(job)
    return alter(
        cleared, args=b"", meta=b"{}", result=None, errors=b"[]", progress=None, kept_until=kept_until
    )


def needed_until(job: Job, view: View) -> datetime | None:
    """Return until when a tombstone is needed; None if its hold has no end."""
    held = holding(job, view.now)
    if held and job.holds_until is None:
        return None
    times = [job.holds_until] if held and job.holds_until else []
    if is_remembered(job, view) and job.finished_at is not None:
        times.append(job.finished_at + MARK_AGE)
    return max(times, default=view.now)


# ── moving to another store ───────────────────────────────────────────────────────────────────────


def arrive(view: View, *, job: Job, mark: Mark | None) -> Changes[Job | None]:
    """Insert a job of another store as it is; answer it, or None if its key is taken here."""
    if (job.is_holder and view.holder) or (job.is_successor and view.successor):
        return NO_CHANGES
    if job.is_successor and view.holder is None:  # the job that it waited for has ended here meanwhile
        job = promote(job, view.now)
    return Changes(job, inserts=(job,), mark=mark if view.mark is None else None)


def depart(view: View) -> Changes[Job | None]:
    """Remove a job that was moved to another store; its successor moves too, so it is not promoted."""
    if view.job is None:
        return NO_CHANGES
    return Changes(view.job, deletes=(view.job.id,), mark=forgotten(view, view.job))
