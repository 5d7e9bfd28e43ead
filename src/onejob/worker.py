"""The worker: leases jobs, runs them, settles them; and looks after those of workers that died."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import random
import socket
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from onejob import lifecycle
from onejob.codec import Safe, hide, open_args
from onejob.context import Context, enter
from onejob.errors import (
    AdmissionBusy,
    InvalidPolicy,
    NotCommitted,
    SchemaMismatch,
    StoreError,
    Superseded,
    UnknownQueue,
    Unsealable,
)
from onejob.job import Job, State, Trait
from onejob.lifecycle import Completed, Failed, HandedBack, Result, Snoozed, Stopped
from onejob.limits import Queue
from onejob.schedule import spell
from onejob.signals import Cancel, Discard, RetryLater, Snooze
from onejob.stores.contract import Lease, Step
from onejob.ticking import Ticker
from onejob.transaction import ended, settlement

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.processes import Process, Processes
    from onejob.tasks import Task

log = logging.getLogger("onejob")

LOOK_AGAIN = 5.0  # seconds at most between two looks for work, also while the store does not answer
WATCH_EVERY = 0.5  # seconds between looks for cancellation, and between writes of progress
SWEEP_EVERY = 5.0
PRUNE_EVERY = 60.0
LEASED_AT_ONCE = 50
SHORTEST_LEASE = timedelta(milliseconds=10)

LOST = "outlived its lease: the store was away, or a handler kept the GIL, which process=True is for"

Why = Literal["cancelled", "lost", "stopping"]
T = TypeVar("T")


@dataclass(slots=True)
class Run:
    """A job under way in this worker."""

    job: Job
    context: Context
    lease_until: datetime | None
    task: asyncio.Task[None] | None = None
    stopped_for: Why | None = None
    written: bytes | None = None  # the progress that the store has
    process: Process | None = None  # the one that runs it, if it is not this one


class Worker:
    """Runs jobs until told to stop."""

    def __init__(
        self,
        app: App,
        *,
        concurrency: int,
        queues: Collection[str] | Mapping[str, int] | None,
        lease: timedelta,
        grace: float,
        drain: bool,
        name: str | None,
        processes: int | None = None,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise InvalidPolicy(f"concurrency={concurrency!r}: a worker needs at least one place.")
        if processes is not None and (type(processes) is not int or processes < 1):
            raise InvalidPolicy(f"processes={processes!r}: allow at least one, or leave it out.")
        if lease < SHORTEST_LEASE:
            raise InvalidPolicy(f"lease={spell(lease)} is too short to be renewed in time: write 1s or more.")
        self.app = app
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{random.randrange(16**4):04x}"  # noqa: S311 - a label
        self.concurrency = concurrency
        self.queues = places(app, queues, concurrency)
        self._at_once = max(concurrency // 2, LEASED_AT_ONCE)  # so that some run while others are leased
        self._lease = lease
        self._grace = grace
        self._drain = drain
        self._runs: dict[str, Run] = {}
        self._ended: list[tuple[Run, Result]] = []
        self._writing: list[tuple[Run, Result]] = []  # on their way to the store
        self._leasing = asyncio.Lock()  # so that no place is filled twice
        self._held_up = False  # whether somebody's transaction keeps results from being written
        self._wake = asyncio.Event()  # a place is free, or a run has ended, or we stop
        self._settled = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None
        self._most_processes = min(processes or concurrency, concurrency)
        self._processes = self._open_processes()  # here, so that what cannot be imported is refused at once
        self._main: asyncio.Task[None] | None = None
        self._failing: set[str] = set()  # the chores that the store did not let through
        self._ticker = Ticker(app)
        self.repaired = 0
        self.ended: Counter[str] = Counter()  # how many runs ended in each state, or were handed back or lost

    # ── life ──────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Run in the background for the length of a block."""
        self._main = asyncio.create_task(self.run(), name=f"onejob worker {self.name}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop, letting what runs finish within the grace time."""
        assert self._main is not None
        self.stop()
        await self._main

    @property
    def running(self) -> int:
        """How many jobs run here now."""
        return len(self._runs)

    def stop(self, *, at_once: bool = False) -> None:
        """Take no new jobs; hand back what still runs after the grace time, or at once."""
        if at_once:
            self._hurry.set()
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Work until told to stop, or until nothing is due if this is a draining worker."""
        self._processes = self._open_processes()
        try:
            await self._work()
        finally:
            if self._processes is not None:
                await self._processes.close()

    async def _work(self) -> None:
        self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="onejob")
        settling = asyncio.create_task(self._forever(self._settle, self._hurry))
        settling.add_done_callback(lambda _: self.stop(at_once=True))  # no run without a place for its result
        keeping = [asyncio.create_task(self._every(*chore)) for chore in self._chores()]
        if self._drain:
            await self._patiently(self._ticker.tick)
        else:
            keeping.append(asyncio.create_task(self._ticker.run(self._patiently)))
        try:
            await self._forever(self._feed, self._stopping)
            await self._finish_runs()
        except asyncio.CancelledError:
            self.stop(at_once=True)
            await self._finish_runs()
            raise
        finally:
            for chore in keeping:
                chore.cancel()
            self._stopping.set()
            self._settled.set()
            self._wake.set()
            await settling
            await asyncio.gather(*keeping, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _open_processes(self) -> Processes | None:
        """Make room for processes if some task asks for one; none is started before its first job."""
        if not any(task.process for task in self.app.tasks.values()):
            return None
        from onejob.processes import Processes

        return Processes(self.app, self._most_processes)

    def _chores(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        return [
            (self._lease.total_seconds() / 3, self._renew),
            (WATCH_EVERY, self._watch),
            (SWEEP_EVERY, self._sweep),
            (PRUNE_EVERY, self._prune),
        ]

    async def _every(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._patiently(chore)

    async def _forever(self, work: Callable[[], Awaitable[bool]], enough: asyncio.Event) -> None:
        """Repeat `work` until it says False, through outages of the store, but not beyond `enough`."""
        pause = 0.1
        while True:
            try:
                if not await work():
                    return
                pause = 0.1
            except SchemaMismatch:  # no waiting will change that
                raise
            except StoreError as error:
                log.warning(
                    "worker %s: the store does not answer, trying again in %.1f s: %s",
                    self.name,
                    pause,
                    error,
                )
                if enough.is_set():
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(enough.wait(), pause)
                pause = min(pause * 2, LOOK_AGAIN)

    async def _patiently(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Do a chore; what the store refuses is told once, until the chore has gone well again."""
        name = getattr(chore, "__name__", "chore").lstrip("_")
        try:
            await chore()
            self._failing.discard(name)
        except StoreError as error:
            level = logging.DEBUG if name in self._failing else logging.WARNING
            self._failing.add(name)
            log.log(level, "worker %s cannot %s: %s", self.name, name, error)
        except Exception:
            log.exception("worker %s cannot %s", self.name, name)

    # ── leasing ───────────────────────────────────────────────────────────────────────────────────

    async def _feed(self) -> bool:
        """Lease as many jobs as there are places for, and start them; False when it is time to stop."""
        if self._stopping.is_set():
            return False
        self._wake.clear()
        quiet = not (self._runs or self._ended or self._writing)  # else what ends may make more work due
        seen = self.app.store.pulse()  # before looking, so that no request slips in between unnoticed
        async with self._leasing:
            room = self.concurrency - len(self._runs)
            started = await self._lease_and_start(min(room, self._at_once))
        if not started and self._drain and quiet and await self._is_done():
            return False
        if not started:
            await self._pause(seen, idle=room > 0)
        else:
            await asyncio.sleep(0)  # let them begin; quick ones end, so that the next lease is larger
        return True

    async def _lease_and_start(self, room: int) -> int:
        """Fill the places, and tell how many; tasks that need a process get no more than there may be."""
        names = self.app.tasks.keys()
        if (free := self._free_processes()) >= room:
            return await self._lease_of(names, room)
        apart = {name for name, task in self.app.tasks.items() if task.process}
        started = await self._lease_of(apart, free)
        return started + await self._lease_of(names - apart, room - started)

    async def _lease_of(self, tasks: Collection[str], room: int) -> int:
        jobs = await self.app.store.lease(self._wanted(tasks, room)) if room else []
        for job in jobs:
            self._start(job)
        return len(jobs)

    def _free_processes(self) -> int:
        if self._processes is None:
            return self.concurrency
        return self._most_processes - sum(self.app.tasks[run.job.task].process for run in self._runs.values())

    def _wanted(self, tasks: Collection[str], room: int) -> Lease:
        taken: dict[str, int] = {}
        for run in self._runs.values():
            taken[run.job.queue] = taken.get(run.job.queue, 0) + 1
        return Lease(
            namespace=self.app.namespace,
            worker=self.name,
            queues={queue: most - taken.get(queue, 0) for queue, most in self.queues.items()},
            total=room,
            duration=self._lease,
            tasks=tasks,
            **limits(self.app.queues.values()),
        )

    async def _pause(self, seen: Any, *, idle: bool) -> None:
        """Wait until a place is free or something may be due."""
        if not idle:
            await self._wake.wait()
            return
        hint = asyncio.create_task(self._hint(await self._until_due(), seen))
        try:
            await self._wake.wait()
            if hint.done() and (refusal := hint.result()) is not None:
                raise refusal  # a store that cannot wait does not answer
        finally:
            hint.cancel()

    async def _hint(self, seconds: float, seen: Any) -> Exception | None:
        """Wait until the store tells that something may be due, then wake whoever leases."""
        refusal = None
        try:
            await self.app.store.wait(seconds, seen)
        except Exception as error:  # noqa: BLE001 - whoever is woken raises it
            refusal = error
        self._wake.set()
        return refusal

    async def _until_due(self) -> float:
        rates = limits(self.app.queues.values())["rates"]
        due = await self.app.store.next_due(self.app.namespace, rates)
        if due is None:
            return LOOK_AGAIN
        return min(max((due - self.app.store.now()).total_seconds(), 0.001), LOOK_AGAIN)

    async def _is_done(self) -> bool:
        due = await self.app.store.next_due(self.app.namespace)
        return due is None or due > self.app.store.now()

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    def _start(self, job: Job) -> None:
        run = Run(job, Context(self.app, job, self._deadline(job)), job.lease_until)
        self._runs[job.id] = run
        run.task = asyncio.create_task(self._run(run))

    def _deadline(self, job: Job) -> datetime | None:
        return None if job.timeout is None else self.app.store.now() + timedelta(seconds=job.timeout)

    async def _run(self, run: Run) -> None:
        """Carry one leased job to a result. Never raises: a failure is a result."""
        try:
            result = await self._attempt(run)
        except asyncio.CancelledError as error:
            result = interrupted(run, error)
        self._leave(run, result)

    def _clear(self, run: Run, task: asyncio.Task[None]) -> None:
        """Leave a run that was stopped before its first step: none of it was executed, not even its end."""
        if task.cancelled() and self._runs.get(run.job.id) is run:
            self._leave(run, interrupted(run, asyncio.CancelledError()))
            self._settled.set()  # whoever waits for the last run may have looked already

    def _leave(self, run: Run, result: Result) -> None:
        """Free a run's place, and have its result written."""
        if self._runs.get(run.job.id) is run:  # we may have lost it and leased it again meanwhile
            del self._runs[run.job.id]
        if run.stopped_for != "lost" or run.context.settled is not None:
            self._ended.append((run, result))
            self._settled.set()
        self._wake.set()

    async def _attempt(self, run: Run) -> Result:
        task = self.app.tasks[run.job.task]
        enter(run.context)
        try:
            if run.job.blockers is not None:
                run.context.blockers = await self.app.finished(run.job)
            if task.process:
                return await self._attempt_elsewhere(run)
            return ended(run.context, await self._call(task, run))
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is a result
            return raised(task, error)

    async def _attempt_elsewhere(self, run: Run) -> Result:
        """Let a process run it; its time begins when there is one that has imported the app."""
        assert self._processes is not None  # run() has opened it
        try:
            async with self._processes.one() as run.process:
                run.context.deadline = self._deadline(run.job)
                return await self._in_time(run, run.process.attempt(run.context))
        finally:
            run.process = None

    def _call(self, task: Task[..., Any], run: Run) -> Awaitable[Any]:
        """Call the handler; nothing stands between whoever awaits it and an async one without a timeout."""
        args, kwargs = task.signature.restore(open_args(self.app.safe, run.job).arguments)
        if task.is_async:
            work = task.function(*args, **kwargs)
        else:
            work = self._in_thread(partial(task.function, *args, **kwargs))
        return work if run.job.timeout is None else self._in_time(run, work)

    async def _in_time(self, run: Run, work: Awaitable[T]) -> T:
        timer = asyncio.timeout(run.job.timeout)
        try:
            async with timer:
                return await work
        except TimeoutError:
            if not timer.expired():  # the handler's own
                raise
            run.context.stop = True
            raise TimeoutError(f"the run took longer than {run.job.timeout:g} s") from None

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        assert self._threads is not None  # run() has opened it
        thread = self._threads.submit(contextvars.copy_context().run, caught, function)
        try:
            value, error = await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            if not thread.cancel() and not thread.done():
                self._leave_thread()
            raise
        if error is not None:
            raise error
        return value

    def _leave_thread(self) -> None:
        """Open another pool, so that a function which nobody waits for any more takes nobody's place."""
        assert self._threads is not None  # run() has opened it
        self._threads.shutdown(wait=False)
        self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="onejob")

    # ── settling ──────────────────────────────────────────────────────────────────────────────────

    async def _settle(self) -> bool:
        """Write the results that have gathered, in one commit; False once all runs have ended."""
        await self._settled.wait()
        self._settled.clear()
        ended, self._ended, self._writing = self._ended, [], self._ended
        try:
            answers = await self._answers(ended)
            await self._tell_others(ended, answers)
        except BaseException:
            self._ended = ended + self._ended
            self._settled.set()
            raise
        finally:
            self._writing = []
        busy = [one for one, answer in zip(ended, answers, strict=True) if isinstance(answer, AdmissionBusy)]
        for (run, result), settled in zip(ended, answers, strict=True):
            if not isinstance(settled, AdmissionBusy):
                how = ending(result, settled)
                self.ended[how] += 1
                tell(run.job, result, settled, how)
        self._held_up = bool(busy)
        if busy:  # somebody's open transaction relies on these jobs
            self._ended = busy + self._ended
            self._settled.set()
        self._wake.set()
        return bool(self._runs or self._ended) or not self._stopping.is_set()

    async def _answers(self, ended: list[tuple[Run, Result]]) -> list[Job | AdmissionBusy | None]:
        """Tell what became of runs; what a transaction of their own has not settled is written now."""
        written = iter(await self._write_results([one for one in ended if one[0].context.settled is None]))
        return [run.context.settled or next(written) for run, _ in ended]

    async def _tell_others(self, ended: list[tuple[Run, Result]], answers: list[Any]) -> None:
        """Tell jobs that wait for chains what has become of these; what fails here, the sweep does."""
        done = [
            (run.context.completion or result, job)
            for (run, result), job in zip(ended, answers, strict=True)
            if isinstance(job, Job)
        ]
        over = [job for result, job in done if job.traits & Trait.AWAITED and not continues(result, job)]
        begun = [next_up for result, job in done if (next_up := continues(result, job)) and next_up.blockers]
        try:
            await self.app.tell_dependants(over)
            for job in begun:
                await self.app.expect_blockers(job)
        except StoreError as error:
            log.warning("worker %s cannot tell jobs that wait for others: %s", self.name, error)

    async def _write_results(self, ended: list[tuple[Run, Result]]) -> list[Job | AdmissionBusy | None]:
        """Settle runs together; if one of them cannot be written, each alone, and that one as a failure."""
        try:
            return await self._write([self._settlement(run, result) for run, result in ended])
        except (StoreError, asyncio.CancelledError):
            raise
        except Exception as error:
            if len(ended) > 1:
                return [answer for one in ended for answer in await self._write_results([one])]
            [(run, result)] = ended
            if isinstance(result, Failed) and result.final:
                raise
            log.exception("the result of job %s cannot be written", run.job.id)
            return await self._write_results([(run, Failed(describe(error), final=True))])

    async def _write(self, steps: list[Step]) -> list[Any]:
        """Write results; what has limits is leased in the same turn, so that no place is empty meanwhile."""
        if self._held_up or not self._wanted((), 1).limited:
            return await self.app.store.apply(steps)
        async with self._leasing:
            if self._stopping.is_set():
                return await self.app.store.apply(steps)
            room = min(self.concurrency - len(self._runs), self._free_processes())
            answers, jobs = await self.app.store.turn(steps, self._wanted(self.app.tasks.keys(), room))
            for job in jobs:
                self._start(job)
        return answers

    def _settlement(self, run: Run, result: Result) -> Step:
        progress = None if run.context.told == run.written else run.context.told
        act = lifecycle.settle if run.context.block is None else lifecycle.confirm
        return settlement(run.context, result, progress, act)

    async def _finish_runs(self) -> None:
        """Let runs end within the grace time, or until told to hurry; then hand the rest back."""
        self._stopping.set()
        async with self._leasing:
            pass  # what was leased in a turn under way has begun now, and nothing more will
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await self._ended_or_hurried()
        for run in list(self._runs.values()):
            self._interrupt(run, "stopping")
        await self._tasks_end()

    async def _ended_or_hurried(self) -> None:
        ways = [asyncio.create_task(self._tasks_end()), asyncio.create_task(self._hurry.wait())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()

    async def _tasks_end(self) -> None:
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _interrupt(self, run: Run, why: Why) -> None:
        run.stopped_for = run.stopped_for or why
        run.context.stop = True
        task = self.app.tasks[run.job.task]
        in_thread = not (task.is_async or task.process)
        if why == "cancelled" and run.process is not None:
            run.process.stop()
        elif run.task is not None and not (in_thread and why == "cancelled"):  # it must notice by itself
            run.task.add_done_callback(partial(self._clear, run))
            run.task.cancel()

    # ── chores ────────────────────────────────────────────────────────────────────────────────────

    async def _renew(self) -> None:
        """Renew every lease, also while a result waits to be written; `_watch` stops what lost its own."""
        runs = [*self._runs.values(), *(run for run, _ in (*self._writing, *self._ended))]
        if not runs:
            return
        act = partial(lifecycle.extend, lease=self._lease)
        answers = await self.app.store.apply(
            [Step(partial(act, token=run.job.token), run.job.id, alone=True) for run in runs]
        )
        for run, renewed in zip(runs, answers, strict=True):
            if not isinstance(renewed, AdmissionBusy):
                run.lease_until = renewed.lease_until if renewed is not None else None

    async def _watch(self) -> None:
        """Stop what has lost its lease or has been cancelled, and write progress."""
        runs = [run for run in self._runs.values() if not run.context.completing]
        if not runs:
            return
        for run in runs:
            if run.lease_until is None or run.lease_until <= self.app.store.now():
                self._lose(run)
        await self._write_progress([(run, run.context.told) for run in runs])
        for run, job in zip(runs, await self.app.store.get([run.job.id for run in runs]), strict=True):
            if job is not None and job.cancel_requested and run.stopped_for is None:
                self._interrupt(run, "cancelled")

    def _lose(self, run: Run) -> None:
        """Stop a run that is, or may by now be, another worker's; what it returns is not written."""
        if run.stopped_for is None:
            log.warning(
                "job %s %s; its result is dropped", run.job.id, LOST if run.lease_until else "was taken over"
            )
            self._interrupt(run, "lost")

    async def _write_progress(self, told: list[tuple[Run, bytes | None]]) -> None:
        news = [(run, progress) for run, progress in told if progress is not None and progress != run.written]
        if not news:
            return
        acts = [(partial(lifecycle.report, token=r.job.token, progress=told), r.job.id) for r, told in news]
        await self.app.store.apply([Step(act, job_id, alone=True) for act, job_id in acts])
        for run, progress in news:
            run.written = progress

    async def _sweep(self) -> None:
        rescued, repaired = await self.app.sweep()
        self.repaired += repaired
        if rescued or repaired:
            log.warning(
                "worker %s: jobs taken back: %d, successors repaired: %d", self.name, rescued, repaired
            )

        await self.app.replay_due()

    async def _prune(self) -> None:
        await asyncio.sleep(random.uniform(0, PRUNE_EVERY / 4))  # noqa: S311 - so that workers come one by one
        await self.app.prune_in_turn()


def limits(queues: Iterable[Queue]) -> dict[str, Any]:
    """Collect what queues declare, as a lease takes it."""
    return {
        "limits": {q.name: q.concurrency for q in queues if q.concurrency is not None},
        "shares": {q.name: q.partition_concurrency for q in queues if q.partition_concurrency is not None},
        "rates": {q.name: q.rate for q in queues if q.rate is not None},
    }


def places(app: App, queues: Collection[str] | Mapping[str, int] | None, concurrency: int) -> dict[str, int]:
    """Tell how many jobs of each queue this worker runs at once."""
    if queues is None:
        return dict.fromkeys(app.queues, concurrency)
    if isinstance(queues, str):
        queues = [queues]
    if unknown := sorted(set(queues) - set(app.queues)):
        known = ", ".join(sorted(app.queues))
        raise UnknownQueue(
            f"No queue is named {unknown[0]!r} (known: {known}): declare it with app.queue(…)."
        )
    return dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, concurrency)


def continues(result: Result, settled: Job) -> Job | None:
    """Tell the job that goes on with the chain, if the run has made one."""
    done = settled.state is State.COMPLETED and isinstance(result, Completed)
    return result.continuation if done and isinstance(result, Completed) else None


def interrupted(run: Run, error: asyncio.CancelledError) -> Result:
    """Tell what a cancelled run comes to: told to stop, handed back, or cancelled by something of its own."""
    match run.stopped_for:
        case "cancelled":
            return Stopped("cancelled")
        case None:
            return Failed(describe(error))
        case "lost" | "stopping":
            return HandedBack()


def caught(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call a plain function; its error comes as a value, for a future carries neither all nor all of it."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the run is awaited
        return None, error


def raised(task: Task[..., Any], error: BaseException) -> Result:
    """Tell what it comes to that a handler raised."""
    safe = task.app.safe
    match error:
        case RetryLater():
            return Failed(told(error, safe), after=error.after)
        case Snooze():
            return Snoozed(error.after)
        case Cancel():
            return Stopped(readable(str(error)) or "cancelled by its handler")
        case Discard():
            return Failed(told(error, safe), final=True)
        case Superseded():  # the next lease ends it, unless what is newer has been withdrawn by then
            return HandedBack()
        case _:
            return Failed(told(error, safe), final=isinstance(error, task.give_up_on), chance=random.random())  # noqa: S311 - jitter


def describe(error: BaseException) -> dict[str, str]:
    """Write an error down, without the values of variables."""
    text = readable("".join(traceback.format_exception(error)))
    return {"type": type(error).__name__, "message": message_of(error)[:10_000], "traceback": text[-10_000:]}


def told(error: BaseException, safe: Safe | None) -> dict[str, Any]:
    """Write down what a handler raised; its words may be the arguments', so they are sealed as those are."""
    described = describe(error)
    if safe is None or isinstance(error, Unsealable):
        return described
    return hide(safe, described, "message", "traceback")


def message_of(error: BaseException) -> str:
    """Read an error's message, even if it cannot say it."""
    try:
        return readable(str(error))
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return "<its message cannot be read>"


def readable(text: str) -> str:
    """Spell out what no store can write: halves of surrogate pairs, as file names have."""
    return text.encode(errors="backslashreplace").decode()


def ending(result: Result, settled: Job | None) -> str:
    """Name how a run ended: by the job's state, or that it was handed back or lost."""
    if settled is None:
        return "lost"
    return "handed back" if isinstance(result, HandedBack) and not settled.is_terminal else str(settled.state)


def is_late(failure: Failed, settled: Job) -> bool:
    """Tell whether a handler raised after a transaction of its own had completed its job."""
    return settled.state is State.COMPLETED and failure.error["type"] != NotCommitted.__name__


def tell(job: Job, result: Result, settled: Job | None, how: str) -> None:
    """Log what became of a run, without its arguments."""
    if settled is None:
        log.warning("job %s was taken over; its result is dropped", job.id)
    elif isinstance(result, Failed) and is_late(result, settled):
        log.error(
            "job %s (%s) raised after its transaction had completed it, which stands:\n%s",
            job.id, job.task, result.error["traceback"] or result.error["type"],
        )  # fmt: skip
    elif isinstance(result, Failed) and settled.state is State.DISCARDED:
        key = job.key.hex() if job.key else "none"
        log.error(
            "job %s (%s, key %s) ended %s after %d attempts: %s: %s",
            job.id, job.task, key, settled.state, job.attempt, result.error["type"], result.error["message"],
        )  # fmt: skip
    elif isinstance(result, Failed) and settled.state is not State.COMPLETED:
        log.info("job %s (%s) failed, attempt %d: %s", job.id, job.task, job.attempt, result.error["type"])
    else:
        log.debug("job %s (%s), attempt %d: %s", job.id, job.task, job.attempt, how)
