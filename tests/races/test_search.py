"""The fast search finds an order exactly when trying all orders finds one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from tests.races.history import (
    FOREVER,
    Admitted,
    Answer,
    Ask,
    Cancel,
    Ended,
    Enqueue,
    Expire,
    Look,
    Op,
    Release,
    Seen,
    Settle,
    Shown,
    Start,
)
from tests.races.model import FREE, RULES, Key, Rules, act, drifts, matches, ripened
from tests.races.records import MAKING
from tests.races.search import explain

HOW = ("Completed", "Failed", "Discarded", "Snoozed", "HandedBack", "Stopped")
LENGTH = 7
ROUNDS = 300
LOST = {"a few": 0.1, "many": 0.4}
"""The part of the answers that is lost."""


class Exhaustive:
    """A search that tries everything that may come next, one thing at a time."""

    def __init__(
        self, rules: Rules, ops: Sequence[Op], orphans: Sequence[str], ended: Sequence[Ended]
    ) -> None:
        self._rules = rules
        self._ops = ops
        self._orphans = orphans
        self._ended = ended
        self._failed: set[tuple[Key, frozenset[int]]] = set()

    def explains(self) -> bool:
        """Return whether there is an order in which all operations with an answer may happen."""
        return self._leads_on(FREE, frozenset(range(len(self._ops))))

    def _leads_on(self, key: Key, left: frozenset[int]) -> bool:
        if all(self._ops[index].unknown for index in left):
            return True
        if (key, left) in self._failed:
            return False
        self._failed.add((key, left))
        return any(self._leads_on(*then) for then in self._next(key, left))

    def _next(self, key: Key, left: frozenset[int]) -> Iterator[tuple[Key, frozenset[int]]]:
        yield from ((unseen, left) for unseen in (*ripened(key), *drifts(self._rules, key)))
        horizon = min(self._ops[index].back for index in left)
        for index in left:
            op = self._ops[index]
            if op.call > horizon or any(self._precedes(first, index) for first in left):
                continue
            for fresh in ("", *self._uncreated(key)) if op.unknown else ("",):
                result = act(self._rules, key, op.ask, op.answer, fresh)
                if result is not None and self._fits(op, key, *result):
                    yield result[1], left - {index}

    def _precedes(self, first: int, second: int) -> bool:
        one, other = self._ops[first], self._ops[second]
        together = one.batch and (one.process, one.batch) == (other.process, other.batch)
        return bool(together) and first < second and not one.unknown and not other.unknown

    def _uncreated(self, key: Key) -> Iterator[str]:
        known = {job.job for job in key.live} | key.gone
        return (orphan for orphan in self._orphans if orphan not in known)

    def _fits(self, op: Op, before: Key, answer: Answer, after: Key) -> bool:
        if op.answer is not None:
            return matches(answer, op.answer)
        if not isinstance(op.ask, Enqueue):
            return True
        given = {job.job for job in after.live if job.payload == op.ask.payload}
        return not any(
            self._ended_otherwise(end, op.ask.payload, given)
            or self._superseded_by_another(end, after.gone - before.gone, given)
            for end in self._ended
        )

    def _superseded_by_another(self, end: Ended, gone: frozenset[str], given: set[str]) -> bool:
        """Return whether a job that was superseded by these names another in the end."""
        return end.job.job in gone and end.superseded_by not in {None, *given}

    def _ended_otherwise(self, end: Ended, payload: int, given: set[str]) -> bool:
        """Return whether a job's last payload shows that the request did not give its payload to these."""
        if end.job.payload == payload:
            return not given <= {end.job.job}
        return end.job.job in given and "update" not in {self._rules.on_conflict, self._rules.on_active}


# ── random histories ──────────────────────────────────────────────────────────────────────────────


def story(rules: Rules, chance: random.Random, jobs: dict[str, Ended]) -> Iterator[tuple[Ask, Answer]]:
    """Yield operations one after the other, as the model allows them, and keep the last state of each job."""
    key = FREE
    for number in range(LENGTH):
        for unseen in (*ripened(key), *drifts(rules, key)):
            key = unseen if chance.random() < 0.5 else key
        ask = random_ask(rules, key, list(jobs), number, chance)
        fresh = f"job {number}"
        made = Admitted("", Seen(fresh, "", 0, 0, 0))
        result = act(rules, key, ask, made if isinstance(ask, Enqueue) else None, fresh)
        if result is not None:
            answer, key = result
            jobs |= {job.job: Ended("", job) for job in key.live}
            if isinstance(answer, Admitted) and answer.outcome == "replaced":
                jobs |= replaced(answer)
            yield ask, answer


def replaced(answer: Admitted) -> dict[str, Ended]:
    """Return the job that was replaced."""
    assert answer.holder is not None
    return {answer.holder.job: Ended("", answer.holder, answer.job.job)}


def random_ask(rules: Rules, key: Key, jobs: list[str], number: int, chance: random.Random) -> Ask:
    """Return a random operation, mostly one that the key allows."""
    version = chance.randrange(3) if rules.versioned else None
    acts: list[Ask] = [Look(), Release("", chance.random() < 0.5)]
    acts += [Enqueue("", number, version, not rules.versioned and chance.random() < 0.1)] * 4
    acts += [Cancel(job, chance.random() < 0.5) for job in jobs[-1:]]
    for job in key.live:
        acts += [Start(job.job, job.token + 1)] * 3 if job.state == "available" else []
        if job.state == "active":
            acts += [Settle(job.job, job.token, chance.choice(HOW)), Settle(job.job, job.token, "Completed")]
            acts += [Expire(job.job), Settle(job.job, job.token + chance.randrange(2), "Failed")]
    return chance.choice(acts)


def recorded(rules: Rules, chance: random.Random, lost: float) -> tuple[list[Op], list[Ended]]:
    """Return operations that begin before and end after they take effect, and the jobs that they made."""
    ops, jobs = list[Op](), dict[str, Ended]()
    for moment, (ask, answer) in enumerate(story(rules, chance, jobs)):
        before, after = (round(chance.expovariate(0.1)) for _ in range(2))
        unknown = chance.random() < lost and not isinstance(ask, Look)
        back = FOREVER if unknown else 10 * moment + after
        ops.append(Op(ask, None if unknown else answer, 10 * moment - before, back, f"process {moment}"))
        if chance.random() < 0.2:
            ops[-2:] = batched(ops[-2:])
    echoes = [echo(op, chance) for op in ops for _ in range(2) if chance.random() < lost / 2]
    return [*ops, *echoes], list(jobs.values())


def echo(op: Op, chance: random.Random) -> Op:
    """Return the same operation at about the same time, without an answer."""
    ask = Look() if isinstance(op.ask, Enqueue) else op.ask  # no two requests have the same payload
    return Op(ask, None, op.call + round(chance.gauss(0, 20)), FOREVER, "echo")


def batched(ops: Sequence[Op]) -> list[Op]:
    """Return operations as one call, if all have answers."""
    if any(op.unknown for op in ops):
        return list(ops)
    call, back, process = min(op.call for op in ops), max(op.back for op in ops), ops[0].process
    return [replace(op, call=call, back=back, process=process, batch=1) for op in ops]


def twisted(ops: list[Op], chance: random.Random) -> list[Op]:
    """Return the operations with one change that may matter."""
    one, other = chance.randrange(len(ops)), chance.randrange(len(ops))
    changed = list(ops)
    match chance.randrange(4):
        case 0 if type(ops[one].ask) is type(ops[other].ask):
            changed[one] = replace(ops[one], answer=ops[other].answer or ops[one].answer)
        case 1 if not ops[one].batch:
            early = chance.randrange(60)
            changed[one] = replace(ops[one], call=ops[one].call - early, back=ops[one].call)
        case 2:
            changed[one] = replace(ops[one], answer=aged(ops[one].answer))
        case _:
            del changed[one]
    return [op for op in changed if not op.unknown or op.back == FOREVER]


def aged(answer: Answer | None) -> Answer | None:
    """Return an answer with a later token."""
    match answer:
        case Admitted():
            return replace(answer, job=replace(answer.job, token=answer.job.token + 1))
        case Shown(Seen() as job):
            return Shown(replace(job, token=job.token + 1))
        case _:
            return answer


def created(op: Op) -> str | None:
    """Return the job whose creation an answer reports."""
    return op.answer.job.job if isinstance(op.answer, Admitted) and op.answer.outcome in MAKING else None


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("policy", RULES)
def test_the_fast_search_agrees_with_the_exhaustive_one(policy: str, lost: str) -> None:
    rules, chance = RULES[policy], random.Random(policy + lost)
    verdicts = set()
    for number in range(ROUNDS):
        ops, jobs = recorded(rules, chance, LOST[lost])
        ops = twisted(ops, chance) if number % 2 and ops else ops
        orphans = sorted({end.job.job for end in jobs} - set(map(created, ops)))
        ended = jobs if number % 3 else []
        exhaustive = Exhaustive(rules, ops, orphans, ended).explains()
        assert (explain(rules, ops, orphans, ended) is None) == exhaustive, "\n".join(map(str, ops))
        assert exhaustive or number % 2, "\n".join(map(str, ops))
        verdicts.add(exhaustive)
    assert verdicts == {True, False}
