"""The rules of deduplication: what happens to a request whose key may be held.

`decide` compares one request with the jobs that occupy its key and returns what to write. It is pure; stores
run it atomically. Read `judge` first: it lists the rules in the order in which they apply.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, cast

import msgspec

from onejob.core.holds import (
    detach,
    due,
    free,
    hold,
    holding,
    inherit,
    phase,
    ready,
    supersede,
    wait_behind,
)
from onejob.core.job import UNSTARTED, WAITING, Job, Mark, State, Trait, alter, is_same
from onejob.core.merge import merge_jobs
from onejob.core.policy import Unique
from onejob.core.step import Changes, Tally, View
from onejob.errors import BlockerCycle, InvalidCall, MergeFailed


class Outcome(StrEnum):
    """What happened to a request.

    Attributes:
        CREATED: A new job serves it.
        FORCED: A new job serves it although the key was held, because the caller asked for that.
        REPLACED: A new job serves it, and the waiting job is cancelled.
        KEPT: The existing job serves it, unchanged.
        UPDATED: The waiting job serves it, with the new payload.
        RERUN: A new job serves it, which runs after the running one.
        REJECTED: Nothing serves it: the policy rejects duplicates.
        STALE: Its version is not newer than one that was admitted before.
    """

    CREATED = "created"
    FORCED = "forced"
    REPLACED = "replaced"
    KEPT = "kept"
    UPDATED = "updated"
    RERUN = "rerun"
    REJECTED = "rejected"
    STALE = "stale"


Refusal = Literal["duplicate", "mismatch", "merge", "full"]

COUNTED_AT_ONCE = frozenset({Outcome.UPDATED, Outcome.RERUN})  # in the write that they make anyway
DEDUPLICATED = frozenset({Outcome.KEPT, Outcome.UPDATED, Outcome.RERUN, Outcome.REJECTED, Outcome.STALE})


# ── the request and the verdict ───────────────────────────────────────────────────────────────────


class Request(msgspec.Struct, frozen=True, gc=False):
    """A call to be admitted: the job that it asks for, without its times and its hold, which `make` adds."""

    job: Job
    policy: Unique | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    expires_in: timedelta | None = None
    force: bool = False
    running_chain: str | None = None  # the chain inside whose run the request was made
    max_depth: int | None = None  # how many jobs may wait in its queue
    reaches: frozenset[str] = frozenset()  # the chains that its blockers wait for, and the blockers
    excludes: frozenset[str] = frozenset()  # chains that do not count as holders


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer of `decide`; an Admission shows it to the caller."""

    outcome: Outcome
    job: Job
    holder: Job | None
    reason: str
    payload_differs: bool = False
    refusal: Refusal | None = None  # why it was rejected
    shadow: Outcome | None = None
    depth: int | None = None  # how many jobs waited in a queue that was full
    superseded: Job | None = None  # the job that ended in favour of this one, as it was


# ── deciding ──────────────────────────────────────────────────────────────────────────────────────


def decide(request: Request, view: View) -> Changes[Verdict]:
    """Decide about a request by the jobs that occupy its key and by the limit of its queue."""
    changes = decide_by_key(request, view)
    if changes.answer.outcome in COUNTED_AT_ONCE:
        tally = Tally.of(request.job, changes.answer.outcome, changes.answer.job.id, view.now)
        changes = msgspec.structs.replace(changes, tally=tally)
    if request.max_depth is None or view.depth is None or view.depth < request.max_depth:
        return changes
    if not changes.inserts or changes.answer.outcome is Outcome.REPLACED:  # the queue does not grow
        return changes
    [job] = changes.inserts
    reason = f"Queue {request.job.queue!r} has {view.depth} waiting jobs, and max_depth={request.max_depth}."
    return Changes(Verdict(Outcome.REJECTED, job, None, reason, refusal="full", depth=view.depth))


def decide_by_key(request: Request, view: View) -> Changes[Verdict]:
    """Decide about a request by the jobs that occupy its key."""
    policy = request.policy
    if policy is None or request.job.key is None:
        job = make(request, view.now)
        return Changes(Verdict(Outcome.CREATED, job, None, "The task is not unique."), inserts=(job,))
    try:
        changes = judge(request, policy, view)
    except MergeFailed as error:
        changes = refuse_merge(request, view, error)
    if policy.shadow and changes.answer.outcome in DEDUPLICATED | {Outcome.REPLACED}:
        return admit_unheld(request, view, changes.answer)
    return changes


def judge(request: Request, policy: Unique, view: View) -> Changes[Verdict]:
    """Decide what happens to a request whose key may be held.

    The rules apply in this order; the first that matches wins.
    """
    standing = view.successor or view.holder  # while a successor waits it is the key's newest request
    if request.force:
        return take_over(request, policy, view, Outcome.FORCED, "force=True admits anyway.")
    if stale(request, view):
        return refuse_stale(request, view)
    if standing is None or not stands(standing, view):
        return create(request, policy, view)
    if made_in_own_run(request, view) and policy.edges != "first+last":
        return follow(request, policy, view, "The running job asked for its own next run.")
    if excluded(policy, view):
        return take_over(
            request, policy, view, Outcome.CREATED, "The holder is outside the policy's states or window."
        )
    if standing.chain_id in request.excludes:
        return take_over(request, policy, view, Outcome.CREATED, "The request excludes the holder's chain.")
    if policy.edges == "first+last":
        return trail(request, policy, view, standing)
    if standing is view.successor or phase(standing) in UNSTARTED:
        return meet_waiting(request, policy, view, standing)
    if phase(standing) is State.ACTIVE:
        return meet_active(request, policy, view, standing)
    return meet_ended(request, policy, view, standing)


def stands(standing: Job, view: View) -> bool:
    """Return whether the key is taken: by a successor, or by a holder whose hold is alive."""
    return standing is view.successor or holding(standing, view.now)


def stale(request: Request, view: View) -> bool:
    """Return whether a newer version, or the same one, was already admitted and not withdrawn."""
    version, mark = request.job.version, view.mark
    if version is None or mark is None or mark.version is None or view.marked is None:
        return False
    return version < mark.version or (version == mark.version and not mark.void)


def made_in_own_run(request: Request, view: View) -> bool:
    """Return whether the request comes from inside the run that holds its key."""
    holder = view.holder
    return holder is not None and request.running_chain == holder.chain_id and not holder.is_terminal


def excluded(policy: Unique, view: View) -> bool:
    """Return whether the request's own states or window exclude the holder."""
    standing = view.successor or view.holder
    holder = view.holder or standing
    if standing is None or holder is None:
        return False
    if policy.states is not None and phase(holder) not in policy.states:
        return True
    if policy.within is None or standing.held_at is None:  # a successor's window has not begun
        return False
    return view.now - standing.held_at >= cast("timedelta", policy.within)


# ── by the state of the job that occupies the key ─────────────────────────────────────────────────────


def meet_waiting(request: Request, policy: Unique, view: View, standing: Job) -> Changes[Verdict]:
    """Decide against a job that has not started, waits for its retry, or waits behind a run."""
    match policy.on_conflict:
        case "keep":
            return keep(request, policy, view, standing)
        case "reject":
            return reject(request, standing)
        case "update":
            return refresh(request, policy, view, standing)
        case "replace":
            return replace(request, policy, view, standing)


def meet_active(request: Request, policy: Unique, view: View, holder: Job) -> Changes[Verdict]:
    """Decide against a running job, or a chain that has started."""
    match policy.while_active:
        case "keep":
            return keep(request, policy, view, holder)
        case "reject":
            return reject(request, holder)
        case "rerun":
            return follow(request, policy, view, "The job is running; one more run follows it.")
        case "cancel" if holder.state is State.ACTIVE:
            changes = follow(request, policy, view, "The running job is asked to stop; this one follows it.")
            asked = alter(holder, cancel_requested=True, traits=holder.traits | Trait.HAS_SUCCESSOR)
            others = tuple(job for job in changes.updates if job.id != holder.id)
            return msgspec.structs.replace(changes, updates=(asked, *others))
        case (
            "cancel"
        ):  # a chain between two of its jobs: nothing runs, so the new job takes its place at once
            return replace(request, policy, view, holder)


def meet_ended(request: Request, policy: Unique, view: View, holder: Job) -> Changes[Verdict]:
    """Decide against a job that has ended and still holds its key."""
    match policy.on_conflict:
        case "keep":
            return keep(request, policy, view, holder)
        case "reject":
            return reject(request, holder)
        case "update" | "replace":
            return take_over(
                request,
                policy,
                view,
                Outcome.CREATED,
                f"The holder has {holder.state}; the new job takes its key.",
            )


# ── the outcomes ──────────────────────────────────────────────────────────────────────────────────


def create(request: Request, policy: Unique, view: View) -> Changes[Verdict]:
    """Admit a job to a key that is free, or whose hold has lapsed."""
    job = hold(make(request, view.now), view.now)
    freed = (free(view.holder, view.now),) if view.holder else ()
    verdict = Verdict(Outcome.CREATED, job, None, "Nothing held the key.")
    return Changes(verdict, updates=freed, inserts=(job,), mark=mark_newest(request, policy, view, job))


def take_over(
    request: Request, policy: Unique, view: View, outcome: Outcome, reason: str
) -> Changes[Verdict]:
    """Admit a job to a held key: the old holder continues without the key, its successor is absorbed."""
    job = hold(make(request, view.now), view.now)
    updates = [detach(view.holder, view.now)] if view.holder else []
    if view.successor is not None:
        refuse_cycle(request, view.successor)
        job = inherit(merge_payloads(view.successor, job, policy), view.successor)
        updates.append(supersede(view.successor, job.id, view.now))
    differing = differs(request, view.holder)
    verdict = Verdict(outcome, job, view.holder, reason, differing, superseded=view.successor)
    return Changes(
        verdict,
        updates=tuple(updates),
        inserts=(job,),
        mark=mark_newest(request, policy, view, job, instead_of=view.successor),
    )


def keep(request: Request, policy: Unique, view: View, standing: Job) -> Changes[Verdict]:
    """Answer with the existing job; write nothing, unless the policy lets a duplicate bump it."""
    if policy.on_mismatch == "error" and differs(request, standing):
        return reject(request, standing, "mismatch")
    if policy.bump and (bumped := bump(request, view, standing)):
        reason = "The duplicate raises the waiting job."
        verdict = Verdict(Outcome.UPDATED, bumped, standing, reason, differs(request, standing))
        return Changes(verdict, updates=(bumped,))
    reason = f"The same work is already {standing.state}; the policy keeps it."
    return Changes(Verdict(Outcome.KEPT, standing, standing, reason, differs(request, standing)))


def reject(request: Request, standing: Job, refusal: Refusal = "duplicate") -> Changes[Verdict]:
    """Reject the request."""
    what = "and the policy rejects duplicates" if refusal == "duplicate" else "with another payload"
    reason = f"{request.job.task} is already {standing.state} as {standing.id}, {what}."
    verdict = Verdict(Outcome.REJECTED, standing, standing, reason, differs(request, standing), refusal)
    return Changes(verdict)


def refuse_merge(request: Request, view: View, error: MergeFailed) -> Changes[Verdict]:
    """Reject a request whose payload cannot be merged into the waiting one."""
    standing = view.successor or view.holder
    assert standing is not None  # there was something to merge with
    verdict = Verdict(Outcome.REJECTED, standing, standing, str(error), differs(request, standing), "merge")
    return Changes(verdict)


def refuse_stale(request: Request, view: View) -> Changes[Verdict]:
    """Answer that the version is not newer than the one admitted last."""
    assert view.mark is not None  # stale() says so
    assert view.marked is not None  # stale() says so
    versions = f"{request.job.version} is not newer than {view.mark.version}"
    reason = f"Version {versions}, which was already admitted."
    verdict = Verdict(
        Outcome.STALE, view.marked, view.successor or view.holder, reason, differs(request, view.marked)
    )
    return Changes(verdict)


def refresh(request: Request, policy: Unique, view: View, standing: Job) -> Changes[Verdict]:
    """Overwrite the waiting job's payload in place: same id, same position, attempts reset.

    A job of another task of the family cannot run this request's payload, so it is replaced instead.
    """
    if standing.task != request.job.task:
        return replace(request, policy, view, standing, as_update=True)
    newer = merge_payloads(standing, make(request, view.now), policy)
    same = newer.payload_digest == standing.payload_digest  # equal arguments are sealed differently each time
    updated = alter(
        standing,
        args=standing.args if same else newer.args,
        meta=newer.meta,
        payload_digest=newer.payload_digest,
        version=standing.version if newer.version is None else newer.version,
        expires_at=newer.expires_at,  # the newest request says how long it is worth running
        partition=newer.partition,
        **take_fields(policy, newer),
    )
    updated = postpone(policy, view, updated)
    if is_same(updated, standing):
        reason = f"The same work is already {standing.state} with the same payload."
        return Changes(Verdict(Outcome.KEPT, standing, standing, reason))
    updated = alter(updated, attempt=0, traits=updated.traits | Trait.MARKED * policy.marks)
    reason = f"The {standing.state} job takes this request's payload."
    verdict = Verdict(Outcome.UPDATED, updated, standing, reason, differs(request, standing))
    return Changes(verdict, updates=(updated,), mark=mark_newest(request, policy, view, updated))


def replace(
    request: Request, policy: Unique, view: View, standing: Job, *, as_update: bool = False
) -> Changes[Verdict]:
    """Cancel the waiting job and put the new one in its place, in one step."""
    refuse_cycle(request, standing)
    job = inherit(make(request, view.now), standing)
    if as_update:
        job = keep_place(job, policy, view, standing)
    elif policy.keep_schedule:
        job = alter(job, run_at=standing.run_at, place=standing.place)
        kept = standing.state in {State.SCHEDULED, State.AVAILABLE} and not job.is_blocked
        job = alter(job, state=standing.state if kept else ready(job, view.now))
    job = wait_behind(job) if standing is view.successor else hold(job, view.now)
    superseded = supersede(standing, job.id, view.now)
    reason = f"The {standing.state} job {standing.id} is cancelled in favour of this one."
    differing = differs(request, standing)
    verdict = Verdict(Outcome.REPLACED, job, standing, reason, differing, superseded=standing)
    return Changes(
        verdict,
        updates=(superseded,),
        inserts=(job,),
        mark=mark_newest(request, policy, view, job, instead_of=standing),
    )


def follow(request: Request, policy: Unique, view: View, reason: str) -> Changes[Verdict]:
    """Create, or update, the one job that runs after the present holder ends."""
    if view.successor is not None:
        return refresh(request, policy, view, view.successor)
    if view.holder is not None:
        refuse_cycle(request, view.holder)
    job = wait_behind(make(request, view.now))
    verdict = Verdict(Outcome.RERUN, job, view.holder, reason, differs(request, view.holder))
    mark = mark_newest(request, policy, view, job)
    return Changes(verdict, updates=note_successor(view.holder), inserts=(job,), mark=mark)


def note_successor(holder: Job | None) -> tuple[Job, ...]:
    """Return the holder with the trait that a successor waits behind it.

    Its revision is raised also if it has had one before: a step that saw no successor must not be written.
    """
    return () if holder is None else (alter(holder, traits=holder.traits | Trait.HAS_SUCCESSOR),)


def trail(request: Request, policy: Unique, view: View, standing: Job) -> Changes[Verdict]:
    """Schedule one job with the last payload for the end of a throttle's window."""
    begun = standing.held_at is not None and standing.held_at <= view.now
    if standing is view.successor or (standing.state in WAITING and not begun):
        return refresh(request, policy, view, standing)
    window = cast(
        "timedelta", policy.within
    )  # a throttle has a window; the holder's own policy may have none
    ends = standing.holds_until or (standing.held_at or view.now) + window
    job = make(request, view.now)
    job = alter(job, run_at=max(job.run_at, ends), traits=job.traits | Trait.TRAILING)
    if standing.is_terminal:
        job = hold(alter(job, state=ready(job, view.now)), view.now)
        updates: tuple[Job, ...] = (free(standing, view.now),)
    else:
        job = wait_behind(job)
        updates = note_successor(standing)
    verdict = Verdict(
        Outcome.RERUN,
        job,
        standing,
        "Throttled: one run follows at the window's end.",
        differs(request, standing),
    )
    return Changes(verdict, updates=updates, inserts=(job,), mark=mark_newest(request, policy, view, job))


def admit_unheld(request: Request, view: View, judged: Verdict) -> Changes[Verdict]:
    """Admit a request that a shadow policy would have absorbed, without hold, order or version."""
    job = alter(make(request, view.now), traits=request.job.traits, version=None, holds=0, merging=None)
    reason = f"Shadow: the policy would have answered {judged.outcome}."
    verdict = Verdict(
        Outcome.CREATED, job, judged.holder, reason, judged.payload_differs, shadow=judged.outcome
    )
    return Changes(verdict, inserts=(job,))


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────


def make(request: Request, now: datetime) -> Job:
    """Return the job that a request asks for, without a hold."""
    job, policy = request.job, request.policy
    run_at = max(request.run_at, now) if request.run_at else now + (request.delay or timedelta())
    latest_at = None
    if policy is not None and policy.wait is not None:
        latest_at = None if policy.max_wait is None else now + cast("timedelta", policy.max_wait)
        run_at = next_quiet_time(policy, now, latest_at)
    expires_at = job.expires_at if request.expires_in is None else now + request.expires_in
    if expires_at is not None and now < run_at and expires_at <= run_at:
        raise InvalidCall(f"{job.task} would expire before its run time: give it more time, or less delay.")
    return alter(
        job,
        state=State.PENDING if job.is_blocked else due(run_at, now),
        run_at=run_at,
        created_at=now,
        holds=0 if policy is None else policy.holds,
        traits=job.traits if policy is None else policy.traits | job.traits,
        merging=None if policy is None else policy.merging,
        within=None if policy is None else policy.seconds,
        latest_at=latest_at,
        version=None if policy is not None and policy.shadow else job.version,
        expires_at=expires_at,
    )


def refuse_cycle(request: Request, standing: Job) -> None:
    """Reject a job that would wait for the job whose place it takes."""
    if standing.chain_id in request.reaches:
        waits = f"{request.job.task} would wait for job {standing.id}"
        raise BlockerCycle(f"{waits}, whose place it takes: leave it out of after=.")


def next_quiet_time(policy: Unique, now: datetime, latest_at: datetime | None) -> datetime:
    """Return when a debounced job runs if no further request arrives."""
    run_at = now + cast("timedelta", policy.wait)
    return run_at if latest_at is None else min(run_at, latest_at)


def postpone(policy: Unique, view: View, updated: Job) -> Job:
    """Return a debounced job with its run time moved, up to the cap that its first request set."""
    if updated.state is State.RETRYABLE or (policy.wait is None and "time" not in policy.fields):
        return updated
    run_at = updated.run_at if policy.wait is None else next_quiet_time(policy, view.now, updated.latest_at)
    state = updated.state if updated.state is State.PENDING else due(run_at, view.now)
    return alter(updated, run_at=run_at, state=state)


def keep_place(job: Job, policy: Unique, view: View, standing: Job) -> Job:
    """Return a job of another task with the time and position that an update would have left."""
    moved = alter(
        job,
        state=standing.state,
        run_at=standing.run_at,
        place=standing.place,
        latest_at=standing.latest_at,
        traits=job.traits | standing.traits & Trait.TRAILING,
    )
    moved = postpone(policy, view, alter(moved, **take_fields(policy, job)))
    return alter(moved, state=ready(moved, view.now))


def take_fields(policy: Unique, newer: Job) -> dict[str, Any]:
    """Return the fields that an update takes from the request besides its payload."""
    taken: dict[str, Any] = {}
    if "queue" in policy.fields:
        taken["queue"] = newer.queue
    if "priority" in policy.fields:
        taken["priority"] = newer.priority
    if "time" in policy.fields:
        taken["run_at"] = newer.run_at
    if "place" in policy.fields:
        taken["place"] = newer.place
    if "retry" in policy.fields:
        taken["retry"] = newer.retry
    if "timeout" in policy.fields:
        taken["timeout"] = newer.timeout
    return taken


def bump(request: Request, view: View, standing: Job) -> Job | None:
    """Return the job with a higher priority or an earlier time; None if the request asks for neither."""
    if phase(standing) not in UNSTARTED:
        return None
    wanted = make(request, view.now)
    run_at = standing.run_at if standing.state is State.RETRYABLE else min(standing.run_at, wanted.run_at)
    state = due(run_at, view.now) if standing.state is State.SCHEDULED else standing.state
    raised = alter(standing, priority=max(standing.priority, wanted.priority), run_at=run_at, state=state)
    changed = (raised.priority, raised.run_at) != (standing.priority, standing.run_at)
    return raised if changed and (raised.priority > standing.priority or standing.run_at > view.now) else None


def merge_payloads(older: Job, newer: Job, policy: Unique | None) -> Job:
    """Return the newer job with the older payload merged into its own, if the policy merges."""
    if policy is None or policy.merge is None:
        return newer
    return merge_jobs(older, newer, policy.merge, policy.merge_cap)


def mark_newest(
    request: Request, policy: Unique, view: View, job: Job, *, instead_of: Job | None = None
) -> Mark | None:
    """Return the mark of the key's newest request, where versions or the order of admission matter."""
    asked = request.job
    if not policy.marks or asked.key is None:
        return None
    gone = {job.id} | ({instead_of.chain_id} if instead_of is not None else set())
    mark = remember(asked.key, asked.version, job.id, view, gone)
    same = view.mark is not None and mark == msgspec.structs.replace(view.mark, touched_at=view.now)
    return None if same else mark


def remember(key: bytes, version: int | None, chain: str, view: View, gone: set[str]) -> Mark:
    """Return the key's mark; the request before it is kept and counts again if this one is withdrawn."""
    old = view.mark
    before: tuple[int | None, str | None] = (None, None)
    if old is not None and (old.void or old.job in gone):
        before = (old.prior_version, old.prior_job) if old.prior_job not in gone else before
    elif old is not None:
        before = (old.version, old.job)
    return Mark(key, version, chain, False, view.now, *before)  # noqa: FBT003


def differs(request: Request, other: Job | None) -> bool:
    """Return whether a job was requested with another payload, or is of another task of the family."""
    asked = request.job
    return other is not None and (other.payload_digest, other.task) != (asked.payload_digest, asked.task)
