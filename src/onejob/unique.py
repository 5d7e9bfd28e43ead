"""THE semantics: what is the same work, how long it is held, and what a newcomer does about it.

`Unique` is the policy, a frozen value. `decide` settles one request against the jobs that stand for its
key and says what to write. It is pure; stores only promise to run it atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, Self, cast

import msgspec

from onejob import lifecycle
from onejob.errors import InvalidPolicy
from onejob.job import (
    INCOMPLETE,
    TERMINAL,
    WAITING,
    Changes,
    Job,
    Mark,
    Retry,
    State,
    Trait,
    View,
    alter,
    fingerprint,
    mask,
)
from onejob.lifecycle import due, hold, holding, phase, supersede
from onejob.merge import REDUCERS, Reducer, combine
from onejob.schedule import Duration, duration, spell

Until = Literal["start", "finish", "failure", "forever"]
OnConflict = Literal["keep", "reject", "update", "replace"]
OnActive = Literal["keep", "reject", "rerun", "cancel"]
Edges = Literal["first", "first+last"]
Strength = Literal["strong", "best-effort"]

HELD: Mapping[Until, frozenset[State]] = {
    "start": WAITING,
    "finish": INCOMPLETE,
    "failure": INCOMPLETE | {State.COMPLETED},
    "forever": INCOMPLETE | TERMINAL,
}
WHILE_ACTIVE: Mapping[OnConflict, OnActive] = {
    "keep": "keep",
    "reject": "reject",
    "update": "rerun",
    "replace": "rerun",
}
CHOICES: Mapping[str, Collection[str]] = {
    "until": HELD.keys(),
    "on_conflict": WHILE_ACTIVE.keys(),
    "on_active": ("keep", "reject", "rerun", "cancel"),
    "edges": ("first", "first+last"),
    "on_mismatch": ("ignore", "error"),
    "strength": ("strong", "best-effort"),
}
UPDATABLE = frozenset({"queue", "priority", "time", "place"})


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


DEDUPLICATED = frozenset({Outcome.KEPT, Outcome.UPDATED, Outcome.RERUN, Outcome.REJECTED, Outcome.STALE})


# ── the policy ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Unique:
    """What is the same work, how long it is held, and what a newcomer does. Refuses nonsense when made."""

    by: str | Sequence[str] | None = None
    key: str | Callable[..., object] | None = None
    queue: bool = False
    meta: Sequence[str] = ()
    family: str | None = None

    until: Until = "finish"
    states: Collection[State | str] | None = None
    within: Duration | None = None

    on_conflict: OnConflict = "keep"
    on_active: OnActive | None = None
    version: str | None = None
    merge: Mapping[str, str | Reducer] | Reducer | None = None
    merge_cap: int = 1000
    fields: Collection[str] = ()
    keep_schedule: bool = False
    wait: Duration | None = None
    max_wait: Duration | None = None
    edges: Edges = "first"
    bump: bool = False
    on_mismatch: Literal["ignore", "error"] = "ignore"

    strength: Strength = "best-effort"
    shadow: bool = False

    def __post_init__(self) -> None:
        """Normalise, then refuse what cannot be meant."""
        self._set("by", (self.by,) if isinstance(self.by, str) else self.by and tuple(self.by))
        self._set("meta", (self.meta,) if isinstance(self.meta, str) else tuple(self.meta))
        self._set("states", None if self.states is None else _states(self.states))
        for name in ("within", "wait", "max_wait"):
            if getattr(self, name) is not None:
                self._set(name, duration(getattr(self, name)))
        for sentence in _contradictions(self):
            raise InvalidPolicy(sentence)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # Presets: each is a sentence that people say.

    @classmethod
    def until_executing(cls, **more: Any) -> Self:
        """Hold the key until the job starts; what comes while it runs is new work."""
        return cls(**{"until": "start"} | more)

    @classmethod
    def until_executed(cls, **more: Any) -> Self:
        """Hold the key until the job ends, in success or failure."""
        return cls(**{"until": "finish"} | more)

    @classmethod
    def throttle(cls, every: Duration, edges: Edges = "first", **more: Any) -> Self:
        """Admit one job per window, whatever becomes of it; with first+last, one more at the window's end."""
        return cls(**{"until": "forever", "within": every, "edges": edges} | more)

    @classmethod
    def debounce(cls, wait: Duration, max_wait: Duration | None = None, **more: Any) -> Self:
        """Run once requests have been quiet for `wait`, with the last payload, at `max_wait` at the latest."""
        return cls(**{"on_conflict": "update", "wait": wait, "max_wait": max_wait} | more)

    @classmethod
    def latest(cls, by: str | Sequence[str], version: str, **more: Any) -> Self:
        """Let the highest version win: it replaces the waiting one, reruns after the active, outlives the old."""
        return cls(**{"by": by, "version": version, "on_conflict": "update"} | more)

    @classmethod
    def coalesce(cls, **more: Any) -> Self:
        """Update while waiting, rerun while active: the newest request is never lost, nothing runs for nothing."""
        return cls(**{"on_conflict": "update", "on_active": "rerun"} | more)

    @classmethod
    def once(cls, **more: Any) -> Self:
        """Succeed once: the key stays held after success and is freed by cancel or discard."""
        return cls(**{"until": "failure"} | more)

    @classmethod
    def singleton(cls, **more: Any) -> Self:
        """Allow one job per task, whatever its arguments."""
        return cls(**{"by": ()} | more)

    # What the policy means to a job.

    @property
    def held_states(self) -> frozenset[State]:
        """The states in which a job of this policy holds its key."""
        return cast("frozenset[State]", self.states) if self.states is not None else HELD[self.until]

    @property
    def while_active(self) -> OnActive:
        """What a newcomer does about an active holder."""
        return self.on_active or WHILE_ACTIVE[self.on_conflict]

    @property
    def newest_wins(self) -> bool:
        """Whether a job that lost its hold gives way to a newer one."""
        can_lose = self.until == "start" or self.within is not None or self.states is not None
        return self.on_conflict in {"update", "replace"} and can_lose

    @property
    def marks(self) -> bool:
        """Whether the key's newest request must be remembered apart from its job."""
        return self.version is not None or self.newest_wins

    @property
    def traits(self) -> int:
        """What the job's later life needs to know of the policy."""
        return (
            Trait.RELEASES_AT_START * (self.until == "start" and self.states is None)
            | Trait.NEWEST_WINS * self.newest_wins
            | Trait.MERGES * (self.merge is not None)
        )

    @property
    def seconds(self) -> float | None:
        """The window in seconds."""
        return None if self.within is None else cast("timedelta", self.within).total_seconds()

    def describe(self) -> str:
        """Say the policy in one sentence."""
        span = f" for {spell(cast('timedelta', self.within))}" if self.within is not None else ""
        states = "|".join(state for state in State if state in self.held_states)
        return (
            f"unique by {self._identity()}, held{span} while {states}; "
            f"a newcomer: {self.on_conflict}, while active: {self.while_active}"
        )

    def _identity(self) -> str:
        if self.key is not None:
            return f"key {self.key!r}" if isinstance(self.key, str) else "a key function"
        extra = ["queue"] * self.queue + [f"meta.{name}" for name in self.meta]
        return " + ".join(["task", *(["all arguments"] if self.by is None else self.by), *extra])


def _states(states: Collection[State | str]) -> frozenset[State]:
    try:
        return frozenset(State(state) for state in ([states] if isinstance(states, str) else states))
    except ValueError as error:
        known = ", ".join(State)
        raise InvalidPolicy(f"states={sorted(map(str, states))!r}: write some of {known}.") from error


def _contradictions(policy: Unique) -> Iterable[str]:
    """Name what the policy says and unsays; the first sentence is raised."""
    for name, allowed in CHOICES.items():
        value = getattr(policy, name)
        if value is not None and value not in allowed:
            yield f"{name}={value!r} is unknown: write one of {', '.join(map(repr, allowed))}."
    yield from _identity_contradictions(policy)
    yield from _time_contradictions(policy)
    yield from _conflict_contradictions(policy)


def _identity_contradictions(policy: Unique) -> Iterable[str]:
    if policy.by is not None and policy.key is not None:
        yield "by= and key= both name the same work: write one of them."
    if policy.key == "":
        yield 'key="" would make everything one job: write Unique.singleton() if that is meant.'
    if policy.family == "":
        yield 'family="" is empty: name the family, or leave it out.'
    if policy.states is not None and not policy.states:
        yield "states=[] holds in no state: leave unique out instead."
    if policy.states is not None and policy.until != "finish":
        yield "states= takes the place of until=: write one of them."


def _time_contradictions(policy: Unique) -> Iterable[str]:
    zero = timedelta(0)
    if policy.within is not None and cast("timedelta", policy.within) <= zero:
        yield 'within= must be longer than nothing: write within="5m".'
    if policy.max_wait is not None and policy.wait is None:
        yield "max_wait= caps a debounce: give wait= as well."
    if policy.wait is not None and policy.on_conflict != "update":
        yield 'wait= debounces by updating the waiting job: write on_conflict="update", or Unique.debounce(…).'
    if policy.max_wait is not None and cast("timedelta", policy.max_wait) < cast(
        "timedelta", policy.wait or zero
    ):
        yield "max_wait= is shorter than wait=: make it at least as long."
    if policy.edges == "first+last" and (policy.within is None or policy.until != "forever"):
        yield 'edges="first+last" belongs to a throttle: write Unique.throttle("5m", "first+last").'
    if policy.edges == "first+last" and (policy.on_conflict != "keep" or policy.on_active is not None):
        yield 'edges="first+last" already says what a duplicate does: leave on_conflict and on_active out.'


def _conflict_contradictions(policy: Unique) -> Iterable[str]:
    updates = policy.on_conflict == "update" or policy.edges == "first+last"
    if policy.on_active is not None and policy.until == "start":
        yield 'until="start" lets go when the job starts, so on_active= never applies: leave it out.'
    if policy.merge is not None and not updates:
        yield 'merge= combines payloads under update: write on_conflict="update".'
    if policy.merge is not None and policy.version is not None:
        yield "version= lets the newest payload win whole, merge= combines payloads: write one of them."
    if isinstance(policy.merge, Mapping):
        for name, reducer in policy.merge.items():
            if not callable(reducer) and reducer not in REDUCERS:
                yield f"merge={{{name!r}: {reducer!r}}} is unknown: write one of {', '.join(REDUCERS)}, or a function."
    if policy.merge_cap < 1:
        yield "merge_cap= must allow at least one element."
    if unknown := set(policy.fields) - UPDATABLE:
        yield f"fields={sorted(unknown)} cannot be updated: choose from {', '.join(sorted(UPDATABLE))}."
    if policy.fields and policy.on_conflict != "update":
        yield 'fields= says what an update changes besides the payload: write on_conflict="update".'
    if policy.keep_schedule and policy.on_conflict != "replace":
        yield 'keep_schedule= belongs to on_conflict="replace".'
    if policy.bump and policy.on_conflict != "keep":
        yield 'bump= is the one write under on_conflict="keep"; under update name priority or time in fields=.'
    if policy.on_mismatch == "error" and policy.on_conflict != "keep":
        yield 'on_mismatch="error" guards on_conflict="keep"; the other policies take the new payload.'


class Fluent:
    """The same policy said step by step: unique.by("tenant_id").until("finish").within("5m").or_update()."""

    def __init__(self, **choices: Any) -> None:
        self._choices = choices

    @property
    def policy(self) -> Unique:
        """The policy that the steps add up to."""
        return Unique(**self._choices)

    def _with(self, **choices: Any) -> Fluent:
        return Fluent(**self._choices | choices)

    def by(self, *names: str) -> Fluent:
        """Name the arguments that make the same work; none for one job per task."""
        return self._with(by=names)

    def key(self, key: str | Callable[..., object]) -> Fluent:
        """Give the key as a string or as a function of the arguments."""
        return self._with(key=key)

    def per_queue(self) -> Fluent:
        """Let the queue be part of the key."""
        return self._with(queue=True)

    def meta(self, *names: str) -> Fluent:
        """Let metadata fields be part of the key."""
        return self._with(meta=names)

    def family(self, name: str) -> Fluent:
        """Share the key with other tasks of this family."""
        return self._with(family=name)

    def until(self, until: Until) -> Fluent:
        """Hold until start, finish, failure or forever."""
        return self._with(until=until)

    def states(self, *states: State | str) -> Fluent:
        """Hold in exactly these states."""
        return self._with(states=states)

    def within(self, window: Duration) -> Fluent:
        """Let the hold lapse at this age."""
        return self._with(within=window)

    def or_keep(self) -> Fluent:
        """A newcomer gets the job that is there."""
        return self._with(on_conflict="keep")

    def or_reject(self) -> Fluent:
        """A newcomer is refused with Duplicate."""
        return self._with(on_conflict="reject")

    def or_update(self, *also: str) -> Fluent:
        """A newcomer overwrites the waiting job's payload, and the fields named."""
        return self._with(on_conflict="update", fields=also)

    def or_replace(self, *, keep_schedule: bool = False) -> Fluent:
        """A newcomer takes the waiting job's place."""
        return self._with(on_conflict="replace", keep_schedule=keep_schedule)

    def while_active(self, on_active: OnActive) -> Fluent:
        """Say what a newcomer does about an active holder."""
        return self._with(on_active=on_active)

    def version(self, name: str) -> Fluent:
        """Let the highest value of this argument win."""
        return self._with(version=name)

    def merge(self, how: Mapping[str, str | Reducer] | Reducer, *, cap: int = 1000) -> Fluent:
        """Combine payloads instead of overwriting them."""
        return self._with(merge=how, merge_cap=cap)

    def debounce(self, wait: Duration, max_wait: Duration | None = None) -> Fluent:
        """Wait until requests are quiet."""
        return self._with(on_conflict="update", wait=wait, max_wait=max_wait)

    def throttle(self, every: Duration, edges: Edges = "first") -> Fluent:
        """Admit one per window."""
        return self._with(until="forever", within=every, edges=edges)

    def bump(self) -> Fluent:
        """Let a duplicate raise priority or bring the time forward."""
        return self._with(bump=True)

    def or_mismatch_error(self) -> Fluent:
        """Refuse the same key with another payload."""
        return self._with(on_mismatch="error")

    def demand(self, strength: Strength) -> Fluent:
        """Refuse stores that guarantee less."""
        return self._with(strength=strength)

    def in_shadow(self) -> Fluent:
        """Judge and count, but admit."""
        return self._with(shadow=True)


unique = Fluent()


def policy_of(value: Unique | Fluent | bool | None) -> Unique | None:
    """Read every form in which a policy may be given."""
    if isinstance(value, Fluent):
        return value.policy
    if isinstance(value, bool):
        return Unique() if value else None
    return value


# ── the request and the verdict ───────────────────────────────────────────────────────────────────


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A call on its way in: what a job will be made of, if one is."""

    id: str
    place: int
    namespace: str
    task: str
    queue: str
    args: bytes
    meta: bytes
    payload_digest: bytes
    priority: int
    retry: Retry
    timeout: float | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    key: bytes | None = None
    policy: Unique | None = None
    version: int | None = None
    force: bool = False
    parent_id: str | None = None
    running_chain: str | None = None  # the chain inside whose run the request was made


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What `decide` answers; the App dresses it as an Admission."""

    outcome: Outcome
    job: Job
    holder: Job | None
    reason: str
    payload_differs: bool = False
    mismatch: bool = False
    shadow: Outcome | None = None


# ── deciding ──────────────────────────────────────────────────────────────────────────────────────


def decide(request: Request, view: View) -> Changes:
    """Settle a request against the jobs that stand for its key."""
    policy = request.policy
    if policy is None or request.key is None:
        job = make(request, view.now)
        return Changes(answer=Verdict(Outcome.CREATED, job, None, "The task is not unique."), inserts=(job,))
    changes = judge(request, policy, view)
    if policy.shadow and changes.answer.outcome in DEDUPLICATED:
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
    if made_in_own_run(request, view):
        return follow(request, policy, view, "The running job asked for its own next run.")
    if excluded(policy, view):
        return take_over(
            request, policy, view, Outcome.CREATED, "The holder is outside the policy's states or window."
        )
    if policy.edges == "first+last":
        return trail(request, policy, view, standing)
    if standing is view.successor or phase(standing) in WAITING or standing.state is State.RETRYABLE:
        return meet_waiting(request, policy, view, standing)
    if phase(standing) is State.ACTIVE:
        return meet_active(request, policy, view, standing)
    return meet_ended(request, policy, view, standing)


def stands(standing: Job, view: View) -> bool:
    """Tell whether the key is taken: by one that waits behind a run, or by a hold that is alive."""
    return standing is view.successor or holding(standing, view.now)


def stale(request: Request, view: View) -> bool:
    """Tell whether a newer version, or the same one, was already admitted and not withdrawn."""
    mark = view.mark
    if request.version is None or mark is None or mark.version is None or view.marked is None:
        return False
    return request.version < mark.version or (request.version == mark.version and not mark.void)


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
    since = standing.created_at if standing is view.successor else standing.held_at
    return (
        policy.within is not None
        and since is not None
        and view.now - since >= cast("timedelta", policy.within)
    )


# ── what a newcomer does, by who stands there ─────────────────────────────────────────────────────


def meet_waiting(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Settle against a job that has not started, or waits for its retry, or waits behind a run."""
    match policy.on_conflict:
        case "keep":
            return keep(request, policy, view, standing)
        case "reject":
            return reject(request, view, standing)
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
            return reject(request, view, holder)
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
            return reject(request, view, holder)
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
        job = merged(view.successor, job, policy)
        updates.append(supersede(view.successor, job.id, view.now))
    verdict = Verdict(outcome, job, view.holder, reason, differs(request, view.holder))
    return Changes(
        answer=verdict, updates=tuple(updates), inserts=(job,), mark=marked(request, policy, view, job)
    )


def keep(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Answer with the job that is there; write nothing, unless the policy lets a duplicate bump it."""
    if policy.on_mismatch == "error" and differs(request, standing):
        return reject(request, view, standing, mismatch=True)
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


def reject(request: Request, view: View, standing: Job, *, mismatch: bool = False) -> Changes:
    """Refuse the newcomer."""
    what = "with another payload" if mismatch else "and the policy rejects duplicates"
    reason = f"{request.task} is already {standing.state} as {standing.id}, {what}."
    return Changes(
        answer=Verdict(
            Outcome.REJECTED, standing, standing, reason, differs(request, standing), mismatch=mismatch
        )
    )


def refuse_stale(request: Request, view: View) -> Changes:
    """Turn away a version that is not newer than what the key has seen."""
    assert view.mark is not None  # stale() says so
    assert view.marked is not None  # stale() says so
    reason = f"Version {request.version} is not newer than version {view.mark.version}, which was already admitted."
    verdict = Verdict(
        Outcome.STALE, view.marked, view.successor or view.holder, reason, differs(request, view.marked)
    )
    return Changes(answer=verdict)


def refresh(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Overwrite the waiting job's payload in place: same id, same place, a new attempt budget."""
    newer = merged(standing, make(request, view.now), policy)
    updated = alter(
        standing,
        args=newer.args,
        meta=newer.meta,
        payload_digest=newer.payload_digest,
        version=standing.version if newer.version is None else newer.version,
        **renamed(request, policy, newer),
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
    job = make(request, view.now)
    if policy.keep_schedule:
        state = standing.state if standing.state in WAITING else due(standing.run_at, view.now)
        job = alter(job, run_at=standing.run_at, place=standing.place, state=state)
    if standing is view.successor:
        job = alter(job, state=State.PENDING, next_key=job.key)
        superseded = supersede(standing, job.id, view.now)
    else:
        job = hold(job, view.now)
        superseded = supersede(standing, job.id, view.now)
    reason = f"The {standing.state} job {standing.id} was cancelled in favour of this one."
    verdict = Verdict(Outcome.REPLACED, job, standing, reason, differs(request, standing))
    return Changes(
        answer=verdict, updates=(superseded,), inserts=(job,), mark=marked(request, policy, view, job)
    )


def follow(request: Request, policy: Unique, view: View, reason: str) -> Changes:
    """Make, or update, the one job that runs after the present holder ends."""
    if view.successor is not None:
        return refresh(request, policy, view, view.successor)
    job = make(request, view.now)
    job = alter(job, state=State.PENDING, next_key=job.key)
    verdict = Verdict(Outcome.RERUN, job, view.holder, reason, differs(request, view.holder))
    return Changes(answer=verdict, inserts=(job,), mark=marked(request, policy, view, job))


def trail(request: Request, policy: Unique, view: View, standing: Job) -> Changes:
    """Keep a throttled request for the end of the window, where one job runs with the last payload."""
    begun = standing.held_at is not None and standing.held_at <= view.now
    if standing is view.successor or (standing.state in WAITING and not begun):
        return refresh(request, policy, view, standing)
    assert standing.holds_until is not None  # a throttle has a window
    job = make(request, view.now)
    job = alter(job, run_at=max(job.run_at, standing.holds_until), traits=job.traits | Trait.TRAILING)
    if standing.is_terminal:
        job = hold(alter(job, state=due(job.run_at, view.now)), view.now)
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
    job = alter(make(request, view.now), traits=Trait.NONE, version=None)
    reason = f"Shadow: the policy would have answered {judged.outcome}."
    verdict = Verdict(
        Outcome.CREATED, job, judged.holder, reason, judged.payload_differs, shadow=judged.outcome
    )
    return Changes(answer=verdict, inserts=(job,))


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────


def make(request: Request, now: datetime) -> Job:
    """Make the job that a request asks for, not yet holding anything."""
    policy = request.policy
    run_at = request.run_at or (now + request.delay if request.delay else now)
    latest_at = None
    if policy is not None and policy.wait is not None:
        latest_at = None if policy.max_wait is None else now + cast("timedelta", policy.max_wait)
        run_at = debounced(policy, now, latest_at)
    return Job(
        id=request.id,
        namespace=request.namespace,
        task=request.task,
        queue=request.queue,
        state=State.SCHEDULED if run_at > now else State.AVAILABLE,
        priority=request.priority,
        run_at=run_at,
        place=request.place,
        created_at=now,
        args=request.args,
        meta=request.meta,
        payload_digest=request.payload_digest,
        retry=request.retry,
        timeout=request.timeout,
        key=request.key,
        holds=0 if policy is None else mask(policy.held_states),
        traits=Trait.NONE if policy is None else policy.traits,
        within=None if policy is None else policy.seconds,
        latest_at=latest_at,
        version=request.version,
        chain_id=request.id,
        parent_id=request.parent_id,
    )


def debounced(policy: Unique, now: datetime, latest_at: datetime | None) -> datetime:
    """Tell when a debounced job runs if no further request comes."""
    run_at = now + cast("timedelta", policy.wait)
    return run_at if latest_at is None else min(run_at, latest_at)


def postponed(policy: Unique, view: View, updated: Job) -> Job:
    """Push a debounced job's run time, never past the cap that its first request set."""
    if policy.wait is None or updated.state is State.RETRYABLE:
        return updated
    run_at = debounced(policy, view.now, updated.latest_at)
    state = updated.state if updated.state is State.PENDING else due(run_at, view.now)
    return alter(updated, run_at=run_at, state=state)


def renamed(request: Request, policy: Unique, newer: Job) -> dict[str, Any]:
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
    if standing.state not in WAITING | {State.RETRYABLE}:
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
    args = msgspec.json.encode(
        combine(older.arguments, newer.arguments, policy.merge, policy.merge_cap), order="sorted"
    )
    return alter(newer, args=args, payload_digest=fingerprint(args, newer.meta))


def marked(request: Request, policy: Unique, view: View, job: Job) -> Mark | None:
    """Remember the key's newest request, where versions or the order of admission matter."""
    if not policy.marks or request.key is None:
        return None
    mark = Mark(request.key, request.version, job.id, void=False, touched_at=view.now)
    same = view.mark is not None and (view.mark.version, view.mark.job, view.mark.void) == (
        mark.version,
        mark.job,
        False,
    )
    return None if same else mark


def differs(request: Request, other: Job | None) -> bool:
    """Tell whether another job was asked for with another payload."""
    return other is not None and other.payload_digest != request.payload_digest


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────


def replay(view: View) -> Changes:
    """Bring a dead letter back to life; judged as keep, whatever its policy: created, kept or stale."""
    job = view.job
    if job is None or job.state not in {State.DISCARDED, State.CANCELLED} or job.is_tombstone:
        return Changes()
    standing = view.successor or view.holder
    if standing is not None and standing.id != job.id and stands(standing, view):
        reason = f"The same work is already {standing.state}; the dead letter stays where it is."
        return Changes(answer=Verdict(Outcome.KEPT, standing, standing, reason))
    if outranked(job, view.mark) and view.marked is not None:
        reason = "A newer version has been admitted since; the dead letter stays where it is."
        return Changes(answer=Verdict(Outcome.STALE, view.marked, standing, reason))
    return revive(job, view)


def outranked(job: Job, mark: Mark | None) -> bool:
    """Tell whether another job of this version or a newer one stands for the key."""
    if job.version is None or mark is None or mark.version is None or mark.job == job.chain_id:
        return False
    return job.version < mark.version or (job.version == mark.version and not mark.void)


def revive(job: Job, view: View) -> Changes:
    """Make an ended job available again, with its key and a new attempt budget."""
    freed = (alter(view.holder, held_key=None),) if view.holder and view.holder.id != job.id else ()
    alive = alter(
        job,
        state=State.AVAILABLE,
        run_at=view.now,
        attempt=0,
        finished_at=None,
        reason=None,
        superseded_by=None,
        cancel_requested=False,
    )
    alive = hold(alive, view.now) if job.key is not None else alive
    marks = job.version is not None or bool(job.traits & Trait.NEWEST_WINS)
    mark = (
        Mark(job.key, job.version, job.chain_id, void=False, touched_at=view.now)
        if marks and job.key
        else None
    )
    verdict = Verdict(Outcome.CREATED, alive, None, "The dead letter is available again.")
    return Changes(answer=verdict, updates=(*freed, alive), mark=mark)
