"""App: where tasks are registered, requests admitted and jobs looked after."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar, overload
from urllib.parse import parse_qsl, urlsplit

from onejob import lifecycle
from onejob.admission import Admission
from onejob.decide import DEDUPLICATED, Outcome, Request, Verdict, decide, merged, replay
from onejob.errors import (
    Duplicate,
    InvalidCall,
    InvalidPolicy,
    MergeFailed,
    OnejobError,
    PayloadMismatch,
    QueueFull,
    UnknownJob,
    UnknownQueue,
    UnknownTask,
    WeakStore,
)
from onejob.fluent import Fluent
from onejob.job import INCOMPLETE, UNSTARTED, Job, Retry, State, View
from onejob.limits import PAUSED, Queue, Rate, declare
from onejob.move import Moved, Tell, move
from onejob.observe.doctor import examine
from onejob.observe.ledger import Ledger
from onejob.policy import Unique
from onejob.schedule import Duration, duration
from onejob.stores.contract import Filter, Finding, Guarantees, Schema, Step, Store, Tally
from onejob.sync import Portal
from onejob.tasks import Call, Task
from onejob.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("onejob")

BATCH = 2000  # calls that share one commit at most
RETENTION: Mapping[State, Duration] = {
    State.COMPLETED: "7d",
    State.CANCELLED: "7d",
    State.DISCARDED: "180d",
}
PRUNED_AT_ONCE = 500


@dataclass(frozen=True)
class Explanation:
    """What a request would meet: the verdict, the key in clear, the holder, and when the hold ends."""

    outcome: Outcome
    reason: str
    policy: str
    dimensions: Mapping[str, Any]
    key: str | None
    holder: Job | None
    successor: Job | None
    frees_at: datetime | None
    absorbed: int

    @property
    def deduplicated(self) -> bool:
        """Whether another request's job would stand for this one."""
        return self.outcome in DEDUPLICATED


@dataclass(frozen=True)
class Stats:
    """The app in numbers."""

    pending: int
    in_flight: int
    dead: int
    unique_keys_waiting: int
    by_state: Mapping[State, int]
    by_queue: Mapping[str, Mapping[State, int]]
    absorbed: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class QueueStatus:
    """A queue as it is now: its limits, how many jobs wait and how many run, and whether it is paused."""

    queue: Queue
    depth: int
    active: int
    paused: bool


class App:
    """Tasks, a store for their jobs, and the policies that they share."""

    def __init__(
        self,
        url: str = "sqlite:///jobs.db",
        *,
        namespace: str = "",
        secret: str | bytes | None = None,
        retry: Retry | None = None,
        max_args: int = 1024 * 1024,
        admission_timeout: Duration = 5,
        retention: Mapping[State | str, Duration] | None = None,
        store: Store | None = None,
    ) -> None:
        self.url = url
        self.namespace = namespace
        self.secret = _secret(secret)
        self.retry = retry or Retry()
        self.max_args = max_args
        self.retention = _retention(retention or {})
        self.store = store or open_store(url, duration(admission_timeout).total_seconds())
        self.tasks: dict[str, Task[..., Any]] = {}
        self.queues: dict[str, Queue] = {"default": Queue(name="default")}
        self.portal = Portal()
        self.ledger = Ledger(self.store)
        self.log = log

    # ── registering ───────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        unique: Unique | Fluent | bool | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        give_up_on: tuple[type[Exception], ...] = (),
        expires_in: Duration | None = None,
        partition: str | Callable[..., object] | None = None,
    ) -> _Register: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **policies: Any
    ) -> Any:
        """Register a function as a task, with its policies."""

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, name or function.__name__, policies)

        return register if function is None else register(function)

    def _register(self, function: Callable[..., Any], name: str, policies: dict[str, Any]) -> Task[..., Any]:
        if name in self.tasks:
            raise InvalidPolicy(f"Two tasks are named {name!r}: give one of them another name=.")
        task: Task[..., Any] = Task(self, function, name=name, **policies)
        self.queues.setdefault(task.queue, Queue(name=task.queue))
        self.tasks[name] = task
        return task

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        partition_concurrency: int | None = None,
        rate: str | tuple[int, Duration] | Rate | None = None,
        max_depth: int | None = None,
    ) -> None:
        """Declare a queue and its limits, which hold over all workers.

        `concurrency` is how many of its jobs run at once, `partition_concurrency` how many of them of one
        partition, `rate` how many start in a span of time ("100/1m"), `max_depth` how many may wait.
        """
        self.queues[name] = declare(
            name,
            concurrency=concurrency,
            partition_concurrency=partition_concurrency,
            rate=rate,
            max_depth=max_depth,
        )

    def check_strength(self, task: str, policy: Unique) -> None:
        """Refuse a task that demands more than the store declares."""
        if policy.strength == "strong" and (declared := self.store.guarantees).strength != "strong":
            raise WeakStore(
                f"{task} demands strength='strong', but the {declared.store} store declares "
                f"{declared.strength!r}: choose another store, or leave strength out."
            )

    def task_named(self, name: str) -> Task[..., Any]:
        """Find a task by name."""
        try:
            return self.tasks[name]
        except KeyError:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"No task is named {name!r}; registered: {known}.") from None

    def guarantees(self) -> Guarantees:
        """Tell what the store declares."""
        return self.store.guarantees

    # ── admitting ─────────────────────────────────────────────────────────────────────────────────

    async def admit(self, task: Task[..., R], request: Request, connection: Any = None) -> Admission[R]:
        """Settle one request and count it."""
        if connection is not None:
            [verdict] = await self._apply_within(connection, [request])
        else:
            [verdict] = self._counted([request], await self.store.apply([admission_step(request)]))
        return self._admitted(task, verdict)

    def admit_now(self, task: Task[..., R], request: Request, connection: Any = None) -> Admission[R]:
        """Settle one request from blocking code."""
        if connection is not None:
            [verdict] = self._apply_within_now(connection, [request])
        else:
            [verdict] = self._counted([request], self.store.apply_now([admission_step(request)]))
        return self._admitted(task, verdict)

    def _admitted(self, task: Task[..., R], verdict: Verdict | OnejobError) -> Admission[R]:
        admission = self._dress(task, verdict)
        if admission.outcome is Outcome.REJECTED:
            raise refused(self, admission)
        return admission

    def _dress(self, task: Task[..., R], verdict: Verdict | OnejobError) -> Admission[R]:
        if isinstance(verdict, OnejobError):
            raise verdict
        return Admission(self, verdict, task.signature.returns)

    def _counted(self, requests: Sequence[Request], verdicts: list[Any]) -> list[Any]:
        """Count what was absorbed, to be written down soon."""
        for tally in tallies_of(requests, verdicts):
            self.ledger.count(tally)
        return verdicts

    async def _apply_within(self, connection: Any, requests: Sequence[Request]) -> list[Any]:
        """Settle requests in the caller's transaction and count what was absorbed there too."""
        verdicts = await self.store.apply_within(connection, [admission_step(r) for r in requests])
        if tallies := tallies_of(requests, verdicts):
            await self.store.tally_within(connection, tallies)
        return verdicts

    def _apply_within_now(self, connection: Any, requests: Sequence[Request]) -> list[Any]:
        verdicts = self.store.apply_within_now(connection, [admission_step(r) for r in requests])
        if tallies := tallies_of(requests, verdicts):
            self.store.tally_within_now(connection, tallies)
        return verdicts

    async def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Admission[R]]:
        """Enqueue calls in order and answer each in its place; a request that is rejected is an outcome here.

        Every call is checked before any is stored. Atomic per key; as a whole with connection=.
        """
        calls = list(calls)
        requests = _requests(self, calls)
        if connection is not None:
            return self._dress_all(calls, await self._apply_within(connection, requests))
        verdicts: list[Any] = []
        for batch in batches(requests):
            verdicts += self._counted(batch, await self.store.apply([admission_step(r) for r in batch]))
        return self._dress_all(calls, verdicts)

    def enqueue_many_sync(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Admission[R]]:
        """Do `enqueue_many` from blocking code."""
        calls = list(calls)
        requests = _requests(self, calls)
        if connection is not None:
            return self._dress_all(calls, self._apply_within_now(connection, requests))
        verdicts: list[Any] = []
        for batch in batches(requests):
            verdicts += self._counted(batch, self.store.apply_now([admission_step(r) for r in batch]))
        return self._dress_all(calls, verdicts)

    def _dress_all(self, calls: Sequence[Call[R]], verdicts: Sequence[Any]) -> list[Admission[R]]:
        return [self._dress(call.task, verdict) for call, verdict in zip(calls, verdicts, strict=True)]

    async def standing(self, key: str | bytes) -> View:
        """Show who holds a key, and who waits behind."""
        return await self.store.look(_key(key) or b"")

    def holding(self, job: Job) -> bool:
        """Tell whether a job holds its key now."""
        return job.held_key is not None and lifecycle.holding(job, self.store.now())

    async def explain(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Explanation:
        """Tell what a request would meet, without making it."""
        request = task.request(args, kwargs)
        if request.key is None or request.policy is None:
            reason = "The task is not unique, or its key function said None."
            return Explanation(Outcome.CREATED, reason, "not unique", {}, None, None, None, None, 0)
        view = await self.store.look(request.key)
        verdict: Verdict = decide(request, view).answer
        holder = view.holder if view.holder and (view.successor or self.holding(view.holder)) else None
        return Explanation(
            verdict.outcome,
            verdict.reason,
            request.policy.describe(),
            task.dimensions(task.signature.bind(args, kwargs), request.policy) or {},
            request.key.hex(),
            holder,
            view.successor,
            holder.holds_until if holder else None,
            await self.absorbed(view.successor or holder),
        )

    async def absorbed(self, job: Job | None) -> int:
        """Tell how many requests a job has stood for besides its own."""
        return 0 if job is None else (await self.absorbed_by_job()).get(job.id, 0)

    async def absorbed_by_job(self) -> Mapping[str, int]:
        """Tell the same for every job that has stood for more than its own."""
        self.ledger.flush()
        counts: Counter[str] = Counter()
        for tally in await self.store.tallies(self.namespace):
            counts[tally.job_id] += tally.count
        return counts

    async def pending(self, request: Request) -> bool:
        """Tell whether any job of a request's key is live."""
        if request.key is None:
            return False
        live = Filter(namespace=self.namespace, key=request.key, states=INCOMPLETE, limit=1)
        return bool(await self.store.find(live))

    # ── looking after jobs ────────────────────────────────────────────────────────────────────────

    async def job(self, job_id: str) -> Job:
        """Read one job."""
        [job] = await self.store.get([job_id])
        if job is None:
            raise UnknownJob(f"No job has the id {job_id!r}: it never existed, or it has been pruned.")
        return job

    async def jobs(
        self,
        *,
        state: State | str | Collection[State | str] = (),
        queue: str | None = None,
        task: str | None = None,
        key: str | bytes | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Job]:
        """List jobs, newest first."""
        states = [state] if isinstance(state, str) else state
        wanted = Filter(
            namespace=self.namespace,
            states=frozenset(_state(name) for name in states),
            queue=queue,
            task=task,
            key=_key(key),
            limit=limit,
            offset=offset,
        )
        return await self.store.find(wanted)

    async def holds(self, *, limit: int = 100) -> list[Job]:
        """List the jobs that hold a key now, or wait behind one that does."""
        found = await self.store.find(Filter(namespace=self.namespace, held=True, limit=limit))
        now = self.store.now()
        return [job for job in found if lifecycle.holding(job, now) or job.next_key is not None]

    async def dead(self, *, task: str | None = None, limit: int = 100) -> list[Job]:
        """List dead letters, newest first."""
        return await self.jobs(state=State.DISCARDED, task=task, limit=limit)

    async def cancel(self, job_id: str, *, successors: bool = False, reason: str = "cancelled") -> Job:
        """End a waiting job, or tell a running one to stop; with successors, the one behind it too."""
        act = partial(lifecycle.cancel, reason=reason, successors=successors)
        job: Job = await self._on_job(job_id, act, "cancel")
        return job

    async def delete(self, job_id: str) -> Job:
        """Remove a job that does not run, and free what it holds."""
        job: Job = await self._on_job(job_id, lifecycle.delete, "delete")
        return job

    async def _on_job(self, job_id: str, act: Callable[[View], Any], verb: str) -> Any:
        answer: Any
        [answer] = await self.store.apply([Step(act, job_id)])
        if isinstance(answer, OnejobError):
            raise answer
        if answer is None:
            job = await self.job(job_id)
            raise InvalidCall(f"Job {job_id} is {job.state}, so it cannot be {_participle(verb)}.")
        return answer

    async def replay(self, job_id: str) -> Admission[Any]:
        """Bring a dead letter back; it may come out created, kept or stale."""
        verdict: Verdict = await self._on_job(job_id, replay, "replay")
        task = self.tasks.get(verdict.job.task)
        return Admission(self, verdict, task.signature.returns if task else Any)

    async def replay_dead(self, *, task: str | None = None, limit: int = 1000) -> list[Admission[Any]]:
        """Bring back every dead letter, or those of one task."""
        return [await self.replay(job.id) for job in await self.dead(task=task, limit=limit)]

    async def release(self, key: str | bytes, *, force: bool = False) -> Job | None:
        """Free a key by hand; None if nobody holds it. While its holder runs, this needs force."""
        wanted = _key(key)
        assert wanted is not None
        freed: Job | OnejobError | None
        [freed] = await self.store.apply([Step(partial(lifecycle.release, force=force), key=wanted)])
        if isinstance(freed, OnejobError):
            raise freed
        return freed

    async def stats(self) -> Stats:
        """Count jobs and absorbed requests."""
        self.ledger.flush()
        counts = await self.store.counts(self.namespace)
        by_state = dict.fromkeys(State, 0)
        by_queue: dict[str, dict[State, int]] = {}
        for (queue, _task, state), number in counts.jobs.items():
            by_state[state] += number
            by_queue.setdefault(queue, dict.fromkeys(State, 0))[state] += number
        absorbed: dict[str, dict[str, int]] = {}
        for tally in await self.store.tallies(self.namespace):
            outcomes = absorbed.setdefault(tally.task, {})
            outcomes[tally.outcome] = outcomes.get(tally.outcome, 0) + tally.count
        waiting = sum(by_state[state] for state in INCOMPLETE - {State.ACTIVE})
        return Stats(
            waiting,
            by_state[State.ACTIVE],
            by_state[State.DISCARDED],
            counts.keys_waiting,
            by_state,
            by_queue,
            absorbed,
        )

    async def sweep(self) -> tuple[int, int]:
        """Take back jobs of dead workers and promote stranded successors; tell how many of each.

        Jobs that did not start in time are ended, too.
        """
        await self.discard_late()
        expired = await self.store.find(
            Filter(leased_until=self.store.now(), limit=PRUNED_AT_ONCE, newest_first=False)
        )
        stranded = await self.store.find(Filter(stranded=True, limit=PRUNED_AT_ONCE))
        rescued = await self.store.apply(
            [Step(partial(lifecycle.expire, merge=self.merge), job.id) for job in expired]
        )
        repaired = await self.store.apply([Step(lifecycle.repair, job.id) for job in stranded])
        return sum(job is not None for job in rescued), sum(job is not None for job in repaired)

    async def discard_late(self) -> int:
        """End waiting jobs that have expired, in bounded batches; tell how many."""
        ended = 0
        while True:
            late = await self.store.find(
                Filter(late_by=self.store.now(), limit=PRUNED_AT_ONCE, newest_first=False)
            )
            answers = await self.store.apply([Step(lifecycle.discard_late, job.id) for job in late])
            done = sum(isinstance(job, Job) for job in answers)
            ended += done
            if len(late) < PRUNED_AT_ONCE or not done:
                return ended

    async def prune(self) -> int:
        """Forget ended jobs past their retention, in bounded batches; tell how many went."""
        return sum([await self._prune(state, age) for state, age in self.retention.items()])

    async def _prune(self, state: State, age: timedelta) -> int:
        gone = skipped = 0
        while True:
            wanted = Filter(
                states=frozenset({state}),
                ended_before=self.store.now() - age,
                limit=PRUNED_AT_ONCE,
                offset=skipped,
                newest_first=False,
            )
            found = await self.store.find(wanted)
            answers = await self.store.apply([Step(lifecycle.prune, job.id) for job in found])
            deleted = answers.count("deleted")
            gone += deleted
            skipped += len(answers) - deleted  # tombstones stay where they are
            if len(found) < PRUNED_AT_ONCE:
                return gone

    # ── looking after queues ──────────────────────────────────────────────────────────────────────

    async def pause(self, queue: str) -> None:
        """Let no worker start jobs of a queue until it is resumed; those that run finish."""
        if self.tasks and queue not in self.queues:
            known = ", ".join(sorted(self.queues))
            raise UnknownQueue(
                f"No queue is named {queue!r} (known: {known}): declare it with app.queue({queue!r})."
            )
        await self.store.put_setting(self.namespace, PAUSED, queue, self.store.now().isoformat().encode())

    async def resume(self, queue: str) -> None:
        """Let workers start jobs of a queue again, at once."""
        await self.store.put_setting(self.namespace, PAUSED, queue, None)

    async def list_queues(self) -> list[QueueStatus]:
        """Tell of every queue that is declared, has jobs or is paused what its limits are and what it has."""
        paused = await self.paused()
        numbers: dict[str, Counter[State]] = {name: Counter() for name in (*self.queues, *paused)}
        for (queue, _task, state), number in (await self.store.counts(self.namespace)).jobs.items():
            numbers.setdefault(queue, Counter())[state] += number
        return [
            QueueStatus(
                self.queues.get(name) or Queue(name=name),
                sum(by_state[state] for state in UNSTARTED),
                by_state[State.ACTIVE],
                name in paused,
            )
            for name, by_state in sorted(numbers.items())
        ]

    async def paused(self) -> frozenset[str]:
        """Name the queues that are paused."""
        return frozenset(await self.store.settings(self.namespace, PAUSED))

    # ── looking after the store ───────────────────────────────────────────────────────────────────

    async def doctor(self) -> list[Finding]:
        """Look at the store and its jobs, and say what stands well and what does not; nothing is changed."""
        unique_tasks = {name for name, task in self.tasks.items() if task.unique is not None}
        return await examine(self.store, self.namespace, unique_tasks if self.tasks else None)

    def schema(self) -> Schema:
        """Tell the version of the tables, without making or changing any."""
        return self.store.schema()

    def migrate(self) -> Schema:
        """Make the tables or bring them up to date; using the app does the same."""
        return self.store.migrate()

    def migration_sql(self) -> str:
        """Write out what `migrate` would run now."""
        return self.store.migration_sql()

    async def move_to(
        self, target: App, *, history: bool = False, tell: Tell = lambda _done, _total: None
    ) -> Moved:
        """Carry waiting jobs, holds and dead letters to another app's store; run it again to complete it.

        With `history`, what has ended goes along too. `tell` hears how many jobs were looked at, of how many.
        """
        self.ledger.flush()
        return await move(self.store, target.store, history=history, tell=tell)

    def merge(self, older: Job, newer: Job) -> Job:
        """Combine two payloads of a key by their task's policy."""
        task = self.tasks.get(newer.task)
        if task is None or task.unique is None or task.unique.merge is None:
            raise MergeFailed(f"{newer.task} was enqueued with a merge that is not the task's own.")
        return merged(older, newer, task.unique)

    # ── running and closing ───────────────────────────────────────────────────────────────────────

    def worker(
        self,
        *,
        concurrency: int = 8,
        queues: Collection[str] | Mapping[str, int] | None = None,
        lease: Duration = "15s",
        grace: Duration = "25s",
        drain: bool = False,
        name: str | None = None,
    ) -> Worker:
        """Make a worker: `async with app.worker(): …` runs it meanwhile, `await worker.run()` by itself."""
        return Worker(
            self,
            concurrency=concurrency,
            queues=queues,
            lease=duration(lease),
            grace=duration(grace).total_seconds(),
            drain=drain,
            name=name,
        )

    async def close(self) -> None:
        """Write down what was counted and let go of the store; using the app again reopens it."""
        self.ledger.flush()
        await self.store.close()
        self.portal.close()

    def close_sync(self) -> None:
        """Do `close` from blocking code."""
        self.ledger.flush()
        self.portal.run(self.store.close())
        self.portal.close()

    async def __aenter__(self) -> Self:
        """Use the app for the length of a block."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""
        await self.close()


class _Register:
    """The type of `app.task(…)` as a decorator."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        """Never called: a decorator of this shape is what `app.task` returns."""
        raise NotImplementedError


def _requests(app: App, calls: Sequence[Call[Any]]) -> list[Request]:
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidCall(f"{call!r} is no call: write task.call(…).")
        if call.task.app is not app:
            raise InvalidCall(f"{call.task.name} belongs to another app: enqueue it there.")
    if any(call.task.connection is not None for call in calls):
        raise InvalidCall("A batch has one transaction: give connection= to enqueue_many, not to its calls.")
    return [call.request() for call in calls]


def refused(app: App, admission: Admission[Any]) -> OnejobError:
    """Make the error that a single enqueue raises for a rejected request."""
    match admission.refusal:
        case "mismatch":
            return PayloadMismatch(admission)
        case "merge":
            return MergeFailed(admission.reason)
        case "full":
            queue = admission.job.queue
            return QueueFull(queue, admission.depth or 0, app.queues[queue].max_depth or 0)
        case _:
            return Duplicate(admission)


def batches(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Part a long list of requests into what one commit takes."""
    return (requests[start : start + BATCH] for start in range(0, len(requests), BATCH))


def tallies_of(requests: Sequence[Request], verdicts: Sequence[Any]) -> list[Tally]:
    """Tell which requests made no job of their own, or would not have but for shadow."""
    return [
        tally_of(request, verdict)
        for request, verdict in zip(requests, verdicts, strict=True)
        if isinstance(verdict, Verdict)
        and (verdict.outcome in DEDUPLICATED or verdict.shadow is not None)
        and verdict.refusal != "full"
    ]


def tally_of(request: Request, verdict: Verdict) -> Tally:
    """Count one absorbed request, and say so in the log for those who listen."""
    outcome = str(verdict.outcome) if verdict.shadow is None else f"shadow:{verdict.shadow}"
    standing = verdict.job if verdict.shadow is None or verdict.holder is None else verdict.holder
    if request.key is not None and log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s: key %s is held by job %s", outcome, request.task, request.key.hex(), standing.id)
    return Tally(request.namespace, request.task, outcome, standing.id, 1)


def admission_step(request: Request) -> Step:
    """Make the step that settles a request."""
    marks = request.policy is not None and request.policy.marks
    queue = None if request.max_depth is None else (request.namespace, request.queue)
    return Step(partial(decide, request), key=request.key, marks=marks, queue=queue)


def open_store(url: str, admission_timeout: float) -> Store:
    """Choose the store that a URL names."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    match parts.scheme:
        case "memory":
            from onejob.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            from onejob.stores.sql.sqlite import SQLiteStore

            return SQLiteStore(
                _path(url, parts.path), admission_timeout=admission_timeout, **_sqlite_options(options)
            )
        case "postgresql" | "postgres":
            return _postgres(url, admission_timeout)
        case "redis" | "rediss" | "unix" | "redis+unix" | "redis+cluster" | "rediss+cluster":
            return _redis(url, admission_timeout)
        case _:
            raise InvalidCall(
                f"A URL that begins with {parts.scheme or url!r} names no store: write sqlite:///jobs.db, "
                "postgresql://user@host/database, redis://host or memory://."
            )


def _postgres(url: str, admission_timeout: float) -> Store:
    with _needing("PostgreSQL", "postgres", {"psycopg", "psycopg_pool"}):
        from onejob.stores.sql.postgres.store import PostgresStore
    return PostgresStore(url, admission_timeout=admission_timeout)


def _redis(url: str, admission_timeout: float) -> Store:
    with _needing("Redis", "redis", {"redis", "hiredis"}):
        from onejob.stores.redis.store import RedisStore
    return RedisStore(url, admission_timeout=admission_timeout)


@contextmanager
def _needing(name: str, extra: str, packages: Collection[str]) -> Iterator[None]:
    """Say which extra brings a driver that is not installed."""
    try:
        yield
    except ImportError as error:  # psycopg also without the library that it wraps
        if (error.name or "psycopg").partition(".")[0] not in packages:
            raise
        raise InvalidCall(f"{name} needs its driver: install onejob[{extra}].") from None


def _path(url: str, path: str) -> Path:
    if ":memory:" in path:
        raise InvalidCall("A SQLite database in memory is not shared by connections: write memory://.")
    if len(path) < 2:  # noqa: PLR2004 - more than the slash
        raise InvalidCall(f"{url!r} names no file: write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db.")
    return Path(path[1:])


def _sqlite_options(options: Mapping[str, str]) -> dict[str, Any]:
    unknown = options.keys() - {"synchronous"}
    if unknown or options.get("synchronous", "FULL").upper() not in {"FULL", "NORMAL"}:
        raise InvalidCall(
            "A sqlite:// URL takes ?synchronous=FULL (the default) or ?synchronous=NORMAL, nothing else."
        )
    return {"synchronous": options.get("synchronous", "FULL").upper()}


def _secret(secret: str | bytes | None) -> bytes | None:
    if secret is None:
        return None
    if not secret:
        raise InvalidPolicy("secret= is empty, which protects nothing: give one, or leave it out.")
    return secret.encode() if isinstance(secret, str) else secret


def _retention(chosen: Mapping[State | str, Duration]) -> dict[State, timedelta]:
    return {
        state: duration(age)
        for state, age in {**RETENTION, **{_ended(s): a for s, a in chosen.items()}}.items()
    }


def _ended(state: State | str) -> State:
    if state in RETENTION:
        return State(state)
    known = ", ".join(RETENTION)
    raise InvalidPolicy(f"retention={{{str(state)!r}: …}}: only {known} jobs are kept and forgotten.")


def _state(name: State | str) -> State:
    try:
        return State(name)
    except ValueError:
        raise InvalidCall(f"{name!r} is no state: write one of {', '.join(State)}.") from None


def _key(key: str | bytes | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    try:
        return bytes.fromhex(key)
    except ValueError:
        raise InvalidCall(
            f"{key!r} is not a key: give its hexadecimal digits, as Admission.key shows them."
        ) from None


def _participle(verb: str) -> str:
    return {"cancel": "cancelled", "delete": "deleted", "replay": "replayed"}[verb]
