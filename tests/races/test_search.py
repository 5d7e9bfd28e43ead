"""The quick search finds an order exactly when trying all orders finds one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.races.history import (
    FOREVER,
    Admitted,
    Answer,
    Ask,
    Cancel,
    Enqueue,
    Expire,
    Look,
    Op,
    Release,
    Seen,
    Settle,
    Start,
    Told,
)
from tests.races.lives import MAKING
from tests.races.model import FREE, RULES, Key, Rules, act, drifts, matches, ripened
from tests.races.search import explain

HOW = ("Completed", "Failed", "Discarded", "Snoozed", "HandedBack", "Stopped")
LENGTH = 7
ROUNDS = 300


def explained(rules: Rules, key: Key, ops: frozenset[Op], orphans: tuple[str, ...]) -> bool:
    """Try everything that may come next, one thing at a time."""
    answered = [op for op in ops if not op.unknown]
    if not answered:
        return True
    horizon = min(op.back for op in answered)
    if any(explained(rules, other, ops, orphans) for other in (*ripened(key), *drifts(rules, key))):
        return True
    for op in ops:
        for fresh in ("", *orphans) if op.unknown else ("",):
            result = act(rules, key, op.ask, op.answer, fresh) if op.call <= horizon else None
            if result is not None and (op.answer is None or matches(result[0], op.answer)):
                left = tuple(orphan for orphan in orphans if orphan != fresh)
                if explained(rules, result[1], ops - {op}, left):
                    return True
    return False


# ── making histories up ───────────────────────────────────────────────────────────────────────────


def story(rules: Rules, chance: random.Random) -> Iterator[tuple[Ask, Answer]]:
    """Let things happen one after the other, as the model allows them."""
    key, jobs = FREE, list[str]()
    for number in range(LENGTH):
        for unseen in (*ripened(key), *drifts(rules, key)):
            key = unseen if chance.random() < 0.5 else key
        ask = anything(rules, key, jobs, number, chance)
        fresh = f"job {number}"
        made = Admitted("", Seen(fresh, "", 0, 0, 0))
        result = act(rules, key, ask, made if isinstance(ask, Enqueue) else None, fresh)
        if result is not None:
            answer, key = result
            jobs += [fresh] if isinstance(answer, Admitted) and answer.job.job == fresh else []
            yield ask, answer


def anything(rules: Rules, key: Key, jobs: list[str], number: int, chance: random.Random) -> Ask:
    """Choose an act, mostly one that the key allows."""
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


def recorded(rules: Rules, chance: random.Random) -> tuple[list[Op], set[str]]:
    """Let calls and returns stand a little before and after the moment; name the jobs that were made."""
    ops, made = list[Op](), set[str]()
    for moment, (ask, answer) in enumerate(story(rules, chance)):
        made |= {answer.job.job} if isinstance(answer, Admitted) and answer.outcome in MAKING else set()
        before, after = (round(chance.expovariate(0.1)) for _ in range(2))
        lost = chance.random() < 0.1 and not isinstance(ask, Look)
        back = FOREVER if lost else 10 * moment + after
        ops.append(Op(ask, None if lost else answer, 10 * moment - before, back, f"process {moment}"))
    return ops, made


def twisted(ops: list[Op], chance: random.Random) -> list[Op]:
    """Change something that may matter."""
    one, other = chance.randrange(len(ops)), chance.randrange(len(ops))
    changed = list(ops)
    match chance.randrange(4):
        case 0 if type(ops[one].ask) is type(ops[other].ask):
            changed[one] = replace(ops[one], answer=ops[other].answer or ops[one].answer)
        case 1:
            early = chance.randrange(60)
            changed[one] = replace(ops[one], call=ops[one].call - early, back=ops[one].call)
        case 2:
            changed[one] = replace(ops[one], answer=aged(ops[one].answer))
        case _:
            del changed[one]
    return [op for op in changed if not op.unknown or op.back == FOREVER]


def aged(answer: Answer | None) -> Answer | None:
    """Show a later token."""
    match answer:
        case Admitted():
            return replace(answer, job=replace(answer.job, token=answer.job.token + 1))
        case Told(Seen() as job):
            return Told(replace(job, token=job.token + 1))
        case _:
            return answer


def born(op: Op) -> str | None:
    """Name the job that an answer tells the birth of."""
    return op.answer.job.job if isinstance(op.answer, Admitted) and op.answer.outcome in MAKING else None


@pytest.mark.parametrize("policy", RULES)
def test_the_quick_search_agrees_with_the_thorough_one(policy: str) -> None:
    rules, chance = RULES[policy], random.Random(policy)
    verdicts = set()
    for number in range(ROUNDS):
        ops, made = recorded(rules, chance)
        ops = twisted(ops, chance) if number % 2 and ops else ops
        orphans = sorted(made - set(map(born, ops)))
        thorough = explained(rules, FREE, frozenset(ops), tuple(orphans))
        assert (explain(rules, ops, orphans) is None) == thorough, "\n".join(map(str, ops))
        assert thorough or number % 2, "\n".join(map(str, ops))
        verdicts.add(thorough)
    assert verdicts == {True, False}
