"""What a history shows of each job: what made it, what ran it, and when it had certainly ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.races.history import (
    ENDED,
    FOREVER,
    Admitted,
    Cancel,
    Enqueue,
    Expire,
    History,
    KeyState,
    Op,
    Seen,
    Settle,
    Shown,
    Start,
)

MAKING = frozenset({"created", "forced", "replaced", "rerun"})


@dataclass(slots=True)
class JobRecord:
    """What a history shows of one job."""

    creations: list[Op] = field(default_factory=list)
    starts: list[Op] = field(default_factory=list)
    stops: list[Op] = field(default_factory=list)  # what ended a lease, or may have
    ended_by: int = FOREVER  # when it had certainly ended
    ends: set[Seen] = field(default_factory=set)  # as it was shown once it had ended
    tokens: int = 0  # the highest that was seen

    def show(self, seen: Seen) -> None:
        """Add what an answer shows of the job."""
        self.tokens = max(self.tokens, seen.token)
        if seen.state in ENDED:
            self.ends.add(seen)


JobRecords = defaultdict[str, JobRecord]


def gather(history: History) -> JobRecords:
    """Return what the history shows of each job."""
    records: JobRecords = defaultdict(JobRecord)
    for _, op in history.operations:
        for seen in mentioned(op):
            records[seen.job].show(seen)
        trace(records, op)
        if (job_id := ended_by(op)) is not None:
            records[job_id].ended_by = min(records[job_id].ended_by, op.back)
    for ended in history.jobs.values():
        record = records[ended.job.job]
        record.tokens = max(record.tokens, ended.job.token)
    return records


def mentioned(op: Op) -> Iterator[Seen]:
    """Yield the jobs that an answer shows."""
    match op.answer:
        case Admitted(_, job, holder):
            yield job
            if holder is not None and holder != job:
                yield holder
        case Shown(Seen() as seen):
            yield seen
        case KeyState(holder, successor):
            yield from (seen for seen in (holder, successor) if seen is not None)
        case _:
            pass


def trace(records: JobRecords, op: Op) -> None:
    """Add what an operation does to its jobs."""
    match op.ask, op.answer:
        case Enqueue(), Admitted(outcome, job, _) if outcome in MAKING:
            records[job.job].creations.append(op)
        case Start(job_id), _:
            records[job_id].starts.append(op)
        case ((Settle(job_id) | Expire(job_id)), answer) if answer != Shown():
            records[job_id].stops.append(op)
        case _:
            pass


def ended_by(op: Op) -> str | None:
    """Return the job that had ended when this operation returned."""
    match op.ask, op.answer:
        case Enqueue(), Admitted("replaced", _, Seen(job_id)):
            return job_id
        case ((Settle() | Expire() | Cancel()), Shown(Seen(job_id, state))) if state in ENDED:
            return job_id
        case _:
            return None


def token_of(op: Op) -> int:
    """Return the token of a lease."""
    assert isinstance(op.ask, Start)
    return op.ask.token
