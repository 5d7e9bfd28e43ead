"""What happens to a job while workers run it: start, renew, report, settle, take back.

Each function takes a View and returns Changes. A store runs it atomically and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from onejob.core.holds import (
    ACTIVE,
    add_error,
    due,
    finish,
    give_way,
    gives_way,
    inherit,
    leave,
    outdated,
    owned,
    promote,
    ready,
    supersede,
    too_late,
    void_mark,
    waits_behind,
)
from onejob.core.job import EXPIRED, UNSTARTED, Job, State, Trait, alter
from onejob.core.merge import merge_jobs
from onejob.core.replay import schedule_replay
from onejob.core.step import NO_CHANGES, Changes, View, answering
from onejob.errors import MergeFailed

LEASE_EXPIRED = "LeaseExpired"  # the type of the error that a rescued job gets
AVAILABLE, COMPLETED = State.AVAILABLE, State.COMPLETED  # see ACTIVE

Merge = Callable[[Job, Job], Job]
"""Merge an older job's payload into a newer one by the task's function; raise MergeFailed if that fails."""


# ── start ─────────────────────────────────────────────────────────────────────────────────────────


def start(view: View, *, worker: str, lease: timedelta) -> Changes[Job | None]:
    """Lease an available job; end it instead if it has expired or must give way. Answer it if it runs."""
    job = view.job
    if job is None or job.state is not AVAILABLE:
        return NO_CHANGES
    if gives_way(job, view.mark):
        return answering(give_way(view, job), None)
    if too_late(job, view.now):
        return answering(discard_late(view), None)
    releases = bool(job.traits & Trait.RELEASES_AT_START)
    running = alter(
        job,
        state=ACTIVE,
        attempt=job.attempt + 1,
        token=job.token + 1,
        started_at=max(view.now, job.run_at),  # the client that set the run time may estimate a later clock
        worker=worker,
        lease_until=view.now + lease,
        stand=None if releases else job.stand,
    )
    promoted = (promote(view.successor, view.now),) if releases and waits_behind(view, job) else ()  # type: ignore[arg-type]
    return Changes(running, updates=(running, *promoted))


def mature(view: View) -> Changes[None]:
    """Make a scheduled or retryable job available once its run time has come."""
    job = view.job
    if job is None or job.state not in {State.SCHEDULED, State.RETRYABLE} or job.run_at > view.now:
        return NO_CHANGES
    return Changes(None, updates=(alter(job, state=State.AVAILABLE),))


def discard_late(view: View) -> Changes[Job | None]:
    """End a job that has expired; answer it, or None if it has started or may still start."""
    job = view.job
    if job is None or job.state not in UNSTARTED or not too_late(job, view.now):
        return NO_CHANGES
    return leave(view, finish(job, State.DISCARDED, view.now, reason=EXPIRED))


def extend(view: View, *, token: int, lease: timedelta) -> Changes[Job | None]:
    """Renew a lease; answer the job as it is now, or None if the lease is lost."""
    if not owned(view.job, token):
        return NO_CHANGES
    assert view.job is not None  # owned() says so
    renewed = alter(view.job, lease_until=view.now + lease)
    return Changes(renewed, updates=(renewed,))


def report(view: View, *, token: int, progress: bytes) -> Changes[Job | None]:
    """Store a running job's progress; answer the job, or None if the lease is lost."""
    if not owned(view.job, token):
        return NO_CHANGES
    assert view.job is not None  # owned() says so
    reported = alter(view.job, progress=progress)
    return Changes(reported, updates=(reported,))


# ── settle ────────────────────────────────────────────────────────────────────────────────────────


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The handler returned."""

    value: bytes | None = None
    continuation: Job | None = None


class Failed(msgspec.Struct, frozen=True):
    """The handler raised; `after` overrides the backoff, `final` the attempts that are left.

    `payload` has the arguments and the digest with which the job is tried again, if they change.
    """

    error: dict[str, Any]
    after: timedelta | None = None
    final: bool = False
    chance: float = 0.5
    payload: tuple[bytes, bytes] | None = None


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run later; no attempt is spent."""

    after: timedelta


class HandedBack(msgspec.Struct, frozen=True):
    """The worker stops; no attempt is spent."""


class Stopped(msgspec.Struct, frozen=True):
    """The handler gave up because it was asked to stop, or decided to."""

    reason: str


Result = Completed | Failed | Snoozed | HandedBack | Stopped


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The job after its run, and the job that continues its chain, if any."""

    job: Job
    continuation: Job | None = None


def settle(
    view: View, *, token: int, result: Result, merge: Merge | None = None, progress: bytes | None = None
) -> Changes[Settled | None]:
    """Write how a run ended, with its last progress; answer None, and write nothing, if the lease is lost.

    A repeated settle, whose first answer was lost, finds its own result by the token and answers it again.
    """
    job = view.job
    if job is None or not owned(job, token):
        return Changes(recall_settled(job, token, result))
    job = job if progress is None else alter(job, progress=progress)
    changes = _settle(view, job, result, merge)
    continuation = changes.inserts[0] if changes.inserts else None
    return answering(changes, Settled(changes.answer, continuation))


def recall_settled(job: Job | None, token: int, result: Result) -> Settled | None:
    """Return what this token's own settle has written before; None if the lease was lost."""
    if job is None or job.token != token or job.state is State.ACTIVE or was_taken_back(job):
        return None
    completed = isinstance(result, Completed) and job.state is State.COMPLETED
    return Settled(job, result.continuation if completed else None)  # type: ignore[union-attr]


def was_taken_back(job: Job) -> bool:
    """Return whether the run with the job's token ended because its lease expired."""
    last = job.failures[-1:]
    return bool(last) and last[0].get("token") == job.token


def _settle(view: View, job: Job, result: Result, merge: Merge | None) -> Changes[Job]:
    match result:
        case Completed():
            return complete(view, job, result)
        case Failed():
            return fail(view, job, result, merge)
        case Snoozed():
            run_at = view.now + result.after
            return rest(view, job, state=due(run_at, view.now), run_at=run_at)
        case HandedBack():
            return rest(view, job, state=State.AVAILABLE, run_at=job.run_at)
        case Stopped():
            return leave(view, finish(job, State.CANCELLED, view.now, reason=result.reason))
        case _:
            assert_never(result)


def complete(view: View, job: Job, result: Completed) -> Changes[Job]:
    """End a run that succeeded; its continuation, if any, takes over the chain and its hold."""
    if outdated(job, view.mark):
        return give_way(view, job)
    if result.continuation is None:
        return leave(view, finish(job, COMPLETED, view.now, result=result.value))
    if job.cancel_requested:
        return leave(view, finish(job, State.CANCELLED, view.now, reason="cancelled"))
    done = finish(job, State.COMPLETED, view.now, result=result.value, stand=None)
    return Changes(done, updates=(done,), inserts=(proceed(job, result.continuation, view.now),))


def proceed(job: Job, continuation: Job, now: datetime) -> Job:
    """Return the next job of the chain, with the key, the hold and the window of the one before."""
    return alter(
        continuation,
        chain_id=job.chain_id,
        chain_index=job.chain_index + 1,
        parent_id=job.id,
        state=ready(continuation, now),
        key=job.key,
        stand=job.stand,
        holds=job.holds,
        traits=job.traits & Trait.OF_CHAIN | continuation.traits & ~Trait.OF_CHAIN,
        within=job.within,
        held_at=job.held_at,
        holds_until=job.holds_until,
        version=job.version,
        trace=job.trace,
    )


def rest(view: View, job: Job, *, state: State, run_at: datetime) -> Changes[Job]:
    """Put a run back without spending an attempt; a hold released at the start stays released."""
    if job.cancel_requested:
        return leave(view, finish(job, State.CANCELLED, view.now, reason="cancelled"))
    waiting = alter(job, state=state, run_at=run_at, attempt=job.attempt - 1, lease_until=None)
    return Changes(waiting, updates=(waiting,))


def fail(view: View, job: Job, failure: Failed, merge: Merge | None) -> Changes[Job]:
    """Retry a failed run, or give way to a newer request, or end it as a dead letter."""
    failed = alter(job, errors=add_error(job, failure.error, view.now))
    if failure.payload is not None:
        failed = alter(failed, args=failure.payload[0], payload_digest=failure.payload[1])
    if failed.cancel_requested:
        return leave(view, finish(failed, State.CANCELLED, view.now, reason="cancelled"))
    if gives_way(failed, view.mark) and not waits_behind(view, failed):
        return give_way(view, failed)
    if failure.final or failed.attempt >= failed.retry.attempts:
        letter = finish(failed, State.DISCARDED, view.now, reason="failed")
        return leave(view, schedule_replay(letter, view.now, final=failure.final))
    wait = failure.after if failure.after is not None else failed.retry.delay(failed.attempt, failure.chance)
    if too_late(failed, view.now + wait) and not waits_behind(view, failed):
        return leave(view, finish(failed, State.DISCARDED, view.now, reason=EXPIRED))
    return retry_or_yield(view, failed, view.now + wait, merge)


def retry_or_yield(view: View, failed: Job, run_at: datetime, merge: Merge | None) -> Changes[Job]:
    """Retry the job; if a successor waits, let that run in its place when the retry would have run."""
    retried = alter(failed, state=State.RETRYABLE, run_at=run_at, lease_until=None)
    if not waits_behind(view, failed):
        return Changes(retried, updates=(retried,))
    assert view.successor is not None  # waits_behind() says so
    try:
        successor = absorb(failed, view.successor, merge)
    except MergeFailed:  # the two payloads cannot become one: run both, in order
        return Changes(retried, updates=(retried,))
    ended = supersede(failed, successor.id, view.now)
    promoted = promote(inherit(successor, failed), view.now, not_before=run_at)
    return Changes(ended, updates=(ended, promoted), mark=void_mark(view.mark, ended))


def absorb(failed: Job, successor: Job, merge: Merge | None) -> Job:
    """Return the successor with the failed job's payload merged into its own, if its policy merges."""
    if not successor.traits & Trait.MERGES:
        return successor
    if failed.chain_index:  # its payload belongs to another task, and the first job's work is done
        raise MergeFailed("A continuation's payload cannot be merged into its chain's successor.")
    if not needs_function(successor):
        assert successor.merging is not None  # needs_function() says so
        reducers = dict(successor.merging.reducers or ())
        return merge_jobs(failed, successor, reducers, successor.merging.cap)
    if merge is None:
        raise MergeFailed(f"Only an app that has the task {successor.task} can merge its payloads.")
    return merge(failed, successor)


def needs_function(successor: Job) -> bool:
    """Return whether a merge needs the task's own function, which no row can store."""
    return successor.merging is None or successor.merging.reducers is None


# ── take back ─────────────────────────────────────────────────────────────────────────────────────


def expire(view: View, *, chance: float = 0.5, merge: Merge | None = None) -> Changes[Job | None]:
    """Take back a job whose lease has expired; the crash counts as an attempt.

    Without `merge`, leave a job alone whose successor needs its task's merge function.
    """
    job = view.job
    if job is None or job.state is not State.ACTIVE or job.lease_until is None or job.lease_until > view.now:
        return NO_CHANGES
    if merge is None and waits_behind(view, job) and merges_by_function(view.successor):
        return NO_CHANGES
    message = f"worker {job.worker} stopped renewing its lease"
    error = {"type": LEASE_EXPIRED, "message": message, "traceback": "", "token": job.token}
    return fail(view, job, Failed(error, chance=chance), merge)


def merges_by_function(successor: Job | None) -> bool:
    """Return whether a successor's policy merges by a function of its task."""
    return successor is not None and bool(successor.traits & Trait.MERGES) and needs_function(successor)
