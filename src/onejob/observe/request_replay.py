"""Replay recorded requests under another policy, by the real rules: what would have become of each.

Pure: requests and runs in, counts out. A job of the replay starts when the job of the same request really
started, though not before its key and its policy let it, and runs for as long. A request that had no job of
its own gets the median wait and run time of the task's jobs. One whose job gave way before it started gets
the run of the job that took its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from onejob.core import runs
from onejob.core.decide import DEDUPLICATED, Outcome, Request, decide
from onejob.core.holds import finish, leave
from onejob.core.job import EPOCH, Job, Retry, State
from onejob.core.policy import Unique
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.engine.recorded_requests import ALL, RecordedRequest, leading
from onejob.stores.columns import read_time, write_time
from onejob.stores.working_copy import WorkingCopy

ENDING, STARTING = 0, 1  # what happens first at one time
LEASE = timedelta(days=365)
STARTABLE = {State.SCHEDULED, State.AVAILABLE}


class Run(NamedTuple):
    """When a job really started and ended, in microseconds since 1970; None if it has not."""

    start: int | None
    end: int | None
    state: State


class Replayed(NamedTuple):
    """What a policy would have done."""

    requests: int
    absorbed: int
    reruns: int  # of the absorbed ones, those that became one more run


@dataclass(frozen=True)
class History:
    """The recorded requests of a task, oldest first, and how the jobs that they created ran.

    Attributes:
        task: The task's name.
        arguments: The names of its arguments, in the order of the digests.
        requests: What was recorded.
        runs: The runs of jobs by id; a job that is gone is missing.
        seen: How many requests there were.
        threshold: Requests with a digest below it were recorded.
    """

    task: str
    arguments: tuple[str, ...]
    requests: Sequence[RecordedRequest]
    runs: Mapping[str, Run]
    seen: int
    threshold: int = ALL

    @cached_property
    def wait(self) -> int | None:
        """The median time between a request and the start of its job."""
        waits = [
            max(run.start - one.at, 0)
            for one in self.requests
            if (run := self.runs.get(one.job)) is not None and run.start is not None
        ]
        return middle(waits)

    @cached_property
    def run_time(self) -> int | None:
        """The median time that a job ran."""
        times = [run.end - run.start for run in self.runs.values() if run.start is not None and run.end]
        return middle(times)

    @cached_property
    def total(self) -> int:
        """How many requests were recorded."""
        return sum(one.times for one in self.requests)

    @property
    def share(self) -> float:
        """The share of requests that were recorded."""
        return min(self.total / self.seen, 1.0) if self.seen else 1.0

    def values_of(self, positions: Sequence[int]) -> list[bytes]:
        """Return, for each request, the digests of some arguments as one value."""
        return ["".join([one.digests[at] for at in positions]).encode() for one in self.requests]

    def distinct(self, positions: Sequence[int]) -> int:
        """Return how many different values some arguments had together."""
        return len(set(self.values_of(positions)))

    def sample(self, positions: Sequence[int]) -> History:
        """Return the requests among which those with equal values of some arguments are complete.

        Requests were kept if any digest was below the threshold; those that were kept because of one of these
        arguments are all there. Of the arguments, the one with the most values makes the finest sample.
        """
        if self.threshold >= ALL or not positions:
            return self
        pivot = max(positions, key=lambda at: (self.distinct([at]), -at))
        kept = [one for one in self.requests if leading(one.digests[pivot]) < self.threshold]
        return History(self.task, self.arguments, kept, self.runs, self.seen, self.threshold)


def replay(history: History, policy: Unique, keys: Sequence[bytes | None]) -> Replayed:
    """Return what would have become of requests under a policy, given the key of each."""
    return Replay(history).run(policy, keys)


class Replay:
    """A world in which requests are decided again, and jobs start and end at their times."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rows = WorkingCopy()
        self._events: list[tuple[int, int, str]] = []
        self._planned: set[str] = set()
        self._blank = blank_job(history.task)

    def run(self, policy: Unique, keys: Sequence[bytes | None]) -> Replayed:
        """Decide about all requests in order."""
        absorbed = reruns = total = 0
        for number, (one, key) in enumerate(zip(self._history.requests, keys, strict=True)):
            self._advance(one.at)
            outcome = self._decide(number, one, policy, key)
            total += one.times
            if outcome in DEDUPLICATED:
                absorbed += one.times
                reruns += outcome is Outcome.RERUN
        return Replayed(total, absorbed, reruns)

    def _decide(self, number: int, one: RecordedRequest, policy: Unique, key: bytes | None) -> Outcome:
        job_id = one.job or f"request {number}"
        job = msgspec.structs.replace(
            self._blank,
            id=job_id,
            chain_id=job_id,
            place=number,
            key=key,
            payload_digest="".join(one.digests).encode(),
        )
        forced = one.outcome == Outcome.FORCED
        request = Request(job, policy, force=forced, running_chain=one.chain or None)
        answer = self._apply(Step(partial(decide, request), key=key), one.at)
        outcome: Outcome = answer.outcome
        return outcome

    def _apply(self, step: Step[Any], at: int) -> Any:
        """Run a step, and plan the start of every job that may start since then."""
        changes = step.act(self._rows.view(step, read_time(at)))
        self._rows.write(changes)
        for job in (*changes.updates, *changes.inserts):
            if job.state in STARTABLE and job.id not in self._planned:
                self._plan_start(job, at)
        return changes.answer

    def _plan_start(self, job: Job, at: int) -> None:
        """Plan when a job starts, or ends without a start; one that has really not started waits on."""
        self._planned.add(job.id)
        run = self._history.runs.get(job.id)
        if run is None:
            wait = self._history.wait
            start = None if wait is None else write_time(job.created_at) + wait
        else:
            start = run.start
        if start is not None:
            heappush(self._events, (max(start, at), STARTING, job.id))
        elif run is not None and run.end is not None:
            heappush(self._events, (max(run.end, at), ENDING, job.id))

    def _advance(self, until: int) -> None:
        """Start and end the jobs whose time has come."""
        while self._events and self._events[0][0] <= until:
            at, kind, job_id = heappop(self._events)
            job = self._rows.jobs[job_id]
            if job.is_terminal:
                continue
            if kind == ENDING:
                self._end(job, at)
            elif write_time(job.run_at) > at:  # a debounce or a throttle has moved it
                heappush(self._events, (write_time(job.run_at), STARTING, job_id))
            else:
                self._start(job, at)

    def _start(self, job: Job, at: int) -> None:
        if job.state is State.SCHEDULED:
            self._apply(Step(runs.mature, job.id), at)
        started = self._apply(Step(partial(runs.start, worker="", lease=LEASE), job.id), at)
        run = self._history.runs.get(job.id)
        if run is None:
            takes = self._history.run_time
        else:
            takes = None if run.start is None or run.end is None else run.end - run.start
        if started is not None and takes is not None:
            heappush(self._events, (at + takes, ENDING, job.id))

    def _end(self, job: Job, at: int) -> None:
        run = self._history.runs.get(job.id)
        state = State.COMPLETED if run is None else run.state
        if job.state is State.ACTIVE:
            act: Callable[[View], Changes[Any]] = partial(
                runs.settle, token=job.token, result=result_of(state)
            )
        else:
            act = partial(end_unstarted, state=state)
        self._apply(Step(act, job.id), at)


def middle(values: Sequence[int]) -> int | None:
    """Return the median, the lower of two; None if there are no values."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def result_of(state: State) -> runs.Result:
    """Return the result of a run that ends a job in a state."""
    if state is State.DISCARDED:
        return runs.Failed({"type": "", "message": "", "traceback": ""}, final=True)
    return runs.Stopped("cancelled") if state is State.CANCELLED else runs.Completed()


def end_unstarted(view: View, *, state: State) -> Changes[Any]:
    """End a job that has not started, as it was cancelled or discarded."""
    return NO_CHANGES if view.job is None else leave(view, finish(view.job, state, view.now))


def blank_job(task: str) -> Job:
    """Return a job of a task; each request fills in its id, key and digest."""
    return Job(
        id="",
        namespace="",
        task=task,
        queue="",
        state=State.AVAILABLE,
        priority=0,
        run_at=EPOCH,
        place=0,
        created_at=EPOCH,
        args=b"{}",
        meta=b"{}",
        payload_digest=b"",
        retry=Retry.never(),
        chain_id="",
    )


def run_of(first: Job, last: Job) -> Run:
    """Return when a chain started and ended."""
    return Run(_time(first_start(first)), _time(last.finished_at), last.state)


def first_start(job: Job) -> datetime | None:
    """Return when a job first started; of a retried job, no later than when its first attempt failed."""
    if job.attempt <= 1 or job.started_at is None:
        return job.started_at
    failed = [datetime.fromisoformat(one["at"]) for one in job.failures]
    return min([job.started_at, *failed])


def _time(moment: datetime | None) -> int | None:
    return None if moment is None else write_time(moment)
