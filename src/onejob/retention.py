"""Retention: how long what has ended is kept, and how it is forgotten without getting in anybody's way.

Jobs go in small batches, each a short write, with a pause after each that lasts three times as long as the
batch did: most of the store's time is left to the others, however much there is to forget. A pass that begins
where the one before it ended passes tombstones by; one from the beginning looks at them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from time import perf_counter

import msgspec

from onejob import lifecycle
from onejob.errors import InvalidPolicy
from onejob.job import Job, State, Trait, View
from onejob.schedule import Duration, duration
from onejob.stores.contract import Filter, Step, Store

ALL = 1_000_000  # jobs that wait for one batch: more than there are
AT_ONCE = 100  # jobs forgotten in one write
EVERY = timedelta(minutes=1)  # between passes of all workers together
WHOLE_EVERY = timedelta(days=1)  # between passes from the beginning
FOLD_EVERY = timedelta(hours=1)  # between looks for counters of jobs that are gone
PAUSE, LONGEST_PAUSE = 3.0, 1.0  # times as long as a batch took, and seconds at most

DEFAULT: Mapping[State, timedelta] = {
    State.COMPLETED: timedelta(days=7),
    State.CANCELLED: timedelta(days=7),
    State.DISCARDED: timedelta(days=180),
}

Ages = Mapping[State, timedelta]
Cursor = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a pass came to, so far or in the end."""

    looked_at: int = 0
    deleted: int = 0
    emptied: int = 0  # those that still hold a key, or tell its version, stay without their payload

    def __add__(self, more: Pruned) -> Pruned:
        """Add up."""
        return Pruned(
            self.looked_at + more.looked_at, self.deleted + more.deleted, self.emptied + more.emptied
        )


Tell = Callable[[Pruned], None]
"""Hears how far a pass is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How old jobs of a state may become: those of one task, or of all tasks without a rule of their own."""

    state: State
    age: timedelta
    task: str | None = None
    besides: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Name the rule, so that its place can be remembered."""
        return str(self.state) if self.task is None else f"{self.state} {self.task}"


def ages(chosen: Mapping[State | str, Duration]) -> dict[State, timedelta]:
    """Read what a user says about how long jobs are kept."""
    return {_ended(state): duration(age) for state, age in chosen.items()}


def _ended(state: State | str) -> State:
    if state in DEFAULT:
        return State(state)
    known = ", ".join(DEFAULT)
    raise InvalidPolicy(f"retention={{{str(state)!r}: …}}: only {known} jobs are kept and forgotten.")


def rules(common: Ages, own: Mapping[str, Ages]) -> list[Rule]:
    """Write out the rules of all tasks: those of single tasks, then what holds for the rest."""
    found: list[Rule] = []
    for state, age in common.items():
        special = {task: of_task[state] for task, of_task in own.items() if state in of_task}
        found += [Rule(state, its_age, task) for task, its_age in special.items()]
        found.append(Rule(state, age, besides=frozenset(special)))
    return found


# ── a pass ────────────────────────────────────────────────────────────────────────────────────────


class Sweeping(msgspec.Struct):
    """Where the passes of all workers together stand, as it is kept in the store."""

    pruned_at: datetime
    whole_at: datetime
    folded_at: datetime
    cursors: dict[str, Cursor] = {}


@dataclass(slots=True)
class Pass:
    """One pass over what has ended, by the rules."""

    store: Store
    namespace: str
    tell: Tell = lambda _: None
    cursors: dict[str, Cursor] = field(default_factory=dict)
    done: Pruned = Pruned()

    async def run(self, rules: Sequence[Rule], *, dry: bool = False) -> Pruned:
        """Forget what the rules let go; a dry run only tells what that would be."""
        forget = partial(foresee, self.store) if dry else partial(forget_all, self.store)
        for rule in rules:
            async for batch in self._batches(rule):
                begun = perf_counter()
                self.done += await forget(await unneeded(self.store, batch))
                self.tell(self.done)
                await asyncio.sleep(min(PAUSE * (perf_counter() - begun), LONGEST_PAUSE))
        return self.done

    async def _batches(self, rule: Rule) -> AsyncIterator[list[Job]]:
        while True:
            wanted = Filter(
                namespace=self.namespace,
                states=frozenset({rule.state}),
                task=rule.task,
                besides=rule.besides,
                ended_before=self.store.now() - rule.age,
                beyond=self.cursors.get(rule.name),
                limit=AT_ONCE,
                newest_first=False,
            )
            found = await self.store.find(wanted)
            if found:
                yield found
                last = found[-1]
                assert last.finished_at is not None  # it has ended
                self.cursors[rule.name] = (last.finished_at, last.id)
            if len(found) < AT_ONCE:
                return


async def forget_all(store: Store, jobs: Sequence[Job]) -> Pruned:
    """Forget jobs in one write; a tombstone that still holds its key is not touched."""
    steps = [Step(lifecycle.prune, job.id) for job in jobs if not rests(job, store.now())]
    answers = await store.apply(steps)
    return Pruned(len(jobs), answers.count("deleted"), answers.count("emptied"))


async def unneeded(store: Store, jobs: list[Job]) -> list[Job]:
    """Leave out jobs whose result is still to be read by one that has waited for them."""
    chains = [job.chain_id for job in jobs if job.traits & Trait.AWAITED]
    waiting = await store.find(Filter(awaits=chains, limit=ALL)) if chains else []
    needed = {chain for job in waiting for chain in job.awaits}
    return [job for job in jobs if job.chain_id not in needed]


def rests(job: Job, now: datetime) -> bool:
    """Tell whether a job is a tombstone that has to stay."""
    return job.is_tombstone and lifecycle.holding(job, now)


async def foresee(store: Store, jobs: Sequence[Job]) -> Pruned:
    """Tell what forgetting jobs would come to."""
    now, answers = store.now(), []
    for job in jobs:
        view = View(now) if job.key is None else await store.look(job.key)
        answers.append(lifecycle.prune(msgspec.structs.replace(view, job=job)).answer)
    return Pruned(len(jobs), answers.count("deleted"), answers.count("emptied"))


# ── the workers' turns ────────────────────────────────────────────────────────────────────────────


async def take_turn(store: Store, namespace: str, rules: Sequence[Rule]) -> Pruned | None:
    """Do a pass if none has been done for a while; None if another worker has.

    Two workers that ask at the same instant may both do it: that costs a little, and harms nothing.
    """
    now = store.now()
    last = await _last(store, namespace)
    if last is not None and now - last.pruned_at < EVERY:
        return None
    whole = last is None or now - last.whole_at >= WHOLE_EVERY
    fold = last is None or now - last.folded_at >= FOLD_EVERY
    mine = Sweeping(
        now,
        now if last is None or whole else last.whole_at,
        now if last is None or fold else last.folded_at,
        {} if last is None or whole else last.cursors,
    )
    await _note(store, namespace, mine)
    done = await (one := Pass(store, namespace, cursors=dict(mine.cursors))).run(rules)
    if fold:
        await store.fold(namespace)
    if one.cursors != mine.cursors:
        await _note(store, namespace, msgspec.structs.replace(mine, cursors=one.cursors))
    return done


async def _last(store: Store, namespace: str) -> Sweeping | None:
    found = (await store.settings(namespace, "chores")).get("prune")
    return None if found is None else msgspec.json.decode(found, type=Sweeping)


async def _note(store: Store, namespace: str, sweeping: Sweeping) -> None:
    await store.put_setting(namespace, "chores", "prune", msgspec.json.encode(sweeping))
