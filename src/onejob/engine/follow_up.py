"""What every caller of steps owes other jobs: count what was absorbed, notify dependants, begin to wait.

One place matches on the type of each answer, so that no caller can forget any of it. Steps were written
before this begins; if it fails, the answers stay as they are and the sweep notifies the dependants.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onejob.core.blockers import Ending
from onejob.core.decide import Verdict
from onejob.core.job import Arrival, Job
from onejob.core.manual import Cancelled
from onejob.core.runs import Settled
from onejob.core.step import Step
from onejob.core.ticks import Ticked
from onejob.engine.decided import counted_outcome
from onejob.engine.dependants import Ask, begin_to_wait, endings, is_awaited, notify_dependants
from onejob.engine.steps import AdmissionStep, TickStep
from onejob.errors import OnejobError
from onejob.stores.contract import Tally
from onejob.stores.flow import Flow

log = logging.getLogger("onejob")

Steps = Sequence[Step[Any]]


def follow_up(
    steps: Steps, answers: list[Any], namespace: str, own: Mapping[str, Job], *, committed: bool
) -> Flow[list[Any]]:
    """Do the follow-up work of steps; return their answers, with jobs as they are after it.

    After a commit, a failure is logged and changes no answer. Inside a caller's transaction it is raised,
    because the transaction may not be usable any more.
    """
    try:
        yield from count(steps, answers, namespace)
        return (yield from notify(steps, answers, namespace, own))
    except Exception as error:
        if not committed:
            raise
        details = None if isinstance(error, OnejobError) else error
        log.warning("jobs that wait for others could not be notified yet: %s", error, exc_info=details)
        return answers


def concerns_no_other(step: Step[Any], answer: Any) -> bool:
    """Return whether a step has answered a request or ended a run, and that changes no other job."""
    if isinstance(answer, Settled):
        return answer.continuation is None and not is_awaited(answer.job)
    if not isinstance(step, AdmissionStep) or not isinstance(answer, Verdict):
        return False
    return answer.superseded is None and step.request.job.blockers is None


# ── counting ──────────────────────────────────────────────────────────────────────────────────────


def count(steps: Steps, answers: Sequence[Any], namespace: str) -> Flow[None]:
    """Count absorbed ticks and replays, and missed ticks; the engine notes absorbed requests."""
    pairs = zip(steps, answers, strict=True)
    tallies = [tally for pair in pairs for tally in tallies_of_tick(*pair, namespace)]
    tallies += yield from count_replays(steps, answers)
    if tallies:
        yield Ask("count", tallies)


def tallies_of_tick(step: Step[Any], answer: Any, namespace: str) -> list[Tally]:
    """Return what the answer of a schedule's tick adds to the counters."""
    if not isinstance(step, TickStep) or not isinstance(answer, Ticked):
        return []
    counts = {"missed": step.tick.missed}
    if answer.verdict is not None and (outcome := counted_outcome(answer.verdict)) is not None:
        counts[outcome] = 1
    return [Tally(namespace, step.task, what, step.counter, times) for what, times in counts.items() if times]


def count_replays(steps: Steps, answers: Sequence[Any]) -> Flow[list[Tally]]:
    """Return the tallies of dead letters whose work another job does, under the letters' own tasks."""
    absorbed: dict[str, tuple[str, str]] = {}
    for step, answer in zip(steps, answers, strict=True):
        if isinstance(answer, Verdict) and not isinstance(step, AdmissionStep) and step.job_id is not None:
            outcome = counted_outcome(answer)
            absorbed |= {} if outcome is None else {step.job_id: (outcome, answer.job.id)}
    letters = (yield Ask("get", list(absorbed))) if absorbed else []
    return [
        Tally(letter.namespace, letter.task, *absorbed[letter.id], 1)
        for letter in letters
        if letter is not None
    ]


# ── dependants ────────────────────────────────────────────────────────────────────────────────────


def notify(steps: Steps, answers: Sequence[Any], namespace: str, own: Mapping[str, Job]) -> Flow[list[Any]]:
    """Notify the dependants of chains that ended, and let new jobs with blockers begin to wait."""
    ended = {name: end for answer in answers for name, end in ended_by(answer).items()}
    if ended:
        yield from notify_dependants(ended, namespace)
    followed = list(answers)
    for index, (step, answer) in enumerate(zip(steps, answers, strict=True)):
        if isinstance(answer, Settled) or (isinstance(step, AdmissionStep) and step.request.job.blockers):
            followed[index] = yield from let_wait(step, answer, own)
    return followed


def ended_by(answer: Any) -> dict[str, Ending]:
    """Return the awaited chains that a step has ended, or whose work it gave to another chain."""
    if isinstance(answer, Verdict):
        old = answer.superseded
        awaited = old is not None and is_awaited(old)
        return {old.chain_id: Ending(Arrival.AWAITED, heir=answer.job.id)} if old and awaited else {}
    match answer:
        case Ticked(verdict=Verdict() as verdict):
            return ended_by(verdict)
        case Settled(job=job, continuation=None):
            return ended_by(job)
        case Cancelled(job=job, successor=successor):
            return endings(one for one in (job, successor) if one is not None and is_awaited(one))
        case Job() if is_awaited(answer):
            return endings([answer])
        case _:
            return {}


def let_wait(step: Step[Any], answer: Any, own: Mapping[str, Job]) -> Flow[Any]:
    """Let a job with blockers that a step has made begin to wait; return the answer as it is then."""
    match step, answer:
        case AdmissionStep(request=request), Verdict(job=job):
            if request.job.blockers is None or job.id != request.job.id:
                return answer
            changed = yield from begin_to_wait(job, own)
            return answer if changed is None else msgspec.structs.replace(answer, job=changed)
        case _, Settled(continuation=Job(blockers=bytes(), id=job_id)):
            [written] = yield Ask("get", [job_id])
            if written is not None:
                yield from begin_to_wait(written, own)
            return answer
        case _:
            return answer
