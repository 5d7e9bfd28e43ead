"""Advice: which policy would have absorbed repeated requests, and which keys match never or nearly always.

The figures come from replaying recorded requests through the rules of deduplication, so they are what would
have happened. No value is known: only which values were equal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from onejob.core.durations import rough, spell
from onejob.core.policy import Unique
from onejob.engine.engine import Engine
from onejob.observe.request_history import read_history, recorded_tasks
from onejob.observe.request_replay import History, Replayed, replay
from onejob.stores.columns import read_time
from onejob.tasks.registry import Registry

Kind = Literal["repeats", "never-matches", "always-matches", "shadow", "nothing"]

FEWEST = 50  # requests without which there is no advice
WORTH = 0.05  # the share of requests that a policy must absorb to be worth a sentence
REPEATING = 0.1  # the share of requests whose other arguments repeat, if one differs each time
EACH_TIME = 0.99  # an argument differs each time if it has this many different values per request
NEARLY_ALWAYS = 0.99  # of requests are absorbed by a key that may be too coarse
FEWEST_KEYS, KEYS_PER_REQUEST = 10, 0.01  # fewer different values are no identity
BETTER = 1.5  # by how much more a coarser key must absorb to be named as well
PREFERRED = ("coalesce", "throttle")  # both run the newest request; the first that is worth it is advised
WINDOWS = [timedelta(seconds=seconds) for seconds in (1, 5, 15, 30, 60, 300, 900, 3600)]


@dataclass(frozen=True)
class Candidate:
    """A policy that was replayed.

    Attributes:
        policy: The policy as it is written in code.
        absorbed: How many of the requests it would have absorbed.
        reruns: How many of those would have become one more run.
    """

    policy: str
    absorbed: int
    reruns: int


@dataclass(frozen=True)
class Advice:
    """What the recorded requests of a task say about its policy.

    Attributes:
        kind: "repeats" if a task without a policy repeats work; "never-matches" or "always-matches" for keys;
            "shadow" for a policy that can be switched on; "nothing" if there is nothing to advise.
        task: The task's name.
        sentences: The advice in words, with its figures; the first is the most important one.
        policy: What to write; empty if there is nothing to write.
        requests: How many recorded requests the figures are about.
        absorbed: How many of them the policy would have absorbed.
        seen: How many requests were made.
        sampled: The share of requests that the figures are about.
        since: When the first of them was made.
        until: When the last of them was made.
        candidates: Other policies for the same key, with their figures.
    """

    kind: Kind
    task: str
    sentences: list[str]
    policy: str
    requests: int
    absorbed: int
    seen: int
    sampled: float
    since: datetime
    until: datetime
    candidates: list[Candidate] = field(default_factory=list)


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


async def advise(engine: Engine, registry: Registry, *, task: str | None, within: timedelta) -> list[Advice]:
    """Return advice for one task or for all that have recorded requests, the most absorbed requests first."""
    engine.counters.flush()
    now = engine.store.now()
    names = [task] if task is not None else await recorded_tasks(engine, list(registry.tasks))
    found: list[Advice] = []
    for name in names:
        history = await read_history(engine, name, now - within)
        if history is not None:
            declared = registry.tasks.get(name)
            policy = None if declared is None else declared.unique
            found += await asyncio.to_thread(advice_on, history, policy, now)
    return sorted(found, key=lambda one: (one.kind == "nothing", -one.absorbed, one.task, one.policy))


def advice_on(history: History, policy: Unique | None, now: datetime) -> list[Advice]:
    """Return what the history of a task says about its policy, or that it says nothing."""
    about = About(history, policy, now)
    if history.total < FEWEST:
        return [about.nothing(f"fewer than {FEWEST}, so there is no advice yet")]
    found = list(about.advice())
    return found or [about.nothing("no other policy would have absorbed much more, and no key stands out")]


# ── the rules ─────────────────────────────────────────────────────────────────────────────────────


class About:
    """A task's history and policy, and the advice that follows from them."""

    def __init__(self, history: History, policy: Unique | None, now: datetime) -> None:
        self.history = history
        self.policy = policy
        self.now = now
        self.every = list(range(len(history.arguments)))

    def advice(self) -> Iterator[Advice]:
        """Yield advice by what most requests of the task are: in shadow, keyed or neither."""
        requests = self.history.requests
        if any(one.outcome.startswith("shadow:") for one in requests):
            yield self.shadow()
        elif 2 * sum(bool(one.key) for one in requests) < len(requests):
            yield from self.repeats()
        else:
            yield from self.never_matches()
            yield from self.always_matches()

    # ── tasks without a key ───────────────────────────────────────────────────────────────────────

    def repeats(self) -> Iterator[Advice]:
        """Yield the policy for exact repeats; and a coarser one if it absorbs much more."""
        exact = self.best_for(self.every)
        if exact is not None:
            yield exact
        coarser = self.coarser()
        if coarser is not None and (exact is None or coarser.absorbed >= BETTER * exact.absorbed):
            yield coarser

    def coarser(self) -> Advice | None:
        """Return advice for the finest key that leaves arguments out and is worth it."""
        but_one = [[at for at in self.every if at != left] for left in self.every]
        singles = [[at] for at in self.every]
        for several in (but_one, singles) if len(self.every) > 2 else (singles,):  # noqa: PLR2004 - else they are the same
            found = [one for chosen in several if self.is_identity(chosen) for one in [self.best_for(chosen)]]
            worth = [one for one in found if one is not None]
            if worth and len(self.every) > 1:
                return max(worth, key=lambda one: (one.absorbed, one.policy))
        return None

    def is_identity(self, chosen: Sequence[int]) -> bool:
        """Return whether arguments have enough different values to say which work a request is."""
        least = max(FEWEST_KEYS, KEYS_PER_REQUEST * len(self.history.requests))
        return bool(chosen) and self.history.distinct(chosen) >= least

    def best_for(self, chosen: Sequence[int]) -> Advice | None:
        """Return the policy to take for a key: coalesce, or a throttle if repeats come after the runs."""
        history = self.history.sample(chosen)
        values, least = history.values_of(chosen), WORTH * history.total
        if history.total < FEWEST or history.total - len(set(values)) < least:
            return None  # no policy can absorb more than what repeats
        policies = self.candidates(history, chosen)
        tried = {name: replay(history, policy, values) for name, policy in policies.items()}
        worth = (name for name in PREFERRED if name in tried and tried[name].absorbed >= least)
        name = next(worth, None)
        return None if name is None else self.repeating(history, chosen, policies, tried, name)

    def repeating(
        self,
        history: History,
        chosen: Sequence[int],
        policies: Mapping[str, Unique],
        tried: Mapping[str, Replayed],
        best: str,
    ) -> Advice:
        """Return the advice to make repeated requests one job."""
        text, result, waiting = written(policies[best]), tried[best], tried["until_executing"].absorbed
        repeated = f"{percent(waiting, history.total)} of {self.jobs(history)} repeated a waiting one"
        if waiting < REPEATING * history.total:  # they came after it had run
            alike = history.total - len(set(history.values_of(chosen)))
            repeated = f"{percent(alike, history.total)} of {self.jobs(history)} repeated an earlier one"
        first = (
            f"{repeated}; {text} would have absorbed {of(result.absorbed, history.total)}{reruns(result)}."
        )
        others = [
            Candidate(written(policies[name]), one.absorbed, one.reruns)
            for name, one in tried.items()
            if name != best
        ]
        sentences = [first, *self.differing(history, chosen)]
        return self.say("repeats", sentences, text, result.absorbed, history=history, candidates=others)

    def candidates(self, history: History, chosen: Sequence[int]) -> dict[str, Unique]:
        """Return the policies to try for a key, by the name of their presets."""
        by = self.by(chosen)
        every = window_for(history, chosen)
        found = {
            "coalesce": Unique.coalesce(by=by),
            "until_executing": Unique.until_executing(by=by),
            "until_executed": Unique.until_executed(by=by),
        }
        if every is not None:
            found["debounce"] = Unique.debounce(every, 10 * every, by=by)
            found["throttle"] = Unique.throttle(every, "first+last", by=by)
        return found

    def by(self, chosen: Sequence[int]) -> str | list[str] | None:
        """Return some arguments as `by=` takes them; None for all."""
        names = [self.history.arguments[at] for at in chosen]
        return None if len(names) == len(self.every) else names[0] if len(names) == 1 else names

    def differing(self, history: History, chosen: Sequence[int]) -> list[str]:
        """Return a sentence that names what differs between requests of one key, if anything does."""
        others = [at for at in self.every if at not in chosen]
        names = varying(history, history.values_of(chosen), others, least=1)
        if not names:
            return []
        return [f"Those requests differ in {list_names(names)}: with one key, the newest of them runs."]

    # ── tasks with a key ──────────────────────────────────────────────────────────────────────────

    def never_matches(self) -> Iterator[Advice]:
        """Yield advice if each request has a key of its own, although arguments repeat."""
        history = self.history
        if len({one.key for one in history.requests}) < history.total:
            return
        if self.every and self.has_repeats(self.every):
            yield self.alone(
                "Their arguments repeat, so key= or meta= brings in what differs each time.", self.every
            )
            return
        for left in self.every:
            rest = [at for at in self.every if at != left]
            each_time = history.distinct([left]) >= EACH_TIME * history.total
            if each_time and self.is_part(left) and self.is_identity(rest) and self.has_repeats(rest):
                name = history.arguments[left]
                yield self.alone(
                    f"{name} differs each time, as a time or a random id does; the others repeat.", rest
                )

    def has_repeats(self, chosen: Sequence[int]) -> bool:
        """Return whether some arguments together have values that repeat."""
        history = self.history.sample(chosen)
        return history.total - history.distinct(chosen) >= max(REPEATING * history.total, 1)

    def is_part(self, at: int) -> bool:
        """Return whether an argument is part of the key, as far as is known."""
        by = None if self.policy is None else self.policy.by
        return by is None or any(path.split(".")[0] == self.history.arguments[at] for path in by)

    def alone(self, why: str, chosen: Sequence[int]) -> Advice:
        """Return the advice to leave something out of a key that never matches."""
        history, by = self.history.sample(chosen), self.by(chosen)
        result = replay(history, comparable(self.policy, by), history.values_of(chosen))
        text = written_by(by, history.arguments)
        sentences = [
            f"Each of {self.jobs(history)} had a key of its own, so none was absorbed. {why}",
            f"{text} would have absorbed {of(result.absorbed, history.total)}{reruns(result)}.",
        ]
        return self.say("never-matches", sentences, text, result.absorbed, history=history)

    def always_matches(self) -> Iterator[Advice]:
        """Yield advice if nearly all requests are absorbed although their payloads differ."""
        history = self.history
        absorbed = sum(one.times for one in history.requests if one.is_absorbed)
        if absorbed < NEARLY_ALWAYS * history.total:
            return
        keys = [one.key.encode() for one in history.requests]
        names = varying(history, keys, self.every, least=round(REPEATING * len(keys)))
        if not names:
            return
        first = (
            f"{percent(absorbed, history.total)} of {self.jobs(history)} matched a key that was held, and "
            f"they differ in {list_names(names)}: the key may be too coarse."
        )
        yield self.say("always-matches", [first, *self.finer(names)], "", absorbed)

    def finer(self, names: Sequence[str]) -> list[str]:
        """Return what a key with one more argument would have absorbed."""
        if self.policy is None or self.policy.by is None:
            return []
        own = {path.split(".")[0] for path in self.policy.by}
        chosen = [at for at in self.every if self.history.arguments[at] in {*own, names[0]}]
        history, by = self.history.sample(chosen), self.by(chosen)
        result = replay(history, comparable(self.policy, by), history.values_of(chosen))
        text = written_by(by, history.arguments)
        return [f"{text} would have absorbed {of(result.absorbed, history.total)}."]

    # ── shadow policies, and nothing ──────────────────────────────────────────────────────────────

    def shadow(self) -> Advice:
        """Return what a shadow policy would have done, by its own verdicts."""
        history = self.history
        outcomes: Counter[str] = Counter()
        for one in history.requests:
            if one.outcome.startswith("shadow:"):
                outcomes[one.outcome.removeprefix("shadow:")] += one.times
        differing = sum(one.times for one in history.requests if one.differs and "shadow:" in one.outcome)
        total = sum(outcomes.values())
        parts = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(outcomes.items()))
        figures = f"{of(total, history.total)} requests of {history.task} {self.span()} ({parts})"
        sentences = [
            f"The shadow policy would have absorbed {figures}{self.rate(history)}.",
            "Remove shadow=True to switch it on.",
        ]
        if differing:
            sentences.append(
                f"{differing:,} of them had another payload than the job that would have served them."
            )
        return self.say("shadow", sentences, "", total)

    def nothing(self, why: str) -> Advice:
        """Return how many requests were looked at, and that there is nothing to advise."""
        return self.say("nothing", [f"Looked at {self.jobs(self.history)}: {why}."], "", 0)

    # ── saying it ─────────────────────────────────────────────────────────────────────────────────

    def jobs(self, history: History) -> str:
        """Return how many requests the figures are about, when they were made and how many were recorded."""
        noun = "request" if history.total == 1 else "requests"
        return f"{history.total:,} {noun} of {history.task} {self.span()}{self.rate(history)}"

    def span(self) -> str:
        """Return the time that the requests cover."""
        return f"in the last {rough(max(self.now - self.since, timedelta(seconds=1)))}"

    def rate(self, history: History) -> str:
        """Return the share of requests that were recorded, unless it is all."""
        share = f"{100 * history.share:.1f} % of {history.seen:,}"
        return f" ({share} were recorded)" if history.share < 1 else ""

    @property
    def since(self) -> datetime:
        """When the first of the requests was made."""
        return read_time(self.history.requests[0].at)

    def say(
        self,
        kind: Kind,
        sentences: list[str],
        policy: str,
        absorbed: int,
        *,
        history: History | None = None,
        candidates: Sequence[Candidate] = (),
    ) -> Advice:
        """Return advice with its figures."""
        history = history or self.history
        until = read_time(self.history.requests[-1].at)
        figures: dict[str, Any] = {"requests": history.total, "absorbed": absorbed, "seen": history.seen}
        return Advice(
            kind,
            history.task,
            sentences,
            policy,
            **figures,
            sampled=history.share,
            since=self.since,
            until=until,
            candidates=list(candidates),
        )


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────


def window_for(history: History, chosen: Sequence[int]) -> timedelta | None:
    """Return the shortest usual window that half of the repeats fall into; None if they are farther apart."""
    last: dict[bytes, int] = {}
    gaps: list[int] = []
    for one, value in zip(history.requests, history.values_of(chosen), strict=True):
        if value in last:
            gaps.append(one.at - last[value])
        last[value] = one.at
    middle = timedelta(microseconds=sorted(gaps)[len(gaps) // 2]) if gaps else WINDOWS[-1]
    return next((window for window in WINDOWS if window > middle), None)


def varying(history: History, keys: Sequence[bytes], among: Sequence[int], *, least: int) -> list[str]:
    """Return the arguments that differ between requests of one key, those that differ most often first."""
    last: dict[bytes, tuple[str, ...]] = {}
    changes: Counter[int] = Counter()
    for one, key in zip(history.requests, keys, strict=True):
        before = last.get(key, one.digests)
        changes.update(at for at in among if before[at] != one.digests[at])
        last[key] = one.digests
    often = sorted((at for at in among if changes[at] >= max(least, 1)), key=lambda at: (-changes[at], at))
    return [history.arguments[at] for at in often]


def comparable(policy: Unique | None, by: Any) -> Unique:
    """Return a task's policy with another key, without what needs values: versions and merging."""
    return replace(
        policy or Unique.coalesce(),
        by=by,
        key=None,
        queue=False,
        meta=(),
        family=None,
        version=None,
        merge=None,
        on_mismatch="ignore",
        shadow=False,
    )


def written(policy: Unique) -> str:
    """Return a candidate as it is written in code."""
    by = "" if policy.by is None else f"by={names_of(policy.by)}"
    match policy:
        case Unique(edges="first+last", within=timedelta() as every):
            return call("throttle", f'"{spell(every)}", "first+last"', by)
        case Unique(wait=timedelta() as wait, max_wait=timedelta() as most):
            return call("debounce", f'"{spell(wait)}", max_wait="{spell(most)}"', by)
        case Unique(on_conflict="update"):
            return call("coalesce", by)
        case Unique(until="start"):
            return call("until_executing", by)
        case _:
            return call("until_executed", by)


def call(preset: str, *arguments: str) -> str:
    """Return a preset with its arguments as code."""
    return f"Unique.{preset}({', '.join(filter(None, arguments))})"


def names_of(names: Sequence[str]) -> str:
    """Return names of arguments as code: one text, or a list."""
    found = [names] if isinstance(names, str) else list(names)
    quoted = [f'"{name}"' for name in found]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"


def written_by(by: str | list[str] | None, arguments: Sequence[str]) -> str:
    """Return `by=` as code; all arguments are named."""
    return f"by={names_of(arguments if by is None else by)}"


def list_names(names: Sequence[str]) -> str:
    """Return names as a part of a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def of(part: int, whole: int) -> str:
    """Return a part of a number of requests."""
    return f"{part:,} of {whole:,}"


def percent(part: int, whole: int) -> str:
    """Return a share as a percentage; 100 % only if it is all."""
    share = 100 * part / whole
    return f"{min(share, 99.9) if part < whole else share:.{0 if share < 99 else 1}f} %"  # noqa: PLR2004 - where tenths matter


def reruns(result: Replayed) -> str:
    """Return how many of the absorbed requests would have become one more run."""
    return f", {result.reruns:,} of them as one more run" if result.reruns else ""
