"""An app with one task per policy, and how its answers and its workers' calls are recorded."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import count, cycle, islice
from typing import Any, cast

from onejob import Admission, App, Cancel, Discard, Job, Retry, RetryLater, Snooze, Task, Unique, current
from onejob.core import manual, runs
from onejob.core.leasing import Lease
from onejob.core.runs import Failed, Settled
from onejob.core.step import Step
from onejob.engine.steps import act_within
from onejob.stores import contract
from onejob.stores.contract import FullStore as Store
from onejob.stores.queries import Listed
from onejob.tasks.task import builder_of
from tests.races import history
from tests.races.history import (
    Admitted,
    Answer,
    Ask,
    Journal,
    Leased,
    Observation,
    Sampled,
    Seen,
    Shown,
    Unknown,
)
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
    """Return an app whose tasks mostly do nothing, and sometimes fail, snooze or give up."""
    app = App(url, admission_timeout=30)
    for name, policy in POLICIES.items():
        app.task(name=name, unique=policy, retry=RETRY)(run)
    return app


async def run(n: int, payload: int, version: int) -> None:
    """Run in one of all the ways in which a handler may end."""
    del n, payload, version
    drawn = random.random()
    if current().job.attempt > 1:  # long enough for the worker that lost the job to write meanwhile
        await asyncio.sleep(random.uniform(0, 0.3))
    elif drawn < 0.3:
        await asyncio.sleep(random.uniform(0, 0.01))
    elif drawn < 0.36:
        raise ValueError("as planned")
    elif drawn < 0.38:
        raise RetryLater("3ms")
    elif drawn < 0.41:
        raise Snooze("3ms")
    elif drawn < 0.42:
        raise Discard("enough")
    elif drawn < 0.43:
        raise Cancel("not today")
    elif next(RUNS) % 200 == 0:
        time.sleep(LEASE.total_seconds() * random.uniform(1, 1.6))  # noqa: ASYNC251 - blocking the loop loses every lease


# ── recording ─────────────────────────────────────────────────────────────────────────────────────


def key_of(job: Job) -> str:
    """Return the key's name in the model."""
    return f"{job.task}/{job.arguments['n']}"


def seen(job: Job) -> Seen:
    """Record a job as an answer shows it."""
    state = "superseded" if job.is_superseded else str(job.state)
    payload = job.arguments["payload"]
    return Seen(job.id, state, job.token, job.attempt, payload, job.version, job.cancel_requested)


def admitted(admission: Admission[Any]) -> Admitted:
    """Record the answer to a request."""
    holder = admission.holder
    return Admitted(str(admission.outcome), seen(admission.job), None if holder is None else seen(holder))


def shown(answer: Job | Settled | BaseException | None) -> Answer:
    """Record any other answer."""
    match answer:
        case None:
            return Shown()
        case Settled():
            return Shown(seen(answer.job))
        case Job():
            return Shown(seen(answer))
        case _:
            return Unknown()


def observed(job: Job) -> Observation:
    """Record a job that occupies its key."""
    return Observation(key_of(job), (job.key or b"").hex(), seen(job))


async def sample(app: App, keys: int) -> Sampled:
    """Read the holder and the successor of every key; both of one key at the same moment."""
    if app.guarantees().store.startswith("redis"):  # it lists page by page, but shows one key at one moment
        names = islice(cycle(POLICIES), keys)
        views = [await app._engine.look(key_named(app, name, n)) for n, name in enumerate(names)]
        standing = [job for view in views for job in (view.holder, view.successor) if job is not None]
    else:
        standing = await app._engine.store.find(Listed(namespace=app.namespace, held=True, limit=10 * keys))
    holders = [observed(job) for job in standing if job.is_holder]
    successors = [observed(job) for job in standing if job.is_successor]
    return Sampled(holders, successors)


def key_named(app: App, name: str, n: int) -> bytes:
    """Return the key of a task and a number."""
    key = builder_of(app.tasks[name]).request((n, 0, 0), {}).job.key
    assert key is not None
    return key


class Recorded:
    """A store that records the calls of a worker and their answers."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        """Pass every other call on."""
        return getattr(self._store, name)

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> contract.Leased:
        """Settle runs and lease jobs, and record both."""
        asks = [ask_of(step) for step in after]
        settling = self._journal.call(cast("list[Ask]", asks)) if asks else None
        leasing = self._journal.call([history.Lease()])
        leased = await self._store.lease(wanted, after)
        if settling is not None:
            self._journal.back(settling, [shown(answer) for answer in leased.answers])
        self._journal.back(leasing, [Leased([seen(job) for job in leased.jobs])])
        return leased

    async def apply(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Apply steps, and record those of a worker."""
        asks = [ask_of(step) for step in steps]
        if None in asks or not asks:
            return await self._store.apply(steps)
        number = self._journal.call(cast("list[Ask]", asks))
        answers = await self._store.apply(steps)
        self._journal.back(number, [shown(answer) for answer in answers])
        return answers


def record(app: App, journal: Journal) -> None:
    """Record every call that the app makes to its store."""
    app._engine.store = cast("Store", Recorded(app._engine.store, journal))


def ask_of(step: Step[Any]) -> Ask | None:
    """Return what a worker's step asks; None if a step is not a worker's."""
    job_id = step.job_id or ""
    act = step.act
    if isinstance(act, partial) and act.func is act_within:  # the engine confines steps to its namespace
        act = act.args[0]
    verb, given = (act.func, act.keywords) if isinstance(act, partial) else (act, {})
    if verb is runs.settle:
        return history.Settle(job_id, given["token"], how(given["result"]))
    if verb is runs.extend:
        return history.Renew(job_id, given["token"])
    if verb is runs.expire:
        return history.Expire(job_id)
    if verb is manual.repair:
        return history.Repair(job_id)
    return None


def how(result: runs.Result) -> str:
    """Return the name of a run's result."""
    return "Discarded" if isinstance(result, Failed) and result.final else type(result).__name__
