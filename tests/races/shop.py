"""An app with one task per policy, and how its answers and its workers' acts are written down."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import count, cycle, islice
from typing import Any, cast

from onejob import (
    Admission,
    App,
    Cancel,
    Discard,
    Job,
    Retry,
    RetryLater,
    Snooze,
    Task,
    Unique,
    current,
    lifecycle,
)
from onejob.lifecycle import Failed
from onejob.stores.contract import Filter, Lease, Step, Store
from tests.races import history
from tests.races.history import Admitted, Answer, Ask, Journal, Leased, Sampled, Seen, Sighting, Told, Unknown
from tests.races.model import RULES

POLICIES = {
    "keep": Unique(by="n"),
    "reject": Unique(by="n", on_conflict="reject"),
    "update": Unique(by="n", on_conflict="update", on_active="keep"),
    "coalesce": Unique.coalesce(by="n"),
    "follow": Unique(by="n", on_active="rerun"),
    "replace": Unique(by="n", on_conflict="replace"),
    "overrule": Unique(by="n", on_conflict="replace", on_active="cancel"),
    "start": Unique.until_executing(by="n"),
    "latest": Unique.latest(by="n", version="version"),
}
RETRY = Retry(attempts=RULES["keep"].attempts, base="5ms", factor=1)
LEASE = timedelta(seconds=1)
RUNS = count(1)

Numbered = Task[[int, int, int], None]


def open_shop(url: str) -> App:
    """Make an app whose tasks do nothing, mostly, and sometimes fail, rest or give up."""
    app = App(url, admission_timeout=30)
    for name, policy in POLICIES.items():
        app.task(name=name, unique=policy, retry=RETRY)(run)
    return app


async def run(n: int, payload: int, version: int) -> None:
    """Be a handler of whom anything may be expected."""
    del n, payload, version
    chance = random.random()
    if current().job.attempt > 1:  # long enough for a worker that lost it to come back meanwhile
        await asyncio.sleep(random.uniform(0, 0.3))
    elif chance < 0.3:
        await asyncio.sleep(random.uniform(0, 0.01))
    elif chance < 0.36:
        raise ValueError("one of those that fail")
    elif chance < 0.38:
        raise RetryLater("3ms")
    elif chance < 0.41:
        raise Snooze("3ms")
    elif chance < 0.42:
        raise Discard("enough")
    elif chance < 0.43:
        raise Cancel("not today")
    elif next(RUNS) % 200 == 0:
        time.sleep(LEASE.total_seconds() * random.uniform(1, 1.6))  # noqa: ASYNC251 - who blocks the loop loses every lease


# ── writing down ──────────────────────────────────────────────────────────────────────────────────


def key_of(job: Job) -> str:
    """Name the key as the model does."""
    return f"{job.task}/{job.arguments['n']}"


def seen(job: Job) -> Seen:
    """Write down a job as it is shown."""
    state = "superseded" if job.is_superseded else str(job.state)
    payload = job.arguments["payload"]
    return Seen(job.id, state, job.token, job.attempt, payload, job.version, job.cancel_requested)


def admitted(admission: Admission[Any]) -> Admitted:
    """Write down the answer to a request."""
    holder = admission.holder
    return Admitted(str(admission.outcome), seen(admission.job), None if holder is None else seen(holder))


def told(answer: Job | BaseException | None) -> Answer:
    """Write down any other answer."""
    match answer:
        case None:
            return Told()
        case Job():
            return Told(seen(answer))
        case _:
            return Unknown()


async def sample(app: App, keys: int) -> Sampled:
    """Read who stands for every key: of one key, at one moment."""
    if app.guarantees().store.startswith("redis"):  # which lists page by page, and shows a key at one moment
        names = islice(cycle(POLICIES), keys)
        views = [await app.standing(key_named(app, name, n)) for n, name in enumerate(names)]
        standing = [job for view in views for job in (view.holder, view.successor) if job is not None]
    else:
        standing = await app.store.find(Filter(namespace=app.namespace, held=True, limit=10 * keys))
    holders = [Sighting(key_of(job), job.held_key.hex(), seen(job)) for job in standing if job.held_key]
    successors = [Sighting(key_of(job), job.next_key.hex(), seen(job)) for job in standing if job.next_key]
    return Sampled(holders, successors)


def key_named(app: App, name: str, n: int) -> bytes:
    """Compute the key of a task and a number."""
    key = app.tasks[name].request((n, 0, 0), {}).job.key
    assert key is not None
    return key


class Recorded:
    """A store that writes down what a worker asks of it, and what the worker is told."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        """Do all else as the store does."""
        return getattr(self._store, name)

    async def lease(self, wanted: Lease) -> list[Job]:
        """Start due jobs."""
        number = self._journal.call([history.Lease()])
        jobs = await self._store.lease(wanted)
        self._journal.back(number, [Leased([seen(job) for job in jobs])])
        return jobs

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps, of which a worker's are written down."""
        asks = [ask_of(step) for step in steps]
        if None in asks or not asks:
            return await self._store.apply(steps)
        number = self._journal.call(cast("list[Ask]", asks))
        answers = await self._store.apply(steps)
        self._journal.back(number, [told(answer) for answer in answers])
        return answers


def record(app: App, journal: Journal) -> None:
    """Let everything be written down that the app asks of its store."""
    app.store = cast("Store", Recorded(app.store, journal))


def ask_of(step: Step) -> Ask | None:
    """Read a worker's step; None if it is no worker's."""
    job_id = step.job_id or ""
    verb, given = (step.act.func, step.act.keywords) if isinstance(step.act, partial) else (step.act, {})
    if verb is lifecycle.settle:
        return history.Settle(job_id, given["token"], how(given["result"]))
    if verb is lifecycle.extend:
        return history.Renew(job_id, given["token"])
    if verb is lifecycle.expire:
        return history.Expire(job_id)
    if verb is lifecycle.repair:
        return history.Repair(job_id)
    return None


def how(result: lifecycle.Result) -> str:
    """Name how a run went."""
    return "Discarded" if isinstance(result, Failed) and result.final else type(result).__name__
