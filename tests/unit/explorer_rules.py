"""The explorer's rules: DESIGN.md §3 as checks. Each yields a sentence for every way to break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import cast

from onejob.core import runs
from onejob.core.decide import Outcome, Request, Verdict
from onejob.core.job import EPOCH, WAITING, Job, State, Trait, alter
from onejob.core.policy import Unique
from onejob.core.step import NO_CHANGES, Step, View
from tests.unit.explorer_ledger import carried, follow, withdrawn
from tests.unit.explorer_world import (
    ADMITTED,
    ATTEMPTS,
    BACKOFF,
    CONTINUED,
    REQUESTS,
    SOON,
    Fate,
    Kind,
    Taken,
    World,
    numbers,
    read,
    scrubbed,
)

INSERTING = ADMITTED - {Outcome.UPDATED}

Rule = Callable[[Taken], Iterator[str]]


def answers(taken: Taken) -> Iterator[str]:
    """See that nothing is undefined: what can happen writes something, and a request is answered."""
    move, changes = taken.move, taken.changes
    if move.kind in REQUESTS | {Kind.REPLAY}:
        if not isinstance(changes.answer, Verdict):
            yield f"{move.kind} was not answered with a verdict"
    elif move.kind in {Kind.TICK, Kind.RELEASE, Kind.RELEASE_BY_FORCE}:
        return
    elif not changes.updates:
        yield f"{move.kind} changed nothing"


def verdict_matches_writes(taken: Taken) -> Iterator[str]:
    """See that a duplicate writes nothing and names a job that exists, and an admission writes its job."""
    if taken.move.request is None:
        return
    verdict, changes = taken.verdict, taken.changes
    deduplicated = verdict.outcome in {Outcome.KEPT, Outcome.REJECTED, Outcome.STALE}
    if deduplicated and (changes.updates or changes.inserts or changes.mark):
        yield f"{verdict.outcome} wrote something"
    if (verdict.outcome in INSERTING) != (len(changes.inserts) == 1):
        yield f"{verdict.outcome} inserted {len(changes.inserts)} jobs"
    if verdict.outcome is Outcome.UPDATED and [job.id for job in changes.updates] != [verdict.job.id]:
        yield "updated wrote another job than it names"
    if verdict.job.id not in taken.after.book.jobs:
        yield f"{verdict.outcome} names a job that does not exist"
    if taken.admits and not set(read(taken.move.request.job.args)) <= set(numbers(verdict.job)):
        yield f"{verdict.outcome} names a job without the request's payload"


def outcome_is_due(taken: Taken) -> Iterator[str]:
    """See that the outcome is the one that §3.2 gives for what the request meets."""
    if taken.move.request is None:
        return
    if taken.policy.shadow:
        if taken.verdict.outcome not in {Outcome.CREATED, Outcome.FORCED}:
            yield f"a shadow policy answered {taken.verdict.outcome}"
        return
    if taken.verdict.refusal == "merge":
        yield from merge_refused(taken)
        return
    due = across_tasks(expected(taken.move.request, taken), taken)
    if taken.verdict.outcome is not due:
        yield f"a request was {taken.verdict.outcome}, but should be {due}"


def across_tasks(due: Outcome, taken: Taken) -> Outcome:
    """See rule 10: a request of another task replaces where its policy would update."""
    wanted, standing = taken.move.request, taken.view.successor or taken.view.holder
    assert wanted is not None  # outcome_is_due says so
    other = standing is not None and standing.task != wanted.job.task and not taken.policy.bump
    return Outcome.REPLACED if due is Outcome.UPDATED and other else due


def payloads_stay_with_their_task(taken: Taken) -> Iterator[str]:
    """See rule 10: no request is written into a job of another task."""
    for job in (*taken.changes.updates, *taken.changes.inserts):
        for number in () if job.chain_index else numbers(job):
            task = taken.after.entries[number].task
            if task != job.task:
                yield f"{job.id} is of {job.task} and has payload {number}, which is of {task}"


def replaced_as_updated(taken: Taken) -> Iterator[str]:
    """See rule 10: a job of another task gets the time and position that an update would keep."""
    wanted, policy = taken.move.request, taken.policy
    standing = taken.view.successor or taken.view.holder
    if wanted is None or standing is None or standing.task == wanted.job.task:
        return
    if not taken.verdict.payload_differs and taken.verdict.holder is not None:
        yield "a request of another task does not differ"
    replaced = taken.verdict.outcome is Outcome.REPLACED and policy.on_conflict == "update"
    if replaced and not standing.chain_index and policy.wait is None and not policy.fields:
        old, new = standing, taken.verdict.job
        if (old.run_at, old.place) != (new.run_at, new.place):
            yield f"{new.id} did not keep the time and position of {old.id}"


def merge_refused(taken: Taken) -> Iterator[str]:
    """Say it if a merge was refused that is possible."""
    standing = taken.view.successor or taken.view.holder
    if standing is None or taken.policy.merge is None or len(numbers(standing)) < taken.policy.merge_cap:
        yield "a merge was refused without need"


def expected(wanted: Request, taken: Taken) -> Outcome:
    """Read the outcome off the design's tables."""
    policy, view = taken.policy, taken.view
    standing = view.successor or view.holder
    if wanted.force:
        return Outcome.FORCED
    if is_stale(wanted, taken.before):
        return Outcome.STALE
    if standing is None or not (standing is view.successor or alive(standing, policy, view.now)):
        return Outcome.CREATED
    if policy.edges != "first+last" and inside(wanted, view):
        return Outcome.UPDATED if view.successor else Outcome.RERUN
    if view.holder and policy.states is not None and stage(view.holder) not in policy.states:
        return Outcome.CREATED
    if policy.edges == "first+last":
        ahead = standing.state in WAITING and standing.held_at is not None and standing.held_at > view.now
        return Outcome.UPDATED if view.successor or ahead else Outcome.RERUN
    return BY_CONFLICT[situation(standing, view)](policy, standing, wanted, view.now)


def is_stale(wanted: Request, before: World) -> bool:
    """Return whether a version is older than the newest admitted, or equal to it and not withdrawn."""
    of_key = [e for e in before.entries.values() if e.key == wanted.job.key and e.number < CONTINUED]
    if wanted.job.version is None or not of_key:
        return False
    newest = max(of_key, key=lambda entry: entry.order)
    same = wanted.job.version == newest.version
    return wanted.job.version < newest.version or (same and not withdrawn(before, newest))


def stage(job: Job) -> State:
    """Return the state that counts: a chain that has started is active until it ends."""
    return State.ACTIVE if job.chain_index and not job.is_terminal else job.state


def alive(job: Job, policy: Unique, now: datetime) -> bool:
    """Return whether a hold is alive."""
    in_window = policy.within is None or (
        job.held_at is not None and now - job.held_at < cast("timedelta", policy.within)
    )
    return stage(job) in policy.held_states and in_window


def inside(wanted: Request, view: View) -> bool:
    """Return whether a request comes from inside the run that holds its key."""
    holder = view.holder
    return holder is not None and not holder.is_terminal and holder.chain_id == wanted.running_chain


def situation(standing: Job, view: View) -> str:
    """Return the row of the table that applies."""
    if standing is view.successor or stage(standing) in WAITING or stage(standing) is State.RETRYABLE:
        return "waiting"
    return "ended" if standing.is_terminal else "active"


def against_waiting(policy: Unique, standing: Job, wanted: Request, now: datetime) -> Outcome:
    """Read the row of `on_conflict`."""
    if policy.on_conflict == "keep":
        sooner = standing.state is not State.RETRYABLE and standing.run_at > now
        higher = wanted.job.priority > standing.priority
        return Outcome.UPDATED if policy.bump and (higher or sooner) else Outcome.KEPT
    return {"reject": Outcome.REJECTED, "update": Outcome.UPDATED, "replace": Outcome.REPLACED}[
        policy.on_conflict
    ]


def against_active(policy: Unique, standing: Job, _wanted: Request, _now: datetime) -> Outcome:
    """Read the row of `on_active`; a chain between two jobs has nothing to stop."""
    if policy.while_active == "cancel":
        return Outcome.RERUN if standing.state is State.ACTIVE else Outcome.REPLACED
    return {"keep": Outcome.KEPT, "reject": Outcome.REJECTED, "rerun": Outcome.RERUN}[policy.while_active]


def against_ended(policy: Unique, _standing: Job, _wanted: Request, _now: datetime) -> Outcome:
    """Read the row of the terminal holder."""
    return {"keep": Outcome.KEPT, "reject": Outcome.REJECTED}.get(policy.on_conflict, Outcome.CREATED)


BY_CONFLICT = {"waiting": against_waiting, "active": against_active, "ended": against_ended}


def unheld(job: Job) -> Job:
    """Show a job as it would be without its hold."""
    return scrubbed(alter(job, stand=None, traits=Trait.NONE))


def terminal_is_final(taken: Taken) -> Iterator[str]:
    """See that only a replay leaves a terminal state; others may at most take the hold away."""
    for new in taken.changes.updates:
        old = taken.before.book.jobs.get(new.id)
        final = old is not None and old.is_terminal and taken.move.kind is not Kind.REPLAY
        if old is not None and final and unheld(taken.after.book.jobs[new.id]) != unheld(old):
            yield f"{old.id} had ended and was changed"


def tokens_rise(taken: Taken) -> Iterator[str]:
    """See that every lease has a higher token, and that nothing lowers one."""
    for new in taken.changes.updates:
        old = taken.before.book.jobs.get(new.id)
        rise = taken.move.kind is Kind.START and new.state is State.ACTIVE
        if old is not None and new.token != old.token + rise:
            yield f"the token of {new.id} went from {old.token} to {new.token}"


def starts_in_time(taken: Taken) -> Iterator[str]:
    """See that no run starts before its time, or behind a predecessor."""
    job = taken.view.job
    if taken.move.kind is Kind.START and job is not None and taken.changes.answer is not None:
        if job.run_at > taken.view.now:
            yield f"{job.id} started before its time"
        if job.is_successor:
            yield f"{job.id} started while it was a successor"


def newest_runs_last(taken: Taken) -> Iterator[str]:
    """See that no payload starts after a newer one of its key has, unless that was withdrawn."""
    job, policy, world = taken.view.job, taken.policy, taken.after
    promised = policy.version is not None or policy.on_conflict in {"update", "replace"}
    if taken.move.kind is not Kind.START or job is None or not promised or policy.shadow:
        return
    if taken.changes.answer is None or policy.merge is not None or job.key in world.unordered:
        return
    order = max(world.entries[number].order for number in numbers(job))
    for other in world.entries.values():
        newer = other.key == job.key and other.order > order and other.started
        if newer and not withdrawn(taken.before, other):
            yield f"{job.id} started after the newer payload {other.number} had"


def newest_version_stands(taken: Taken) -> Iterator[str]:
    """See that no version completes after a newer one was admitted and not withdrawn."""
    job, world = taken.view.job, taken.before
    if taken.policy.version is None or taken.policy.shadow or job is None:
        return
    if taken.move.kind not in {Kind.COMPLETE, Kind.CONTINUE}:
        return
    if taken.after.book.jobs[job.id].state is State.COMPLETED:
        own = max((world.entries[number] for number in numbers(job)), key=lambda entry: entry.order)
        for other in world.entries.values():
            newer = other.key == own.key and other.order > own.order and other.version > own.version
            if newer and not withdrawn(world, other):
                yield f"{job.id} completed version {own.version} although {other.version} was admitted"


def failure_yields(taken: Taken) -> Iterator[str]:
    """See rule 2b: a failed holder with a successor ends superseded; that runs when the retry would have."""
    job, successor = taken.view.job, taken.view.successor
    if taken.move.kind not in {Kind.FAIL, Kind.CRASH} or job is None:
        return
    ended = taken.after.book.jobs[job.id]
    if not job.is_holder or successor is None or job.cancel_requested or job.attempt >= ATTEMPTS:
        return
    promoted = taken.after.book.jobs[successor.id]
    if could_not_merge(taken, job, successor):
        if ended.state is not State.RETRYABLE or promoted != successor:
            yield "two payloads that cannot be merged did not stay in order"
        return
    wait = SOON if taken.move.kind is Kind.FAIL else BACKOFF
    if ended.superseded_by != successor.id:
        yield "a failed holder with a successor did not end superseded"
    if not promoted.is_holder or promoted.run_at < taken.view.now + wait:
        yield "the successor does not run when the retry would have"


def could_not_merge(taken: Taken, older: Job, newer: Job) -> bool:
    """Return whether a merge is asked for and impossible."""
    if taken.policy.merge is None:
        return False
    size = len(set(numbers(older)) | set(numbers(newer)))
    return older.chain_index > 0 or size > taken.policy.merge_cap


def rest_changes_nothing(taken: Taken) -> Iterator[str]:
    """See rule 2b: snooze and hand-back leave holder and successor as they are, and spend no attempt."""
    job = taken.view.job
    if taken.move.kind not in {Kind.HAND_BACK, Kind.SNOOZE} or job is None or job.cancel_requested:
        return
    rested = taken.after.book.jobs[job.id]
    if rested.stand != job.stand or rested.attempt != job.attempt - 1:
        yield "a rest changed the hold or spent an attempt"
    if [new.id for new in taken.changes.updates] != [job.id]:
        yield "a rest changed another job"


def hold_outlives_failure(taken: Taken) -> Iterator[str]:
    """See rule 2: retries and lease loss keep the hold."""
    job = taken.view.job
    if taken.move.kind in {Kind.FAIL, Kind.CRASH, Kind.MATURE} and job is not None:
        after = taken.after.book.jobs[job.id]
        if not after.is_terminal and after.stand != job.stand:
            yield f"{job.id} lost its hold by {taken.move.kind}"


def start_lets_go(taken: Taken) -> Iterator[str]:
    """See rule 2d: until="start" lets go at the lease; every other policy holds on."""
    job = taken.view.job
    if taken.move.kind is Kind.START and job is not None and taken.changes.answer is not None:
        releases = taken.policy.until == "start"
        if taken.after.book.jobs[job.id].stand != (None if releases else job.stand):
            yield f"{job.id} has the wrong hold after its start"


def hold_follows_chain(taken: Taken) -> Iterator[str]:
    """See rule 3: the hold and its window travel to the continuation."""
    job = taken.view.job
    if taken.move.kind is Kind.CONTINUE and job is not None and taken.changes.inserts:
        (following,) = taken.changes.inserts
        if (following.stand, following.holds_until) != (job.stand, job.holds_until):
            yield "the hold did not travel to the continuation"


def force_leaves_the_old_alone(taken: Taken) -> Iterator[str]:
    """See rule 5: after a force the older job runs on, only without its hold."""
    holder = taken.view.holder
    if taken.move.kind is Kind.FORCE and taken.admits and holder is not None:
        after = taken.after.book.jobs[holder.id]
        if after.is_holder or unheld(after) != unheld(holder):
            yield "a force did more to the older job than take its hold"


def replay_is_judged_as_keep(taken: Taken) -> Iterator[str]:
    """See rule 5: a replay is created, kept or stale; the last two leave the letter where it is."""
    if taken.move.kind is Kind.REPLAY:
        created = taken.verdict.outcome is Outcome.CREATED
        if taken.verdict.outcome not in {Outcome.CREATED, Outcome.KEPT, Outcome.STALE}:
            yield f"a replay was {taken.verdict.outcome}"
        if created != bool(taken.changes.updates):
            yield f"a replay that was {taken.verdict.outcome} wrote {len(taken.changes.updates)} jobs"


def promoted_in_turn(taken: Taken) -> Iterator[str]:
    """See that a successor gets in only when the holder before it has ended, or was released by hand."""
    successor, holder = taken.view.successor, taken.view.holder
    if successor is None or holder is None or taken.move.kind in {Kind.RELEASE, Kind.RELEASE_BY_FORCE}:
        return
    after = taken.after.book.jobs[successor.id]
    if not after.is_successor and not after.is_terminal and not taken.after.book.jobs[holder.id].is_terminal:
        yield f"{successor.id} was promoted while {holder.id} had not ended"


def discarded_for_a_reason(taken: Taken) -> Iterator[str]:
    """See that a job is a dead letter only after its last attempt, or when the handler says so."""
    job = taken.view.job
    if job is not None and taken.after.book.jobs[job.id].state is State.DISCARDED and not job.is_terminal:
        last = taken.move.kind in {Kind.FAIL, Kind.CRASH} and job.attempt >= ATTEMPTS
        if not last and taken.move.kind is not Kind.FAIL_FOR_GOOD:
            yield f"{job.id} was discarded by {taken.move.kind}"


def trailing_waits(taken: Taken) -> Iterator[str]:
    """See that a throttled request runs at the window's end."""
    holder = taken.view.holder
    if taken.move.kind is Kind.REQUEST and taken.admits and taken.policy.edges == "first+last":
        throttled = taken.verdict.outcome is Outcome.RERUN
        if throttled and (holder is None or taken.verdict.job.run_at < (holder.holds_until or EPOCH)):
            yield "a throttled request does not wait for the window's end"


def debounce_waits(taken: Taken) -> Iterator[str]:
    """See that a debounced job runs at min(now + wait, first request + max_wait)."""
    policy, job = taken.policy, taken.admits and taken.verdict.job
    if policy.wait is None or not job or job.state is State.RETRYABLE or job.key in taken.after.unordered:
        return  # a replay does not move the cap
    replaced = taken.verdict.superseded
    if replaced is not None and replaced.state is State.RETRYABLE and policy.family is not None:
        return  # an update would have kept the time of the retry
    due = taken.view.now + cast("timedelta", policy.wait)
    if policy.max_wait is not None:
        absorbed = taken.verdict.outcome in {Outcome.UPDATED, Outcome.REPLACED}
        standing = taken.verdict.holder if policy.family is not None and absorbed else None
        first = None if standing is None else standing.latest_at  # a request of another task set the cap
        due = min(due, first or job.created_at + cast("timedelta", policy.max_wait))
    if job.run_at != due and job.attempt == 0:
        yield f"a debounced job runs at {job.run_at}, not at {due}"


def nothing_is_lost(taken: Taken) -> Iterator[str]:
    """See that every payload is live, done, withdrawn, or overwritten by one of which that is true."""
    live = carried(taken.after)
    for entry in taken.after.entries.values():
        if follow(taken.after, entry, live) is Fate.LOST:
            yield f"payload {entry.number} is lost"


def one_holder(taken: Taken) -> Iterator[str]:
    """See that a key has at most one holder and one successor."""
    stands = Counter((job.key, job.stand) for job in taken.after.jobs if job.stand is not None)
    for (key, stand), times in stands.items():
        if times > 1:
            yield f"{times} jobs have the stand {stand} of {key!r}"


def nobody_is_stuck(taken: Taken) -> Iterator[str]:
    """See that whoever waits behind a job waits behind one that can still end."""
    book = taken.after.book
    for job in taken.after.jobs:
        if (job.state is State.PENDING) != (job.is_successor):
            yield f"{job.id} is {job.state} with stand {job.stand!r}"
        if job.is_successor:
            holder = book.jobs.get(book.holders.get(job.key or b"", ""))
            if holder is None or holder.is_terminal or holder is job:
                yield f"{job.id} waits behind nobody"


def holds_are_due(taken: Taken) -> Iterator[str]:
    """See that an ended job holds its key only if its policy says so."""
    for job in taken.after.jobs:
        due = not job.is_terminal or (job.state in taken.policy.held_states and not job.is_superseded)
        if job.is_holder and not due:
            yield f"{job.id} is {job.state} and still holds its key"


def attempts_in_budget(taken: Taken) -> Iterator[str]:
    """See that the attempt is between nothing and the budget."""
    for job in taken.after.jobs:
        if not 0 <= job.attempt <= ATTEMPTS:
            yield f"{job.id} is at attempt {job.attempt} of {ATTEMPTS}"


def late_settlers_are_refused(taken: Taken) -> Iterator[str]:
    """See that a worker that lost its lease writes nothing."""
    for job in taken.after.jobs:
        old = job.token - (job.state is State.ACTIVE)
        if old > 0:
            view = taken.after.book.view(Step(lambda _view: NO_CHANGES, job.id), EPOCH)
            late = runs.settle(view, token=old, result=runs.Completed(b"null"))
            if not late.is_empty or (late.answer is not None and late.answer.job != job):
                yield f"a late completion of {job.id} was taken"


def reading_changes_nothing(taken: Taken) -> Iterator[str]:
    """See that a run which needs no reading is settled the same with the other rows of its key."""
    for job in taken.after.jobs:
        step = Step(lambda _view: NO_CHANGES, job.id, seen=job)
        if job.state is not State.ACTIVE or not step.needs_no_reading:
            continue
        read = taken.after.book.view(step, EPOCH)
        results: tuple[runs.Result, ...] = (
            runs.Completed(b"null"),
            runs.Failed({"type": "E"}, final=True),
            runs.HandedBack(),
        )
        for result in results:
            with_rows = runs.settle(read, token=job.token, result=result)
            without = runs.settle(View(EPOCH, job), token=job.token, result=result)
            if with_rows != without:
                yield f"{job.id} is settled otherwise when the rows of its key are read"


STEP_RULES: tuple[Rule, ...] = (
    answers,
    verdict_matches_writes,
    outcome_is_due,
    payloads_stay_with_their_task,
    replaced_as_updated,
    terminal_is_final,
    tokens_rise,
    starts_in_time,
    newest_runs_last,
    newest_version_stands,
    failure_yields,
    rest_changes_nothing,
    hold_outlives_failure,
    start_lets_go,
    hold_follows_chain,
    force_leaves_the_old_alone,
    replay_is_judged_as_keep,
    promoted_in_turn,
    discarded_for_a_reason,
    trailing_waits,
    debounce_waits,
)
WORLD_RULES: tuple[Rule, ...] = (
    nothing_is_lost,
    one_holder,
    nobody_is_stuck,
    holds_are_due,
    attempts_in_budget,
    late_settlers_are_refused,
    reading_changes_nothing,
)
