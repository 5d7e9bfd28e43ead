"""Is there an order of these operations that explains every answer? Lowe's search, just in time.

The operations of one key are taken by time. A *world* is a state that the key may be in, together with the
open operations that have had their effect in it. When an operation returns, every world in which it has had
no effect yet is extended by all sequences of open operations that end with it and that the model allows; a
world without such a sequence is dropped. No order explains the answers if and only if no world is left.

So the search is exact. It is nearly linear all the same, for seven reasons:

- an answer shows the job, its state and its payload before and after, so that of several open operations
  rarely more than one fits;
- an operation that changes nothing, now or later, takes effect as soon as it can, which excludes no world;
- equal worlds are merged;
- an operation without an answer need not happen, so that of two worlds in the same state the one in which
  fewer of these have happened allows everything that the other does;
- of two equal operations without an answer, the older happens first;
- a job without a hold affects no other job, so that what happens to it waits until an answer shows it;
- `tests.races.traces` knows what a request without an answer may have done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.races.history import Ask, Cancel, Ended, Enqueue, Idle, Look, Op
from tests.races.model import FREE, Key, Rules, after, drifts, find, spent
from tests.races.traces import Traces, uncreated

World = tuple[Key, frozenset[int]]
"""A state of the key, and the open operations that have happened in it."""

Watch = Callable[[int], object]
"""Called repeatedly with the number of worlds."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The first answer that no order explains."""

    op: Op
    worlds: Sequence[Key]
    open: Sequence[Op]

    def __str__(self) -> str:
        """Return what was possible when the answer was given."""
        lines = [f"no order of events explains {self.op}"]
        lines += [f"  the key may have been {key}" for key in self.worlds[:5]]
        lines += [f"  open: {op}" for op in self.open if not isinstance(op.ask, Look)]
        return "\n".join(lines)


def explain(
    rules: Rules,
    ops: Sequence[Op],
    orphans: Sequence[str] = (),
    ended: Sequence[Ended] = (),
    watch: Watch = bool,
) -> Stuck | None:
    """Search for an order; return None if there is one.

    Only requests without an answer can have made the `orphans`; `ended` is how the store has jobs in the end.
    """
    search = Search(rules, ops, Traces(rules, ops, orphans, ended), watch)
    for _, returns, index in sorted(moments(ops)):
        if not returns:
            search.call(index)
        elif stuck := search.back(index):
            return stuck
    return None


def moments(ops: Sequence[Op]) -> Iterator[tuple[int, bool, int]]:
    """Yield when operations are called and when they return; at the same moment calls come first."""
    for index, op in enumerate(ops):
        yield op.call, False, index
        if not op.unknown:
            yield op.back, True, index


class Search:
    """The worlds that are possible at one moment."""

    def __init__(self, rules: Rules, ops: Sequence[Op], traces: Traces, watch: Watch) -> None:
        self._rules = rules
        self._ops = ops
        self._traces = traces
        self._watch = watch
        self._about: list[str | None] = [getattr(op.ask, "job", None) for op in ops]
        self._before = predecessors(ops)
        self._open: set[int] = set()
        self._unknown = frozenset(index for index, op in enumerate(ops) if op.unknown)
        self._twin = twins(ops)
        self.worlds: set[World] = {(FREE, frozenset())}

    def call(self, index: int) -> None:
        """Begin an operation."""
        self._open.add(index)
        self.worlds = {self._apply_readers(world, (index,)) for world in self.worlds}

    def back(self, index: int) -> Stuck | None:
        """End an operation: it has had its effect in every world that is left."""
        found = Front(self._unknown)
        for key, done in self.worlds:
            if index in done:
                found.add((key, done - {index}))
        self._lead(index, found)
        if not found.worlds:
            others = [self._ops[number] for number in sorted(self._open - {index})]
            return Stuck(self._ops[index], [key for key, _ in self.worlds], others)
        self._open.remove(index)
        self.worlds = found.worlds
        self._forget()
        return None

    def _forget(self) -> None:
        """Close operations without an answer that can no longer matter in any world."""
        unknown = self._open & self._unknown
        if over := unknown.intersection(*(done for _, done in self.worlds)):
            self._open -= over
            self.worlds = {(key, done - over) for key, done in self.worlds}

    def _lead(self, index: int, found: Front) -> None:
        """Follow every sequence of open operations that ends with this one."""
        seen, begun = Front(self._unknown), [world for world in self.worlds if index not in world[1]]
        ahead = deque(filter(seen.add, sorted(begun, key=happened)))
        while ahead:
            self._watch(len(seen.worlds))
            for key, done in self._next(ahead.popleft(), index):
                if index in done:
                    found.add((key, done - {index}))
                elif seen.add((key, done)):
                    ahead.append((key, done))

    def _next(self, world: World, goal: int) -> Iterator[World]:
        """Yield the worlds after one more event on the way to an operation."""
        key, done = world
        for drifted in drifts(self._rules, key):
            yield self._apply_readers((drifted, done), self._open)
        apart = self._apart(key, goal)
        for index in self._ready(done, self._open):
            if self._about[index] not in apart and not self._waits_for_twin(index, done):
                for result in self._effects(key, index):
                    yield self._apply_readers((result, done | {index}), self._open)

    def _waits_for_twin(self, index: int, done: frozenset[int]) -> bool:
        """Return whether an equal, older operation may happen instead: no answer distinguishes the two."""
        twin = self._twin.get(index)
        return twin in self._open and twin not in done

    def _apart(self, key: Key, goal: int) -> set[str | None]:
        """Return the jobs without a hold whose operations can wait, as the goal does not depend on them.

        It would if one of these operations came first in a batch, before one that cannot wait.
        """
        if self._rules.versioned or isinstance(self._ops[goal].ask, Idle):
            return set()
        apart = set[str | None](job.job for job in key.others) - {self._about[goal]}
        while True:
            due = [index for index in self._open if self._about[index] not in apart]
            first = {self._about[leader] for index in due for leader in self._leaders(index)}
            if not apart & first:
                return apart
            apart -= first

    def _leaders(self, index: int) -> Iterator[int]:
        """Yield the open operations that precede this one in its batch."""
        leader = self._before.get(index)
        while leader in self._open:
            yield leader
            leader = self._before.get(leader)

    def _effects(self, key: Key, index: int) -> Iterator[Key]:
        """Yield how an operation may leave the key."""
        op = self._ops[index]
        if op.unknown and isinstance(op.ask, Enqueue):
            yield from self._guesses(key, op.ask)
        else:
            result = after(self._rules, key, op.ask, op.answer)
            if result is not None and not (op.unknown and result == key):
                yield result

    def _guesses(self, key: Key, ask: Enqueue) -> Iterator[Key]:
        """Yield how a request without an answer may leave the key, if it does anything."""
        for orphan in uncreated(key, self._traces.creations(ask)):
            made = after(self._rules, key, ask, None, orphan)
            if (
                made is not None
                and find(made, orphan)
                and self._traces.replaces(orphan, made.gone - key.gone)
            ):
                yield made
        updated = after(self._rules, key, ask, None)
        if updated is not None and any(
            job.job in self._traces.updates(ask) for job in updated.live if job.payload == ask.payload
        ):
            yield updated

    def _apply_readers(self, world: World, candidates: Sequence[int] | set[int]) -> World:
        """Apply operations that only confirm the state, or can change nothing any more."""
        key, done = world
        while readers := [index for index in self._ready(done, candidates) if self._reads(key, index)]:
            done = done.union(readers)
        return key, done

    def _reads(self, key: Key, index: int) -> bool:
        """Return whether an operation leaves the key as it is, now and whenever it happens."""
        op = self._ops[index]
        if op.unknown:
            lost = isinstance(op.ask, Enqueue) and not self._traces.matters(key, op.ask)
            return lost or spent(key, op.ask)
        if isinstance(op.ask, Cancel) and op.ask.successors and not spent(key, op.ask):
            return False  # a successor may come before it
        return after(self._rules, key, op.ask, op.answer) == key

    def _ready(self, done: frozenset[int], candidates: Sequence[int] | set[int]) -> Iterator[int]:
        """Yield operations that have not happened and are next in their batch."""
        for index in candidates:
            if index not in done:
                first = self._before.get(index)
                if first is None or first in done or first not in self._open:
                    yield index


class Front:
    """Worlds of which none allows everything that another allows."""

    def __init__(self, unknown: frozenset[int]) -> None:
        self._unknown = unknown
        self._least: defaultdict[World, list[frozenset[int]]] = defaultdict(list)
        self.worlds: set[World] = set()

    def add(self, world: World) -> bool:
        """Add a world, unless a present one makes it superfluous; return whether it was added."""
        key, done = world
        optional = done & self._unknown
        least = self._least[key, done - optional]
        if any(fewer <= optional for fewer in least):
            return False
        for more in [more for more in least if optional < more]:
            least.remove(more)
            self.worlds.discard((key, done - optional | more))
        least.append(optional)
        self.worlds.add(world)
        return True


def happened(world: World) -> int:
    """Return how many of the open operations have happened."""
    return len(world[1])


def twins(ops: Sequence[Op]) -> dict[int, int]:
    """Return for each operation without an answer the last equal one before it, also without an answer."""
    unknown = sorted((op.call, index) for index, op in enumerate(ops) if op.unknown)
    last: dict[Ask, int] = {}
    found: dict[int, int] = {}
    for _, index in unknown:
        ask = ops[index].ask
        found |= {index: last[ask]} if ask in last else {}
        last[ask] = index
    return found


def predecessors(ops: Sequence[Op]) -> dict[int, int]:
    """Return for each operation the one that precedes it in its batch."""
    last: dict[tuple[str, int], int] = {}
    found: dict[int, int] = {}
    for index, op in enumerate(ops):
        batch = (op.process, op.batch)
        if op.batch and not op.unknown:
            found |= {index: last[batch]} if batch in last else {}
            last[batch] = index
    return found
