"""The processes of the chaos tests: python -m tests.chaos.actors ROLE FOLDER [NAME=VALUE …].

Each says "ready" on its output, waits for a line on its input so that all may set out together, and does its
part. What it was promised, and what it did, it appends to journals that survive kill -9.
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
from typing import Protocol

from onejob import Admission, App, Call, Retry, Task, Unique, current, worker
from onejob.job import Changes, View
from onejob.stores.contract import Step
from tests.journal import Journal

RETRY = Retry(attempts=30, base="20ms", factor=1, cap="20ms")
KEYS = 30
BATCH = 50

Handler = Callable[[int, int], Awaitable[None]]
Numbered = Task[[int, int], int]


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
        self.stubborn = self._task("stubborn", Unique(by="n"), self._hang_at_first)

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

    async def _hang_at_first(self, _n: int, attempt: int) -> None:
        go = self.folder / "go"
        while attempt == 1 and not go.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)

    def note(self, call: Call[int], answer: Admission[int]) -> None:
        """Note a promise that was given."""
        self.acks.add(
            pid=os.getpid(),
            task=answer.job.task,
            args=call.args,
            outcome=answer.outcome,
            job=answer.job.id,
        )


# ── producers ─────────────────────────────────────────────────────────────────────────────────────


def same_keys(shop: Shop, number: int) -> Iterator[Call[int]]:
    """Ask for the same keys as everybody else, in an order of one's own."""
    keys = list(range(number))
    random.shuffle(keys)
    return iter([shop.keep.call(n, os.getpid()) for n in keys])


def endless(shop: Shop) -> Iterator[Call[int]]:
    """Ask for this and that until killed; a later request has a higher number."""
    tasks = (shop.keep, shop.coalesce, shop.latest)
    return (random.choice(tasks).call(random.randrange(KEYS), time.time_ns()) for _ in count())


def produce_blocking(shop: Shop, calls: Iterator[Call[int]]) -> None:
    """Enqueue one by one from blocking code."""
    for call in calls:
        shop.note(call, call.task.enqueue_sync(*call.args))


async def produce_together(shop: Shop, calls: Iterator[Call[int]]) -> None:
    """Enqueue several at a time."""

    async def produce(call: Call[int]) -> None:
        shop.note(call, await call.task.enqueue(*call.args))

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


class Workplace(Protocol):
    """Whatever has an app."""

    app: App


def pay_with(shop: Shop, given: dict[str, str]) -> Workplace:
    """Give a shop's app tasks that pay; their module knows this one."""
    from tests.chaos.payers import Till

    return Till(shop, given)


async def work(shop: Workplace, given: dict[str, str], ready: Callable[[], None]) -> None:
    """Work until SIGTERM."""
    crew = shop.app.worker(
        lease=given["lease"], grace=given.get("grace", "25s"), concurrency=int(given.get("concurrency", "8"))
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, crew.stop)
    ready()
    async with shop.app:
        await crew.run()


# ── forks ─────────────────────────────────────────────────────────────────────────────────────────


def work_on_both_sides(shop: Shop) -> None:
    """Use the app before a fork, and after it on both sides."""
    before = shop.keep.enqueue_sync(1, 0)
    child = os.fork()
    own = shop.keep.enqueue_sync(2 if child == 0 else 3, 0)
    asyncio.run(shop.app.worker(drain=True).run())
    results = [answer.result_sync(timeout=20) for answer in (before, own)]
    shop.acks.add(side="parent" if child else "child", own=own.outcome, results=results)
    shop.app.close_sync()
    leave(child)


def outlive(shop: Shop, leaver: str) -> None:
    """Go on enqueuing on one side of a fork after the other side has closed the app."""
    enqueue(shop, 0)
    here, there = socket.socketpair()
    child = os.fork()
    other = here if child else there
    (there if child else here).close()  # so that the end of one side wakes the other
    enqueue(shop, 1 if child else 2)
    if (leaver == "parent") == bool(child):
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

    def die(_view: View) -> Changes:
        os.kill(os.getpid(), signal.SIGKILL)
        return Changes()

    shop.app.store.apply_now([Step(die, key=b"k" * 32)])


def enqueue(shop: Shop, n: int) -> None:
    """Enqueue one job from blocking code."""
    call = shop.keep.call(n, 0)
    shop.note(call, shop.keep.enqueue_sync(n, 0))


def leave(child: int) -> None:
    """End the child; in the parent, wait for that and end as it did."""
    if child == 0:
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


# ── the door ──────────────────────────────────────────────────────────────────────────────────────


def set_out() -> None:
    """Say that all is ready, and wait to be let go."""
    os.write(1, b"ready\n")
    sys.stdin.readline()


def main(role: str, folder: str, *options: str) -> None:
    """Play a role after the signal."""
    logging.basicConfig(level=logging.WARNING)
    if role == "company":
        company(Path(folder))
    else:
        play(Path(folder), role, dict(option.split("=") for option in options))


def play(folder: Path, role: str, given: dict[str, str], ready: Callable[[], None] = set_out) -> None:
    """Play a role."""
    worker.SWEEP_EVERY = float(given.get("sweep", worker.SWEEP_EVERY))
    shop = Shop(folder)
    match role:
        case "same-keys":
            calls = same_keys(shop, int(given["keys"]))
            ready()
            produce(shop, calls, given["how"])
        case "endless":
            ready()
            produce(shop, endless(shop), given["how"])
        case "worker":
            asyncio.run(work(shop, given, ready))
        case "payer":
            asyncio.run(work(pay_with(shop, given), given, ready))
        case "both-sides":
            ready()
            work_on_both_sides(shop)
        case "outlive":
            ready()
            outlive(shop, given["leaver"])
        case "die":
            ready()
            die_with_the_lock(shop)
        case _:
            sys.exit(f"nobody plays {role!r}")


def company(folder: Path) -> None:
    """Fork a cast for each line of input, tell their pids, and when all have ended tell how.

    Python takes longer to start than most of them live.
    """
    App((folder / "url").read_text())  # imports, as those below would do one by one
    import_module("tests.chaos.payers")
    set_out()
    for line in sys.stdin:
        cast = [start(folder, **part) for part in json.loads(line)]
        os.write(1, (json.dumps(cast) + "\n").encode())
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in cast]
        os.write(1, (json.dumps(ends) + "\n").encode())


def start(folder: Path, role: str, **given: str) -> int:
    """Start a role in a process of its own and tell its pid."""
    if pid := os.fork():
        return pid
    try:
        play(folder, role, given, lambda: None)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
