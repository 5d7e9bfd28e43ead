"""What happens to a job once it is admitted: start, settle, cancel, expire, release, prune.

Each verb is a pure function from a View (what the store shows) to Changes (what it is to write).
A store runs it atomically and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from onejob.errors import InvalidCall, MergeFailed
from onejob.job import (
    EXPIRED,
    INCOMPLETE,
    ORDINAL,
    SUPERSEDED,
    UNSTARTED,
    Changes,
    Job,
    Mark,
    Replay,
    State,
    Trait,
    View,
    alter,
)

Merge = Callable[[Job, Job], Job]
"""Combine an older job's payload into a newer one; raises MergeFailed."""

MARK_AGE = timedelta(days=30)
HISTORY = 50  # errors kept per job


# ── what a hold is ────────────────────────────────────────────────────────────────────────────────


def phase(job: Job) -> State:
    """Tell the state that counts: a chain that has started is active until it ends."""
    return State.ACTIVE if job.chain_index and job.state in INCOMPLETE else job.state


def lapsed(job: Job, now: datetime) -> bool:
    """Tell whether the hold's window has ended."""
    return job.holds_until is not None and now >= job.holds_until


def holding(job: Job, now: datetime) -> bool:
    """Tell whether the job stands for its key by its own policy, as holder or waiting behind one."""
    if job.held_key is None and job.next_key is None:
        return False
    return bool(job.holds >> ORDINAL[phase(job)] & 1) and not lapsed(job, now)


def hold(job: Job, now: datetime) -> Job:
    """Give the job its key; the window counts from here, or from a trailing job's run time."""
    since = max(now, job.run_at) if job.traits & Trait.TRAILING else now
    until = None if job.within is None else since + timedelta(seconds=job.within)
    return alter(job, held_key=job.key, next_key=None, held_at=since, holds_until=until)


def detach(job: Job) -> Job:
    """Take the key away: from here on the job is independent and gives way to nobody."""
    return alter(job, held_key=None, next_key=None, traits=job.traits & ~Trait.NEWEST_WINS)


def due(run_at: datetime, now: datetime) -> State:
    """Tell the waiting state that a run time means."""
    return State.SCHEDULED if run_at > now else State.AVAILABLE


def ready(job: Job, now: datetime) -> State:
    """Tell the waiting state that a run time means, unless the job waits for other chains."""
    return State.PENDING if job.is_blocked else due(job.run_at, now)


def promote(successor: Job, now: datetime, *, not_before: datetime | None = None) -> Job:
    """Let the successor take its place: it holds the key and may run."""
    run_at = max(successor.run_at, not_before) if not_before else successor.run_at
    next_up = alter(successor, run_at=run_at)
    return hold(alter(next_up, state=ready(next_up, now)), now)


def supersede(job: Job, by: str, now: datetime) -> Job:
    """End a job whose work a newer one takes over."""
    ended = finish(job, State.CANCELLED, now, reason=SUPERSEDED)
    return alter(ended, superseded_by=by, held_key=None, next_key=None)


def inherit(heir: Job, job: Job) -> Job:
    """Let whoever waits for a job wait for the one that takes its work over."""
    return alter(heir, traits=heir.traits | job.traits & Trait.AWAITED)


def finish(job: Job, state: State, now: datetime, *, reason: str | None = None, **changes: Any) -> Job:
    """End a job; its hold is decided by `leave`."""
    return alter(job, state=state, finished_at=now, reason=reason, worker=None, lease_until=None, **changes)


# ── fences: is this job still the newest? ─────────────────────────────────────────────────────────


def newest(mark: Mark | None) -> tuple[int | None, str | None]:
    """Name the newest request that was not withdrawn, by version and chain."""
    if mark is None:
        return None, None
    return (mark.prior_version, mark.prior_job) if mark.void else (mark.version, mark.job)


def outdated(job: Job, mark: Mark | None) -> bool:
    """Tell whether a newer version has been admitted, and not withdrawn, since this job was."""
    version, _ = newest(mark)
    return job.version is not None and version is not None and job.version < version


def overtaken(job: Job, mark: Mark | None) -> bool:
    """Tell whether a job without a hold has a newer one of its key to give way to."""
    if not job.traits & Trait.NEWEST_WINS or job.traits & Trait.MERGES or job.held_key is not None:
        return False
    _, chain = newest(mark)
    return chain is not None and chain != job.chain_id


def gives_way(job: Job, mark: Mark | None) -> bool:
    """Tell whether the job must end `superseded` instead of running (again)."""
    return outdated(job, mark) or overtaken(job, mark)


def owned(job: Job | None, token: int) -> bool:
    """Tell whether the lease with this token is still the job's; every worker's write asks."""
    return job is not None and job.state is State.ACTIVE and job.token == token


# ── leaving: every exit decides the hold and promotes the successor ───────────────────────────────


def leave(view: View, ended: Job) -> Changes:
    """Free or keep the hold of a job that ends, and let its successor in, in the same step."""
    if ended.held_key is None:
        updates: tuple[Job, ...] = (alter(ended, next_key=None),)
    elif view.successor is not None:
        updates = (alter(ended, held_key=None), promote(view.successor, view.now))
    elif ended.holds >> ORDINAL[ended.state] & 1 and not ended.is_superseded:
        updates = (ended,)
    else:
        updates = (alter(ended, held_key=None),)
    return Changes(answer=updates[0], updates=updates, mark=voided(view.mark, ended))


def voided(mark: Mark | None, ended: Job) -> Mark | None:
    """Let the same version come again if its job was cancelled or discarded."""
    if mark is None or ended.state is State.COMPLETED:
        return None
    if mark.prior_job == ended.chain_id:
        return msgspec.structs.replace(mark, prior_version=None, prior_job=None)
    if mark.job != ended.chain_id or ended.is_superseded:
        return None
    return msgspec.structs.replace(mark, void=True)


def give_way(view: View, job: Job) -> Changes:
    """End a job in favour of the newer one that the mark names."""
    _, newer = newest(view.mark)
    ended = finish(job, State.CANCELLED, view.now, reason=SUPERSEDED, superseded_by=newer)
    return leave(view, ended)


# ── start ─────────────────────────────────────────────────────────────────────────────────────────


def start(view: View, *, worker: str, lease: timedelta) -> Changes:
    """Lease an available job, or end it if a newer one or its age made it pointless; answer it if it runs."""
    job = view.job
    if job is None or job.state is not State.AVAILABLE:
        return Changes()
    if gives_way(job, view.mark):
        return msgspec.structs.replace(give_way(view, job), answer=None)
    if too_late(job, view.now):
        return msgspec.structs.replace(discard_late(view), answer=None)
    releases = bool(job.traits & Trait.RELEASES_AT_START)
    running = alter(
        job,
        state=State.ACTIVE,
        attempt=job.attempt + 1,
        token=job.token + 1,
        started_at=view.now,
        worker=worker,
        lease_until=view.now + lease,
        held_key=None if releases else job.held_key,
    )
    promoted = (promote(view.successor, view.now),) if releases and job.held_key and view.successor else ()
    return Changes(answer=running, updates=(running, *promoted))


def rank(job: Job) -> tuple[int, datetime, int, str]:
    """Order due jobs: priority, then time, then place. Statements that sort must sort like this."""
    return (-job.priority, job.run_at, job.place, job.id)


def mature(view: View) -> Changes:
    """Make a scheduled or retryable job available when its time has come."""
    job = view.job
    if job is None or job.state not in {State.SCHEDULED, State.RETRYABLE} or job.run_at > view.now:
        return Changes()
    return Changes(updates=(alter(job, state=State.AVAILABLE),))


def too_late(job: Job, at: datetime) -> bool:
    """Tell whether a job may not start any more at a time."""
    return job.expires_at is not None and at >= job.expires_at


def discard_late(view: View) -> Changes:
    """End a job that did not start in time; answer it, or None if it started or may still start."""
    job = view.job
    if job is None or job.state not in UNSTARTED or not too_late(job, view.now):
        return Changes()
    return leave(view, finish(job, State.DISCARDED, view.now, reason=EXPIRED))


def extend(view: View, *, token: int, lease: timedelta) -> Changes:
    """Renew a lease; answer the job as it is now, or None if it is another worker's."""
    if not owned(view.job, token):
        return Changes()
    assert view.job is not None  # owned() says so
    renewed = alter(view.job, lease_until=view.now + lease)
    return Changes(answer=renewed, updates=(renewed,))


def report(view: View, *, token: int, progress: bytes) -> Changes:
    """Keep a running job's progress; answer None if the lease is lost."""
    if not owned(view.job, token):
        return Changes()
    assert view.job is not None  # owned() says so
    told = alter(view.job, progress=progress)
    return Changes(answer=told, updates=(told,))


# ── settle ────────────────────────────────────────────────────────────────────────────────────────


class Completed(msgspec.Struct, frozen=True):
    """The handler returned."""

    value: bytes | None = None
    continuation: Job | None = None


class Failed(msgspec.Struct, frozen=True):
    """The handler raised; `after` overrules the backoff, `final` the attempts that are left."""

    error: dict[str, Any]
    after: timedelta | None = None
    final: bool = False
    chance: float = 0.5


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run later; no attempt is spent."""

    after: timedelta


class HandedBack(msgspec.Struct, frozen=True):
    """The worker stops; no attempt is spent."""


class Stopped(msgspec.Struct, frozen=True):
    """The handler gave up because it was told to, or decided to."""

    reason: str


Result = Completed | Failed | Snoozed | HandedBack | Stopped


def keep_both(_older: Job, newer: Job) -> Job:
    """Stand in for a merge where no policy merges."""
    return newer


def settle(
    view: View,
    *,
    token: int,
    result: Result,
    merge: Merge = keep_both,
    replay: Replay | None = None,
    progress: bytes | None = None,
) -> Changes:
    """Carry a run to its next state, with the last it told of its progress.

    Answer None, and write nothing, if the lease is lost.
    """
    job = view.job
    if job is None or not owned(job, token):
        return Changes()
    job = job if progress is None else alter(job, progress=progress)
    match result:
        case Completed():
            return complete(view, job, result)
        case Failed():
            return fail(view, job, result, merge, replay)
        case Snoozed():
            run_at = view.now + result.after
            return rest(view, job, state=due(run_at, view.now), run_at=run_at)
        case HandedBack():
            return rest(view, job, state=State.AVAILABLE, run_at=job.run_at)
        case Stopped():
            return leave(view, finish(job, State.CANCELLED, view.now, reason=result.reason))
        case _:
            assert_never(result)


def confirm(view: View, *, token: int, **given: Any) -> Changes:
    """Settle a run that a transaction of its own may have completed: answer that job, if it has."""
    job = view.job
    if job is not None and job.token == token and job.state is State.COMPLETED:
        return Changes(answer=job)
    return settle(view, token=token, **given)


def complete(view: View, job: Job, result: Completed) -> Changes:
    """End a run that succeeded; its continuation, if any, takes the chain and its hold along."""
    if outdated(job, view.mark):
        return give_way(view, job)
    if result.continuation is None:
        return leave(view, finish(job, State.COMPLETED, view.now, result=result.value))
    if job.cancel_requested:
        return leave(view, finish(job, State.CANCELLED, view.now, reason="cancelled"))
    done = finish(job, State.COMPLETED, view.now, result=result.value, held_key=None)
    return Changes(answer=done, updates=(done,), inserts=(proceed(job, result.continuation, view.now),))


def proceed(job: Job, continuation: Job, now: datetime) -> Job:
    """Make the next job of the chain: it has the key, the hold and the window of the one before."""
    return alter(
        continuation,
        chain_id=job.chain_id,
        chain_index=job.chain_index + 1,
        parent_id=job.id,
        state=ready(continuation, now),
        key=job.key,
        held_key=job.held_key,
        holds=job.holds,
        traits=job.traits & Trait.OF_CHAIN | continuation.traits & ~Trait.OF_CHAIN,
        within=job.within,
        held_at=job.held_at,
        holds_until=job.holds_until,
        version=job.version,
    )


def rest(view: View, job: Job, *, state: State, run_at: datetime) -> Changes:
    """Put a run back without spending an attempt; a hold let go at the start stays let go."""
    if job.cancel_requested:
        return leave(view, finish(job, State.CANCELLED, view.now, reason="cancelled"))
    waiting = alter(job, state=state, run_at=run_at, attempt=job.attempt - 1, worker=None, lease_until=None)
    return Changes(answer=waiting, updates=(waiting,))


def fail(view: View, job: Job, failure: Failed, merge: Merge, replay: Replay | None = None) -> Changes:
    """Retry a failed run, or give way to a newer request, or end it as a dead letter."""
    failed = alter(job, errors=remember(job, failure.error, view.now))
    if failed.cancel_requested:
        return leave(view, finish(failed, State.CANCELLED, view.now, reason="cancelled"))
    if gives_way(failed, view.mark) and not waits_behind(view, failed):
        return give_way(view, failed)
    if failure.final or failed.attempt >= failed.retry.attempts:
        letter = finish(failed, State.DISCARDED, view.now, reason="failed")
        return leave(view, await_return(letter, None if failure.final else replay, view.now))
    wait = failure.after if failure.after is not None else failed.retry.delay(failed.attempt, failure.chance)
    if too_late(failed, view.now + wait) and not waits_behind(view, failed):
        return leave(view, finish(failed, State.DISCARDED, view.now, reason=EXPIRED))
    return retry_or_yield(view, failed, view.now + wait, merge)


def waits_behind(view: View, job: Job) -> bool:
    """Tell whether this job's own successor waits for it."""
    return job.held_key is not None and view.successor is not None


def retry_or_yield(view: View, failed: Job, run_at: datetime, merge: Merge) -> Changes:
    """Let a waiting successor run in the retry's stead, when the retry would have run."""
    retried = alter(failed, state=State.RETRYABLE, run_at=run_at, worker=None, lease_until=None)
    if not waits_behind(view, failed):
        return Changes(answer=retried, updates=(retried,))
    assert view.successor is not None  # waits_behind() says so
    try:
        successor = absorb(failed, view.successor, merge)
    except MergeFailed:  # two payloads that cannot become one: run both, in order
        return Changes(answer=retried, updates=(retried,))
    ended = supersede(failed, successor.id, view.now)
    promoted = promote(inherit(successor, failed), view.now, not_before=run_at)
    return Changes(answer=ended, updates=(ended, promoted), mark=voided(view.mark, ended))


def absorb(failed: Job, successor: Job, merge: Merge) -> Job:
    """Merge what failed into what follows it, where the policy merges."""
    if not successor.traits & Trait.MERGES:
        return successor
    if failed.chain_index:  # its payload is another task's, and the first job's is done
        raise MergeFailed("A continuation's payload cannot be merged into its chain's successor.")
    return merge(failed, successor)


def remember(job: Job, error: Mapping[str, Any], now: datetime) -> bytes:
    """Add one error to the job's history."""
    entry = {"attempt": job.attempt, "at": now.isoformat(), **error}
    return msgspec.json.encode([*job.failures, entry][-HISTORY:])


def expire(
    view: View, *, chance: float = 0.5, merge: Merge = keep_both, replay: Replay | None = None
) -> Changes:
    """Take back a job whose lease ran out: a crash counts as an attempt."""
    job = view.job
    if job is None or job.state is not State.ACTIVE or job.lease_until is None or job.lease_until > view.now:
        return Changes()
    error = {
        "type": "LeaseExpired",
        "message": f"worker {job.worker} stopped renewing its lease",
        "traceback": "",
    }
    return fail(view, job, Failed(error, chance=chance), merge, replay)


# ── dead letters that come back by themselves; `decide` has their replay ──────────────────────────


def await_return(letter: Job, replay: Replay | None, now: datetime) -> Job:
    """Let a dead letter come back by itself, if its task has a replay left for it."""
    if replay is None or letter.replays >= replay.times:
        return stay_dead(letter)
    run_at = now + replay.delay(letter.replays)
    return alter(letter, run_at=run_at, traits=letter.traits | Trait.RETURNS)


def stay_dead(letter: Job) -> Job:
    """Let a dead letter wait for somebody to replay it."""
    return alter(letter, traits=letter.traits & ~Trait.RETURNS)


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────


def cancel(view: View, *, reason: str = "cancelled", successors: bool = False) -> Changes:
    """End a waiting job, or ask a running one to stop; answer the job as it is then."""
    job = view.job
    if job is None or job.is_terminal:
        return Changes(answer=job)
    if successors and waits_behind(view, job):
        return cancel_both(view, reason)
    if job.state is State.ACTIVE:
        asked = alter(job, cancel_requested=True)
        return Changes(answer=asked, updates=(asked,))
    return leave(view, finish(job, State.CANCELLED, view.now, reason=reason))


def cancel_both(view: View, reason: str) -> Changes:
    """End a job together with the one that waits behind it."""
    assert view.successor is not None  # waits_behind() says so
    behind = finish(view.successor, State.CANCELLED, view.now, reason=reason, next_key=None)
    mark = voided(view.mark, behind)
    first = cancel(msgspec.structs.replace(view, successor=None, mark=mark or view.mark), reason=reason)
    return msgspec.structs.replace(first, updates=(behind, *first.updates), mark=first.mark or mark)


def release(view: View, *, force: bool = False) -> Changes:
    """Free a key by hand: its holder becomes independent, its successor gets in; answer the old holder."""
    holder = view.holder
    if holder is None:
        return Changes()
    if phase(holder) is State.ACTIVE and not force:
        raise InvalidCall(f"Job {holder.id} holds the key and is running: release it with force.")
    freed = detach(holder)
    promoted = (promote(view.successor, view.now),) if view.successor else ()
    return Changes(answer=freed, updates=(freed, *promoted))


def delete(view: View) -> Changes:
    """Remove a job that does not run, and free whatever it held; answer it."""
    job = view.job
    if job is None or job.state is State.ACTIVE:
        return Changes()
    freed = alter(job, held_key=None, next_key=None)  # before the successor takes the key
    promoted = (promote(view.successor, view.now),) if waits_behind(view, job) and view.successor else ()
    return Changes(answer=job, updates=(freed, *promoted), deletes=(job.id,), mark=forgotten(view, job))


def repair(view: View) -> Changes:
    """Promote a successor whose predecessor is gone; never needed unless something outside interfered."""
    job = view.job
    if job is None or job.next_key is None or job.state is not State.PENDING:
        return Changes()
    if view.holder is not None and not view.holder.is_terminal:
        return Changes()
    freed = (alter(view.holder, held_key=None),) if view.holder else ()
    promoted = promote(job, view.now)
    return Changes(answer=promoted, updates=(*freed, promoted))


def prune(view: View) -> Changes:
    """Forget an ended job; one that still holds its key, or that a mark names, stays as a tombstone."""
    job = view.job
    if job is None or not job.is_terminal:
        return Changes()
    if not holding(job, view.now) and not remembered(job, view):
        return Changes(answer="deleted", deletes=(job.id,), mark=forgotten(view, job))
    if job.is_tombstone:
        return Changes()
    return Changes(answer="emptied", updates=(empty(job),))


def empty(job: Job) -> Job:
    """Leave of a job what its hold needs, and nothing that is anybody's business."""
    return alter(stay_dead(job), args=b"", meta=b"{}", result=None, errors=b"[]", progress=None)


def remembered(job: Job, view: View) -> bool:
    """Tell whether the key's mark still needs this job."""
    if view.mark is None or view.mark.job != job.id or job.finished_at is None:
        return False
    return view.now - job.finished_at < MARK_AGE


def forgotten(view: View, job: Job) -> Mark | None:
    """Make the mark that tells a store to drop it, if it names a job that goes."""
    if view.mark is not None and view.mark.prior_job == job.id:
        return msgspec.structs.replace(view.mark, prior_version=None, prior_job=None)
    if view.mark is None or view.mark.job != job.id:
        return None
    return msgspec.structs.replace(view.mark, job="")


# ── moving house ──────────────────────────────────────────────────────────────────────────────────


def arrive(view: View, *, job: Job, mark: Mark | None) -> Changes:
    """Take in a job of another store as it is; answer it, or None if its place here is taken."""
    if (job.held_key and view.holder) or (job.next_key and view.successor):
        return Changes()
    if job.next_key and view.holder is None:  # the one it waited for has ended here meanwhile
        job = promote(job, view.now)
    return Changes(answer=job, inserts=(job,), mark=mark if view.mark is None else None)


def depart(view: View) -> Changes:
    """Drop a job that lives on in another store: nobody is promoted, for its successor goes there too."""
    if view.job is None:
        return Changes()
    return Changes(answer=view.job, deletes=(view.job.id,), mark=forgotten(view, view.job))
