"""Random agreement: after any sequence of acts, a store answers and holds the same as the memory store.

The memory store is the specification. Both stores get the same steps on the same clock; after each one every
answer, every job, every mark and every count must agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Protocol, cast

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onejob.app.app import App
from onejob.core import runs
from onejob.core.blockers import begin_arrivals, encode_chains
from onejob.core.decide import Request, Verdict, make, merge_payloads
from onejob.core.job import Job, State, Trait, alter
from onejob.core.leasing import PAUSED, Lease
from onejob.core.policy import Unique
from onejob.core.replay import replay
from onejob.core.runs import Completed, Result, was_taken_back
from onejob.core.step import Step
from onejob.core.ticks import Tick, begin, last_tick, reset, tick
from onejob.engine.engine import with_reach
from onejob.engine.jobs import rescheduling
from onejob.engine.steps import AdmissionStep, admission_step
from onejob.errors import OnejobError
from onejob.stores.contract import FullStore as Store
from onejob.stores.contract import Tally
from onejob.stores.memory import MemoryStore
from onejob.stores.queries import Awaiting, Blocked, Query
from onejob.testing.clock import Clock
from onejob.testing.contract.acts import notify
from onejob.testing.contract.compare import (
    check_family,
    check_history,
    check_job,
    check_keys,
    difference,
    everything,
    plain,
)
from onejob.testing.contract.wishes import (
    ALL,
    KEYS,
    MERGING,
    QUEUES,
    RATES,
    REPLAY,
    SCHEDULED,
    TASKS,
    TENANTS,
    Wish,
    overlaps,
    policies,
    rarely,
    request_of,
    results,
    wishes,
)
from onejob.testing.inside import engine_of


class Other(Protocol):
    """A store that is compared with the memory store, empty for every example."""

    async def begin(self, clock: Clock) -> Store:
        """Open an empty store."""

    async def reopen(self, *, crash: bool) -> Store:
        """Open it again after a close, or as a crash leaves it."""

    async def end(self) -> None:
        """Leave nothing of this example behind."""


class StoresAgree(RuleBasedStateMachine):
    """Drive both stores; what differs is a bug in one of them."""

    def __init__(self, place: Other) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.numbers = count(1)
        self.place = place
        self.memory = self.app_of(MemoryStore(clock=self.clock))
        self.other = self.app_of(self.runner.run(place.begin(self.clock)))
        self.jobs: dict[str, Job] = {}
        self.leases: list[Job] = []
        self.revived: set[str] = set()

    def app_of(self, store: Store) -> App:
        app = App("memory://", store=store)
        for name in TASKS:
            app.task(name=name, unique=MERGING, replay=REPLAY)(handler)
        return app

    def teardown(self) -> None:
        with self.runner:
            self.runner.run(self.place.end())

    # ── doing the same to both ────────────────────────────────────────────────────────────────────

    def both(self, act: Callable[[App], Awaitable[Any]]) -> Any:
        """Do one thing to both apps; they must answer the same."""
        expected, found = (self.runner.run(answered(act, app)) for app in (self.memory, self.other))
        assert not (odd := difference(plain(expected), plain(found))), odd
        return expected

    def apply(self, *steps: Step[Any], at_once: bool = False) -> list[Any]:
        """Apply the same steps to both, from blocking code if `at_once`."""

        async def act(app: App) -> list[Any]:
            return (
                engine_of(app).store.apply_sync(steps) if at_once else await engine_of(app).store.apply(steps)
            )

        answers: list[Any] = self.both(act)
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(step, AdmissionStep) and isinstance(answer, Verdict):
                check_family(step.request, answer)
        return answers

    def request(self, wish: Wish, inside: Job | None = None) -> Request:
        return request_of(wish, next(self.numbers), self.clock(), inside)

    def some(self, which: int, *, active: bool = False) -> Job:
        """Choose a job: the newest for 0."""
        jobs = [job for job in self.jobs.values() if not active or job.state is State.ACTIVE]
        return jobs[-1 - which % len(jobs)]

    def any_job(self) -> bool:
        return bool(self.jobs)

    def any_active(self) -> bool:
        return any(job.state is State.ACTIVE for job in self.jobs.values())

    # ── requests ────────────────────────────────────────────────────────────────────────────────────

    @initialize(wish=wishes(keys=KEYS))
    def begin(self, wish: Wish) -> None:
        self.apply(admission_step(self.request(wish)))

    @rule(wish=wishes(), at_once=st.booleans())
    def enqueue(self, wish: Wish, *, at_once: bool) -> None:
        self.apply(admission_step(self.request(wish)), at_once=at_once)

    @rule(wish=wishes(keys=KEYS[:1]), at_once=st.booleans())
    def enqueue_the_hot_key(self, wish: Wish, *, at_once: bool) -> None:
        self.apply(admission_step(self.request(wish)), at_once=at_once)

    @rule(policy=policies(), drafts=st.lists(wishes(), min_size=2, max_size=5), at_once=st.booleans())
    def enqueue_many(self, policy: Unique, drafts: list[Wish], *, at_once: bool) -> None:
        doubled = [*drafts, Wish(**{**vars(drafts[0]), "policy": policy})]
        self.apply(*(admission_step(self.request(wish)) for wish in doubled), at_once=at_once)

    @rule(wish=wishes(forced=True, keys=KEYS))
    def force(self, wish: Wish) -> None:
        self.apply(admission_step(self.request(wish)))

    @precondition(any_job)
    @rule(
        wish=wishes(),
        which=st.lists(st.integers(0, 9), min_size=1, max_size=3),
        traits=st.sampled_from([0, 0, Trait.FAILS_WITH_BLOCKER, Trait.AFTER_ALL]),
        follows_up=st.booleans(),
    )
    def enqueue_a_job_with_blockers(
        self, wish: Wish, which: list[int], traits: int, *, follows_up: bool
    ) -> None:
        """Let a job wait for chains; a client that dies does not do the follow-up work."""
        chains = list(dict.fromkeys(self.some(one).chain_id for one in which))
        request = self.request(wish)
        job = alter(
            request.job, blockers=encode_chains(chains), arrived=begin_arrivals(chains), traits=traits
        )
        request = msgspec.structs.replace(request, job=job)
        self.both(lambda app: admit_with_blockers(app, request, follows_up=follows_up))

    @rule()
    def notify_dependants(self) -> None:
        """Notify dependants, as the process does that ends a chain."""
        ended = [job for job in self.jobs.values() if job.is_terminal and job.traits & Trait.AWAITED]
        chains = [job.chain_id for job in ended]
        tails = self.both(lambda app: engine_of(app).store.tails(chains))
        self.both(lambda app: notify(app, tails))

    @precondition(any_job)
    @rule(which=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def look_at_chains(self, which: list[int]) -> None:
        chains = [self.some(one).chain_id for one in which]
        self.both(lambda app: engine_of(app).store.tails(chains))
        for name in ("", "tenant"):
            self.find(Awaiting(namespace=name, chains=chains))
            self.find(Blocked(namespace=name, limit=2))

    def find(self, query: Query) -> None:
        self.both(lambda app: engine_of(app).store.find(query))

    @precondition(any_active)
    @rule(wish=wishes(keys=KEYS), which=st.integers(0, 5), own=st.booleans())
    def enqueue_inside_a_run(self, wish: Wish, which: int, *, own: bool) -> None:
        running = self.some(which, active=True)
        if own and running.key in KEYS:
            wish = Wish(**{**vars(wish), "key": running.key})
        self.apply(admission_step(self.request(wish, running)))

    @precondition(lambda self: bool(self.schedule_has_begun()))
    @rule(policy=overlaps, ahead=st.integers(1, 3), late=rarely, runs=st.booleans())
    def tick(self, policy: Unique | None, ahead: int, *, late: bool, runs: bool) -> None:
        """Make a schedule's next tick; it is late if another worker has made one since."""
        since = self.schedule_has_begun()
        assert since is not None
        one = Tick(since + timedelta(seconds=ahead), since - timedelta(seconds=late), runs=True)
        wish = Wish(SCHEDULED, policy or Unique(), [], 1, TASKS[0], QUEUES[0], 0, 2, None, None, force=False)
        asked = self.request(wish)
        job = alter(asked.job, meta=msgspec.json.encode({"tick": one.at}), version=None)
        asked = msgspec.structs.replace(asked, job=job, policy=policy, run_at=one.at)
        act = partial(tick, key=SCHEDULED, one=one, request=asked if runs else None)
        [answer] = self.apply(Step(act, key=SCHEDULED))
        assert (answer is None) == late

    @rule(again=st.booleans())
    def begin_a_schedule(self, *, again: bool) -> None:
        self.apply(Step(partial(reset if again else begin, key=SCHEDULED), key=SCHEDULED))

    def schedule_has_begun(self) -> datetime | None:
        return last_tick(self.runner.run(engine_of(self.memory).store.look(SCHEDULED)).mark)

    # ── working ───────────────────────────────────────────────────────────────────────────────────

    @rule(
        tenant=st.sampled_from(["", "", "tenant"]),
        queues=st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 3), min_size=1),
        total=st.integers(1, 4),
        tasks=st.sampled_from([TASKS, TASKS, TASKS[:1]]),
        limits=st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 2)),
        shares=st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 2)),
        rates=st.sets(st.sampled_from(QUEUES)).map(lambda queues: {queue: RATES[queue] for queue in queues}),
    )
    def lease(
        self, tenant: str, queues: dict[str, int], total: int, tasks: Sequence[str], **limits: Any
    ) -> None:
        leased = wanted(tenant, "w", queues=queues, total=total, tasks=tasks, **limits)
        _, jobs, _ = self.both(lambda app: engine_of(app).store.lease(leased))
        self.leases += jobs

    @rule(tenant=st.sampled_from(["", "", "tenant"]))
    def lease_all_that_is_due(self, tenant: str) -> None:
        _, jobs, _ = self.both(lambda app: engine_of(app).store.lease(wanted(tenant, "v", total=ALL)))
        self.leases += jobs

    @rule(tenant=st.sampled_from(["", "", "tenant"]))
    def lease_the_best(self, tenant: str) -> None:
        _, jobs, _ = self.both(lambda app: engine_of(app).store.lease(wanted(tenant, "u", total=1)))
        self.leases += jobs

    @precondition(any_active)
    @rule(result=results(), which=st.integers(0, 5))
    def settle(self, result: Result, which: int) -> None:
        self.apply(settlement(self.some(which, active=True), result))

    @precondition(any_active)
    @rule(endings=st.lists(results(), min_size=1, max_size=4))
    def settle_together(self, endings: list[Result]) -> None:
        running = [job for job in self.jobs.values() if job.state is State.ACTIVE]
        self.apply(*(settlement(*pair) for pair in zip(running, endings, strict=False)))

    @precondition(any_active)
    @rule(endings=st.lists(results(), min_size=1, max_size=4), most=st.integers(1, 3))
    def end_some_and_start_others(self, endings: list[Result], most: int) -> None:
        running = [job for job in self.jobs.values() if job.state is State.ACTIVE]
        steps = [settlement(*pair) for pair in zip(running, endings, strict=False)]
        leased = wanted("", "t", limits=dict.fromkeys(QUEUES, most))

        async def act(app: App) -> list[Any]:
            return list((await engine_of(app).store.lease(leased, steps))[:2])

        self.leases += self.both(act)[1]

    @precondition(any_active)
    @rule(wish=wishes(), which=st.integers(0, 5))
    def complete_and_continue(self, wish: Wish, which: int) -> None:
        job = self.some(which, active=True)
        wish = Wish(**{**vars(wish), "key": None})
        request = self.request(wish)
        own = f"{request.job.id[:8]}{job.id[8:]}"  # an id ends as that of its chain
        asked = alter(request.job, id=own, namespace=job.namespace)
        continuation = make(msgspec.structs.replace(request, job=asked), self.clock())
        self.apply(settlement(job, Completed(b"2", continuation)))

    @precondition(lambda self: bool(self.leases))
    @rule(result=results(), which=st.integers(0, 20))
    def settle_an_old_lease(self, result: Result, which: int) -> None:
        job = self.leases[-1 - which % len(self.leases)]
        [answer] = self.apply(settlement(job, result))
        now = self.jobs.get(job.id)
        still_ours = now is not None and now.token == job.token and not was_taken_back(now)
        assert (answer is not None) == still_ours  # a settle that is repeated finds its own result

    @precondition(lambda self: bool(self.leases))
    @rule(which=st.integers(0, 20))
    def extend(self, which: int) -> None:
        job = self.leases[-1 - which % len(self.leases)]
        act = partial(runs.extend, token=job.token, lease=timedelta(seconds=5))
        self.apply(Step(act, job.id))

    @precondition(lambda self: bool(self.leases))
    @rule(which=st.integers(0, 20), fraction=st.floats(0, 1))
    def report(self, which: int, fraction: float) -> None:
        job = self.leases[-1 - which % len(self.leases)]
        told = msgspec.json.encode({"fraction": fraction, "message": ""})
        self.apply(Step(partial(runs.report, token=job.token, progress=told), job.id))

    @rule(tenant=st.sampled_from(["", "", "tenant"]), queue=st.sampled_from(QUEUES), pauses=rarely)
    def pause_or_resume(self, tenant: str, queue: str, *, pauses: bool) -> None:
        value = b"1" if pauses else None
        self.both(lambda app: engine_of(app).store.put_setting(tenant, PAUSED, queue, value))

    # ── manual changes ───────────────────────────────────────────────────────────────────────────────────

    @precondition(any_job)
    @rule(which=st.integers(0, 20), successors=st.booleans())
    def cancel(self, which: int, *, successors: bool) -> None:
        job = self.some(which)
        self.both(lambda app: app.cancel(job.id, successors=successors, reason="manually"))

    @precondition(any_job)
    @rule(
        which=st.lists(st.integers(0, 9), min_size=1, max_size=3),
        seconds=st.sampled_from([-60, 0, 2, 10]),
        at_once=st.booleans(),
    )
    def reschedule(self, which: list[int], seconds: int, *, at_once: bool) -> None:
        """Move jobs to another time, whether they wait or not."""
        at = self.clock() + timedelta(seconds=seconds)
        steps = rescheduling([self.some(one).id for one in which], at, None)
        self.apply(*steps, at_once=at_once)

    @rule(key=st.sampled_from(KEYS), force=st.booleans())
    def release(self, key: bytes, *, force: bool) -> None:
        self.both(lambda app: app.release(key, force=force))

    @precondition(any_job)
    @rule(which=st.integers(0, 20))
    def delete(self, which: int) -> None:
        job = self.some(which)
        self.both(lambda app: app.delete(job.id))

    @precondition(lambda self: any(job.is_terminal for job in self.jobs.values()))
    @rule(which=st.integers(0, 20))
    def replay(self, which: int) -> None:
        ended = [job for job in self.jobs.values() if job.is_terminal]
        job = ended[-1 - which % len(ended)]
        self.revived.add(job.id)
        self.apply(Step(replay, job.id))

    @rule()
    def sweep(self) -> None:
        blocked = any(job.is_blocked for job in self.jobs.values())
        _, repaired = self.both(lambda app: app.maintenance.sweep())
        assert repaired == 0 or blocked  # only a rule above notifies their dependants

    @rule()
    def replay_due(self) -> None:
        self.revived |= {job.id for job in self.jobs.values() if job.returns_at is not None}
        self.both(replay_due)

    @rule(tenant=st.sampled_from(["", "tenant"]))
    def prune(self, tenant: str) -> None:
        self.both(lambda app: App(store=engine_of(app).store, namespace=tenant).maintenance.prune())

    @rule(limit=st.integers(1, 4), task=st.none() | st.sampled_from(TASKS))
    def list_dead(self, limit: int, task: str | None) -> None:
        self.both(lambda app: app.dead.list(limit=limit, task=task))
        self.both(lambda app: app.dead.groups(task=task))

    @rule(times=st.integers(1, 3), key=st.sampled_from(KEYS), outcome=st.sampled_from(["kept", "stale"]))
    def tally(self, times: int, key: bytes, outcome: str) -> None:
        tally = Tally(TENANTS[key], TASKS[0], outcome, "x", times)
        for app in (self.memory, self.other):
            engine_of(app).store.count([tally, tally])

    @rule(
        states=st.frozensets(st.sampled_from(State), max_size=3),
        queue=st.none() | st.sampled_from(QUEUES),
        task=st.none() | st.sampled_from(TASKS),
        key=st.none() | st.sampled_from(KEYS),
        limit=st.integers(1, 4),
        offset=st.integers(0, 2),
    )
    def browse(self, **wanted: Any) -> None:
        wanted["state"] = wanted.pop("states")
        self.both(lambda app: app.jobs(**wanted))

    @rule()
    def list_holds(self) -> None:
        self.both(lambda app: app.holds())

    # ── time and crashes ─────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.000001, 0.5, 1, 3, 6, 20]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(span=st.sampled_from(["2m", "8d", "31d", "181d"]))
    def wait_long(self, span: str) -> None:
        self.clock.advance(span)

    @rule(crash=st.booleans())
    def reopen(self, *, crash: bool) -> None:
        self.other = self.app_of(self.runner.run(self.place.reopen(crash=crash)))

    # ── after every step ──────────────────────────────────────────────────────────────────────────

    @invariant()
    def stores_hold_the_same(self) -> None:
        expected, found = (
            self.runner.run(everything(engine_of(app).store)) for app in (self.memory, self.other)
        )
        assert not (odd := difference(expected, found)), odd
        assert not any(expected["stranded"])
        before, self.jobs = self.jobs, dict(sorted(expected["jobs"].items()))
        for job in self.jobs.values():
            check_job(job)
            if job.id in before and job.id not in self.revived:
                check_history(before[job.id], job)
        check_keys(list(self.jobs.values()))
        self.revived.clear()


def wanted(namespace: str, worker: str, **chosen: Any) -> Lease:
    """Return a worker's request for all jobs that are due, or for those that are chosen."""
    usual: dict[str, Any] = {"queues": dict.fromkeys(QUEUES, ALL), "total": ALL, "tasks": TASKS}
    return Lease(namespace=namespace, worker=worker, duration=timedelta(seconds=5), **usual | chosen)


async def answered(act: Callable[[App], Awaitable[Any]], app: App) -> Any:
    """Await an answer; a refusal is one."""
    try:
        return await act(app)
    except OnejobError as refusal:
        return refusal


async def admit_with_blockers(app: App, request: Request, *, follows_up: bool) -> Any:
    """Admit a request that waits for chains, with its follow-up work or without."""
    if follows_up:
        [verdict] = await engine_of(app).admit([request])
        engine_of(app).counters.flush()  # at once: the app may be opened anew before its timer does it
        return verdict
    request = await engine_of(app).run_flow(with_reach(request, {}))
    [verdict] = await engine_of(app).store.apply([admission_step(request)])
    return verdict


async def replay_due(app: App) -> Any:
    """Replay dead letters that are due, and write at once which could not be."""
    outcomes = await app.maintenance.replay_due()
    engine_of(app).counters.flush()
    return outcomes


def settlement(job: Job, result: Result) -> Step[Any]:
    """Return the step that settles a run, as the worker makes it."""
    merge = partial(merge_payloads, policy=MERGING)
    act = partial(runs.settle, token=job.token, result=result, merge=merge)
    return Step(act, job.id, seen=job if job.place % 2 else None)


def handler(items: list[int], n: int, seq: int) -> None:
    """Stand for the tasks, which this machine never runs."""


def check_agreement(other: Other, *, examples: int, steps: int, shrinks: bool = True) -> None:
    """Run random sequences of acts on the memory store and on another; raise where they differ.

    Args:
        other: The other store.
        examples: How many sequences.
        steps: How many acts of each at most.
        shrinks: Look for a short sequence that shows a difference, which takes its time.
    """
    run_state_machine_as_test(
        cast("Any", partial(StoresAgree, other)),  # a factory does as well as a class
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=list(Phase) if shrinks else [Phase.generate],
            deadline=None,
            print_blob=True,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
            ],
        ),
    )
