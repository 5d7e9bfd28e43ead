"""Is there an order of these operations that explains every answer? Lowe's search, just in time.

The operations of one key are taken by time. A *world* is a state that the key may be in, together with the
open operations that have had their effect in it. When an operation returns, every world in which it had
none yet is led on by all sequences of open operations that end with it and that the model allows; a world
without such a sequence is given up. When no world is left, no order explains the answers, and the other way
round.

So the search is exact. It is nearly linear all the same, for three reasons: an answer tells the job, its
state and its payload before and after, so that of several open operations rarely more than one fits; an
operation that changes nothing, now or later, takes effect as soon as it can, for no world is the poorer for
it; and equal worlds are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.races.history import Cancel, Enqueue, Look, Op
from tests.races.model import FREE, Key, Rules, after, drifts, spent

World = tuple[Key, frozenset[int | str]]
"""A state, and what has happened out of what is open: operations by index, unanswered births by job id."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The first answer that no order explains."""

    op: Op
    worlds: Sequence[Key]
    open: Sequence[Op]

    def __str__(self) -> str:
        """Tell what was possible when it was given."""
        lines = [f"no order of events explains {self.op}"]
        lines += [f"  the key may have been {key}" for key in self.worlds[:5]]
        lines += [f"  open: {op}" for op in self.open if not isinstance(op.ask, Look)]
        return "\n".join(lines)


def explain(rules: Rules, ops: Sequence[Op], orphans: Sequence[str] = ()) -> Stuck | None:
    """Look for an order; None if there is one. Only requests without answer can have made the `orphans`."""
    search = Search(rules, ops, orphans)
    for _, returns, index in sorted(moments(ops)):
        if not returns:
            search.call(index)
        elif stuck := search.back(index):
            return stuck
    return None


def moments(ops: Sequence[Op]) -> Iterator[tuple[int, bool, int]]:
    """List when operations are called and when they return; at the same moment calls come first."""
    for index, op in enumerate(ops):
        yield op.call, False, index
        if not op.unknown:
            yield op.back, True, index


class Search:
    """The worlds that are possible at one moment."""

    def __init__(self, rules: Rules, ops: Sequence[Op], orphans: Sequence[str]) -> None:
        self._rules = rules
        self._ops = ops
        self._orphans = orphans
        self._before = predecessors(ops)
        self._open: set[int] = set()
        self.worlds: set[World] = {(FREE, frozenset())}

    def call(self, index: int) -> None:
        """Let an operation begin."""
        self._open.add(index)
        self.worlds = {self._let_readers(world, (index,)) for world in self.worlds}

    def back(self, index: int) -> Stuck | None:
        """Let it end: it has had its effect by now, in every world that is left."""
        found: set[World] = set()
        for key, done in self.worlds:
            if index in done:
                found.add((key, done - {index}))
            else:
                found.update(self._lead((key, done), index))
        if not found:
            others = [self._ops[number] for number in sorted(self._open - {index})]
            return Stuck(self._ops[index], [key for key, _ in self.worlds], others)
        self._open.remove(index)
        self.worlds = found
        self._forget()
        return None

    def _forget(self) -> None:
        """Close operations without an answer that can no longer matter in any world."""
        unknown = {index for index in self._open if self._ops[index].unknown}
        if over := unknown.intersection(*(done for _, done in self.worlds)):
            self._open -= over
            self.worlds = {(key, done - over) for key, done in self.worlds}

    def _lead(self, world: World, index: int) -> Iterator[World]:
        """Follow every sequence of open operations that ends with this one."""
        seen, ahead = {world}, [world]
        while ahead:
            for key, done in self._next(ahead.pop()):
                if index in done:
                    yield key, done - {index}
                elif (key, done) not in seen:
                    seen.add((key, done))
                    ahead.append((key, done))

    def _next(self, world: World) -> Iterator[World]:
        """Let one more thing happen."""
        key, done = world
        for drifted in drifts(self._rules, key):
            yield self._let_readers((drifted, done), self._open)
        for index in self._ready(done, self._open):
            for result, marks in self._effects(key, done, index):
                yield self._let_readers((result, done | marks), self._open)

    def _effects(self, key: Key, done: frozenset[int | str], index: int) -> Iterator[World]:
        """Tell how an operation may leave the key."""
        op = self._ops[index]
        result = after(self._rules, key, op.ask, op.answer)
        if result is not None and not (op.unknown and result == key):
            yield result, frozenset({index})
        if op.unknown and isinstance(op.ask, Enqueue):
            for orphan in self._orphans:
                born = after(self._rules, key, op.ask, None, orphan)
                if born is not None and born != result and orphan not in done:
                    yield born, frozenset({index, orphan})

    def _let_readers(self, world: World, candidates: Sequence[int] | set[int]) -> World:
        """Let operations happen that only confirm what is, or can change nothing any more."""
        key, done = world
        while readers := [index for index in self._ready(done, candidates) if self._reads(key, index)]:
            done = done.union(readers)
        return key, done

    def _reads(self, key: Key, index: int) -> bool:
        """Tell whether an operation leaves the key as it is, now and whenever it comes."""
        op = self._ops[index]
        if op.unknown:
            return spent(key, op.ask)
        if isinstance(op.ask, Cancel) and op.ask.successors and not spent(key, op.ask):
            return False  # a successor may come before it
        return after(self._rules, key, op.ask, op.answer) == key

    def _ready(self, done: frozenset[int | str], candidates: Sequence[int] | set[int]) -> Iterator[int]:
        """List what has not happened, and is next in its batch."""
        for index in candidates:
            if index not in done:
                first = self._before.get(index)
                if first is None or first in done or first not in self._open:
                    yield index


def predecessors(ops: Sequence[Op]) -> dict[int, int]:
    """Find for each operation the one that precedes it in its batch."""
    last: dict[tuple[str, int], int] = {}
    found: dict[int, int] = {}
    for index, op in enumerate(ops):
        batch = (op.process, op.batch)
        if op.batch and not op.unknown:
            found |= {index: last[batch]} if batch in last else {}
            last[batch] = index
    return found
