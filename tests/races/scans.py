"""Checks of a history that need one pass over it, without a model and without a search."""

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
    Observation,
    Op,
    Repair,
    Sampled,
    Seen,
    Settle,
    Shown,
)
from tests.races.records import MAKING, JobRecord, JobRecords, mentioned, token_of

ABSORBING = frozenset({"kept", "updated", "rerun", "rejected", "stale"})
ACCEPTING = MAKING | {"updated"}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which rule, where, and what shows it."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        """Return the violation in one line."""
        return f"{self.rule}: {self.where}: {self.what}"


def scan(history: History, records: JobRecords) -> Iterator[Violation]:
    """Run every check that the history has the data for."""
    yield from two_holders(history)
    yield from untruths(history, records)
    yield from leases(history, records)
    yield from endings(history, records)
    yield from repairs(history)
    if history.drained:
        yield from lost_requests(history)
        yield from counters(history)
        yield from sums(history)


# ── holders and successors ────────────────────────────────────────────────────────────────────────


def two_holders(history: History) -> Iterator[Violation]:
    """Yield keys that two jobs held at once, or waited for at once, and holds without a live job."""
    for number, sample in enumerate(history.samples):
        for what, observations in (("hold", sample.holders), ("wait for", sample.successors)):
            for key, jobs in crowded(observations):
                yield Violation("two holders", key, f"sample {number}: {' and '.join(jobs)} {what} it")
        for observation in all_of(sample):
            if observation.job.state in ENDED or (
                history.drained and observation.job.job not in history.jobs
            ):
                what = f"sample {number}: {observation.job} has the key, but has ended or never existed"
                yield Violation("two holders", observation.key, what)
    yield from mixed_keys(history)


def all_of(sample: Sampled) -> Iterable[Observation]:
    """Return holders and successors."""
    return (*sample.holders, *sample.successors)


def crowded(observations: Sequence[Observation]) -> Iterator[tuple[str, list[str]]]:
    """Yield keys that occur more than once."""
    if len({observation.hash for observation in observations}) == len(observations):
        return
    jobs: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in observations:
        jobs[observation.hash].append(observation)
    for several in jobs.values():
        if len(several) > 1:
            yield several[0].key, [observation.job.job for observation in several]


def mixed_keys(history: History) -> Iterator[Violation]:
    """Yield two keys with one hash, or two hashes of one key."""
    pairs = {
        (observation.key, observation.hash) for sample in history.samples for observation in all_of(sample)
    }
    for side in (0, 1):
        for name, number in Counter(pair[side] for pair in pairs).items():
            if number > 1:
                yield Violation("two holders", name, "a key has two hashes, or a hash two keys")


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def untruths(history: History, records: JobRecords) -> Iterator[Violation]:
    """Yield answers that name a job which did not exist at any moment of the call."""
    for key, op in history.operations:
        if isinstance(op.answer, Admitted):
            for seen in mentioned(op):
                marked = op.answer.outcome == "stale" and seen is op.answer.job  # it may have ended long ago
                if what := untrue(seen, op, history, records[seen.job], marked=marked):
                    yield Violation("untrue answer", key, f"{seen.job} {what}: {op}")
    for job_id, record in records.items():
        if len(record.creations) > 1:
            yield Violation(
                "untrue answer", job_id, f"made {len(record.creations)} times: {record.creations[1]}"
            )


def untrue(seen: Seen, op: Op, history: History, record: JobRecord, *, marked: bool) -> str | None:
    """Return what is wrong with an answer that names a job, None if nothing is."""
    if history.drained and seen.job not in history.jobs:
        return "does not exist"
    if (seen.state in ENDED or op.call > record.ended_by) and not marked:
        return "had ended before the call"
    if record.creations and op.back < record.creations[0].call:
        return "was requested only after the return"
    return None


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def leases(history: History, records: JobRecords) -> Iterator[Violation]:
    """Yield leases of one job that overlap, tokens that do not rise, and tokens that no lease shows."""
    for job_id, record in records.items():
        starts = sorted(record.starts, key=lambda op: (token_of(op), op.call))
        for first, second in pairwise(starts):
            if what := clash(first, second, record.stops):
                tokens = f"token {token_of(second)} after {token_of(first)}"
                yield Violation("leases", job_id, f"{tokens}: {what}")
        if len(starts) < record.tokens and not history.leases_lost:
            yield Violation("leases", job_id, f"no leases show all of its {record.tokens} tokens")


def clash(first: Op, second: Op, stops: Sequence[Op]) -> str | None:
    """Return what is wrong with two leases, of which the second has the higher token, None if nothing is."""
    if token_of(first) == token_of(second):
        return "given twice"
    if second.back < first.call:
        return "given before"
    if not any(stop.call <= second.back and stopped(stop, token_of(first)) for stop in stops):
        return "given while the first was in force"
    return None


def stopped(op: Op, token: int) -> bool:
    """Return whether an operation ended, or may have ended, the lease with this token."""
    match op.ask, op.answer:
        case Settle(_, settled), _:
            return settled == token
        case Expire(), Shown(Seen() as seen):
            return seen.token == token
        case _:
            return True


def endings(history: History, records: JobRecords) -> Iterator[Violation]:
    """Yield jobs that ended twice or in several ways, and jobs that never ended."""
    for job_id, record in records.items():
        final = {history.jobs[job_id].job} if history.drained and job_id in history.jobs else set()
        if len(record.ends | final) > 1:
            yield Violation("endings", job_id, f"ended in several ways: {record.ends | final}")
        for seen in final:
            if seen.state not in ENDED:
                what = "a successor that was not promoted" if seen.state == "pending" else "it never ended"
                yield Violation("endings", job_id, f"{what}: {seen}")


def repairs(history: History) -> Iterator[Violation]:
    """Yield successors that had to be repaired, though there was no fault."""
    for key, op in history.operations:
        if isinstance(op.ask, Repair) and op.answer not in {None, Shown()}:
            yield Violation("repairs", key, str(op))


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def lost_requests(history: History) -> Iterator[Violation]:
    """Yield accepted requests after which no run began, though no client cancelled them."""
    for key, ops in history.keys.items():
        cancels = [op.ask for op in ops if isinstance(op.ask, Cancel)]
        cancelled_ids = {cancel.job for cancel in cancels}
        both = any(cancel.successors for cancel in cancels)  # such a request names only the holder
        for op in ops:
            if isinstance(op.answer, Admitted) and op.answer.outcome in ACCEPTING:
                last = waits_for(history, op.answer.job)
                cancelled = last is not None and history.jobs[last].job.state == "cancelled"
                if last is not None and not (cancelled and (both or last in cancelled_ids)):
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
    return None  # untruths() reports it


def counters(history: History) -> Iterator[Violation]:
    """Compare the store's counters with the answers to callers; a killed caller loses its last counts."""
    answered: Counter[tuple[str, str, str]] = Counter()
    for key, op in history.operations:
        if isinstance(op.ask, Enqueue) and op.unknown:
            return
        if isinstance(op.answer, Admitted) and op.answer.outcome in ABSORBING:
            answered[key.partition("/")[0], op.answer.outcome, op.answer.job.job] += 1
    counted = history.absorbed
    wrong = sorted(
        entry
        for entry in answered | counted
        if counted[entry] > answered[entry] or (counted[entry] < answered[entry] and not history.killed)
    )
    if wrong:
        first = wrong[0]
        what = f"{first} was answered {answered[first]} times and counted {counted[first]} times"
        yield Violation("counters", f"{len(wrong)} counters", what)


def sums(history: History) -> Iterator[Violation]:
    """Check that every call made a job or was absorbed, and that every job was requested."""
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
            yield Violation("counters", name, f"the sums do not agree: {dict(task)}")
