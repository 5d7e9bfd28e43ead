"""Every order of leases, ends and losses of a few jobs in one limited queue, breadth first.

The other explorer starts any available job. Here a lease decides by `core.leasing`, as a store does: several
workers lease, runs end, fail and lose their leases, time passes, and the queue is paused and resumed. Each
state is checked against the queue's limits, and each lease against what it must start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from onejob.core import leasing, runs
from onejob.core.decide import Request, decide
from onejob.core.job import EPOCH, Job, Retry, State, fingerprint
from onejob.core.leasing import Lease, Load, Rate
from onejob.core.policy import Unique
from onejob.core.step import Changes, Step
from onejob.stores.working_copy import WorkingCopy

QUEUE = "narrow"
LEASE = timedelta(seconds=4)
SPAN = timedelta(seconds=10)
SOON = timedelta(seconds=1)
TIMED = {State.SCHEDULED, State.RETRYABLE}
FORGOTTEN = ("revision", "errors", "result", "worker", "finished_at", "kept_until", "started_at")


class Refuted(AssertionError):
    """A rule does not hold; the trace leads to it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of a queue, its limits, and how many failures, losses and pauses may happen."""

    jobs: tuple[tuple[int, str | None], ...]  # priority and partition
    limit: int | None = None
    share: int | None = None
    rate: Rate | None = None
    keyed: bool = False  # whether all jobs have one key, with until="start" and a successor
    mishaps: int = 1
    totals: tuple[int, ...] = (1, 2)  # the capacities of the workers that lease

    def wanted(self, total: int) -> Lease:
        """Return a worker's request."""
        return Lease(
            namespace="",
            worker=f"worker {total}",
            queues={QUEUE: total},
            total=total,
            duration=LEASE,
            tasks=["work"],
            limits={} if self.limit is None else {QUEUE: self.limit},
            shares={} if self.share is None else {QUEUE: self.share},
            rates={} if self.rate is None else {QUEUE: self.rate},
        )


class Moment(NamedTuple):
    """One moment of a queue; the clock is part of it."""

    now: datetime
    book: WorkingCopy
    starts: tuple[datetime, ...] = ()
    enqueued: int = 0
    mishaps: int = 0
    paused: bool = False

    def identity(self) -> Hashable:
        """Return everything that the future depends on."""
        jobs = tuple(self.book.jobs.values())
        return (self.now, jobs, self.starts, self.enqueued, self.mishaps, self.paused)

    def load(self) -> Load:
        """Count what a store counts for a lease."""
        active = Counter((job.queue, job.partition or "") for job in self.jobs(State.ACTIVE))
        return Load(active, {QUEUE: self.starts}, {QUEUE} if self.paused else ())

    def jobs(self, *states: State) -> list[Job]:
        """Return the jobs in some states."""
        return [job for job in self.book.jobs.values() if job.state in states]


class Move(NamedTuple):
    """Something that can happen: what it is called, what it leads to, and a lease's capacity."""

    label: str
    after: Moment
    total: int | None = None


def explore(plan: Plan) -> int:
    """Visit every state of a plan; return how many there are, or raise Refuted with the way to a fault."""
    first = Moment(EPOCH, WorkingCopy(), mishaps=plan.mishaps)
    paths: dict[Hashable, tuple[str, ...]] = {first.identity(): ()}
    layer = [first]
    finished = 0
    while layer:
        following: list[Moment] = []
        for state in layer:
            path = paths[state.identity()]
            found = list(moves(state, plan))
            finished += is_finished(state, plan)
            for move in found:
                trace, after = (*path, move.label), move.after
                for rule in broken(state, move, plan):
                    raise Refuted(explain(rule, trace))
                if after.identity() not in paths:
                    paths[after.identity()] = trace
                    following.append(after)
            if not found and not is_finished(state, plan):
                raise Refuted(explain("nothing can happen any more, and jobs are left", path))
        layer = following
    if not finished:
        raise Refuted("no order of events ends all jobs")
    return len(paths)


def explain(rule: str, trace: tuple[str, ...]) -> str:
    """Return a broken rule with the moves that lead to it."""
    return rule + "".join(f"\n  {number}. {label}" for number, label in enumerate(trace, start=1))


def is_finished(state: Moment, plan: Plan) -> bool:
    """Return whether every job was enqueued and has ended."""
    return state.enqueued == len(plan.jobs) and all(job.is_terminal for job in state.book.jobs.values())


# ── what can happen ───────────────────────────────────────────────────────────────────────────────


def moves(state: Moment, plan: Plan) -> Iterator[Move]:
    """Yield everything that can happen next."""
    if state.enqueued < len(plan.jobs):
        yield Move("enqueue", enqueue(state, plan))
    for total in plan.totals:
        after, started = lease(state, plan.wanted(total))
        if after.identity() != state.identity():
            yield Move(f"lease {total}: {[job.id for job in started]}", after, total)
    for job in state.jobs(State.ACTIVE):
        yield Move(f"complete {job.id}", settle(state, job, runs.Completed(b"null")))
        if state.mishaps:
            yield from mishaps(state, job)
    if state.paused:
        yield Move("resume", state._replace(paused=False))
    elif state.mishaps:
        yield Move("pause", state._replace(paused=True, mishaps=state.mishaps - 1))
    if (moment := next_moment(state, plan)) is not None:
        label = f"wait {(moment - state.now).total_seconds():g}s"
        yield Move(label, forget(state._replace(now=moment), plan))


def mishaps(state: Moment, job: Job) -> Iterator[Move]:
    """Yield how a run ends otherwise than well."""
    left = state._replace(mishaps=state.mishaps - 1)
    yield Move(f"fail {job.id}", settle(left, job, runs.Failed({}, after=SOON)))
    yield Move(f"hand back {job.id}", settle(left, job, runs.HandedBack()))
    if job.lease_until is not None and job.lease_until <= state.now:
        yield Move(f"take back {job.id}", written(left, Step(runs.expire, job.id)))


def next_moment(state: Moment, plan: Plan) -> datetime | None:
    """Return when the passing of time next changes what a lease may do."""
    moments = [job.run_at for job in state.jobs(*TIMED)]
    moments += [job.lease_until for job in state.jobs(State.ACTIVE) if job.lease_until and state.mishaps]
    if plan.rate is not None and state.jobs(State.AVAILABLE):
        moments += [at + plan.rate.per for at in state.starts]
    return min((moment for moment in moments if moment > state.now), default=None)


def enqueue(state: Moment, plan: Plan) -> Moment:
    """Enqueue the next job of the plan."""
    number = state.enqueued
    priority, partition = plan.jobs[number]
    args = msgspec.json.encode({"number": number})
    job = Job(
        id=f"job{number}",
        namespace="",
        task="work",
        queue=QUEUE,
        state=State.AVAILABLE,
        priority=priority,
        run_at=state.now,
        place=number,
        created_at=state.now,
        args=args,
        meta=b"{}",
        payload_digest=fingerprint(args, b"{}"),
        retry=Retry(attempts=2, base=SOON, factor=1, jitter=0),
        chain_id=f"job{number}",
        partition=partition,
        key=b"key" if plan.keyed else None,
    )
    policy = Unique.coalesce() if plan.keyed else None
    request = Request(job, policy)
    return written(state._replace(enqueued=number + 1), Step(partial(decide, request), key=job.key))


def settle(state: Moment, job: Job, result: runs.Result) -> Moment:
    """End a run."""
    return written(state, Step(partial(runs.settle, token=job.token, result=result), job.id))


def lease(state: Moment, wanted: Lease) -> tuple[Moment, list[Job]]:
    """Lease as a store does: make due jobs available, then choose and start in rounds."""
    after = copied(state)
    for job in after.jobs(*TIMED):
        after.book.run(Step(runs.mature, job.id), after.now, ignore)
    started: list[Job] = []
    while True:
        capacity = leasing.Capacity(wanted, after.load(), after.now, started)
        chosen = leasing.choose(after.jobs(State.AVAILABLE), capacity)
        if not chosen:
            return scrubbed(after), started
        begun = after.book.start(chosen, wanted, after.now, ignore)
        after = after._replace(starts=(*after.starts, *(after.now for _ in begun if wanted.rates)))
        started += begun


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────


def broken(before: Moment, move: Move, plan: Plan) -> Iterator[str]:
    """Yield a sentence for every rule that a move breaks."""
    after = move.after
    active = after.jobs(State.ACTIVE)
    if plan.limit is not None and len(active) > plan.limit:
        yield f"{len(active)} jobs run in a queue whose limit is {plan.limit}"
    shares = Counter(job.partition for job in active if job.partition)
    if plan.share is not None and any(number > plan.share for number in shares.values()):
        yield f"a partition runs more than its share: {dict(shares)}"
    recent = [] if plan.rate is None else [at for at in after.starts if at + plan.rate.per > after.now]
    if plan.rate is not None and len(recent) > plan.rate.times:
        yield f"{len(recent)} jobs started within the span of the rate {plan.rate}"
    if move.total is not None:
        yield from broken_by_lease(before, after, plan, move.total)


def broken_by_lease(before: Moment, after: Moment, plan: Plan, total: int) -> Iterator[str]:
    """Yield the rules of a lease that a lease breaks: pause, order, and that no capacity is wasted."""
    ran = {job.id for job in before.jobs(State.ACTIVE)}
    started = [job for job in after.jobs(State.ACTIVE) if job.id not in ran]
    waiting = after.jobs(State.AVAILABLE)
    if before.paused and started:
        yield f"{started[0].id} started in a paused queue"
    for job in started:
        for other in waiting:
            if is_better(other, job) and fits(after, plan, other, instead_of=job):
                yield f"{job.id} started before {other.id}"
    if len(started) < total and not before.paused:
        for other in waiting:
            if fits(after, plan, other):
                yield f"{other.id} did not start although there was capacity"


def is_better(one: Job, other: Job) -> bool:
    """Return whether a job should start before another: by priority, time, then admission."""
    return (-one.priority, one.run_at, one.place) < (-other.priority, other.run_at, other.place)


def fits(state: Moment, plan: Plan, job: Job, instead_of: Job | None = None) -> bool:
    """Return whether a job could run beside those that run, or instead of one of them."""
    active = [one for one in state.jobs(State.ACTIVE) if instead_of is None or one.id != instead_of.id]
    starts = state.starts if instead_of is None else state.starts[:-1]
    if plan.limit is not None and len(active) >= plan.limit:
        return False
    if plan.rate is not None and sum(at + plan.rate.per > state.now for at in starts) >= plan.rate.times:
        return False
    same = sum(one.partition == job.partition for one in active)
    return plan.share is None or not job.partition or same < plan.share


# ── states ────────────────────────────────────────────────────────────────────────────────────────


def written(state: Moment, step: Step[Any]) -> Moment:
    """Return the state after a step."""
    after = copied(state)
    after.book.run(step, after.now, ignore)
    return scrubbed(after)


def copied(state: Moment) -> Moment:
    """Copy a state's rows; jobs are values."""
    book = WorkingCopy()
    for name in WorkingCopy.__slots__:
        setattr(book, name, dict(getattr(state.book, name)))
    return state._replace(book=book)


def scrubbed(state: Moment) -> Moment:
    """Forget what no later lease reads, so that more states are equal."""
    fresh = {"revision": 0, "errors": b"[]"}
    forgotten = {name: fresh.get(name) for name in FORGOTTEN}
    for job in list(state.book.jobs.values()):
        state.book.put(msgspec.structs.replace(job, **forgotten))
    return state


def forget(state: Moment, plan: Plan) -> Moment:
    """Forget starts that no longer count."""
    if plan.rate is None:
        return state
    return state._replace(starts=tuple(at for at in state.starts if at + plan.rate.per > state.now))


def ignore(_changes: Changes[Any]) -> None:
    """Record nothing: the working copy is the store."""
