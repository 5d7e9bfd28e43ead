"""Events: what happened to a job or a worker, as hooks get it; made from the answers of steps.

An admission and a run say in their answers what they did. Every other step is watched: the rows that it was
given and the rows that it changed show which jobs it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from onejob.core.decide import Outcome, Verdict
from onejob.core.holds import supersede
from onejob.core.job import Job, State
from onejob.core.runs import Settled
from onejob.core.step import Changes, Step, View
from onejob.core.ticks import Ticked
from onejob.engine.steps import OWN, AdmissionStep

Kind = Literal["created", "deduplicated", "started", "completed", "retryable", "cancelled", "discarded"]
WorkerKind = Literal["worker_started", "worker_stopped"]

ENDS: dict[State, Kind] = {
    State.COMPLETED: "completed",
    State.RETRYABLE: "retryable",
    State.CANCELLED: "cancelled",
    State.DISCARDED: "discarded",
}

ADMITTED = {Outcome.CREATED, Outcome.FORCED, Outcome.REPLACED}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job, as a hook gets it.

    Attributes:
        kind: The name under which the hook was registered.
        job: The job as it is then; for a duplicate, the job that serves the request.
        task: The name of the task; for a duplicate, the task of the request.
        queue: The queue; for a duplicate, the queue of the request.
        outcome: The outcome of a request.
        reason: Why a request had this outcome, or why a job was cancelled or discarded.
        holder: The id of the job that held the key when a request was decided.
        duration: How many seconds a run took.
        exception: What the handler raised, if it ran in this process.
    """

    kind: Kind
    job: Job
    task: str
    queue: str
    outcome: Outcome | None = None
    reason: str | None = None
    holder: str | None = None
    duration: float | None = None
    exception: BaseException | None = None

    @property
    def key(self) -> str | None:
        """The key in hexadecimal, or None if the job is not unique."""
        return None if self.job.key is None else self.job.key.hex()

    @property
    def attempt(self) -> int:
        """The number of the job's last attempt; 0 before the first."""
        return self.job.attempt

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error of this attempt as it is stored (type, message, traceback); None if there is none."""
        if self.kind in {"created", "deduplicated", "started", "completed"}:
            return None
        last = next(reversed(self.job.failures), None)
        return last if last is not None and last.get("attempt") == self.job.attempt else None

    @property
    def waited(self) -> float | None:
        """How many seconds a started job was due before it started."""
        if self.kind != "started" or self.job.started_at is None:
            return None
        return max((self.job.started_at - self.job.due_since).total_seconds(), 0.0)


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a worker, as a hook gets it.

    Attributes:
        kind: `worker_started` or `worker_stopped`.
        worker: The worker's name.
        queues: The queues that it serves, and how many jobs of each it runs at once.
        concurrency: How many jobs it runs at once.
        ended: How many of its runs ended in each state, or were handed back or lost.
    """

    kind: WorkerKind
    worker: str
    queues: Mapping[str, int]
    concurrency: int
    ended: Mapping[str, int]


class RunStep(Step[Settled | None], frozen=True, kw_only=True, gc=False):
    """The step that settles a run, and what its event says besides."""

    seconds: float = 0.0
    exception: BaseException | None = None


class WatchedAct:
    """An act that keeps what it was given and what it changed; a store may call it again after a conflict."""

    __slots__ = ("act", "changes", "view")

    def __init__(self, act: Callable[[View], Changes[Any]]) -> None:
        self.act = act
        self.view: View | None = None
        self.changes: Changes[Any] | None = None

    def __call__(self, view: View) -> Changes[Any]:
        """Run the act."""
        self.view, self.changes = view, self.act(view)
        return self.changes

    @property
    def ended(self) -> list[Job]:
        """The jobs whose state the act has changed to one that has an event."""
        if self.view is None or self.changes is None:
            return []
        view = self.view
        seen = (view.job, view.holder, view.successor, view.marked)
        before = {job.id: job.state for job in seen if job is not None}
        return [
            job for job in self.changes.updates if job.state in ENDS and before.get(job.id) is not job.state
        ]


def watch(steps: Iterable[Step[Any]]) -> list[Step[Any]]:
    """Return steps of which those are watched whose answers do not say what they did."""
    return [
        step
        if isinstance(step, OWN) or step.seen is not None
        else msgspec.structs.replace(step, act=WatchedAct(step.act))
        for step in steps
    ]


# ── from answers to events ────────────────────────────────────────────────────────────────────────


def events_of(steps: Sequence[Step[Any]], answers: Sequence[Any]) -> list[Event]:
    """Return what steps that were written have done, in order; `steps` as `watch` returned them."""
    found: list[Event] = []
    for step, answer in zip(steps, answers, strict=True):
        if isinstance(answer, Settled):
            _add_settlement(found, step, answer)
        elif isinstance(answer, Verdict):
            _add_admission(found, answer, _find_letter(step, answer))
        elif isinstance(answer, Ticked) and answer.verdict is not None:
            _add_admission(found, answer.verdict, answer.verdict.job)
        if isinstance(step.act, WatchedAct) and not isinstance(answer, Exception):
            found += ends_of(step.act.ended)
    return found


def events_of_requests(steps: Sequence[AdmissionStep], answers: Sequence[Any]) -> list[Event]:
    """Return what decided requests have done, in order."""
    found: list[Event] = []
    for step, answer in zip(steps, answers, strict=True):
        if isinstance(answer, Verdict):
            _add_admission(found, answer, step.request.job)
    return found


def _find_letter(step: Step[Any], verdict: Verdict) -> Job:
    """Return the dead letter that was replayed."""
    view = step.act.view if isinstance(step.act, WatchedAct) else None
    return verdict.job if view is None or view.job is None else view.job


def _add_admission(found: list[Event], verdict: Verdict, asked: Job) -> None:
    """Add what a request did: it ended a job, was created, or was absorbed; a full queue did nothing."""
    job, old, outcome = verdict.job, verdict.superseded, verdict.outcome
    if old is not None:
        found.append(_end(supersede(old, job.id, job.created_at)))
    is_new = outcome in ADMITTED
    if is_new or verdict.refusal != "full":
        holder = verdict.holder
        found.append(
            Event(
                kind="created" if is_new else "deduplicated",
                job=job,
                task=asked.task,
                queue=asked.queue,
                outcome=outcome,
                reason=verdict.reason,
                holder=None if holder is None else holder.id,
            )
        )


def _add_settlement(found: list[Event], step: Step[Any], settled: Settled) -> None:
    """Add how a run ended, unless it was handed back or snoozed, and the job that continues its chain."""
    job, following = settled.job, settled.continuation
    kind, run = ENDS.get(job.state), step if isinstance(step, RunStep) else None
    if kind is not None:
        found.append(
            Event(
                kind=kind,
                job=job,
                task=job.task,
                queue=job.queue,
                reason=job.reason,
                duration=None if run is None else run.seconds,
                exception=None if run is None or kind == "completed" else run.exception,
            )
        )
    if following is not None:
        found.append(
            Event(
                kind="created",
                job=following,
                task=following.task,
                queue=following.queue,
                outcome=Outcome.CREATED,
                reason=f"It continues the chain of job {job.id}.",
            )
        )


def _end(job: Job) -> Event:
    return Event(kind=ENDS[job.state], job=job, task=job.task, queue=job.queue, reason=job.reason)


def ends_of(jobs: Iterable[Job]) -> list[Event]:
    """Return the events of jobs that ended without a run."""
    return [_end(job) for job in jobs]


def starts_of(jobs: Iterable[Job]) -> list[Event]:
    """Return the events of jobs that were leased."""
    return [Event(kind="started", job=job, task=job.task, queue=job.queue) for job in jobs]
