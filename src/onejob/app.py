"""App: where tasks are registered, requests admitted and jobs looked after."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec

from onejob import dependants, letters, lifecycle, retention
from onejob.admission import Admission
from onejob.chains import Chain
from onejob.codec import Codec, Safe, reveal
from onejob.context import Finished, finished
from onejob.decide import DEDUPLICATED, Outcome, Request, Verdict, come_back, decide, merged, replay
from onejob.dependants import chains_named, is_awaited, is_quiet
from onejob.errors import (
    BlockerCycle,
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
from onejob.job import INCOMPLETE, UNSTARTED, Job, Replay, Retry, State, Trait, View, alter
from onejob.letters import DeadGroup, Which
from onejob.limits import PAUSED, Queue, Rate, declare
from onejob.move import Moved, Tell, move
from onejob.observe.doctor import examine
from onejob.observe.ledger import Ledger
from onejob.opening import open_store
from onejob.policy import Unique
from onejob.retention import DEFAULT, Pruned, ages
from onejob.schedule import Duration, duration
from onejob.schedules import KEEP, Schedules, line_of
from onejob.stores.contract import Filter, Finding, Guarantees, Schema, Step, Store, Tally
from onejob.sync import Portal
from onejob.tasks import Call, Task
from onejob.tick import Missed
from onejob.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("onejob")

BATCH = 2000  # calls that share one commit at most
SWEPT_AT_ONCE = 500
REPLAYED_AT_ONCE = 100  # letters that share a commit


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
        codec: Codec | None = None,
        retry: Retry | None = None,
        max_args: int = 1024 * 1024,
        admission_timeout: Duration = 5,
        retention: Mapping[State | str, Duration] | None = None,
        store: Store | None = None,
    ) -> None:
        self.url = url
        self.place: str | None = None  # module:attribute, if the command line has found it there
        self.namespace = namespace
        self.secret = _secret(secret)
        self.safe = Safe.of(codec, self.secret)
        self.retry = retry or Retry()
        self.max_args = max_args
        self.retention = {**DEFAULT, **ages(retention or {})}
        self.store = store or open_store(url, duration(admission_timeout).total_seconds())
        self.tasks: dict[str, Task[..., Any]] = {}
        self.queues: dict[str, Queue] = {"default": Queue(name="default")}
        self.schedules = Schedules(self)
        self.portal = Portal()
        self.ledger = Ledger(self.store)
        self.log = log
        self._mended = 0  # how many of the jobs that wait the sweep has looked at

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
        process: bool = False,
        expires_in: Duration | None = None,
        partition: str | Callable[..., object] | None = None,
        replay: Replay | None = None,
        retention: Mapping[State | str, Duration] | None = None,
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

    def cron(
        self,
        line: str | None = None,
        /,
        *,
        every: Duration | None = None,
        timezone: str = "UTC",
        overlap: Unique | Fluent | bool | None = KEEP,
        missed: Missed = "one",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> _Schedule:
        """Run a task by a cron line, or every so often; written above @app.task, or above a function.

        A tick that meets the schedule's own unfinished job is settled by `overlap`, ticks that nobody was
        there to make by `missed`: "skip", "one" for all of them, or "all", up to a hundred.
        """

        def declare(task: Task[..., Any] | Callable[..., Any]) -> Task[..., Any]:
            task = task if isinstance(task, Task) else self._register(task, task.__name__, {})
            call = task.call(*args, **(kwargs or {}))
            policies = {"timezone": timezone, "overlap": overlap, "missed": missed}
            self.schedules.declare(call, line_of(line, every), name=name, **policies)
            return task

        return cast("_Schedule", declare)

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
        if request.job.blockers is not None:
            request = await self._reaching(task, request)
        if connection is not None:
            [verdict] = await self._apply_within(connection, [request])
        else:
            [verdict] = await self.store.apply([admission_step(request)])
            self._count(request, verdict)
        if not is_quiet(request, verdict):
            verdict = await self._settled_in(task, request, verdict, connection)
        return self._admitted(task, verdict)

    def admit_now(self, task: Task[..., R], request: Request, connection: Any = None) -> Admission[R]:
        """Settle one request from blocking code."""
        if request.job.blockers is not None:
            request = self.portal.run(self._reaching(task, request))
        if connection is not None:
            [verdict] = self._apply_within_now(connection, [request])
        else:
            [verdict] = self.store.apply_now([admission_step(request)])
            self._count(request, verdict)
        if not is_quiet(request, verdict):
            verdict = self._settled_in_now(task, request, verdict, connection)
        return self._admitted(task, verdict)

    async def _reaching(self, task: Task[..., Any], request: Request) -> Request:
        """Find out what the chains that a request waits for wait for themselves.

        Nobody waits for a job that takes nobody's place: it needs not ask, if it has the chains at hand.
        """
        chains = list(chains_named(request.job.blockers))
        if request.policy is None and task.awaited.keys() >= set(chains):
            return request
        talk = dependants.reach(chains, task.awaited)
        reaches = await dependants.converse(talk, self.store, self.store.apply)
        return msgspec.structs.replace(request, reaches=reaches)

    async def _settled_in(
        self, task: Task[..., Any], request: Request, verdict: Verdict, connection: Any
    ) -> Verdict:
        talk = dependants.settle_in(request, verdict, task.awaited)
        apply = partial(self.store.apply_within, connection) if connection is not None else self.store.apply
        return await dependants.converse(talk, self.store, apply)

    def _settled_in_now(
        self, task: Task[..., Any], request: Request, verdict: Verdict, connection: Any
    ) -> Verdict:
        store, talk = self.store, dependants.settle_in(request, verdict, task.awaited)
        apply = partial(store.apply_within_now, connection) if connection is not None else store.apply_now
        return dependants.converse_now(talk, self.portal.run, store, apply)

    async def refuse_cycle(self, job: Job, continuation: Job) -> None:
        """Refuse a continuation that would wait for its own chain, by way of others."""
        talk = dependants.reach(continuation.awaits, {})
        if job.chain_id in await dependants.converse(talk, self.store, self.store.apply):
            raise BlockerCycle(f"{continuation.task} would wait for its own chain, {job.chain_id}.")

    async def expect_blockers(self, job: Job) -> None:
        """Let the chains that a continuation waits for know of it, once it is there and has its chain."""
        [written] = await self.store.get([job.id])
        if written is not None:
            talk = dependants.begin_to_wait(written, {})
            await dependants.converse(talk, self.store, self.store.apply)

    async def tell_dependants(self, ended: Iterable[Job | None]) -> int:
        """Tell whoever waits for chains that these jobs have ended; answer how many that changes."""
        news = dependants.endings(job for job in ended if job is not None and is_awaited(job))
        if not news:
            return 0
        return await dependants.converse(dependants.spread(news), self.store, self.store.apply)

    def _admitted(self, task: Task[..., R], verdict: Verdict | OnejobError) -> Admission[R]:
        if isinstance(verdict, OnejobError):
            raise verdict
        admission: Admission[R] = Admission(self, verdict, task.signature.returns)
        if verdict.outcome is Outcome.REJECTED:
            raise refused(self, admission)
        return admission

    def _count(self, request: Request, verdict: Any) -> None:
        """Count a request that was absorbed, to be written down soon."""
        if is_absorbed(verdict):
            self.ledger.count(tally_of(request, verdict))

    def _counted(self, requests: Sequence[Request], verdicts: list[Any]) -> list[Any]:
        for request, verdict in zip(requests, verdicts, strict=True):
            self._count(request, verdict)
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

    async def enqueue_many(
        self, calls: Iterable[Call[R]], *, connection: Any = None, awaited: bool = False
    ) -> list[Admission[R]]:
        """Enqueue calls in order and answer each in its place; what is rejected is an outcome here.

        Every call is checked before any is stored. Atomic per key; as a whole with connection=. Say `awaited`
        if something will wait for all of them: it is noted on each as it is written.
        """
        calls = list(calls)
        requests = _requests(self, calls, awaited=awaited)
        for index in _blocked(requests):
            requests[index] = await self._reaching(calls[index].task, requests[index])
        if connection is not None:
            verdicts = await self._apply_within(connection, requests)
        else:
            verdicts = []
            for batch in batches(requests):
                verdicts += self._counted(batch, await self.store.apply([admission_step(r) for r in batch]))
        for index in _unquiet(requests, verdicts):
            given = (calls[index].task, requests[index], verdicts[index], connection)
            verdicts[index] = await self._settled_in(*given)
        return self._answered(calls, verdicts)

    def enqueue_many_sync(
        self, calls: Iterable[Call[R]], *, connection: Any = None, awaited: bool = False
    ) -> list[Admission[R]]:
        """Do `enqueue_many` from blocking code."""
        calls = list(calls)
        requests = _requests(self, calls, awaited=awaited)
        for index in _blocked(requests):
            requests[index] = self.portal.run(self._reaching(calls[index].task, requests[index]))
        if connection is not None:
            verdicts = self._apply_within_now(connection, requests)
        else:
            verdicts = []
            for batch in batches(requests):
                verdicts += self._counted(batch, self.store.apply_now([admission_step(r) for r in batch]))
        for index in _unquiet(requests, verdicts):
            given = (calls[index].task, requests[index], verdicts[index], connection)
            verdicts[index] = self._settled_in_now(*given)
        return self._answered(calls, verdicts)

    def _answered(self, calls: Sequence[Call[R]], verdicts: Sequence[Any]) -> list[Admission[R]]:
        for verdict in verdicts:
            if isinstance(verdict, OnejobError):
                raise verdict
        return [
            Admission(self, verdict, call.task.signature.returns)
            for call, verdict in zip(calls, verdicts, strict=True)
        ]

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
        key = request.job.key
        if key is None or request.policy is None:
            reason = "The task is not unique, or its key function said None."
            return Explanation(Outcome.CREATED, reason, "not unique", {}, None, None, None, None, 0)
        view = await self.store.look(key)
        verdict: Verdict = decide(request, view).answer
        holder = view.holder if view.holder and (view.successor or self.holding(view.holder)) else None
        return Explanation(
            verdict.outcome,
            verdict.reason,
            request.policy.describe(),
            task.dimensions(task.signature.bind(args, kwargs), request.policy) or {},
            key.hex(),
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
        if request.job.key is None:
            return False
        live = Filter(namespace=self.namespace, key=request.job.key, states=INCOMPLETE, limit=1)
        return bool(await self.store.find(live))

    # ── looking after jobs ────────────────────────────────────────────────────────────────────────

    async def job(self, job_id: str) -> Job:
        """Read one job."""
        [job] = await self.store.get([job_id])
        if job is None:
            raise UnknownJob(f"No job has the id {job_id!r}: it never existed, or it has been pruned.")
        return job

    def reveal(self, job: Job) -> Job:
        """Return a job with its arguments, result, errors and progress in clear, if they are sealed."""
        return reveal(self.safe, job)

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

    async def dead(self, *, limit: int = 100, **which: Unpack[Which]) -> list[Job]:
        """List dead letters, the latest dead first: all, or by task, queue, error, message and age."""
        found: list[Job] = []
        page = max(min(limit, letters.PAGE), 1)
        async for some in letters.find(self.store, self.namespace, which, page):
            found += some
            if len(found) >= limit:
                break
        return found[:limit]

    async def dead_groups(self, **which: Unpack[Which]) -> list[DeadGroup]:
        """Gather dead letters that died of the same: per task, type of error and message."""
        groups = letters.Groups()
        async for some in letters.find(self.store, self.namespace, which):
            groups.add(some)
        return groups.sorted()

    async def cancel(self, job_id: str, *, successors: bool = False, reason: str = "cancelled") -> Job:
        """End a waiting job, or tell a running one to stop; with successors, the one behind it too."""
        act = partial(lifecycle.cancel, reason=reason, successors=successors)
        behind = await self._behind(job_id) if successors else None
        job: Job = await self._on_job(job_id, act, "cancel")
        both = [job, *(await self.store.get([behind.id]) if behind else [])]
        await self.tell_dependants(one for one in both if one is not None and one.state is State.CANCELLED)
        return job

    async def _behind(self, job_id: str) -> Job | None:
        job = await self.job(job_id)
        return None if job.key is None else (await self.store.look(job.key)).successor

    async def delete(self, job_id: str, *, force: bool = False) -> Job:
        """Remove a job that does not run, and free what it holds.

        Refused while other jobs wait for its chain; with force these wait on, for what will not come.
        """
        waiting = [] if force else await self._waiting_for(job_id)
        if waiting:
            raise InvalidCall(
                f"{len(waiting)} jobs wait for job {job_id}, such as {waiting[0].id}: cancel those, or force."
            )
        job: Job = await self._on_job(job_id, lifecycle.delete, "delete")
        return job

    async def _waiting_for(self, job_id: str) -> list[Job]:
        job = await self.job(job_id)
        return await self.store.find(Filter(awaits=[job.chain_id])) if is_awaited(job) else []

    # ── chains ────────────────────────────────────────────────────────────────────────────────────

    def chain(self, chain_id: str) -> Chain[Any]:
        """Name a chain by its id, which is its first job's."""
        return Chain(self, chain_id)

    async def chains(self, *, state: State | str | None = None, limit: int = 100) -> list[Job]:
        """List chains, newest first, each by the job that it has come to; `state` is the chain's status."""
        wanted = None if state is None else _state(state)
        found: list[Job] = []
        offset = 0
        while len(found) < limit:
            page = await self.store.find(Filter(namespace=self.namespace, limit=SWEPT_AT_ONCE, offset=offset))
            tails = await self.store.tails([job.id for job in page if not job.chain_index])
            found += [job for job in tails if job is not None and wanted in {None, lifecycle.phase(job)}]
            offset += len(page)
            if len(page) < SWEPT_AT_ONCE:
                break
        return found[:limit]

    async def finished(self, job: Job) -> tuple[Finished, ...]:
        """Read the chains that a job has waited for, in their order."""
        return finished(self, [tail for tail in await self.store.tails(job.awaits) if tail is not None])

    async def waiting_for(self, chain_id: str, *, limit: int = 100) -> list[Job]:
        """List the jobs that wait for a chain."""
        found = await self.store.find(Filter(awaits=[chain_id], limit=limit))
        return [job for job in found if job.state is State.PENDING]

    async def _on_job(self, job_id: str, act: Callable[[View], Any], verb: str) -> Any:
        answer: Any
        [answer] = await self.store.apply([Step(act, job_id)])
        if isinstance(answer, OnejobError):
            raise answer
        if answer is None:
            job = await self.job(job_id)
            raise InvalidCall(f"Job {job_id} is {job.state}, so it cannot be {_participle(verb)}.")
        return answer

    async def replay(self, job_id: str, *, args: Mapping[str, Any] | None = None) -> Admission[Any]:
        """Bring a dead letter back, perhaps with other arguments; it may come out created, kept or stale."""
        [answer] = await self.replay_many([job_id], args=args)
        if isinstance(answer, OnejobError):
            raise answer
        if answer is None:
            job = await self.job(job_id)
            raise InvalidCall(f"Job {job_id} is {job.state}, so it cannot be replayed.")
        return answer

    async def replay_many(
        self, ids: Sequence[str], *, args: Mapping[str, Any] | None = None
    ) -> list[Admission[Any] | OnejobError | None]:
        """Bring dead letters back in one commit, and answer each in its place.

        None stands for one that is no dead letter any more, an error for one that may not be edited so.
        """
        act = replay if args is None else partial(replay, edit=partial(self._edit, dict(args)))
        answers = await self.store.apply([Step(act, job_id) for job_id in ids])
        await self._count_replays(ids, answers)
        return [self._replayed(answer) for answer in answers]

    async def replay_dead(
        self, *, limit: int = 1000, args: Mapping[str, Any] | None = None, **which: Unpack[Which]
    ) -> list[Admission[Any]]:
        """Bring back all dead letters, or those that are meant, in batches; see `dead` for which.

        The latest dead come first, so that of two with one key the newer gets it.
        """
        ids = [job.id for job in await self.dead(limit=limit, **which)]
        admissions: list[Admission[Any]] = []
        for some in parts(ids, REPLAYED_AT_ONCE):
            for answer in await self.replay_many(some, args=args):
                if isinstance(answer, OnejobError):
                    raise answer
                admissions += [] if answer is None else [answer]
        return admissions

    async def dead_ids(self, **which: Unpack[Which]) -> list[str]:
        """List the ids of dead letters, however many, the latest dead first."""
        found: list[str] = []
        async for some in letters.find(self.store, self.namespace, which):
            found += [job.id for job in some]
        return found

    def _edit(self, args: dict[str, Any], job: Job) -> Job:
        return self.task_named(job.task).edited(job, args)

    def _replayed(self, answer: Verdict | OnejobError | None) -> Admission[Any] | OnejobError | None:
        if not isinstance(answer, Verdict):
            return answer
        task = self.tasks.get(answer.job.task)
        return Admission(self, answer, task.signature.returns if task else Any)

    async def _count_replays(self, ids: Sequence[str], answers: Sequence[Any]) -> None:
        """Count the letters for which another job stood, as any request is."""
        absorbed = {
            job_id: answer
            for job_id, answer in zip(ids, answers, strict=True)
            if isinstance(answer, Verdict) and answer.outcome in DEDUPLICATED
        }
        for letter in await self.store.get(list(absorbed)) if absorbed else ():
            if letter is not None:
                verdict = absorbed[letter.id]
                self.ledger.count(
                    Tally(letter.namespace, letter.task, str(verdict.outcome), verdict.job.id, 1)
                )

    async def replay_due(self) -> Counter[Outcome]:
        """Bring back the dead letters whose time has come, so many at most; tell what they came to."""
        outcomes: Counter[Outcome] = Counter()
        for name, task in self.tasks.items():
            if task.replay is not None:
                outcomes += await self._replay_due(name, task.replay)
        return outcomes

    async def _replay_due(self, task: str, policy: Replay) -> Counter[Outcome]:
        wanted = Filter(namespace=self.namespace, task=task, returns_by=self.store.now(), limit=SWEPT_AT_ONCE)
        ids = [job.id for job in await self.store.find(wanted)]
        outcomes: Counter[Outcome] = Counter()
        for some in parts(ids, REPLAYED_AT_ONCE):
            answers = await self.store.apply([Step(partial(come_back, policy=policy), one) for one in some])
            await self._count_replays(some, answers)
            outcomes.update(answer.outcome for answer in answers if isinstance(answer, Verdict))
        if outcomes:
            told = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
            log.info("dead letters of %s whose time had come: %s", task, told)
        return outcomes

    def replay_of(self, job: Job) -> Replay | None:
        """Tell how a job's task has its dead letters replayed."""
        task = self.tasks.get(job.task)
        return None if task is None else task.replay

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
            Filter(leased_until=self.store.now(), limit=SWEPT_AT_ONCE, newest_first=False)
        )
        stranded = await self.store.find(Filter(stranded=True, limit=SWEPT_AT_ONCE))
        rescued = await self.store.apply(
            [
                Step(partial(lifecycle.expire, merge=self.merge, replay=self.replay_of(job)), job.id)
                for job in expired
            ]
        )
        repaired = await self.store.apply([Step(lifecycle.repair, job.id) for job in stranded])
        await self.tell_dependants(job for job in rescued if isinstance(job, Job))
        told = await self._mend()
        return sum(job is not None for job in rescued), sum(job is not None for job in repaired) + told

    async def discard_late(self) -> int:
        """End waiting jobs that have expired, in bounded batches; tell how many."""
        ended = 0
        while True:
            late = await self.store.find(
                Filter(late_by=self.store.now(), limit=SWEPT_AT_ONCE, newest_first=False)
            )
            answers = await self.store.apply([Step(lifecycle.discard_late, job.id) for job in late])
            done = [job for job in answers if isinstance(job, Job)]
            await self.tell_dependants(done)
            ended += len(done)
            if len(late) < SWEPT_AT_ONCE or not done:
                return ended

    async def _mend(self) -> int:
        """Bring news that a dying process did not, to the next some of those who wait."""
        looked, told = await dependants.converse(dependants.mend(self._mended), self.store, self.store.apply)
        self._mended = self._mended + looked - told if looked == dependants.PAGE else 0
        return told

    async def prune(self, *, dry_run: bool = False, tell: retention.Tell = lambda _: None) -> int:
        """Forget ended jobs past their retention, in bounded batches; tell how many went, or would."""
        one = retention.Pass(self.store, self.namespace, tell)
        done = await one.run(self._retention_rules(), dry=dry_run)
        if not dry_run:
            self.ledger.flush()
            await self.store.fold(self.namespace)
        return done.deleted

    async def prune_in_turn(self) -> Pruned | None:
        """Do the same as one of many workers: from where the last left off, and only if it is time."""
        return await retention.take_turn(self.store, self.namespace, self._retention_rules())

    def _retention_rules(self) -> list[retention.Rule]:
        return retention.rules(self.retention, {name: task.retention for name, task in self.tasks.items()})

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
        await self.schedules.carry(target.schedules)
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
        processes: int | None = None,
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
            processes=processes,
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


class _Schedule:
    """The type of `app.cron(…)` as a decorator."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, task: Any, /) -> Task[..., Any]:
        """Never called: a decorator of this shape is what `app.cron` returns."""
        raise NotImplementedError


def _blocked(requests: Sequence[Request]) -> list[int]:
    return [index for index, request in enumerate(requests) if request.job.blockers is not None]


def _unquiet(requests: Sequence[Request], verdicts: Sequence[Any]) -> list[int]:
    pairs = zip(requests, verdicts, strict=True)
    return [index for index, (request, verdict) in enumerate(pairs) if not is_quiet(request, verdict)]


def _requests(app: App, calls: Sequence[Call[Any]], *, awaited: bool) -> list[Request]:
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidCall(f"{call!r} is no call: write task.call(…).")
        if call.task.app is not app:
            raise InvalidCall(f"{call.task.name} belongs to another app: enqueue it there.")
    if any(call.task.connection is not None for call in calls):
        raise InvalidCall("A batch has one transaction: give connection= to enqueue_many, not to its calls.")
    requests = [call.request() for call in calls]
    if not awaited:
        return requests
    return [
        msgspec.structs.replace(one, job=alter(one.job, traits=one.job.traits | Trait.AWAITED))
        for one in requests
    ]


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
    return parts(requests, BATCH)


def parts(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Part a long list."""
    return (things[start : start + size] for start in range(0, len(things), size))


def tallies_of(requests: Sequence[Request], verdicts: Sequence[Any]) -> list[Tally]:
    """Tell which requests were absorbed."""
    return [
        tally_of(request, verdict)
        for request, verdict in zip(requests, verdicts, strict=True)
        if is_absorbed(verdict)
    ]


def is_absorbed(verdict: Any) -> bool:
    """Tell whether a request made no job of its own, or would not have but for shadow."""
    if not isinstance(verdict, Verdict) or verdict.refusal == "full":
        return False
    return verdict.outcome in DEDUPLICATED or verdict.shadow is not None


def tally_of(request: Request, verdict: Verdict) -> Tally:
    """Count one absorbed request, and say so in the log for those who listen."""
    outcome = str(verdict.outcome) if verdict.shadow is None else f"shadow:{verdict.shadow}"
    standing = verdict.job if verdict.shadow is None or verdict.holder is None else verdict.holder
    asked = request.job
    if asked.key is not None and log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s: key %s is held by job %s", outcome, asked.task, asked.key.hex(), standing.id)
    return Tally(asked.namespace, asked.task, outcome, standing.id, 1)


def admission_step(request: Request) -> Step:
    """Make the step that settles a request."""
    marks = request.policy is not None and request.policy.marks
    queue = None if request.max_depth is None else (request.job.namespace, request.job.queue)
    return Step(partial(decide, request), key=request.job.key, marks=marks, queue=queue)


def _secret(secret: str | bytes | None) -> bytes | None:
    if secret is None:
        return None
    if not secret:
        raise InvalidPolicy("secret= is empty, which protects nothing: give one, or leave it out.")
    return secret.encode() if isinstance(secret, str) else secret


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
    return {"cancel": "cancelled", "delete": "deleted"}[verb]
