"""THE semantics: what becomes of a request whose key may be taken.

`decide` settles one request against the jobs that stand for its key and says what to write. It is pure;
stores only promise to run it atomically. Read `judge` first: it is the list of rules, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, cast

import msgspec

from onejob import lifecycle
from onejob.blockers import expect_again
from onejob.errors import BlockerCycle, MergeFailed
from onejob.job import (
    UNSTARTED,
    WAITING,
    Changes,
    Job,
    Mark,
    Replay,
    State,
    Trait,
    View,
    alter,
    fingerprint,
)
from onejob.lifecycle import due, hold, holding, inherit, phase, ready, supersede
from onejob.merge import combine
from onejob.policy import Unique


class Outcome(StrEnum):
    """What became of a request."""

    CREATED = "created"
    FORCED = "forced"
    REPLACED = "replaced"
    KEPT = "kept"
    UPDATED = "updated"
    RERUN = "rerun"
    REJECTED = "rejected"
    STALE = "stale"


Refusal = Literal["duplicate", "mismatch", "merge", "full"]

DEDUPLICATED = frozenset({Outcome.KEPT, Outcome.UPDATED, Outcome.RERUN, Outcome.REJECTED, Outcome.STALE})


# ── the request and the verdict ───────────────────────────────────────────────────────────────────


class Request(msgspec.Struct, frozen=True, gc=False):
    """A call on its way in: the job that it asks for, as yet without times and policy; `make` adds them."""

    job: Job
    policy: Unique | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    expires_in: timedelta | None = None
    force: bool = False
    running_chain: str | None = None  # the chain inside whose run the request was made
    max_depth: int | None = None  # how many jobs may wait in its queue
    reaches: frozenset[str] = frozenset()  # the chains that its blockers wait for, and the blockers
    excludes: frozenset[str] = frozenset()  # chains that are not in its way


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What `decide` answers; the App dresses it as an Admission."""

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


def decide(request: Request, view: View) -> Changes:
    """Settle a request against the jobs that stand for its key, and against how many its queue may have."""
    changes = settle(request, view)
    if request.max_depth is None or view.depth is None or view.depth < request.max_depth:
        return changes
    if not changes.inserts or changes.answer.outcome is Outcome.REPLACED:  # it adds nothing
        return changes
    [job] = changes.inserts
    reason = f"Queue {request.job.queue!r} has {view.depth} waiting jobs, and max_depth={request.max_depth}."
    return Changes(answer=Verdict(Outcome.REJECTED, job, None, reason, refusal="full", depth=view.depth))


def settle(request: Request, view: View) -> Changes:
    """Settle a request against the jobs that stand for its key."""
    policy = request.policy
    if policy is None or request.job.key is None:
        job = make(request, view.now)
        return Changes(answer=Verdict(Outcome.CREATED, job, None, "The task is not unique."), inserts=(job,))
    try:
        changes = judge(request, policy, view)
    except MergeFailed as error:
        changes = refuse_merge(request, view, error)
    if policy.shadow and changes.answer.outcome in DEDUPLICATED | {Outcome.REPLACED}:
        return admit_unheld(request, view, changes.answer)
    return changes


def judge(request: Request, policy: Unique, view: View) -> Changes:
    """Apply the rules in their order: force, stale, own run, free, excluded; then by who stands there."""
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
    """Tell whether the key is taken: by one that waits behind a run, or by a hold that is alive."""
    return standing is view.successor or holding(standing, view.now)


def stale(request: Request, view: View) -> bool:
    """Tell whether a newer version, or the same one, was already admitted and not withdrawn."""
    version, mark = request.job.version, view.mark
    if version is None or mark is None or mark.version is None or view.marked is None:
        return False
    return version < mark.version or (version == mark.version and not mark.void)


def made_in_own_run(request: Request, view: View) -> bool:
    """Tell whether the request comes from inside the run that holds its key."""
    holder = view.holder
    return holder is not None and request.running_chain == holder.chain_id and not holder.is_terminal


def excluded(policy: Unique, view: View) -> bool:
    """Tell whether the newcomer's own states or window leave the holder out."""
    standing = view.successor or view.holder
    holder = view.holder or standing
    if standing is None or holder is None:
        return False
    if policy.states is not None and phase(holder) not in policy.states:
        return True
    if policy.within is None or standing.held_at is None:  # a successor's window has not begun
        return False
    return view.now - standing.held_at >= cast("timedelta", policy.within)


# ── what a newcomer does, by who stands there ─────────────────────────────────────────────────────


def meet_waiting(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Settle against a job that has not started, or waits for its retry, or waits behind a run."""
    match policy.on_conflict:
        case "keep":
            return keep(request, policy, view, standing)
        case "reject":
            return reject(request, standing)
        case "update":
            return refresh(request, policy, view, standing)
        case "replace":
            return replace(request, policy, view, standing)


def meet_active(request: Request, policy: Unique, view: View, holder: Job) -> Changes:
    """Settle against a running job, or a chain under way."""
    match policy.while_active:
        case "keep":
            return keep(request, policy, view, holder)
        case "reject":
            return reject(request, holder)
        case "rerun":
            return follow(request, policy, view, "The job is running; one more run follows it.")
        case "cancel" if holder.state is State.ACTIVE:
            changes = follow(request, policy, view, "The running job is told to stop; this one follows it.")
            asked = alter(holder, cancel_requested=True)
            return msgspec.structs.replace(changes, updates=(asked, *changes.updates))
        case "cancel":  # a chain between two of its jobs: nothing runs, so the newcomer goes right in
            return replace(request, policy, view, holder)


def meet_ended(request: Request, policy: Unique, view: View, holder: Job) -> Changes:
    """Settle against a job that has ended and still holds its key."""
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


def create(request: Request, policy: Unique, view: View) -> Changes:
    """Admit a job to a key that is free, or whose hold has lapsed."""
    job = hold(make(request, view.now), view.now)
    freed = (alter(view.holder, held_key=None),) if view.holder else ()
    verdict = Verdict(Outcome.CREATED, job, None, "Nothing held the key.")
    return Changes(answer=verdict, updates=freed, inserts=(job,), mark=marked(request, policy, view, job))


def take_over(request: Request, policy: Unique, view: View, outcome: Outcome, reason: str) -> Changes:
    """Admit a job although the key is held: the old holder goes on alone, its successor is absorbed."""
    job = hold(make(request, view.now), view.now)
    updates = [lifecycle.detach(view.holder)] if view.holder else []
    if view.successor is not None:
        refuse_cycle(request, view.successor)
        job = inherit(merged(view.successor, job, policy), view.successor)
        updates.append(supersede(view.successor, job.id, view.now))
    differing = differs(request, view.holder)
    verdict = Verdict(outcome, job, view.holder, reason, differing, superseded=view.successor)
    return Changes(
        answer=verdict,
        updates=tuple(updates),
        inserts=(job,),
        mark=marked(request, policy, view, job, instead_of=view.successor),
    )


def keep(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Answer with the job that is there; write nothing, unless the policy lets a duplicate bump it."""
    if policy.on_mismatch == "error" and differs(request, standing):
        return reject(request, standing, "mismatch")
    if policy.bump and (bumped := bump(request, view, standing)):
        verdict = Verdict(
            Outcome.UPDATED,
            bumped,
            standing,
            "The duplicate raised the waiting job.",
            differs(request, standing),
        )
        return Changes(answer=verdict, updates=(bumped,))
    reason = f"The same work is already {standing.state}; the policy keeps it."
    return Changes(answer=Verdict(Outcome.KEPT, standing, standing, reason, differs(request, standing)))


def reject(request: Request, standing: Job, refusal: Refusal = "duplicate") -> Changes:
    """Refuse the newcomer."""
    what = "and the policy rejects duplicates" if refusal == "duplicate" else "with another payload"
    reason = f"{request.job.task} is already {standing.state} as {standing.id}, {what}."
    verdict = Verdict(Outcome.REJECTED, standing, standing, reason, differs(request, standing), refusal)
    return Changes(answer=verdict)


def refuse_merge(request: Request, view: View, error: MergeFailed) -> Changes:
    """Refuse a newcomer whose payload cannot be merged into the one that waits."""
    standing = view.successor or view.holder
    assert standing is not None  # there was something to merge with
    verdict = Verdict(Outcome.REJECTED, standing, standing, str(error), differs(request, standing), "merge")
    return Changes(answer=verdict)


def refuse_stale(request: Request, view: View) -> Changes:
    """Turn away a version that is not newer than what the key has seen."""
    assert view.mark is not None  # stale() says so
    assert view.marked is not None  # stale() says so
    versions = f"{request.job.version} is not newer than {view.mark.version}"
    reason = f"Version {versions}, which was already admitted."
    verdict = Verdict(
        Outcome.STALE, view.marked, view.successor or view.holder, reason, differs(request, view.marked)
    )
    return Changes(answer=verdict)


def refresh(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Overwrite the waiting job's payload in place: same id, same place, a new attempt budget."""
    newer = merged(standing, make(request, view.now), policy)
    same = newer.payload_digest == standing.payload_digest  # though what is sealed never looks the same
    updated = alter(
        standing,
        args=standing.args if same else newer.args,
        meta=newer.meta,
        payload_digest=newer.payload_digest,
        version=standing.version if newer.version is None else newer.version,
        expires_at=newer.expires_at,  # the newest request says how long it is worth running
        partition=newer.partition,
        **renamed(policy, newer),
    )
    updated = postponed(policy, view, updated)
    if updated == standing:
        reason = f"The same work is already {standing.state} with the same payload."
        return Changes(answer=Verdict(Outcome.KEPT, standing, standing, reason))
    updated = alter(updated, attempt=0)
    reason = f"The {standing.state} job now has this request's payload."
    verdict = Verdict(Outcome.UPDATED, updated, standing, reason, differs(request, standing))
    return Changes(answer=verdict, updates=(updated,), mark=marked(request, policy, view, updated))


def replace(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Cancel the waiting job and put the newcomer in its place, in one step."""
    refuse_cycle(request, standing)
    job = inherit(make(request, view.now), standing)
    if policy.keep_schedule:
        job = alter(job, run_at=standing.run_at, place=standing.place)
        kept = standing.state in {State.SCHEDULED, State.AVAILABLE} and not job.is_blocked
        job = alter(job, state=standing.state if kept else ready(job, view.now))
    if standing is view.successor:
        job = alter(job, state=State.PENDING, next_key=job.key)
        superseded = supersede(standing, job.id, view.now)
    else:
        job = hold(job, view.now)
        superseded = supersede(standing, job.id, view.now)
    reason = f"The {standing.state} job {standing.id} was cancelled in favour of this one."
    differing = differs(request, standing)
    verdict = Verdict(Outcome.REPLACED, job, standing, reason, differing, superseded=standing)
    return Changes(
        answer=verdict,
        updates=(superseded,),
        inserts=(job,),
        mark=marked(request, policy, view, job, instead_of=standing),
    )


def follow(request: Request, policy: Unique, view: View, reason: str) -> Changes:
    """Make, or update, the one job that runs after the present holder ends."""
    if view.successor is not None:
        return refresh(request, policy, view, view.successor)
    if view.holder is not None:
        refuse_cycle(request, view.holder)
    job = make(request, view.now)
    job = alter(job, state=State.PENDING, next_key=job.key)
    verdict = Verdict(Outcome.RERUN, job, view.holder, reason, differs(request, view.holder))
    return Changes(answer=verdict, inserts=(job,), mark=marked(request, policy, view, job))


def trail(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Keep a throttled request for the end of the window, where one job runs with the last payload."""
    begun = standing.held_at is not None and standing.held_at <= view.now
    if standing is view.successor or (standing.state in WAITING and not begun):
        return refresh(request, policy, view, standing)
    window = cast("timedelta", policy.within)  # a throttle has one; the holder's own policy may have none
    ends = standing.holds_until or (standing.held_at or view.now) + window
    job = make(request, view.now)
    job = alter(job, run_at=max(job.run_at, ends), traits=job.traits | Trait.TRAILING)
    if standing.is_terminal:
        job = hold(alter(job, state=ready(job, view.now)), view.now)
        updates: tuple[Job, ...] = (alter(standing, held_key=None),)
    else:
        job = alter(job, state=State.PENDING, next_key=job.key)
        updates = ()
    verdict = Verdict(
        Outcome.RERUN,
        job,
        standing,
        "Throttled: one run follows at the window's end.",
        differs(request, standing),
    )
    return Changes(answer=verdict, updates=updates, inserts=(job,), mark=marked(request, policy, view, job))


def admit_unheld(request: Request, view: View, judged: Verdict) -> Changes:
    """Admit what a shadow policy would have absorbed, without hold, order or version."""
    job = alter(make(request, view.now), traits=request.job.traits, version=None, holds=0)
    reason = f"Shadow: the policy would have answered {judged.outcome}."
    verdict = Verdict(
        Outcome.CREATED, job, judged.holder, reason, judged.payload_differs, shadow=judged.outcome
    )
    return Changes(answer=verdict, inserts=(job,))


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────


def make(request: Request, now: datetime) -> Job:
    """Make the job that a request asks for, not yet holding anything."""
    job, policy = request.job, request.policy
    run_at = request.run_at or (now + request.delay if request.delay else now)
    latest_at = None
    if policy is not None and policy.wait is not None:
        latest_at = None if policy.max_wait is None else now + cast("timedelta", policy.max_wait)
        run_at = debounced(policy, now, latest_at)
    return alter(
        job,
        state=State.PENDING if job.is_blocked else due(run_at, now),
        run_at=run_at,
        created_at=now,
        holds=0 if policy is None else policy.holds,
        traits=job.traits if policy is None else policy.traits | job.traits,
        within=None if policy is None else policy.seconds,
        latest_at=latest_at,
        version=None if policy is not None and policy.shadow else job.version,
        expires_at=job.expires_at if request.expires_in is None else now + request.expires_in,
    )


def refuse_cycle(request: Request, standing: Job) -> None:
    """Refuse a job that would wait for one whose place it is to take."""
    if standing.chain_id in request.reaches:
        waits = f"{request.job.task} would wait for job {standing.id}"
        raise BlockerCycle(f"{waits}, whose place it takes: leave it out of after=.")


def debounced(policy: Unique, now: datetime, latest_at: datetime | None) -> datetime:
    """Tell when a debounced job runs if no further request comes."""
    run_at = now + cast("timedelta", policy.wait)
    return run_at if latest_at is None else min(run_at, latest_at)


def postponed(policy: Unique, view: View, updated: Job) -> Job:
    """Push a debounced job's run time, up to the cap that its first request set; its state follows."""
    if updated.state is State.RETRYABLE or (policy.wait is None and "time" not in policy.fields):
        return updated
    run_at = updated.run_at if policy.wait is None else debounced(policy, view.now, updated.latest_at)
    state = updated.state if updated.state is State.PENDING else due(run_at, view.now)
    return alter(updated, run_at=run_at, state=state)


def renamed(policy: Unique, newer: Job) -> dict[str, Any]:
    """Collect what `fields` lets an update take from the newcomer besides its payload."""
    taken: dict[str, Any] = {}
    if "queue" in policy.fields:
        taken["queue"] = newer.queue
    if "priority" in policy.fields:
        taken["priority"] = newer.priority
    if "time" in policy.fields:
        taken["run_at"] = newer.run_at
    if "place" in policy.fields:
        taken["place"] = newer.place
    return taken


def bump(request: Request, view: View, standing: Job) -> Job | None:
    """Raise priority or bring the time forward, never the reverse; None if there is nothing to raise."""
    if phase(standing) not in UNSTARTED:
        return None
    wanted = make(request, view.now)
    run_at = standing.run_at if standing.state is State.RETRYABLE else min(standing.run_at, wanted.run_at)
    state = due(run_at, view.now) if standing.state is State.SCHEDULED else standing.state
    raised = alter(standing, priority=max(standing.priority, wanted.priority), run_at=run_at, state=state)
    changed = (raised.priority, raised.run_at) != (standing.priority, standing.run_at)
    return raised if changed and (raised.priority > standing.priority or standing.run_at > view.now) else None


def merged(older: Job, newer: Job, policy: Unique | None) -> Job:
    """Combine an older payload into a newer job, if the policy merges; raises MergeFailed."""
    if policy is None or policy.merge is None:
        return newer
    args = combine(older.arguments, newer.arguments, policy.merge, policy.merge_cap)
    return alter(newer, args=args, payload_digest=fingerprint(args, newer.meta))


def marked(
    request: Request, policy: Unique, view: View, job: Job, *, instead_of: Job | None = None
) -> Mark | None:
    """Remember the key's newest request, where versions or the order of admission matter."""
    asked = request.job
    if not policy.marks or asked.key is None:
        return None
    gone = {job.id} | ({instead_of.chain_id} if instead_of is not None else set())
    mark = remember(asked.key, asked.version, job.id, view, gone)
    same = view.mark is not None and mark == msgspec.structs.replace(view.mark, touched_at=view.now)
    return None if same else mark


def remember(key: bytes, version: int | None, chain: str, view: View, gone: set[str]) -> Mark:
    """Make the key's mark, and keep the request before it: it counts again if this one is withdrawn."""
    old = view.mark
    before: tuple[int | None, str | None] = (None, None)
    if old is not None and (old.void or old.job in gone):
        before = (old.prior_version, old.prior_job) if old.prior_job not in gone else before
    elif old is not None:
        before = (old.version, old.job)
    return Mark(key, version, chain, False, view.now, *before)  # noqa: FBT003


def differs(request: Request, other: Job | None) -> bool:
    """Tell whether another job was asked for with another payload."""
    return other is not None and other.payload_digest != request.job.payload_digest


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────


def replay(view: View, *, edit: Callable[[Job], Job] | None = None) -> Changes:
    """Bring a dead letter back to life; judged as keep, whatever its policy: created, kept or stale.

    `edit` gives it another payload, or refuses to.
    """
    job = view.job
    if job is None or job.state not in {State.DISCARDED, State.CANCELLED} or job.is_tombstone:
        return Changes()
    job = job if edit is None else edit(job)
    standing = view.successor or view.holder
    if not job.holds:  # not unique, or admitted in shadow: nobody stands in its way
        return revive(job, view)
    if standing is not None and standing.id != job.id and stands(standing, view):
        reason = f"The same work is already {standing.state}; the dead letter stays where it is."
        return Changes(answer=Verdict(Outcome.KEPT, standing, standing, reason))
    if outranked(job, view.mark) and view.marked is not None:
        reason = "A newer version has been admitted since; the dead letter stays where it is."
        return Changes(answer=Verdict(Outcome.STALE, view.marked, standing, reason))
    return revive(job, view)


def come_back(view: View, *, policy: Replay) -> Changes:
    """Replay a letter whose time has come; one that is kept or stale has spent a replay, and waits on."""
    letter = view.job
    if letter is None or letter.returns_at is None or letter.returns_at > view.now:
        return Changes()  # another worker was faster
    if letter.replays >= policy.times:  # the policy has been cut since it died
        return Changes(updates=(lifecycle.stay_dead(letter),))
    changes = replay(view)
    if changes.answer is None or changes.answer.outcome is Outcome.CREATED:
        return changes
    waiting = lifecycle.await_return(alter(letter, replays=letter.replays + 1), policy, view.now)
    return msgspec.structs.replace(changes, updates=(waiting,))


def outranked(job: Job, mark: Mark | None) -> bool:
    """Tell whether another job of this version or a newer one stands for the key."""
    if job.version is None or mark is None or mark.version is None or mark.job == job.chain_id:
        return False
    return job.version < mark.version or (job.version == mark.version and not mark.void)


def revive(job: Job, view: View) -> Changes:
    """Make an ended job available again, with its key and a new attempt budget."""
    others = job.holds and view.holder is not None and view.holder.id != job.id
    freed = (alter(view.holder, held_key=None),) if others and view.holder else ()
    if job.version is None and lifecycle.overtaken(job, view.mark):
        job = lifecycle.detach(job)  # it is not the newest again: it runs beside that, and neither gives way
    alive = alter(
        expect_again(job),
        run_at=view.now,
        attempt=0,
        replays=job.replays + 1,
        traits=job.traits & ~Trait.RETURNS,
        finished_at=None,
        reason=None,
        superseded_by=None,
        cancel_requested=False,
        expires_at=None if lifecycle.too_late(job, view.now) else job.expires_at,
    )
    alive = alter(alive, state=ready(alive, view.now))
    alive = hold(alive, view.now) if job.holds else alive
    marks = job.version is not None or bool(job.traits & Trait.NEWEST_WINS)
    mark = remember(job.key, job.version, job.chain_id, view, {job.chain_id}) if marks and job.key else None
    verdict = Verdict(Outcome.CREATED, alive, None, "The dead letter is available again.")
    return Changes(answer=verdict, updates=(*freed, alive), mark=mark)
