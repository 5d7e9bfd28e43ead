"""What can be seen in a history by reading it once, without a model and without a search."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.races.history import (
    ENDED,
    Admitted,
    Cancel,
    Enqueue,
    Expire,
    History,
    Op,
    Repair,
    Sampled,
    Seen,
    Settle,
    Sighting,
    Told,
)
from tests.races.lives import MAKING, Life, Lives, mentioned, token_of

ABSORBING = frozenset({"kept", "updated", "rerun", "rejected", "stale"})
ACCEPTING = MAKING | {"updated"}


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept: which, where, and how one sees it."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        """Tell it in one sentence."""
        return f"{self.rule}: {self.where}: {self.what}"


def scan(history: History, lives: Lives) -> Iterator[Violation]:
    """Run every scan that the history has the facts for."""
    yield from two_holders(history)
    yield from untruths(history, lives)
    yield from leases(history, lives)
    yield from endings(history, lives)
    yield from repairs(history)
    if history.drained:
        yield from lost_requests(history)
        yield from counters(history)
        yield from sums(history)


# ── who stands for a key ──────────────────────────────────────────────────────────────────────────


def two_holders(history: History) -> Iterator[Violation]:
    """Find keys that two jobs held at once, or waited for at once, and holds without a live job."""
    for number, sample in enumerate(history.samples):
        for what, sightings in (("hold", sample.holders), ("wait for", sample.successors)):
            for key, jobs in crowded(sightings):
                yield Violation("two holders", key, f"sample {number}: {' and '.join(jobs)} {what} it")
        for sighting in all_of(sample):
            if sighting.job.state in ENDED or (history.drained and sighting.job.job not in history.jobs):
                what = f"sample {number}: {sighting.job} stands for it, and has ended or never was"
                yield Violation("two holders", sighting.key, what)
    yield from mixed_keys(history)


def all_of(sample: Sampled) -> Iterable[Sighting]:
    """List holders and successors."""
    return (*sample.holders, *sample.successors)


def crowded(sightings: Sequence[Sighting]) -> Iterator[tuple[str, list[str]]]:
    """Find keys that occur more than once."""
    if len({sighting.hash for sighting in sightings}) == len(sightings):
        return
    jobs: defaultdict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        jobs[sighting.hash].append(sighting)
    for several in jobs.values():
        if len(several) > 1:
            yield several[0].key, [sighting.job.job for sighting in several]


def mixed_keys(history: History) -> Iterator[Violation]:
    """Find two keys with one hash, or two hashes of one key."""
    pairs = {(sighting.key, sighting.hash) for sample in history.samples for sighting in all_of(sample)}
    for side in (0, 1):
        for name, number in Counter(pair[side] for pair in pairs).items():
            if number > 1:
                yield Violation("two holders", name, "a key has two hashes, or a hash two keys")


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def untruths(history: History, lives: Lives) -> Iterator[Violation]:
    """Find answers that name a job which was not there at any moment of the call."""
    for key, op in history.operations:
        if isinstance(op.answer, Admitted):
            for seen in mentioned(op):
                marked = op.answer.outcome == "stale" and seen is op.answer.job  # it may have ended long ago
                if what := untrue(seen, op, history, lives[seen.job], marked=marked):
                    yield Violation("untrue answer", key, f"{seen.job} {what}: {op}")
    for job_id, life in lives.items():
        if len(life.births) > 1:
            yield Violation("untrue answer", job_id, f"made {len(life.births)} times: {life.births[1]}")


def untrue(seen: Seen, op: Op, history: History, life: Life, *, marked: bool) -> str | None:
    """Say what is wrong with an answer that names a job."""
    if history.drained and seen.job not in history.jobs:
        return "does not exist"
    if (seen.state in ENDED or op.call > life.ended_by) and not marked:
        return "had ended before the call"
    if life.births and op.back < life.births[0].call:
        return "was asked for only after the return"
    return None


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def leases(history: History, lives: Lives) -> Iterator[Violation]:
    """Find leases of one job that overlap, tokens that do not rise, and tokens that nobody was given."""
    for job_id, life in lives.items():
        starts = sorted(life.starts, key=lambda op: (token_of(op), op.call))
        for first, second in pairwise(starts):
            if what := clash(first, second, life.stops):
                tokens = f"token {token_of(second)} after {token_of(first)}"
                yield Violation("leases", job_id, f"{tokens}: {what}")
        if len(starts) < life.tokens and not history.leases_lost:
            yield Violation("leases", job_id, f"nobody was given all of its {life.tokens} tokens")


def clash(first: Op, second: Op, stops: Sequence[Op]) -> str | None:
    """Say what is wrong with two leases, of which the second has the higher token."""
    if token_of(first) == token_of(second):
        return "given twice"
    if second.back < first.call:
        return "given before"
    if not any(stop.call <= second.back and stopped(stop, token_of(first)) for stop in stops):
        return "given while the first was in force"
    return None


def stopped(op: Op, token: int) -> bool:
    """Tell whether an operation ended, or may have ended, the lease with this token."""
    match op.ask, op.answer:
        case Settle(_, settled), _:
            return settled == token
        case Expire(), Told(Seen() as seen):
            return seen.token == token
        case _:
            return True


def endings(history: History, lives: Lives) -> Iterator[Violation]:
    """Find jobs that ended twice or differently, and jobs that never did."""
    for job_id, life in lives.items():
        final = {history.jobs[job_id].job} if history.drained and job_id in history.jobs else set()
        if len(life.ends | final) > 1:
            yield Violation("endings", job_id, f"ended in several ways: {life.ends | final}")
        for seen in final:
            if seen.state not in ENDED:
                what = "a successor that nobody let in" if seen.state == "pending" else "it never ended"
                yield Violation("endings", job_id, f"{what}: {seen}")


def repairs(history: History) -> Iterator[Violation]:
    """Find successors that had to be repaired, though nothing outside interfered."""
    for key, op in history.operations:
        if isinstance(op.ask, Repair) and op.answer not in {None, Told()}:
            yield Violation("repairs", key, str(op))


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def lost_requests(history: History) -> Iterator[Violation]:
    """Find accepted requests after which no run began, though nobody cancelled them."""
    for key, ops in history.keys.items():
        cancels = [op.ask for op in ops if isinstance(op.ask, Cancel)]
        by_hand = {cancel.job for cancel in cancels}
        both = any(cancel.successors for cancel in cancels)  # which names the first only
        for op in ops:
            if isinstance(op.answer, Admitted) and op.answer.outcome in ACCEPTING:
                last = waits_for(history, op.answer.job)
                cancelled = last is not None and history.jobs[last].job.state == "cancelled"
                if last is not None and not (cancelled and (both or last in by_hand)):
                    yield Violation("lost request", key, f"no run began after {op}; see {last}")


def waits_for(history: History, seen: Seen) -> str | None:
    """Follow a request from job to job; None if one began to run since, else the last job."""
    job_id, token, passed = seen.job, seen.token, set[str]()
    while job_id in history.jobs:
        passed.add(job_id)
        ended = history.jobs[job_id]
        if ended.job.token > token:
            return None
        if ended.superseded_by is None or ended.superseded_by in passed:
            return job_id
        job_id, token = ended.superseded_by, 0
    return None  # untruths() tells of it


def counters(history: History) -> Iterator[Violation]:
    """Compare the store's counters with what callers were told; a killed caller takes some with it."""
    told: Counter[tuple[str, str, str]] = Counter()
    for key, op in history.operations:
        if isinstance(op.ask, Enqueue) and op.unknown:
            return
        if isinstance(op.answer, Admitted) and op.answer.outcome in ABSORBING:
            told[key.partition("/")[0], op.answer.outcome, op.answer.job.job] += 1
    counted = history.absorbed
    wrong = sorted(
        entry
        for entry in told | counted
        if counted[entry] > told[entry] or (counted[entry] < told[entry] and not history.killed)
    )
    if wrong:
        first = wrong[0]
        what = f"{first} was told {told[first]} times and counted {counted[first]} times"
        yield Violation("accounts", f"{len(wrong)} counters", what)


def sums(history: History) -> Iterator[Violation]:
    """Make sure that every call made a job or was absorbed, and that every job was asked for."""
    tasks: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for ended in history.jobs.values():
        tasks[ended.key.partition("/")[0]]["jobs"] += 1
    for key, op in history.operations:
        if isinstance(op.ask, Enqueue):
            task = tasks[key.partition("/")[0]]
            task["calls"] += 1
            task["unanswered"] += op.unknown
            task["absorbed"] += isinstance(op.answer, Admitted) and op.answer.outcome not in MAKING
    for name, task in tasks.items():
        if not 0 <= task["calls"] - task["jobs"] - task["absorbed"] <= task["unanswered"]:
            yield Violation("accounts", name, f"the sums do not agree: {dict(task)}")
