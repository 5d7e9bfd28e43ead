"""The child processes of the chaos tests: python -m tests.chaos.roles ROLE FOLDER [NAME=VALUE …].

Each prints "ready", waits for a line of input so that all can start at the same moment, and does its part.
What it was promised and what it did, it appends to journals that survive kill -9.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

from onejob import Admission, App, Call, Retry, Task, Unique, current
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.tasks.call import parts_of
from onejob.worker import chores
from tests.journal import Journal

RETRY = Retry(attempts=30, base="20ms", factor=1, cap="20ms")
KEYS = 30
BATCH = 50

Handler = Callable[[int, int], Awaitable[None]]
Numbered = Task[[int, int], int]
Options = dict[str, str]


class Shop:
    """An app on the database that the folder names, with tasks that note when they start and finish."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = App((folder / "url").read_text())
        self.runs = Journal(folder / "runs")
        self.acks = Journal(folder / "acks")
        self.keep = self._task("keep", Unique(by="n"), self._work)
        self.coalesce = self._task("coalesce", Unique.coalesce(by="n"), self._work)
        self.latest = self._task("latest", Unique.latest(by="n", version="seq"), self._work)
        self.slow = self._task("slow", Unique(by="n"), self._sleep)
        self.gated = self._task("gated", Unique(by="n"), self._wait_for_gate)

    def _task(self, name: str, policy: Unique, handler: Handler) -> Numbered:
        async def run(n: int, seq: int) -> int:
            job = current().job
            facts = {"task": name, "job": job.id, "attempt": job.attempt, "n": n, "seq": seq}
            self.runs.add(event="start", pid=os.getpid(), **facts)
            await handler(n, job.attempt)
            self.runs.add(event="finish", pid=os.getpid(), **facts)
            return os.getpid()

        return self.app.task(name=name, unique=policy, retry=RETRY)(run)

    async def _work(self, n: int, _attempt: int) -> None:
        await asyncio.sleep(n % 5 / 1000)

    async def _sleep(self, n: int, _attempt: int) -> None:
        await asyncio.sleep(n / 1000)

    async def _wait_for_gate(self, _n: int, attempt: int) -> None:
        gate = self.folder / "gate"
        while attempt == 1 and not gate.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.01)

    def open_gate(self) -> None:
        """Let the first attempts of gated jobs end."""
        (self.folder / "gate").touch()

    def note(self, call: Call[int], answer: Admission[int]) -> None:
        """Note an acknowledged request."""
        self.acks.add(
            pid=os.getpid(),
            task=answer.job.task,
            args=parts_of(call)[1],
            outcome=answer.outcome,
            job=answer.job.id,
        )


# ── producers ─────────────────────────────────────────────────────────────────────────────────────


def same_keys(shop: Shop, number: int, chance: random.Random) -> Iterator[Call[int]]:
    """Yield one call per key, in random order."""
    keys = list(range(number))
    chance.shuffle(keys)
    return iter([shop.keep.call(n, os.getpid()) for n in keys])


def endless(shop: Shop, chance: random.Random) -> Iterator[Call[int]]:
    """Yield random calls without end; a later call has a higher number."""
    tasks = (shop.keep, shop.coalesce, shop.latest)
    return (chance.choice(tasks).call(chance.randrange(KEYS), time.time_ns()) for _ in count())


def produce_blocking(shop: Shop, calls: Iterator[Call[int]]) -> None:
    """Enqueue one by one from blocking code."""
    for call in calls:
        shop.note(call, call.enqueue_sync())


async def produce_together(shop: Shop, calls: Iterator[Call[int]]) -> None:
    """Enqueue several at a time."""

    async def produce(call: Call[int]) -> None:
        shop.note(call, await call.enqueue())

    while batch := list(islice(calls, 8)):
        await asyncio.gather(*map(produce, batch))


async def produce_in_bulk(shop: Shop, calls: Iterator[Call[int]]) -> None:
    """Enqueue many in one call."""
    while batch := list(islice(calls, BATCH)):
        for call, answer in zip(batch, await shop.app.enqueue_many(batch), strict=True):
            shop.note(call, answer)


def produce(shop: Shop, calls: Iterator[Call[int]], how: str) -> None:
    """Enqueue calls in one of three ways."""
    if how == "blocking":
        produce_blocking(shop, calls)
    else:
        asyncio.run((produce_together if how == "together" else produce_in_bulk)(shop, calls))


# ── workers ───────────────────────────────────────────────────────────────────────────────────────


class HasApp(Protocol):
    """An object with an app that a worker can run."""

    app: App


def open_payments(shop: Shop, options: Options) -> HasApp:
    """Add the tasks that pay to a shop's app."""
    from tests.chaos.payments import Payments  # which imports this module

    return Payments(shop, options)


async def work(folder: Path, owner: HasApp, options: Options, ready: Callable[[], None]) -> None:
    """Work until SIGTERM, and note when it arrives."""
    crew = owner.app.worker(
        lease=options["lease"],
        grace=options.get("grace", "25s"),
        concurrency=int(options.get("concurrency", "8")),
    )
    stops = Journal(folder / "stops")

    def stop() -> None:
        crew.stop()
        stops.add(pid=os.getpid())

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    ready()
    async with owner.app:
        await crew.run()


# ── forks ─────────────────────────────────────────────────────────────────────────────────────────


def work_on_both_sides(shop: Shop) -> None:
    """Use the app before a fork, and after it on both sides."""
    before = shop.keep.enqueue_sync(1, 0)
    child = os.fork()
    own = shop.keep.enqueue_sync(2 if child == 0 else 3, 0)
    asyncio.run(shop.app.worker(drain=True).run())
    results = [answer.result_sync(timeout=120) for answer in (before, own)]
    shop.acks.add(side="parent" if child else "child", own=own.outcome, results=results)
    shop.app.close_sync()
    leave(child)


def outlive(shop: Shop, closes_first: str) -> None:
    """Continue to enqueue on one side of a fork after the other side has closed the app."""
    enqueue(shop, 0)
    here, there = socket.socketpair()
    child = os.fork()
    other = here if child else there
    (there if child else here).close()  # so that the end of one side wakes the other
    enqueue(shop, 1 if child else 2)
    if (closes_first == "parent") == bool(child):
        other.recv(1)
        shop.app.close_sync()
        other.send(b".")
    else:
        other.send(b".")
        other.recv(1)
        for n in range(10, 20):
            enqueue(shop, n)
    leave(child)


def die_with_the_lock(shop: Shop) -> None:
    """Fork a child that lives on, and die in the middle of a write."""
    enqueue(shop, 0)
    if os.fork() == 0:
        sys.stdin.readline()
        os._exit(0)

    def die(_view: View) -> Changes[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return NO_CHANGES

    shop.app._engine.store.apply_sync([Step(die, key=b"k" * 32)])


def enqueue(shop: Shop, n: int) -> None:
    """Enqueue one job from blocking code."""
    call = shop.keep.call(n, 0)
    shop.note(call, shop.keep.enqueue_sync(n, 0))


def leave(child: int) -> None:
    """End the child process; in the parent, wait for that and return the child's exit code."""
    if child == 0:
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def report_ready() -> None:
    """Print that this process is ready, and wait for the test's signal to start."""
    os.write(1, b"ready\n")
    sys.stdin.readline()


def main(role: str, folder: str, *options: str) -> None:
    """Run a role after the test's signal."""
    logging.basicConfig(level=logging.WARNING)
    if role == "forker":
        fork_on_request(Path(folder))
    else:
        run_role(Path(folder), role, dict(option.split("=") for option in options))


def run_role(folder: Path, role: str, options: Options, ready: Callable[[], None] = report_ready) -> None:
    """Run a role."""
    chores.SWEEP_EVERY = float(options.get("sweep", chores.SWEEP_EVERY))
    shop, chance = Shop(folder), random.Random(int(options.get("seed", "0")))
    match role:
        case "same-keys":
            calls = same_keys(shop, int(options["keys"]), chance)
            ready()
            produce(shop, calls, options["how"])
        case "endless":
            ready()
            produce(shop, endless(shop, chance), options["how"])
        case "worker":
            asyncio.run(work(folder, shop, options, ready))
        case "payer":
            asyncio.run(work(folder, open_payments(shop, options), options, ready))
        case "both-sides":
            ready()
            work_on_both_sides(shop)
        case "outlive":
            ready()
            outlive(shop, options["closes_first"])
        case "die":
            ready()
            die_with_the_lock(shop)
        case _:
            sys.exit(f"there is no role {role!r}")


def fork_on_request(folder: Path) -> None:
    """Fork processes for each line of input; print their pids, and their exit codes when all have ended.

    Starting Python takes longer than most of these processes live, so they are forked.
    """
    App((folder / "url").read_text())  # import once what each child would import
    import_module("tests.chaos.payments")
    report_ready()
    for line in sys.stdin:
        pids = [fork_role(folder, **part) for part in json.loads(line)]
        os.write(1, (json.dumps(pids) + "\n").encode())
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        os.write(1, (json.dumps(ends) + "\n").encode())


def fork_role(folder: Path, role: str, **options: str) -> int:
    """Run a role in a forked process and return its pid."""
    if pid := os.fork():
        return pid
    try:
        run_role(folder, role, options, lambda: None)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
