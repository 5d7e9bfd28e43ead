"""The worker: one loop that writes the results of runs and leases jobs, and the chores beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from onejob.core.job import Job
from onejob.core.leasing import Lease
from onejob.core.runs import Failed, HandedBack, Result
from onejob.core.step import Step
from onejob.engine.engine import Engine
from onejob.engine.events import WorkerEvent, WorkerKind
from onejob.engine.timings import Recorder
from onejob.errors import OnejobError, SchemaMismatch, StoreError, StoreRefused
from onejob.tasks.registry import Registry
from onejob.worker.attempt import (
    NO_STATE,
    Attempt,
    call_handler,
    result_of_cancellation,
    run_attempt,
    within_timeout,
)
from onejob.worker.chores import Chores
from onejob.worker.ending import obeying_signals, set_within
from onejob.worker.lifespan import living, seconds_left
from onejob.worker.liveness import LivenessFile
from onejob.worker.loop_watch import LoopWatch
from onejob.worker.options import capacities, check_options, limits, new_name
from onejob.worker.report import UNFINISHED, describe_stop, log_end, name_end
from onejob.worker.run import Run
from onejob.worker.threads import HandlerThreads
from onejob.worker.ticker import Ticker
from onejob.worker.upkeep import Upkeep

if TYPE_CHECKING:
    from onejob.worker.process_pool import ProcessPool

log = logging.getLogger("onejob")

LOOK_AGAIN = 5.0  # seconds at most between two looks for work, also while the store does not answer
FIRST_PAUSE = 0.1  # seconds to wait after the first error of the store
BUSY_PAUSE = 0.05  # seconds until a result that another transaction delays is written again
HAND_BACK_AFTER = 3.0  # seconds after the grace time; then jobs are handed back although their handlers go on
GIVE_UP_AFTER = 6.0  # seconds after the grace time; then it ends, whatever the store or handlers do
LAST_STEPS = 1.0  # seconds for cancelled runs to end then
NO_ANSWER = "worker %s: the store does not answer, trying again in %.1f s: %s"


class Worker:
    """Runs jobs until it is stopped."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        *,
        concurrency: int,
        queues: Collection[str] | Mapping[str, int] | None,
        lease: timedelta,
        grace: float,
        drain: bool,
        name: str | None,
        processes: int | None = None,
        imported_as: str | None = None,
        liveness_file: str | Path | None = None,
    ) -> None:
        check_options(concurrency, processes, lease, name)
        self.name, self.concurrency = name or new_name(), concurrency
        self.queues = capacities(registry, queues, concurrency)
        self.ended: Counter[str] = Counter()  # how many runs ended in each state, or were handed back or lost
        self.first_failure: Run | None = None  # of a draining worker: the first run that failed
        self._engine, self._registry = engine, registry
        self._lease, self._grace, self._drain = lease, grace, drain
        self._runs: dict[str, Run] = {}  # under way, by job
        self._ended: list[Run] = []  # whose results are to be written
        self._timings = Recorder(self.name)
        self._liveness = LivenessFile(None if liveness_file is None else Path(liveness_file))
        self._next_due: datetime | None = None
        self._wake = asyncio.Event()  # a run has ended, the store has changed, or the worker stops
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        self._most_processes = min(processes or concurrency, concurrency)
        self._imported_as = imported_as
        self._pool = self._open_pool()  # here, so that a task that cannot be imported is refused at once
        self._main: asyncio.Task[None] | None = None
        self._state = NO_STATE  # what the app's lifespan has opened
        self._hands_back_at: float | None = None  # when the grace time ends, once it stops
        self._ticker = Ticker(engine, registry)
        self._upkeep = self._look_after_runs()
        self._chores = Chores(self._upkeep, self.name, lease.total_seconds() / 3)

    def _look_after_runs(self) -> Upkeep:
        return Upkeep(
            self._engine,
            self._registry,
            name=self.name,
            lease=self._lease,
            concurrency=self.concurrency,
            queues=self.queues,
            runs=self._runs,
            ended=self._ended,
            timings=self._timings,
            liveness=self._liveness,
        )

    # ── starting and stopping ─────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Run in the background for the length of a block."""
        self._main = asyncio.create_task(self.run(), name=f"onejob worker {self.name}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop; running jobs may finish within the grace time."""
        assert self._main is not None
        self.stop()
        await self._main

    @property
    def repaired(self) -> int:
        """How many successors and dependants its sweeps had to repair; 0 if no process died."""
        return self._upkeep.repaired

    @property
    def running(self) -> int:
        """How many jobs run here now."""
        return len(self._runs)

    def stop(self, *, at_once: bool = False) -> None:
        """Take no new jobs; hand back the jobs that still run after the grace time, or at once."""
        if at_once:
            self._hurry.set()
        hands_back_at = time.monotonic() + (0 if at_once else self._grace)
        self._hands_back_at = min(hands_back_at, self._hands_back_at or hands_back_at)
        self._stopping.set()
        self._wake.set()

    async def run(self, *, signals: bool = False) -> None:
        """Work until stopped, or until no job is due if this is a draining worker.

        Args:
            signals: Also stop at SIGTERM and SIGINT: at the first, running jobs may finish within the grace
                time; at the second, they are handed back at once. Only in the main thread.
        """
        if not self._registry.tasks:
            log.warning(
                "worker %s has no tasks to run: import the modules that declare them where the app is made, "
                "or name them, as in onejob worker shop:app --import shop.tasks",
                self.name,
            )
        self._pool = self._open_pool()
        hooks, seconds = self._engine.hooks, lambda: seconds_left(self._hands_back_at)
        with obeying_signals(self._obey, self._grace) if signals else contextlib.nullcontext():
            async with living(self._registry.lifespan, hooks, self._event, seconds) as self._state:
                await self._run_until_stopped()

    async def _run_until_stopped(self) -> None:
        working = asyncio.create_task(self._work())
        try:
            # A lease under way must not be cancelled: its jobs would wait for the end of their leases.
            await asyncio.shield(working)
        except asyncio.CancelledError:
            self.stop(at_once=True)
            await working
            raise
        finally:
            if self._pool is not None:
                await self._pool.close()

    def _event(self, kind: WorkerKind) -> WorkerEvent:
        return WorkerEvent(
            kind=kind,
            worker=self.name,
            queues=dict(self.queues),
            concurrency=self.concurrency,
            ended=dict(self.ended),
        )

    def _obey(self) -> None:
        """Stop at the first signal, and hand back at once at the second."""
        hurried = self._stopping.is_set()
        self.stop(at_once=hurried)
        log.info("worker %s stops: %s", self.name, describe_stop(self.running, self._grace, hurried=hurried))

    async def _work(self) -> None:
        self._threads = HandlerThreads()
        self._call_handler = partial(call_handler, threads=self._threads)
        cycles = asyncio.create_task(self._repeat())
        chores = self._chores.start()
        chores.append(asyncio.create_task(self._end_in_time(cycles)))
        chores.append(asyncio.create_task(LoopWatch(self._runs).beat()))
        if not self._drain:
            chores.append(asyncio.create_task(self._ticker.run(self._chores.guard)))
            chores.append(asyncio.create_task(self._chores.guard(self._upkeep.heartbeat.beat)))
            chores.append(asyncio.create_task(self._chores.guard(self._upkeep.warn_of_unknown_tasks)))
        try:
            await asyncio.wait([cycles])
        finally:
            for task in (cycles, *chores):
                task.cancel()
            await asyncio.gather(cycles, *chores, return_exceptions=True)
            await self._drop_runs()
            self._threads.close()
            await self._upkeep.heartbeat.end()
            self._liveness.remove()
        if cycles.cancelled():
            left, text = len(self._runs) + len(self._ended), "without writing how its jobs ended"
            log.error("worker %s ends %s: their leases expire, jobs: %d", self.name, text, left)
        else:
            cycles.result()

    async def _drop_runs(self) -> None:
        """Cancel runs whose results cannot be written any more."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for run in list(self._runs.values()):
            run.stop("stopping")
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_STEPS)

    async def _end_in_time(self, cycles: asyncio.Task[None]) -> None:
        """After the grace time, interrupt the runs; hand back those that go on; then give up on the store."""
        await self._stopping.wait()
        await set_within(self._hurry, self._grace)
        clock = asyncio.get_running_loop().time
        over = clock()
        # In Python 3.11, wait_for loses a cancellation that comes while its own wait ends.
        while clock() < over + GIVE_UP_AFTER and not cycles.done():
            for run in list(self._runs.values()):  # also those that a lease under way has brought
                run.stop("stopping")
                if clock() > over + HAND_BACK_AFTER:
                    self._abandon(run)
            await asyncio.sleep(BUSY_PAUSE)
        cycles.cancel()

    def _abandon(self, run: Run) -> None:
        """Hand back a job although its handler ignores that it was cancelled."""
        run.log_abandoned()
        self._end(run, HandedBack())
        run.is_abandoned = True

    def _open_pool(self) -> ProcessPool | None:
        """Return a pool if a task needs processes; it starts none before its first job."""
        if not any(task.process for task in self._registry.tasks.values()):
            return None
        from onejob.worker.process_pool import ProcessPool

        return ProcessPool(self._engine, self._registry, self._imported_as, self._most_processes)

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────

    async def _repeat(self) -> None:
        """Run cycles until the last one, through outages of the store, also at the start."""
        pause, is_ready = FIRST_PAUSE, False
        while True:
            try:
                is_ready = is_ready or self._stopping.is_set() or await self._prepare()
                if not await self._cycle():
                    return
                pause = FIRST_PAUSE
            except (SchemaMismatch, StoreRefused):  # waiting does not change that
                raise
            except StoreError as error:
                log.warning(NO_ANSWER, self.name, pause, error)
                if self._hurry.is_set():
                    return
                await set_within(self._hurry if self._stopping.is_set() else self._stopping, pause)
                pause = min(pause * 2, LOOK_AGAIN)

    async def _prepare(self) -> bool:
        """Do what comes before the first cycle, in the first call to the store; return True."""
        await self._engine.announce_secret()
        if self._drain:
            await self._chores.guard(self._ticker.tick)
        return True

    async def _cycle(self) -> bool:
        """Write what ended and start what fits, in one call to the store; return whether to go on."""
        self._wake.clear()
        ended = list(self._ended)
        if self._stopping.is_set() and not self._runs and not ended:
            return False
        capacity = 0 if self._stopping.is_set() else self.concurrency - len(self._runs)
        if not ended and not capacity:
            await self._wake.wait()
            return True
        is_quiet = not self._runs and not ended  # otherwise what ends may make more jobs due
        position = self._engine.store.position()  # before the lease, so that no request is missed
        self._liveness.ask()
        started = await self._exchange(ended, capacity)
        self._liveness.answered()
        if started:
            await asyncio.sleep(0)  # quick handlers end now, and are written together in the next cycle
        elif self._drain and is_quiet and not self._is_due():
            await self._chores.guard(self._upkeep.warn_of_unknown_tasks)
            return False
        elif self._ended or not self._stopping.is_set():
            await self._wait(position)
        return True

    async def _exchange(self, ended: Sequence[Run], capacity: int) -> int:
        """Write results and start jobs; return how many jobs were started."""
        open_runs = [run for run in ended if run.attempt.settled is None]
        jobs: list[Job] = []
        try:
            answers, jobs = await self._settle_and_lease([run.settle_step() for run in open_runs], capacity)
        except StoreError:
            raise
        except Exception:
            if not open_runs:
                raise
            answers = [await self._settle_alone(run) for run in open_runs]  # to find the one at fault
        for job in jobs:
            self._start(job)
        unwritten = self._record(open_runs, answers)
        completed = [run for run in ended if run.attempt.settled is not None]
        self._ended[: len(ended)] = [*unwritten, *completed]
        if completed:
            await self._follow_up(completed)
        return len(jobs)

    async def _settle_and_lease(
        self, steps: Sequence[Step[Any]], capacity: int
    ) -> tuple[list[Any], list[Job]]:
        """Apply steps, and lease jobs; tasks that need a process get no more than there may be."""
        if not capacity:
            return await self._engine.apply(steps), []
        tasks = self._registry.tasks
        free = self._free_processes()
        if free >= capacity:
            answers, jobs, self._next_due = await self._engine.lease(self._want(tasks, capacity), steps)
            return answers, jobs
        apart = {name for name, task in tasks.items() if task.process}
        answers, jobs, due = await self._engine.lease(self._want(apart, free), steps)
        wanted = self._want(tasks.keys() - apart, capacity - len(jobs))
        _, more, later = await self._engine.lease(wanted)
        self._next_due = min(filter(None, (due, later)), default=None)
        return answers, jobs + more

    async def _settle_alone(self, run: Run) -> Any:
        """Write one result; a result that cannot be written becomes a failure."""
        while True:
            try:
                [answer] = await self._engine.apply([run.settle_step()])
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - raised again if the failure cannot be written either
                run.reject_result(error)
            else:
                return answer

    def _record(self, runs: Sequence[Run], answers: Sequence[Any]) -> list[Run]:
        """Count and log runs whose results are written; return those that must be written again."""
        unwritten, now = list[Run](), self._engine.store.now()
        for run, answer in zip(runs, answers, strict=True):
            if isinstance(answer, OnejobError):
                if not isinstance(answer, StoreError):  # or another open transaction relies on the job
                    run.reject_result(answer)
                unwritten.append(run)
            else:
                self._report(run, None if answer is None else answer.job, now)
        return unwritten

    async def _follow_up(self, completed: Sequence[Run]) -> None:
        """Do the follow-up work of runs that their own transactions have completed."""
        answers, now = [run.attempt.own_completion() for run in completed], self._engine.store.now()
        await self._engine.follow_up([run.settle_step() for run in completed], answers)
        for run in completed:
            self._report(run, run.attempt.settled, now)
        self._ended[:] = [run for run in self._ended if run not in completed]

    def _report(self, run: Run, settled: Job | None, now: datetime) -> None:
        """Count, measure and log how a run ended; one that was lost or handed back has not run to its end."""
        end = name_end(run.result, settled)
        self.ended[end] += 1
        if end not in UNFINISHED:
            self._timings.end(run.job, run.seconds, now)
        if self._drain and isinstance(run.result, Failed):
            self.first_failure = self.first_failure or run
        log_end(run, end, settled, now)

    # ── leasing ───────────────────────────────────────────────────────────────────────────────────

    def _free_processes(self) -> int:
        if self._pool is None:
            return self.concurrency
        tasks = self._registry.tasks
        return self._most_processes - sum(tasks[run.job.task].process for run in self._runs.values())

    def _want(self, tasks: Collection[str], total: int) -> Lease:
        taken = Counter(run.job.queue for run in self._runs.values())
        return Lease(
            namespace=self._engine.namespace,
            worker=self.name,
            queues={queue: most - taken[queue] for queue, most in self.queues.items()},
            total=total,
            duration=self._lease,
            tasks=tasks,
            **limits(self._registry.queues.values()),
        )

    async def _wait(self, position: Any) -> None:
        """Wait until a run ends, the store changes, a job is due, or a delayed result may be written."""
        seconds = min(self._until_due(), BUSY_PAUSE if self._ended else LOOK_AGAIN)
        change = asyncio.create_task(self._wait_for_store(seconds, position))
        try:
            await self._wake.wait()
            if change.done() and (error := change.result()) is not None:
                raise error  # a store that cannot wait does not answer
        finally:
            change.cancel()

    async def _wait_for_store(self, seconds: float, position: Any) -> Exception | None:
        """Wake the loop when the store has changed; return the error if it cannot wait."""
        error = None
        try:
            await self._engine.store.wait(seconds, position)
        except Exception as raised:  # noqa: BLE001 - the loop raises it
            error = raised
        self._wake.set()
        return error

    def _until_due(self) -> float:
        if self._next_due is None:
            return LOOK_AGAIN
        return max((self._next_due - self._engine.store.now()).total_seconds(), 0.001)

    def _is_due(self) -> bool:
        return self._next_due is not None and self._next_due <= self._engine.store.now()

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    def _start(self, job: Job) -> None:
        attempt = Attempt(self._engine, self._registry, job, self._deadline(job), state=self._state)
        run = Run(attempt, job.lease_until)
        self._runs[job.id] = run
        self._timings.start(job)
        run.task = asyncio.create_task(self._run(run))

    def _deadline(self, job: Job) -> datetime | None:
        return None if job.timeout is None else self._engine.store.now() + timedelta(seconds=job.timeout)

    async def _run(self, run: Run) -> None:
        """Run an attempt to its result."""
        run.has_begun = True
        needs_process = run.attempt.task.process
        runner = partial(self._run_in_process, run) if needs_process else self._call_handler
        try:
            if run.stopped_for is not None:
                result = result_of_cancellation(asyncio.CancelledError(), run.stopped_for)
            else:
                result = await run_attempt(run.attempt, runner)
        except asyncio.CancelledError as error:
            result = result_of_cancellation(error, run.stopped_for)
        self._end(run, result)

    async def _run_in_process(self, run: Run, attempt: Attempt) -> Result:
        """Run a handler in a process; its time begins when there is one that has imported the app."""
        assert self._pool is not None  # run() has opened it
        try:
            async with self._pool.acquire() as run.process:
                attempt.deadline = self._deadline(attempt.job)
                work, timeout = run.process.run(attempt), attempt.job.timeout
                return await (work if timeout is None else within_timeout(attempt, work, timeout))
        finally:
            run.process = None

    def _end(self, run: Run, result: Result) -> None:
        """Free a run's capacity, and leave its result to the loop."""
        if run.is_abandoned:
            return
        if self._runs.get(run.job.id) is run:  # it may have been lost and leased again
            del self._runs[run.job.id]
        if run.stopped_for != "lost" or run.attempt.settled is not None:
            run.end(result)
            self._ended.append(run)
        self._wake.set()
