"""What a history tells about each job: who made it, who ran it, and when it had ended for certain."""

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
    Op,
    Seen,
    Settle,
    Start,
    Stood,
    Told,
)

MAKING = frozenset({"created", "forced", "replaced", "rerun"})


@dataclass(slots=True)
class Life:
    """What a history tells about one job."""

    births: list[Op] = field(default_factory=list)
    starts: list[Op] = field(default_factory=list)
    stops: list[Op] = field(default_factory=list)  # what ended a lease, or may have
    ended_by: int = FOREVER  # when it had ended for certain
    ends: set[Seen] = field(default_factory=set)  # as it was shown once it had ended
    tokens: int = 0  # the highest that was seen

    def show(self, seen: Seen) -> None:
        """Note how an answer shows it."""
        self.tokens = max(self.tokens, seen.token)
        if seen.state in ENDED:
            self.ends.add(seen)


Lives = defaultdict[str, Life]


def gather(history: History) -> Lives:
    """Collect what is told about each job."""
    lives: Lives = defaultdict(Life)
    for _, op in history.operations:
        for seen in mentioned(op):
            lives[seen.job].show(seen)
        trace(lives, op)
        if (job_id := ended_by(op)) is not None:
            lives[job_id].ended_by = min(lives[job_id].ended_by, op.back)
    for ended in history.jobs.values():
        life = lives[ended.job.job]
        life.tokens = max(life.tokens, ended.job.token)
    return lives


def mentioned(op: Op) -> Iterator[Seen]:
    """List the jobs that an answer shows."""
    match op.answer:
        case Admitted(_, job, holder):
            yield job
            if holder is not None and holder != job:
                yield holder
        case Told(Seen() as seen):
            yield seen
        case Stood(holder, successor):
            yield from (seen for seen in (holder, successor) if seen is not None)
        case _:
            pass


def trace(lives: Lives, op: Op) -> None:
    """Note what an operation does to the jobs that it is about."""
    match op.ask, op.answer:
        case Enqueue(), Admitted(outcome, job, _) if outcome in MAKING:
            lives[job.job].births.append(op)
        case Start(job_id), _:
            lives[job_id].starts.append(op)
        case ((Settle(job_id) | Expire(job_id)), answer) if answer != Told():
            lives[job_id].stops.append(op)
        case _:
            pass


def ended_by(op: Op) -> str | None:
    """Name the job that had ended when this operation returned."""
    match op.ask, op.answer:
        case Enqueue(), Admitted("replaced", _, Seen(job_id)):
            return job_id
        case ((Settle() | Expire() | Cancel()), Told(Seen(job_id, state))) if state in ENDED:
            return job_id
        case _:
            return None


def token_of(op: Op) -> int:
    """Tell the token of a lease."""
    assert isinstance(op.ask, Start)
    return op.ask.token
