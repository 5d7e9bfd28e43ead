"""Unique: what is the same work, how long its key is held, and what a duplicate does. A frozen value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, Self, TypedDict, Unpack, cast

from onejob.core import suggestions
from onejob.core.durations import Duration, duration, spell
from onejob.core.job import INCOMPLETE, TERMINAL, WAITING, Merging, State, Trait, mask
from onejob.core.merge import REDUCERS, Reducer, stored_merging
from onejob.errors import InvalidPolicy

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
HELD_IN_WORDS: dict[Until, str] = {
    "start": "until the job starts",
    "finish": "until the job ends",
    "failure": "until the job fails",
    "forever": "even after the job has ended",
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
UPDATABLE = frozenset({"queue", "priority", "time", "place", "retry", "timeout"})


By = str | Sequence[str] | None


class Fields(TypedDict, total=False):
    """The fields of a policy that every preset takes as well; see `Unique`."""

    key: str | Callable[..., object] | None
    queue: bool
    meta: Sequence[str]
    family: str | None
    until: Until
    states: Collection[State | str] | None
    on_conflict: OnConflict
    on_active: OnActive | None
    merge: Mapping[str, str | Reducer] | Reducer | None
    merge_cap: int
    fields: Collection[str]
    keep_schedule: bool
    bump: bool
    on_mismatch: Literal["ignore", "error"]
    strength: Strength
    shadow: bool


class Versioned(Fields, total=False):
    """The fields that `Unique.latest` takes besides its own."""

    within: Duration | None
    wait: Duration | None
    max_wait: Duration | None


class Further(Versioned, total=False):
    """The fields that a preset without a duration takes besides `by`."""

    version: str | None
    edges: Edges


class Throttled(Fields, total=False):
    """The fields that `Unique.throttle` takes besides its own."""

    by: By
    version: str | None


class Debounced(Throttled, total=False):
    """The fields that `Unique.debounce` takes besides its own."""

    within: Duration | None


DUPLICATE: dict[OnConflict, str] = {
    "keep": "gets the existing job",
    "reject": "is rejected",
    "update": "updates the waiting job",
    "replace": "replaces the waiting job",
}
DUPLICATE_OF_RUNNING: dict[OnActive, str] = {
    "keep": "gets the existing job",
    "reject": "is rejected",
    "rerun": "makes a running one run once more",
    "cancel": "stops a running one and runs after it",
}
"""What a duplicate does, in the words of `describe`."""


def _fill_preset(more: Mapping[str, Any], **preset: Any) -> dict[str, Any]:
    """Return the fields of a preset; what the caller gives wins."""
    return {**preset, **more}


@suggestions.answers_unknown(suggestions.UNIQUE)
@dataclass(frozen=True, kw_only=True, repr=False)
class Unique:
    """A policy of uniqueness: what is the same work, how long its key is held, what another request does.

    Args:
        by: Arguments that make the key, as names or dotted paths; None means all, `()` none.
        key: The key itself, or a function of the arguments that returns it; instead of `by`.
        queue: Whether the queue is part of the key.
        meta: Fields of the metadata that are part of the key.
        family: A name that replaces the task's in the key, so that several tasks share it.
        until: When a job releases its key: at its "start", at its "finish", on "failure" only, or never.
        states: Hold the key in exactly these states; instead of `until`.
        within: The longest time for which the key is held, as seconds, timedelta or text such as "5m".
        on_conflict: What a request does if the holder waits: "keep" it, "reject" the request, "update" the
            holder, or "replace" it.
        on_active: What a request does if the holder runs: "keep", "reject", "rerun" afterwards, or "cancel"
            the run. By default it follows from `on_conflict`: update and replace rerun.
        version: The argument whose highest value wins; a request with a lower one is stale.
        merge: How an update combines payloads: a reducer for each argument, or a function of both payloads.
        merge_cap: The largest number of items that a merged argument may have.
        fields: What an update changes besides the payload: "queue", "priority", "time", "place".
        keep_schedule: Whether "replace" keeps the run time of the job that it replaces.
        wait: Debounce: run when there was no request for this long.
        max_wait: The longest delay by `wait`.
        edges: Throttle: run the "first" request of a window, or "first+last".
        bump: Whether a duplicate may raise the holder's priority or bring its run time forward.
        on_mismatch: "error" rejects a request that has the same key but another payload.
        strength: "strong" refuses stores that do not guarantee uniqueness in every case.
        shadow: Decide and count, but admit every request.

    Raises:
        InvalidPolicy: The values contradict each other.
    """

    by: str | Sequence[str] | None = field(default=None, kw_only=False)
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
        """Normalise the fields, then reject contradictions."""
        self._set("by", _by(self.by))
        self._set("meta", (self.meta,) if isinstance(self.meta, str) else tuple(self.meta))
        self._set("states", None if self.states is None else _states(self.states))
        for name in ("within", "wait", "max_wait"):
            if getattr(self, name) is not None:
                self._set(name, duration(getattr(self, name)))
        for sentence in _contradictions(self):
            raise InvalidPolicy(sentence)

    def __repr__(self) -> str:
        """Return the choices that differ from the defaults."""
        given = {one.name: getattr(self, one.name) for one in dataclass_fields(self)}
        chosen = [one for one in dataclass_fields(self) if given[one.name] != one.default]
        return f"Unique({', '.join(f'{one.name}={given[one.name]!r}' for one in chosen)})"

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # Presets: each is a sentence that people say.

    @classmethod
    def until_executing(cls, by: By = None, **more: Unpack[Further]) -> Self:
        """Hold the key until the job starts: a request that arrives during the run is new work.

        Args:
            by: Arguments that make the key; None means all.
            **more: Other settings of `Unique`.

        Examples:
            >>> @app.task(unique=Unique.until_executing("customer_id"))
        """
        return cls(**_fill_preset(more, by=by, until="start"))

    @classmethod
    def until_executed(cls, by: By = None, **more: Unpack[Further]) -> Self:
        """Hold the key until the job ends, in success or failure: a duplicate gets the existing job.

        Args:
            by: Arguments that make the key; None means all.
            **more: Other settings of `Unique`.

        Examples:
            >>> @app.task(unique=Unique.until_executed("customer_id"))
        """
        return cls(**_fill_preset(more, by=by, until="finish"))

    @classmethod
    def throttle(cls, every: Duration, edges: Edges = "first", **more: Unpack[Throttled]) -> Self:
        """Admit one job per key and window, however it ends.

        Args:
            every: The length of the window, which begins with the first request.
            edges: "first" runs the first request of a window; "first+last" also the last one, at its end.
            **more: `by` and other settings of `Unique`.

        Raises:
            InvalidPolicy: `within` is given, too.

        Examples:
            >>> @app.task(unique=Unique.throttle("10m", by="channel"))
        """
        if "within" in more:
            raise InvalidPolicy("throttle(every) is the window already: leave within= out.")
        return cls(**_fill_preset(more, until="forever", within=every, edges=edges))

    @classmethod
    def debounce(cls, wait: Duration, max_wait: Duration | None = None, **more: Unpack[Debounced]) -> Self:
        """Run with the last payload when no request has arrived for a while.

        Args:
            wait: How long no request may arrive before the job runs; each request starts this time again.
            max_wait: How long after the first request the job runs at the latest; None means no limit.
            **more: `by` and other settings of `Unique`.

        Examples:
            >>> @app.task(unique=Unique.debounce("5s", "30s", by="document"))
        """
        return cls(**_fill_preset(more, on_conflict="update", wait=wait, max_wait=max_wait))

    @classmethod
    def latest(cls, by: str | Sequence[str], version: str, **more: Unpack[Versioned]) -> Self:
        """Let the highest version win, in whatever order the requests arrive and the runs end.

        Args:
            by: Arguments that make the key.
            version: The argument whose highest value wins; a request with a lower or equal one is stale.
            **more: Other settings of `Unique`.

        Examples:
            >>> @app.task(unique=Unique.latest("entry_id", "revision"))
        """
        return cls(**_fill_preset(more, by=by, version=version, on_conflict="update"))

    @classmethod
    def coalesce(cls, by: By = None, **more: Unpack[Further]) -> Self:
        """Update the waiting job; requests during a run become one more run with the newest payload.

        Args:
            by: Arguments that make the key; None means all.
            **more: Other settings of `Unique`, such as `merge`.

        Examples:
            >>> @app.task(unique=Unique.coalesce("site"))
        """
        return cls(**_fill_preset(more, by=by, on_conflict="update", on_active="rerun"))

    @classmethod
    def once(cls, by: By = None, **more: Unpack[Further]) -> Self:
        """Succeed once: the key stays held after success; only a cancelled or discarded job releases it.

        Args:
            by: Arguments that make the key; None means all.
            **more: Other settings of `Unique`.

        Examples:
            >>> @app.task(unique=Unique.once("user_id"))
        """
        return cls(**_fill_preset(more, by=by, until="failure"))

    @classmethod
    def singleton(cls, **more: Unpack[Further]) -> Self:
        """Allow one live job per task, whatever its arguments.

        Args:
            **more: Other settings of `Unique`.

        Examples:
            >>> @app.task(unique=Unique.singleton())
        """
        return cls(**_fill_preset(more, by=()))

    # What the policy means to a job.

    @property
    def held_states(self) -> frozenset[State]:
        """The states in which a job of this policy holds its key."""
        return cast("frozenset[State]", self.states) if self.states is not None else HELD[self.until]

    @cached_property
    def holds(self) -> int:
        """The states in which a job holds its key, as the bits that a job keeps."""
        return mask(self.held_states)

    @property
    def gaps(self) -> frozenset[State]:
        """The states without a hold that a job passes through before or between states with one."""
        held = self.held_states
        passed = WAITING if held <= WAITING else INCOMPLETE
        return passed - held

    @property
    def while_active(self) -> OnActive:
        """What a request does if the holder runs: `on_active`, or what follows from `on_conflict`."""
        return self.on_active or WHILE_ACTIVE[self.on_conflict]

    @property
    def newest_wins(self) -> bool:
        """Whether a job that lost its hold gives way to a newer one."""
        can_lose = self.until == "start" or self.within is not None or self.states is not None
        return self.on_conflict in {"update", "replace"} and can_lose and not self.shadow

    @cached_property
    def marks(self) -> bool:
        """Whether the key's newest request must be remembered apart from its job."""
        return self.version is not None or self.newest_wins

    @cached_property
    def traits(self) -> int:
        """What the job's later life needs to know of the policy."""
        return (
            Trait.RELEASES_AT_START * (self.until == "start" and self.states is None)
            | Trait.NEWEST_WINS * self.newest_wins
            | Trait.MERGES * (self.merge is not None and not self.shadow)
            | Trait.MARKED * self.marks
        )

    @cached_property
    def merging(self) -> Merging | None:
        """How payloads are merged, as a job's row keeps it."""
        return None if self.shadow else stored_merging(self.merge, self.merge_cap)

    @cached_property
    def seconds(self) -> float | None:
        """The window in seconds."""
        return None if self.within is None else cast("timedelta", self.within).total_seconds()

    def describe(self) -> str:
        """Return the policy as one sentence."""
        span = f" for {spell(cast('timedelta', self.within))} at most," if self.within is not None else ""
        said = [f"unique by {self._identity()}, held{span} {self._holding()}", self._consequence()]
        return "; ".join([*said, *self._further()])

    def _holding(self) -> str:
        until = next((until for until, states in HELD.items() if states == self.held_states), None)
        if until is not None:
            return HELD_IN_WORDS[until]
        return f"while the job is {' or '.join(state for state in State if state in self.held_states)}"

    def _consequence(self) -> str:
        waiting, running = DUPLICATE[self.on_conflict], DUPLICATE_OF_RUNNING[self.while_active]
        if State.ACTIVE not in self.held_states:
            return f"a duplicate {waiting}"
        while_it_runs = "also while it runs" if waiting == running else f"or {running}"
        return f"a duplicate {waiting}, {while_it_runs}"

    def _further(self) -> Iterable[str]:
        if self.wait is not None:
            latest = f", and at the latest {spell(self.max_wait)} after the first" if self.max_wait else ""  # type: ignore[arg-type]
            yield f"it runs {spell(self.wait)} after the last request{latest}"  # type: ignore[arg-type]
        if self.edges == "first+last":
            yield "the last request of a window runs at its end"
        if self.version is not None:
            yield f"a request whose {self.version} is not newer is stale"

    def _identity(self) -> str:
        if self.key is not None:
            return f"key {self.key!r}" if isinstance(self.key, str) else "a key function"
        extra = ["queue"] * self.queue + [f"meta.{name}" for name in self.meta]
        whose = "task" if self.family is None else f"family {self.family!r}"
        return " + ".join([whose, *(["all arguments"] if self.by is None else self.by), *extra])


def _by(names: str | Sequence[str] | None) -> Sequence[str] | None:
    if names is None:
        return None
    found = (names,) if isinstance(names, str) else names
    if not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise InvalidPolicy(
            f'by={names!r}: write the name of an argument, or several: by=["tenant", "order.id"].'
        )
    return tuple(found)


def _is_one_of(value: object, *kinds: Any) -> bool:
    return value is None or isinstance(value, kinds)


def _states(states: Collection[State | str]) -> frozenset[State]:
    try:
        return frozenset(State(state) for state in ([states] if isinstance(states, str) else states))
    except ValueError as error:
        known = ", ".join(State)
        raise InvalidPolicy(f"states={sorted(map(str, states))!r}: write some of {known}.") from error


def _contradictions(policy: Unique) -> Iterable[str]:
    """Yield one sentence per contradiction; the first is raised."""
    for name, allowed in CHOICES.items():
        value = getattr(policy, name)
        if value not in allowed and not (value is None and name == "on_active"):
            yield f"{name}={value!r} is unknown: write one of {', '.join(map(repr, allowed))}."
    yield from _identity_contradictions(policy)
    yield from _time_contradictions(policy)
    yield from _conflict_contradictions(policy)
    yield from _update_contradictions(policy)


def _identity_contradictions(policy: Unique) -> Iterable[str]:
    if policy.by is not None and policy.key is not None:
        yield "by= and key= both name the same work: write one of them."
    if not _is_one_of(policy.key, str, Callable):
        yield f"key={policy.key!r} is no key: write text, or a function of the arguments."
    if policy.key == "":
        yield 'key="" would make everything one job: write Unique.singleton() if you want that.'
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
        yield 'wait= debounces by updating the waiting job: write on_conflict="update".'
    if policy.max_wait is not None and cast("timedelta", policy.max_wait) < cast(
        "timedelta", policy.wait or zero
    ):
        yield "max_wait= is shorter than wait=: make it at least as long."
    if policy.edges == "first+last" and (policy.within is None or policy.until != "forever"):
        yield 'edges="first+last" belongs to a throttle: write Unique.throttle("5m", "first+last").'
    if policy.edges == "first+last" and (policy.on_conflict != "keep" or policy.on_active is not None):
        yield 'edges="first+last" already says what a duplicate does: leave on_conflict and on_active out.'
    if policy.edges == "first+last" and (policy.bump or policy.on_mismatch == "error"):
        yield 'edges="first+last" keeps every payload for the last run: leave bump and on_mismatch out.'


def _conflict_contradictions(policy: Unique) -> Iterable[str]:
    if policy.on_active is not None and policy.until == "start":
        yield 'until="start" releases the key when the job starts, so on_active= never applies: leave it out.'
    if policy.keep_schedule and policy.on_conflict != "replace":
        yield 'keep_schedule= belongs to on_conflict="replace".'
    if policy.bump and policy.on_conflict != "keep":
        yield 'bump= is the one write under on_conflict="keep"; under update use fields=["priority", "time"].'
    if policy.on_mismatch == "error" and policy.on_conflict != "keep":
        yield 'on_mismatch="error" guards on_conflict="keep"; the other policies take the new payload.'


def _update_contradictions(policy: Unique) -> Iterable[str]:
    if policy.merge is not None:
        yield from _merge_contradictions(policy)
    if policy.merge_cap < 1:
        yield "merge_cap= must allow at least one element."
    if unknown := set(policy.fields) - UPDATABLE:
        yield f"fields={sorted(unknown)} cannot be updated: choose from {', '.join(sorted(UPDATABLE))}."
    if policy.fields and policy.on_conflict != "update":
        yield 'fields= says what an update changes besides the payload: write on_conflict="update".'


def _merge_contradictions(policy: Unique) -> Iterable[str]:
    if policy.on_conflict != "update" and policy.edges != "first+last":
        yield 'merge= combines payloads under update: write on_conflict="update".'
    if policy.family is not None:
        yield "family= has several tasks, whose payloads cannot be merged: leave merge= or family= out."
    if policy.version is not None:
        yield "version= lets the newest payload win whole, merge= combines payloads: write one of them."
    if policy.on_active == "cancel":
        yield 'on_active="cancel" drops the running payload, merge= keeps every payload: write one of them.'
    if not _is_one_of(policy.merge, Mapping, Callable):
        yield f'merge={policy.merge!r}: write reducers such as {{"ids": "union"}}, or a function.'
    for name, reducer in policy.merge.items() if isinstance(policy.merge, Mapping) else ():
        if not callable(reducer) and reducer not in REDUCERS:
            known = ", ".join(REDUCERS)
            yield f"merge={{{name!r}: {reducer!r}}} is unknown: write one of {known}, or a function."
