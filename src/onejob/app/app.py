"""App: the composition root. It puts a store, an engine and a registry together; no module below needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from onejob.app.activity import Activity
from onejob.app.dead_letters import DeadLetters
from onejob.app.listing import list_chains, read_filters, read_held
from onejob.app.maintenance import Maintenance
from onejob.app.queues import Queues
from onejob.app.schedules import Schedules
from onejob.app.stats import Stats, read_stats
from onejob.app.values import (
    WorkerOptions,
    is_several,
    read_defaults,
    read_key,
    read_namespace,
    read_rescheduling,
    shown,
)
from onejob.core import holds, suggestions
from onejob.core.durations import Duration, duration, seconds
from onejob.core.fluent import Fluent
from onejob.core.job import Job, Replay, Retry, State
from onejob.core.leasing import Rate
from onejob.core.leasing import declare as declare_queue
from onejob.core.policy import Unique
from onejob.core.ticks import Missed
from onejob.engine.absorbed_log import KEPT_FOR
from onejob.engine.engine import Engine
from onejob.engine.events import Kind, WorkerKind
from onejob.engine.hooks import RegisterHook
from onejob.engine.jobs import cancel_job, delete_job, read_rescheduled, refuse_unmoved, release_key
from onejob.engine.portal import refuse_running_loop
from onejob.engine.sealing import Codec, Sealer, read_secret, reveal
from onejob.errors import InvalidPolicy
from onejob.observe.doctor import examine
from onejob.observe.why import Why, why
from onejob.stores.contract import Finding, FullStore, Guarantees
from onejob.stores.open import open_store
from onejob.tasks import foreign
from onejob.tasks.admission import Admission, JobLike, id_of
from onejob.tasks.blocking import blocking
from onejob.tasks.bulk import enqueue_many, enqueue_many_sync, list_of_calls
from onejob.tasks.call import Call, name_of
from onejob.tasks.chain import Chain
from onejob.tasks.collection import Tasks, declared_in
from onejob.tasks.declaration import declare
from onejob.tasks.decorators import RegisterSchedule, RegisterTask
from onejob.tasks.explain import absorbed_by_job
from onejob.tasks.options import Options
from onejob.tasks.registry import Registry
from onejob.tasks.request import RequestBuilder
from onejob.tasks.schedule import KEEP
from onejob.tasks.schedules import declare_schedule, line_of, make_schedule
from onejob.tasks.task import Task, bind_task, builder_of, refuse_task
from onejob.tasks.unawaited import Unawaited
from onejob.worker.ending import run_to_end
from onejob.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


@suggestions.answers_unknown(suggestions.APP)
class App:
    """Tasks, a store for their jobs, and the policies that they share.

    Args:
        url: The store: "sqlite:///jobs.db", "postgresql://…", "redis://…" or "memory://".
        namespace: The tenant. An app sees and changes only jobs and keys of its own namespace.
        secret: Makes keys HMACs, so that arguments cannot be guessed from them; 16 bytes or more.
        codec: Seals arguments, results and error messages; needs a secret.
        accept_clear: Also run jobs that are not sealed, from before the app had a codec.
        unique: The policy of tasks that do not declare one; `unique=False` on a task means none.
        retry: How often and how soon tasks are retried, unless they say otherwise.
        max_args: How many bytes of JSON a job's arguments or its result may take.
        admission_timeout: How long an enqueue waits for a key that another open transaction holds.
        store_timeout: How long a call to the store may take before it fails with StoreTimeout.
        retention: How long ended jobs are kept, by state: {"completed": "7d"}.
        record_callers: Whether the log of absorbed requests has host, process and line of each caller.
        keep_absorbed: How long that log is kept.
        record_requests: Whether requests are recorded for a day, without values, for `app.activity.advice()`.
        lifespan: What is open while a worker runs: a function that takes the app and returns an async context
            manager. The mapping that it yields is `current().state`.
        store: A store object, instead of a URL.

    Attributes:
        dead: List and replay dead letters.
        queues: List, pause and resume queues.
        schedules: List, add, pause and remove schedules.
        maintenance: Sweep, prune, check and migrate the store.
        activity: Workers, recent events, absorbed requests and advice.

    Raises:
        InvalidCall: The URL names no store, or its driver is not installed.
        InvalidPolicy: The secret is too short, or a codec has no secret.

    Examples:
        >>> app = App("sqlite:///jobs.db")
        >>> @app.task(unique=Unique(by="customer_id"))
        ... async def send_invoice(customer_id: int) -> None: ...
    """

    def __init__(
        self,
        url: str = "sqlite:///jobs.db",
        *,
        namespace: str = "",
        secret: str | bytes | None = None,
        codec: Codec | None = None,
        accept_clear: bool = False,
        unique: Unique | Fluent | bool | None = None,
        retry: Retry | None = None,
        max_args: int = 1024 * 1024,
        admission_timeout: Duration = 5,
        store_timeout: Duration = 10,
        retention: Mapping[State | str, Duration] | None = None,
        record_callers: bool = True,
        keep_absorbed: Duration = KEPT_FOR,
        record_requests: bool = True,
        lifespan: Callable[[Self], AbstractAsyncContextManager[Mapping[str, Any] | None]] | None = None,
        store: FullStore | None = None,
    ) -> None:
        key = read_secret(secret)
        self._defaults = read_defaults(unique, retry, retention)
        self._engine = Engine(
            store or open_store(url, seconds(admission_timeout), seconds(store_timeout)),
            url=url,
            namespace=read_namespace(namespace),
            secret=key,
            sealer=Sealer.of(codec, key, accepts_clear=accept_clear),
            max_args=max_args,
            records_callers=record_callers,
            records_requests=record_requests,
            log_kept_for=duration(keep_absorbed),
        )
        if store is None:
            self._engine.close_when_dropped()
        self._place = shown(url) if store is None else f"on {type(store).__name__}"
        self._registry = Registry(None if lifespan is None else lambda: lifespan(self))
        self._tasks: dict[str, Task[..., Any]] = {}
        self._add_groups()

    def _add_groups(self) -> None:
        """Add the groups of methods that concern one subject each."""
        self.dead = DeadLetters(self._engine, self._registry)
        self.queues = Queues(self._engine, self._registry)
        self.schedules = Schedules(self._engine, self._registry)
        self.maintenance = Maintenance(self._engine, self._registry)
        self.activity = Activity(self._engine, self._registry)

    if not TYPE_CHECKING:  # or type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a word of other job systems, say what to write instead."""
            raise suggestions.missing(self, name, foreign.APP)

    def __repr__(self) -> str:
        """Return the store, without user and password, and the namespace."""
        return f"<App {self._place}{f' namespace={self.namespace!r}' if self.namespace else ''}>"

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._engine.url

    @property
    def namespace(self) -> str:
        """The tenant whose jobs the app sees."""
        return self._engine.namespace

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name."""
        return self._tasks

    def task_named(self, name: str) -> Task[..., Any]:
        """Return a task by name.

        Args:
            name: The task's name.

        Raises:
            UnknownTask: No task has that name.
        """
        return self._tasks[self._registry.task(name).name]

    # ── declaring ─────────────────────────────────────────────────────────────────────────────────

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
        give_up_on: type[Exception] | tuple[type[Exception], ...] = (),
        process: bool = False,
        check: bool = True,
        expires_in: Duration | None = None,
        delay: Duration | None = None,
        partition: str | Callable[..., object] | None = None,
        replay: Replay | None = None,
        retention: Mapping[State | str, Duration] | None = None,
    ) -> RegisterTask: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **policies: Any
    ) -> Any:
        """Register a function as a task; a decorator, with or without options.

        Args:
            function: The handler: async, or plain, which runs in a thread or a process.
            name: The task's name; the function's name if left out.
            queue: The queue of its jobs.
            unique: What counts as the same work, and what a duplicate does; True means `Unique()`, False
                that the app's default does not apply.
            retry: How often and how soon a failed attempt is tried again.
            timeout: How long a run may take.
            priority: Higher starts sooner.
            give_up_on: Exceptions after which a job is not retried.
            process: Run a plain function in a process of its own.
            check: Refuse calls whose arguments do not fit the annotations, when they are enqueued.
            expires_in: How long after its request a job may still start.
            delay: How long after its request a job runs, unless the call says otherwise.
            partition: The argument, or a function of the arguments, by which capacity is shared fairly.
            replay: How often and how soon a dead letter is replayed automatically.
            retention: How long ended jobs are kept, by state.

        Returns:
            The task, which can still be called like the function.

        Raises:
            InvalidPolicy: The options contradict each other or the function.

        Examples:
            >>> @app.task(queue="mail", retry=Retry(attempts=3))
            ... async def send(to: str) -> None: ...
        """
        if function is not None and not callable(function):
            raise InvalidPolicy(f"app.task({function!r}) is given no function: write name={function!r}.")

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, name or str(getattr(function, "__name__", "")), **policies)

        return register if function is None else register(function)

    def _register(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        unique: Unique | Fluent | bool | None = None,
        retry: Retry | None = None,
        retention: Mapping[State | str, Duration] | None = None,
        **policies: Any,
    ) -> Task[..., Any]:
        refuse_task(function)
        kept = self._defaults.retention.changed(retention or {})
        policies["unique"] = self._defaults.unique if unique is None else unique
        policies["retry"] = self._defaults.retry if retry is None else retry
        declared = declare(function, name=name, retention=kept, **policies)
        builder = RequestBuilder(self._engine, self._registry, declared, Options())
        builder.check(declared.unique)
        self._registry.add_task(declared)
        task: Task[..., Any] = Task(builder)
        self._tasks[name] = task
        return task

    def include(self, tasks: Tasks) -> None:
        """Add the tasks and schedules of a `Tasks()`; from then on they enqueue through this app.

        Args:
            tasks: What modules have declared without an app.

        Raises:
            InvalidPolicy: Options of a task contradict each other, or the app has a task of that name.
            InvalidSchedule: A schedule cannot be read.
        """
        for declared in declared_in(tasks):
            self._registry.refuse_included(declared.task.name, declared.task.function)
            own = self.task(**declared.options)(declared.task.function)
            bind_task(declared.task, builder_of(own))
            for line, options in declared.schedules:
                self.cron(line, **options)(own)

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
    ) -> RegisterSchedule:
        """Run a task on a schedule; a decorator above `@app.task`, or above a function.

        Args:
            line: A cron line such as "0 9 * * MON-FRI".
            every: An interval such as "30s", instead of a line.
            timezone: The time zone in which the line is read.
            overlap: What happens to a tick while an earlier job of the schedule is unfinished; None allows
                both.
            missed: What happens to ticks that were due while no worker ran: "skip", "one" for all of them
                together, or "all", up to a hundred.
            name: The schedule's name; the task's name if left out.
            args: Positional arguments of the task.
            kwargs: Keyword arguments of the task.

        Raises:
            InvalidSchedule: The line cannot be read, or the options contradict each other.

        Examples:
            >>> @app.cron("*/5 * * * *")
            ... async def refresh() -> None: ...
        """
        when = line_of(line, every)

        def decorate(task: Task[..., Any] | Callable[..., Any]) -> Task[..., Any]:
            task = task if isinstance(task, Task) else self._register(task, task.__name__)
            call = task.call(*args, **(kwargs or {}))
            schedule = make_schedule(
                self._engine,
                self._registry,
                name or task.name,
                call,
                when,
                timezone=timezone,
                overlap=overlap,
                missed=missed,
            )
            declare_schedule(self._registry, schedule)
            return task

        return cast("RegisterSchedule", decorate)

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

        Args:
            name: The queue's name.
            concurrency: How many of its jobs may run at once.
            partition_concurrency: How many jobs of one partition may run at once.
            rate: How many jobs may start in a span of time, such as "100/1m".
            max_depth: How many jobs may wait; a further enqueue raises QueueFull.

        Raises:
            InvalidPolicy: A limit cannot be read or leaves no room for any job.
        """
        declared = declare_queue(
            name,
            concurrency=concurrency,
            partition_concurrency=partition_concurrency,
            rate=rate,
            max_depth=max_depth,
        )
        self._registry.add_queue(declared)

    def guarantees(self) -> Guarantees:
        """Return what the store declares about its strength and durability."""
        return self._engine.store.guarantees

    def on(self, kind: Kind | WorkerKind, /) -> RegisterHook:
        """Call a function after something has happened to a job or a worker; a decorator.

        Args:
            kind: created, deduplicated, started, completed, retryable, cancelled or discarded; or
                worker_started or worker_stopped.

        Returns:
            The function. It is called with an `Event`, or a `WorkerEvent`, after the commit; it may be async.
            What it raises is logged and changes nothing.

        Raises:
            InvalidCall: There is no such kind of event.

        Examples:
            >>> @app.on("discarded")
            ... async def alert(event: Event) -> None: ...
        """
        return self._engine.hooks.decorator(kind)

    # ── enqueuing ─────────────────────────────────────────────────────────────────────────────────

    def enqueue_many(
        self, calls: Iterable[Call[R]], *, connection: Any = None
    ) -> Coroutine[Any, Any, list[Admission[R]]]:
        """Enqueue calls in order; all of them are checked before any is stored.

        Args:
            calls: What to enqueue: `[task.call(1), task.call(2)]`.
            connection: Your connection, to enqueue them inside your transaction.

        Returns:
            One admission per call, in input order. A rejected duplicate is an outcome here, not an error.

        Raises:
            InvalidCall: A call does not fit its task.
            StoreError: The store could not decide about a call. Without `connection`, earlier calls may have
                been admitted.
        """
        some = list_of_calls(calls)
        unawaited = Unawaited("enqueue_many", [name_of(call) for call in some])
        return enqueue_many(self._engine, some, connection=connection, unawaited=unawaited)

    def enqueue_many_sync(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Admission[R]]:
        """Blocking variant of `enqueue_many`."""
        return enqueue_many_sync(self._engine, calls, connection=connection)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def job(self, job_id: JobLike) -> Coroutine[Any, Any, Job]:
        """Return one job.

        Args:
            job_id: Its id, or a unique beginning of at least four characters, or a job or an admission; every
                `job_id` may be one of these.

        Raises:
            UnknownJob: No job of this namespace has that id, or several ids begin with it.
        """
        return self._engine.job(id_of(job_id))

    def job_sync(self, job_id: JobLike) -> Job:
        """Blocking variant of `job`."""
        return self._engine.run_sync(self.job(job_id))

    async def jobs(
        self,
        *,
        state: State | str | Collection[State | str] = (),
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
        key: str | bytes | None = None,
        before: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Job]:
        """Return jobs, newest first.

        Args:
            state: A state, or several; all if left out.
            queue: Only jobs of this queue.
            task: Only jobs of this task, by its name or itself.
            key: Only jobs of this key, as bytes or hexadecimal digits.
            before: Only jobs that come after this id in the list; the last id of a page gives the next page.
            limit: How many to return at most.
            offset: How many to leave out first.

        Raises:
            InvalidCall: A state or the key cannot be read.
        """
        query = read_filters(
            self.namespace, state, key, queue=queue, task=task, before=before, limit=limit, offset=offset
        )
        return await self._engine.find(query)

    jobs_sync = blocking(jobs)

    def reveal(self, job: Job) -> Job:
        """Return a job with its arguments, result, errors and progress in clear text.

        Args:
            job: The job, as the app returned it.

        Raises:
            Unsealable: The app's codec has no key that opens them.
        """
        return reveal(self._engine.sealer, job)

    async def cancel(self, job_id: JobLike, *, successors: bool = False, reason: str = "cancelled") -> Job:
        """Cancel a waiting job, or ask a running one to stop.

        Args:
            job_id: The job.
            successors: Cancel the job that waits behind it, too.
            reason: What the job keeps as its reason.

        Returns:
            The job as it is then; a job that has ended stays as it is.

        Raises:
            UnknownJob: No job of this namespace has that id.
        """
        return await cancel_job(self._engine, id_of(job_id), successors=successors, reason=reason)

    cancel_sync = blocking(cancel)

    @overload
    async def reschedule(
        self,
        job: JobLike,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> Job: ...
    @overload
    async def reschedule(
        self,
        job: list[Any] | tuple[Any, ...],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> list[Job]: ...
    async def reschedule(
        self, job: Any, *, at: datetime | None = None, delay: Duration | None = None, connection: Any = None
    ) -> Any:
        """Move a waiting job to another time; its key and its place among jobs of that time stay.

        Args:
            job: A job, an admission or an id; or a list of them.
            at: When it shall run; a time in the past counts as now.
            delay: After what time it shall run; excludes `at`.
            connection: Your connection, to do it inside your transaction.

        Returns:
            The job as it is then; for several, a list in input order, in which jobs that do not wait are
            unchanged. A pending job still waits for its blockers and behind the holder of its key.

        Raises:
            UnknownJob: No job of this namespace has that id.
            InvalidCall: The job runs, has ended, or expires before that time.
        """
        ids, move = read_rescheduling(job, at, delay)
        ids = await self._engine.whole_ids(ids)
        moved = read_rescheduled(ids, await self._engine.apply(move(ids), connection))
        return moved if is_several(job) else refuse_unmoved(moved[0])

    def reschedule_sync(
        self, job: Any, *, at: datetime | None = None, delay: Duration | None = None, connection: Any = None
    ) -> Any:
        """Blocking variant of `reschedule`."""
        if connection is None:
            refuse_running_loop("App.reschedule")
        ids, move = read_rescheduling(job, at, delay)
        ids = self._engine.whole_ids_sync(ids)
        moved = read_rescheduled(ids, self._engine.apply_sync(move(ids), connection))
        return moved if is_several(job) else refuse_unmoved(moved[0])

    @overload
    async def run_now(self, job: JobLike, *, connection: Any = None) -> Job: ...
    @overload
    async def run_now(self, job: list[Any] | tuple[Any, ...], *, connection: Any = None) -> list[Job]: ...
    async def run_now(self, job: Any, *, connection: Any = None) -> Any:
        """Make a scheduled or retryable job available at once: `reschedule` to now.

        Args:
            job: A job, an admission or an id; or a list of them.
            connection: Your connection, to do it inside your transaction.

        Returns:
            The job as it is then; for several, a list.

        Raises:
            UnknownJob: No job of this namespace has that id.
            InvalidCall: The job runs or has ended.
        """
        return await self.reschedule(job, delay=0, connection=connection)

    def run_now_sync(self, job: Any, *, connection: Any = None) -> Any:
        """Blocking variant of `run_now`."""
        return self.reschedule_sync(job, delay=0, connection=connection)

    async def delete(self, job_id: JobLike, *, force: bool = False) -> Job:
        """Delete a job that does not run, and release its key.

        Args:
            job_id: The job.
            force: Delete it although other jobs wait for its chain; those then wait forever.

        Returns:
            The job as it was.

        Raises:
            UnknownJob: No job of this namespace has that id.
            InvalidCall: The job runs, or other jobs wait for its chain.
        """
        return await delete_job(self._engine, id_of(job_id), force=force)

    delete_sync = blocking(delete)

    # ── keys ──────────────────────────────────────────────────────────────────────────────────────

    async def holds(self, *, limit: int = 100) -> list[Job]:
        """Return the jobs that hold a key and the jobs that wait behind one, newest first.

        Args:
            limit: How many to look at at most.
        """
        found = await self._engine.find(read_held(self.namespace, limit))
        now = self._engine.store.now()
        return [job for job in found if holds.holding(job, now) or job.is_successor]

    holds_sync = blocking(holds)

    def is_holding(self, job: Job) -> bool:
        """Return whether a job holds its key now, by the store's clock."""
        return job.is_holder and holds.holding(job, self._engine.store.now())

    async def absorbed(self) -> Mapping[str, int]:
        """Return how many requests each job has served besides its own, by job id."""
        return await absorbed_by_job(self._engine)

    absorbed_sync = blocking(absorbed)

    async def release(
        self, key: str | bytes, *, job: str | None = None, force: bool = False, reason: str = ""
    ) -> Job | None:
        """Release a key: its holder continues without it, and the job behind it is promoted.

        The audit log records it: see `app.activity.releases`.

        Args:
            key: The key, as bytes or hexadecimal digits.
            job: Release it only if the job or chain with this id holds it.
            force: Release it although its holder runs.
            reason: Why, for the audit log.

        Returns:
            The job that held the key, or None if no job of this namespace does.

        Raises:
            InvalidCall: The key cannot be read, its holder runs and `force` is false, or another job than
                `job` holds it.
        """
        return await release_key(self._engine, read_key(key), job=job, force=force, reason=reason)

    release_sync = blocking(release)

    # ── chains ────────────────────────────────────────────────────────────────────────────────────

    def chain(self, chain_id: str) -> Chain[Any]:
        """Return a chain by its id, which is its first job's, or by a unique beginning of it."""
        return Chain(self._engine, self._registry, chain_id)

    async def chains(self, *, state: State | str | None = None, limit: int = 100) -> list[Job]:
        """Return chains, newest first, each as its last job.

        Args:
            state: Only chains in this state; a chain is active from its first start to its end.
            limit: How many to return at most.
        """
        return await list_chains(self._engine, state, limit)

    chains_sync = blocking(chains)

    # ── the whole ─────────────────────────────────────────────────────────────────────────────────

    async def stats(self) -> Stats:
        """Return how many jobs and absorbed requests there are, and how long jobs wait and run."""
        return await read_stats(self._engine)

    stats_sync = blocking(stats)

    async def why(self, what: JobLike | Call[Any], than: str | None = None) -> Why:
        """Return why a job waits or how it ended, what a key absorbed, or what a call would meet.

        Args:
            what: A job, what enqueue returned, an id, a key in hexadecimal digits, or a call: `task.call(7)`.
            than: The id of another job, to learn why the two were not merged.

        Raises:
            UnknownJob: No job of this namespace has the id.

        Examples:
            >>> (await app.why(send_invoice.call(7))).sentences
        """
        subject = what if isinstance(what, Call) else id_of(what)
        return await why(self._engine, self._registry, subject, than)

    why_sync = blocking(why)

    async def doctor(self) -> list[Finding]:
        """Examine the store and its jobs without changing them.

        Returns:
            What was found, good and bad, with advice.
        """
        return await examine(self._engine, self._registry)

    doctor_sync = blocking(doctor)

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
        imported_as: str | None = None,
        liveness_file: str | Path | None = None,
    ) -> Worker:
        """Return a worker: `async with app.worker(): …` runs it in the background, `await worker.run()` here.

        Args:
            concurrency: How many jobs it runs at once.
            queues: The queues that it serves, perhaps with how many jobs of each at once; all if left out.
            lease: After how long without renewal its jobs are taken back.
            grace: How long running jobs may take to finish when it stops.
            drain: Stop when no job is due.
            name: Its name; host, process and a random part if left out.
            processes: How many processes it starts at most for tasks with process=True.
            imported_as: `module:attribute` by which such a process imports the app; found by itself for tasks
                at the top level of a module.
            liveness_file: A file that it touches every 5 seconds while it makes progress and the store
                answers, and removes when it has stopped in order.

        Raises:
            InvalidPolicy: A number is too small, or a task with process=True cannot be imported.
            UnknownQueue: A queue is not declared.
        """
        return Worker(
            self._engine,
            self._registry,
            concurrency=concurrency,
            queues=queues,
            lease=duration(lease),
            grace=seconds(grace),
            drain=drain,
            name=name,
            processes=processes,
            imported_as=imported_as,
            liveness_file=liveness_file,
        )

    def run_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Run a worker from blocking code, in the main thread; then close the app.

        SIGTERM and SIGINT stop it as they stop `onejob worker`: it ends
        within the grace time and ten seconds, whatever the store and the handlers do.

        Args:
            options: Those of `worker`.

        Raises:
            InvalidCall: This is not the main thread, or it runs an event loop.
        """
        run_to_end(self.worker(**options).run(signals=True), self.close)

    async def close(self) -> None:
        """Write counters and close the store; using the app again reopens it."""
        await self._engine.close()

    def close_sync(self) -> None:
        """Blocking variant of `close`."""
        self._engine.close_sync()

    async def __aenter__(self) -> Self:
        """Return the app, which is closed at the end of the block."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the app."""
        await self.close()
