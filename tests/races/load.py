"""Many clients, few keys: processes enqueue, run, cancel and release at once, and record everything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import random
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from onejob import Admission, Call, Duplicate
from onejob.core.job import INCOMPLETE
from onejob.errors import InvalidCall, StoreError
from onejob.tasks.task import builder_of
from onejob.worker import chores
from tests.races import history
from tests.races.history import Absorbed, Close, Ended, Enqueue, Journal, Look, write_close
from tests.races.shop import (
    LEASE,
    POLICIES,
    Numbered,
    admitted,
    key_of,
    open_shop,
    record,
    sample,
    seen,
    shown,
)

log = logging.getLogger(__name__)

SAMPLE_EVERY = 0.1  # seconds
TOGETHER = 8
BULK = 25
PATIENCE = 400.0  # seconds; reached only by a run that is stuck

Note = Callable[[Sequence[Admission[None]]], None]

Progress = Callable[[str, str], object]
"""Called with the phase of a run, and repeatedly with how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much load, how many kills, and the seed of everything random."""

    url: str
    folder: Path
    clients: int = 32
    keys: int = 100
    admissions: int = 200_000
    seconds: float = 1800
    workers: int = 3
    worker_kills: int = 0
    client_kills: int = 0
    seed: int = 0

    def journal(self, role: str) -> Journal:
        """Open a journal for this process."""
        return Journal(self.folder / f"{role}-{os.getpid()}.history")


# ── clients ───────────────────────────────────────────────────────────────────────────────────────


class Client:
    """A process that makes random requests, and sometimes cancels a job or releases a key."""

    def __init__(self, plan: Plan, number: int, done: memoryview) -> None:
        self.app = open_shop(plan.url)
        self._plan = plan
        self._journal = plan.journal("client")
        self._number = number
        self._done = done
        self._ends = time.monotonic() + plan.seconds
        self._names = list(POLICIES)
        self._payloads = count(os.getpid() << 32)
        self._recent: deque[str] = deque(maxlen=50)

    def requests(self, at_once: int) -> Iterator[list[tuple[Enqueue, Call[None]]]]:
        """Yield requests in batches, until there were enough or the time is over."""
        share = -(-self._plan.admissions // self._plan.clients)
        while (left := share - self._done[self._number]) > 0 and time.monotonic() < self._ends:
            keys = [random.randrange(self._plan.keys) for _ in range(min(at_once, left))]
            yield [self._request(n) for n in sorted(keys, reverse=self._number % 8 >= 4)]

    def _request(self, n: int) -> tuple[Enqueue, Call[None]]:
        payload = next(self._payloads)
        version = time.monotonic_ns() // 5_000_000 + random.randrange(-2, 3)  # some are old, some equal
        name = self._names[n % len(self._names)]
        forced = name != "latest" and random.random() < 0.005
        task: Numbered = self.app.tasks[name]
        task = task.options(force=True) if forced else task
        return Enqueue(f"{name}/{n}", payload, version, forced), task.call(n, payload, version)

    @contextlib.contextmanager
    def asking(self, asks: Sequence[history.Ask]) -> Iterator[Note]:
        """Record requests and their answers; a request without an answer stays open for ever."""
        number = self._journal.call(asks)
        try:
            yield partial(self._note, number)
        except Duplicate as error:
            self._note(number, [error.admission])
        except StoreError as error:
            log.warning("unanswered: %r", error)
        self._done[self._number] += len(asks)

    def _note(self, number: int, admissions: Sequence[Admission[None]]) -> None:
        self._journal.back(number, [admitted(admission) for admission in admissions])
        self._recent.extend((admission.holder or admission.job).id for admission in admissions)

    def wants_to_intervene(self, requests: int = 1) -> bool:
        """Decide, after this many requests, whether to cancel a job or release a key now."""
        return bool(self._recent) and random.random() < 0.03 * requests

    async def intervene(self) -> None:
        """Cancel a job, or both jobs of a key, or release a key."""
        drawn = random.random()
        try:
            if drawn < 0.8:
                await self._cancel(random.choice(self._recent), both=drawn < 0.2)
            else:
                await self._release(random.randrange(self._plan.keys), force=drawn < 0.9)
        except StoreError as error:
            log.warning("unanswered: %r", error)

    async def _cancel(self, job_id: str, *, both: bool) -> None:
        number = self._journal.call([history.Cancel(job_id, both)])
        job = await self.app.cancel(job_id, successors=both)
        self._journal.back(number, [shown(job)])

    async def _release(self, n: int, *, force: bool) -> None:
        name = self._names[n % len(self._names)]
        if name == "latest":  # a job without a hold may end unseen, which takes long to search
            return
        key = builder_of(self.app.tasks[name]).request((n, 0, 0), {}).job.key
        assert key is not None
        number = self._journal.call([history.Release(f"{name}/{n}", force)])
        try:
            job = await self.app.release(key, force=force)
        except InvalidCall:  # its holder runs
            job = None
        self._journal.back(number, [shown(job)])


def enqueue_blocking(client: Client) -> None:
    """Enqueue one by one from blocking code."""
    for [(ask, call)] in client.requests(1):
        with client.asking([ask]) as note:
            note([call.enqueue_sync()])
        if client.wants_to_intervene():
            client.app._engine.portal.run(client.intervene())
    client.app.close_sync()


def enqueue_many_blocking(client: Client) -> None:
    """Enqueue many in one call from blocking code."""
    for batch in client.requests(BULK):
        with client.asking([ask for ask, _ in batch]) as note:
            note(client.app.enqueue_many_sync([call for _, call in batch]))
        if client.wants_to_intervene(BULK):
            client.app._engine.portal.run(client.intervene())
    client.app.close_sync()


async def enqueue_together(client: Client) -> None:
    """Enqueue several at a time."""

    async def enqueue(ask: Enqueue, call: Call[None]) -> None:
        with client.asking([ask]) as note:
            note([await call.enqueue()])

    async with client.app:
        for batch in client.requests(TOGETHER):
            interventions = [client.intervene()] if client.wants_to_intervene(TOGETHER) else []
            await asyncio.gather(*(enqueue(*one) for one in batch), *interventions)


async def enqueue_many(client: Client) -> None:
    """Enqueue many in one call."""
    async with client.app:
        for batch in client.requests(BULK):
            with client.asking([ask for ask, _ in batch]) as note:
                note(await client.app.enqueue_many([call for _, call in batch]))
            if client.wants_to_intervene(BULK):
                await client.intervene()


def produce(plan: Plan, number: int, done: memoryview) -> None:
    """Run a client of one of four kinds."""
    client = Client(plan, number, done)
    match number % 4:
        case 0:
            enqueue_blocking(client)
        case 1:
            asyncio.run(enqueue_together(client))
        case 2:
            enqueue_many_blocking(client)
        case _:
            asyncio.run(enqueue_many(client))


# ── workers and the sampler ───────────────────────────────────────────────────────────────────────


def termination() -> asyncio.Event:
    """Return an event that SIGTERM sets."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    return over


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but not for ever; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


async def work(plan: Plan) -> None:
    """Run one short-lived worker after another; each hands back what still runs at its end."""
    chores.SWEEP_EVERY = LEASE.total_seconds() / 4
    over = termination()
    async with open_shop(plan.url) as app:
        record(app, plan.journal("worker"))
        while not over.is_set():
            async with app.worker(lease=LEASE, concurrency=8) as crew:
                await within(over, random.uniform(0.3, 3))
                crew.stop(at_once=True)


async def drain(plan: Plan) -> None:
    """Run everything that is left, including the jobs of killed workers."""
    chores.SWEEP_EVERY = LEASE.total_seconds() / 4
    async with open_shop(plan.url) as app:
        record(app, plan.journal("worker"))
        async with app.worker(lease=LEASE), asyncio.timeout(PATIENCE):
            while await app.jobs(state=INCOMPLETE, limit=1):  # noqa: ASYNC110 - a worker has no event for it
                await asyncio.sleep(0.05)


async def watch(plan: Plan) -> None:
    """Read repeatedly which jobs have every key."""
    over = termination()
    async with open_shop(plan.url) as app:
        journal = plan.journal("sampler")
        while not await within(over, SAMPLE_EVERY):
            number = journal.call([Look()])
            journal.back(number, [await sample(app, plan.keys)])


async def record_close(plan: Plan) -> None:
    """Record what the store has when all is over."""
    async with open_shop(plan.url) as app:
        jobs = await app.jobs(limit=10 * plan.admissions)
        ended = [Ended(key_of(job), seen(job), job.superseded_by, job.reason) for job in jobs]
        tallies = await app._engine.store.tallies(app.namespace)
        absorbed = [Absorbed(tally.task, tally.outcome, tally.job_id, tally.count) for tally in tallies]
    write_close(plan.folder, Close(jobs=ended, absorbed=absorbed, killed=plan.client_kills > 0))


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


class Processes:
    """The processes of a run, forked, because Python takes longer to start than some of them live."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._started = 0
        self._alive: dict[int, str] = {}

    def start(self, name: str, play: Callable[[], object]) -> int:
        """Run a function in a process of its own, with a seed of its own, and return its pid."""
        self._started += 1
        if pid := os.fork():
            self._alive[pid] = name
            return pid
        code = 1
        try:
            random.seed(f"{self._seed} {self._started}")
            logging.getLogger("onejob").setLevel(logging.CRITICAL)  # jobs that fail are part of the plan
            play()
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            os._exit(code)

    def has(self, pid: int) -> bool:
        """Return whether a process still runs; raise RuntimeError if it ended with an error."""
        if pid not in self._alive:
            return False
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0:
            return True
        name = self._alive.pop(pid)
        if code := os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"{name} ended with {code}")
        return False

    def wait(self, pid: int) -> None:
        """Wait for the end of a process."""
        ends = time.monotonic() + PATIENCE
        while self.has(pid):
            if time.monotonic() > ends:
                raise RuntimeError(f"{self._alive[pid]} does not end")
            time.sleep(0.01)

    def stop(self, *pids: int) -> None:
        """Send processes SIGTERM, and wait for their ends."""
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for pid in pids:
            self.wait(pid)

    def kill(self, pid: int) -> None:
        """Kill a process."""
        del self._alive[pid]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def clear(self) -> None:
        """Kill all that still run."""
        for pid in list(self._alive):
            self.kill(pid)


class Run:
    """A run of a plan, from the first process to the last."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._chance = random.Random(plan.seed)
        self._processes = Processes(plan.seed)
        self._done = memoryview(mmap.mmap(-1, 8 * plan.clients)).cast("q")
        self._clients: dict[int, int] = {}  # pid: number
        self._workers: list[int] = []

    def play(self) -> None:
        """Start everything, wait for the clients, run what is left, and record the end."""
        plan, processes = self._plan, self._processes
        asyncio.run(prepare(plan))
        try:
            sampler = processes.start("the sampler", lambda: asyncio.run(watch(plan)))
            for _ in range(plan.workers):
                self._start_worker()
            for number in range(plan.clients):
                self._start_client(number)
            self._wait_for_clients()
            self._progress("workers hand back", "")
            processes.stop(*self._workers)
            self._progress("the last worker runs what is left", "")
            processes.wait(processes.start("the last worker", lambda: asyncio.run(drain(plan))))
            processes.stop(sampler)
        finally:
            processes.clear()
        asyncio.run(record_close(plan))

    def _start_worker(self) -> None:
        self._workers.append(self._processes.start("a worker", lambda: asyncio.run(work(self._plan))))

    def _start_client(self, number: int) -> None:
        pid = self._processes.start(f"client {number}", lambda: produce(self._plan, number, self._done))
        self._clients[pid] = number

    def _wait_for_clients(self) -> None:
        """Wait for the clients, and meanwhile kill processes after equal numbers of admissions."""
        plan = self._plan
        kills = [self._kill_a_worker] * plan.worker_kills + [self._kill_a_client] * plan.client_kills
        self._chance.shuffle(kills)
        moments = [plan.admissions * n / (len(kills) + 1) for n in range(1, len(kills) + 1)]
        while any(map(self._processes.has, list(self._clients))):
            done = sum(self._done)
            if moments and done > moments[0]:
                moments.pop(0)
                kills.pop()()
            self._progress("racing", f"{done:,} of {plan.admissions:,} admissions")
            time.sleep(0.02)

    def _kill_a_worker(self) -> None:
        pid = self._workers.pop(0)
        self._processes.kill(pid)
        self._start_worker()

    def _kill_a_client(self) -> None:
        alive = [pid for pid in self._clients if self._processes.has(pid)]
        if alive:
            pid = self._chance.choice(alive)
            self._processes.kill(pid)
            self._start_client(self._clients.pop(pid))


async def prepare(plan: Plan) -> None:
    """Create the tables, so that no process has to wait for them."""
    async with open_shop(plan.url) as app:
        app.maintenance.migrate()
