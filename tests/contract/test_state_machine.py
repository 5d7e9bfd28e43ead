"""Whatever is done to the memory store and to another, in whatever order, they answer and hold the same.

The memory store is the specification. Both stores get the same steps on the same clock; after each one every
answer, every job, every mark and every count must agree. ONEJOB_HYPOTHESIS=deep looks for longer. To add a
store, say in OTHERS how it is opened for an example, how it crashes, and what is left of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from onejob import App, Job, Replay, Retry, State, Unique, lifecycle
from onejob.app import admission_step
from onejob.blockers import awaited, named
from onejob.decide import Request, make, merged, replay
from onejob.dependants import chains_named, converse, is_quiet, reach, settle_in
from onejob.errors import OnejobError
from onejob.job import EPOCH, Trait, alter, fingerprint
from onejob.lifecycle import Completed, Failed, HandedBack, Result, Snoozed, Stopped
from onejob.limits import PAUSED, Rate
from onejob.stores.contract import Filter, Lease, Step, Store, Tally
from onejob.stores.memory import MemoryStore
from onejob.stores.redis.store import RedisStore
from onejob.stores.sql.postgres.store import PostgresStore
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.testing import Clock
from onejob.tick import Tick, begin, last_tick, reset, tick

DEEP = os.environ.get("ONEJOB_HYPOTHESIS") == "deep"

pytestmark = pytest.mark.timeout(36_000 if DEEP else 900)  # shrinking a failure takes its time

TENANTS = {b"a" * 32: "", b"b" * 32: "", b"c" * 32: "tenant"}  # a key belongs to one namespace
KEYS = tuple(TENANTS)
SCHEDULED = b"s" * 32  # the key of a schedule, which only ticks ask for
TASKS = ("index", "mail")
REPLAY = Replay(times=2, after=2, factor=2, cap=4)
QUEUES = ("default", "bulk")
DEEPEST = {QUEUES[-1]: 3}  # how many jobs may wait in a queue
WINDOWS = (3, 20)
ALL = 100_000


# ── what is asked for ─────────────────────────────────────────────────────────────────────────────


def sum_up(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge by a function, which refuses once in a while."""
    if len(old["items"]) + len(new["items"]) > 5:
        raise ValueError("too many items")
    return {**new, "items": [*old["items"], *new["items"]]}


MERGES: tuple[Any, ...] = ({"items": "union"}, {"items": "append", "n": "sum"}, sum_up)
MERGING = Unique(on_conflict="update", merge=MERGES[0], merge_cap=4)


rarely = st.sampled_from([False] * 7 + [True])
until = st.sampled_from(["start", "finish", "finish", "failure", "forever"])
within = st.sampled_from(WINDOWS)
spans = st.one_of(
    st.fixed_dictionaries({"until": until}),
    st.fixed_dictionaries({"until": until, "within": within}),
    st.fixed_dictionaries(
        {"states": st.frozensets(st.sampled_from(State), min_size=1)}, optional={"within": within}
    ),
)
guarding = st.fixed_dictionaries(
    {"bump": st.booleans(), "on_mismatch": st.sampled_from(["ignore", "error"])},
)
fields = st.lists(st.sampled_from(["queue", "priority", "time", "place"]), unique=True).map(tuple)
debouncing = st.sampled_from([{}, {}, {"wait": 2}, {"wait": 2, "max_wait": 5}])
versioning = st.sampled_from([{}, {"version": "seq"}])
merging = st.sampled_from([{}, *({"merge": how, "merge_cap": 4} for how in MERGES)])
while_active = st.sampled_from([None, "keep", "reject", "rerun", "cancel"])


@st.composite
def policies(draw: st.DrawFn) -> Unique:
    """Draw a policy that means something; every field but those that make the key, which is given."""
    conflict = draw(st.sampled_from(["keep", "reject", "update", "replace"]))
    chosen: dict[str, Any] = {"on_conflict": conflict, "shadow": draw(rarely), **draw(spans)}
    if chosen.get("until") != "start":
        chosen["on_active"] = draw(while_active)
    match conflict:
        case "keep" if chosen.get("until") == "forever" and "within" in chosen and draw(st.booleans()):
            chosen |= {"edges": "first+last", "on_active": None, **draw(merging)}
        case "keep":
            chosen |= draw(guarding) | draw(versioning)
        case "reject":
            chosen |= draw(versioning)
        case "update":
            chosen |= {"fields": draw(fields)} | draw(debouncing) | draw(versioning | merging)
        case "replace":
            chosen |= {"keep_schedule": draw(st.booleans())} | draw(versioning)
        case _:
            raise AssertionError(conflict)
    if "merge" in chosen and chosen.get("on_active") == "cancel":
        chosen["on_active"] = "rerun"
    return Unique(**chosen)


overlaps = st.none() | policies().filter(lambda policy: policy.version is None and policy.merge is None)


@dataclass(frozen=True, repr=False)
class Wish:
    """A request without its id, which comes with the order of requests."""

    key: bytes | None
    policy: Unique
    items: list[int]
    seq: int
    task: str
    queue: str
    priority: int
    attempts: int
    delay: int | None
    appointed: int | None
    force: bool
    expires: int | None = None
    partition: str | None = None

    def __repr__(self) -> str:
        """Show what is not as usual: a failing sequence has many of these."""
        shown = {name: value for name, value in vars(self).items() if value}
        shown["policy"] = {name: value for name, value in vars(self.policy).items() if value != USUAL[name]}
        return f"Wish({shown})"


USUAL = vars(Unique())


def wishes(*, forced: bool = False, keys: Sequence[bytes | None] = (*KEYS, None)) -> st.SearchStrategy[Wish]:
    """Draw what somebody may ask for."""
    return st.builds(
        Wish,
        key=st.sampled_from(keys),
        policy=policies(),
        items=st.lists(st.integers(0, 3), max_size=3),
        seq=st.integers(1, 4),
        task=st.sampled_from(TASKS),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0, 0, 0, 5]),
        attempts=st.integers(1, 3),
        delay=st.sampled_from([None, None, 0, 4]),
        appointed=st.sampled_from([None, None, None, -60, 4]),
        force=st.just(forced),
        expires=st.sampled_from([None, None, None, 0, 2, 8]),
        partition=st.sampled_from([None, None, "", "left", "right"]),
    )


def results() -> st.SearchStrategy[Result]:
    """Draw how a run may end."""
    error = {"type": "Boom", "message": "boom", "traceback": ""}
    after = st.sampled_from([timedelta(0), timedelta(seconds=3)])
    return st.one_of(
        st.builds(Completed, st.sampled_from([None, b"1", b'"done"'])),
        st.builds(Failed, st.just(error), after=st.none() | after, chance=st.floats(0, 0.99)),
        st.builds(Failed, st.just(error), final=st.just(True)),  # noqa: FBT003 - a strategy's value
        st.builds(Snoozed, after),
        st.just(HandedBack()),
        st.just(Stopped("enough")),
    )


# ── what is compared ──────────────────────────────────────────────────────────────────────────────


def plain(answer: Any) -> Any:
    """Make answers comparable: errors by what they say."""
    if isinstance(answer, OnejobError):
        return type(answer), str(answer)
    return [plain(part) for part in answer] if isinstance(answer, list) else answer


async def everything(store: Store) -> dict[str, Any]:
    """Read all that a store shows."""
    jobs, stranded, *rest = await asyncio.gather(
        store.find(Filter(limit=ALL)),
        store.find(Filter(stranded=True, limit=ALL)),
        *(store.look(key) for key in (*KEYS, SCHEDULED)),
        *(store.counts(namespace) for namespace in ("", "tenant")),
        *(store.tallies(namespace) for namespace in ("", "tenant")),
        *(store.next_due(namespace) for namespace in ("", "tenant")),
        *(store.settings(namespace, PAUSED) for namespace in ("", "tenant")),
    )
    names = [
        *(f"key {key[:1].decode()}" for key in (*KEYS, SCHEDULED)),
        *(
            f"{verb} of {space!r}"
            for verb in ("counts", "tallies", "next due", "paused")
            for space in ("", "tenant")
        ),
    ]
    found = {job.id: job for job in cast("list[Job]", jobs)}
    return {"jobs": found, "stranded": stranded, **dict(zip(names, rest, strict=True))}


def difference(expected: Any, found: Any) -> Any:
    """Show what two answers or states do not share: part by part, field by field; None if nothing."""
    if expected == found:
        return None
    if type(expected) is not type(found) or (parts := anatomy(expected)) is None:
        return f"memory: {expected!r}, the other: {found!r}"
    others = anatomy(found) or {}
    between = {name: difference(parts.get(name), others.get(name)) for name in parts | others}
    return {name: odd for name, odd in between.items() if odd is not None}


def anatomy(value: Any) -> dict[Any, Any] | None:
    """Take a value apart, if it has parts."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


# ── the other store ───────────────────────────────────────────────────────────────────────────────


class Other(Protocol):
    """A store that is compared with the memory store, empty for every example."""

    examples: int

    def begin(self, clock: Clock) -> Store:
        """Open an empty store."""

    async def reopen(self, *, crash: bool) -> Store:
        """Open it again after a close, or as a crash leaves it."""

    def tell(self, wanted: Lease, job: Job) -> None:
        """Let the store believe that somebody has just made this job, if it listens to such things."""

    async def end(self) -> None:
        """Leave nothing of this example behind."""

    def close(self) -> None:
        """Leave nothing at all."""


class Files:
    """SQLite: a folder for each example; a crash leaves the log not folded in, as kill -9 does."""

    examples = 200

    def __init__(self, _request: pytest.FixtureRequest) -> None:
        self._crashed: list[SQLiteStore] = []

    def begin(self, clock: Clock) -> Store:
        self._clock = clock
        self._folder = Path(tempfile.mkdtemp(prefix="onejob-machine-"))
        return self._opened(self._folder / "jobs.db")

    def _opened(self, path: Path) -> Store:
        self._store = SQLiteStore(path, synchronous="NORMAL", clock=self._clock)
        return self._store

    async def reopen(self, *, crash: bool) -> Store:
        path = self._store.path
        if not crash:
            await self._store.close()
            return self._opened(path)
        self._crashed.append(self._store)
        copy = self._folder / f"crash-{len(self._crashed)}.db"
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        return self._opened(copy)

    def tell(self, wanted: Lease, job: Job) -> None:
        """Tell nobody."""

    async def end(self) -> None:
        for store in (*self._crashed, self._store):
            await store.close()
        self._crashed.clear()
        shutil.rmtree(self._folder)

    def close(self) -> None:
        """Leave nothing: every example has taken its folder with it."""


class Tables:
    """PostgreSQL: one database, emptied between examples; a crash ends every connection of ours."""

    examples = 40

    def __init__(self, request: pytest.FixtureRequest) -> None:
        url = request.getfixturevalue("postgres_url")
        self._clock = Clock()
        self._store = PostgresStore(url, clock=self._now)
        self._store.migrate()
        self._surgeon = psycopg.connect(url, autocommit=True)

    def _now(self) -> datetime:
        return self._clock()

    def begin(self, clock: Clock) -> Store:
        self._clock = clock
        self._surgeon.execute(
            "TRUNCATE onejob_jobs, onejob_marks, onejob_tallies, onejob_settings, onejob_starts, onejob_waits"
        )
        return self._store

    async def reopen(self, *, crash: bool) -> Store:
        if crash:
            self._surgeon.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onejob'"
                " AND datname = current_database()"
            )
        else:
            await self._store.close()
        return self._store

    def tell(self, wanted: Lease, job: Job) -> None:
        """Tell nobody."""

    async def end(self) -> None:
        """Leave that to the next example."""

    def close(self) -> None:
        self._surgeon.close()
        asyncio.run(self._store.close())


class Keys:
    """Redis: one database, emptied between examples; a crash leaves connections behind, and no script."""

    examples = 100
    options = ""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._url = request.getfixturevalue("redis_url")
        self._left: list[RedisStore] = []
        self._surgeon = Redis.from_url(self._url)

    def begin(self, clock: Clock) -> Store:
        self._clock = clock
        self._surgeon.flushdb()
        return self._opened()

    def _opened(self) -> Store:
        self._store = RedisStore(f"{self._url}{self.options}", clock=self._clock)
        return self._store

    async def reopen(self, *, crash: bool) -> Store:
        if crash:
            self._left.append(self._store)
            self._surgeon.script_flush()
        else:
            await self._store.close()
        return self._opened()

    def tell(self, wanted: Lease, job: Job) -> None:
        ground = self._store._ground  # noqa: SLF001 - what it has heard is its own
        record = self._surgeon.hget(ground.home(job.key or job.id).jobs.decode(), job.id)
        ground.offers.expect(wanted)
        ground.offers.hear(cast("bytes", record))

    async def end(self) -> None:
        for store in (*self._left, self._store):
            await store.close()
        self._left.clear()

    def close(self) -> None:
        self._surgeon.close()


class Buckets(Keys):
    """Redis with jobs in many buckets, as in a cluster; their ids do not tell in which."""

    examples = 50
    options = "?buckets=16"


OTHERS: dict[str, Callable[[pytest.FixtureRequest], Other]] = {
    "sqlite": Files,
    "postgres": Tables,
    "redis": Keys,
    "redis in buckets": Buckets,
}


# ── the machine ───────────────────────────────────────────────────────────────────────────────────


class StoresAgree(RuleBasedStateMachine):
    """Drive both stores; what differs is a bug in one of them."""

    def __init__(self, place: Other) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.numbers = count(1)
        self.place = place
        self.memory = self.app_of(MemoryStore(clock=self.clock))
        self.other = self.app_of(place.begin(self.clock))
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

    def apply(self, *steps: Step, at_once: bool = False) -> list[Any]:
        """Apply the same steps to both, from blocking code if `at_once`."""

        async def act(app: App) -> list[Any]:
            return app.store.apply_now(steps) if at_once else await app.store.apply(steps)

        answers: list[Any] = self.both(act)
        return answers

    def request(self, wish: Wish, inside: Job | None = None) -> Request:
        number = next(self.numbers)
        args = msgspec.json.encode({"items": wish.items, "n": wish.seq, "seq": wish.seq})
        keyed = wish.key is not None
        job = Job(
            id=f"{number:08d}",
            namespace=TENANTS.get(wish.key or b"", ""),
            task=wish.task,
            queue=wish.queue,
            state=State.AVAILABLE,
            priority=wish.priority,
            run_at=EPOCH,
            place=number,
            created_at=EPOCH,
            args=args,
            meta=b"{}",
            payload_digest=fingerprint(args, b"{}"),
            retry=Retry(wish.attempts, base=2, cap=60),
            chain_id=f"{number:08d}",
            key=wish.key,
            version=wish.seq if keyed and wish.policy.version else None,
            parent_id=None if inside is None else inside.id,
            partition=wish.partition,
        )
        return Request(
            job,
            wish.policy if keyed else None,
            delay=None if wish.delay is None else timedelta(seconds=wish.delay),
            run_at=None if wish.appointed is None else self.clock() + timedelta(seconds=wish.appointed),
            expires_in=None if wish.expires is None else timedelta(seconds=wish.expires),
            force=wish.force,
            running_chain=None if inside is None else inside.chain_id,
            max_depth=DEEPEST.get(wish.queue),
        )

    def some(self, which: int, *, active: bool = False) -> Job:
        """Choose a job: the newest for 0."""
        jobs = [job for job in self.jobs.values() if not active or job.state is State.ACTIVE]
        return jobs[-1 - which % len(jobs)]

    def any_job(self) -> bool:
        return bool(self.jobs)

    def any_active(self) -> bool:
        return any(job.state is State.ACTIVE for job in self.jobs.values())

    # ── asking ────────────────────────────────────────────────────────────────────────────────────

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
        tells=st.booleans(),
    )
    def enqueue_what_waits(self, wish: Wish, which: list[int], traits: int, *, tells: bool) -> None:
        """Let a job wait for chains; a client that dies does not tell them."""
        chains = list(dict.fromkeys(self.some(one).chain_id for one in which))
        request = self.request(wish)
        job = alter(request.job, blockers=named(chains), arrived=awaited(chains), traits=traits)
        request = msgspec.structs.replace(request, job=job)
        self.both(lambda app: admit_what_waits(app, request, tells=tells))

    @rule()
    def tell_who_waits(self) -> None:
        """Bring news to those who wait, as whoever ends a chain does."""
        ended = [job for job in self.jobs.values() if job.is_terminal and job.traits & Trait.AWAITED]
        chains = [job.chain_id for job in ended]
        tails = self.both(lambda app: app.store.tails(chains))
        self.both(lambda app: app.tell_dependants(tails))

    @precondition(any_job)
    @rule(which=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def look_at_chains(self, which: list[int]) -> None:
        chains = [self.some(one).chain_id for one in which]
        self.both(lambda app: app.store.tails(chains))
        self.both(lambda app: app.store.find(Filter(awaits=chains)))
        self.both(lambda app: app.store.find(Filter(blocked=True, limit=2, newest_first=False)))

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
        """Make a schedule's next tick; late is who saw the schedule before somebody else's tick."""
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
        return last_tick(self.runner.run(self.memory.store.look(SCHEDULED)).mark)

    # ── working ───────────────────────────────────────────────────────────────────────────────────

    @rule(
        tenant=st.sampled_from(["", "", "tenant"]),
        queues=st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 3), min_size=1),
        total=st.integers(1, 4),
        tasks=st.sampled_from([TASKS, TASKS, TASKS[:1]]),
        limits=st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 2)),
        shares=st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 2)),
        rates=st.dictionaries(
            st.sampled_from(QUEUES), st.sampled_from([Rate(2, timedelta(seconds=3)), Rate(5, timedelta(1))])
        ),
    )
    def lease(
        self, tenant: str, queues: dict[str, int], total: int, tasks: Sequence[str], **limits: Any
    ) -> None:
        wanted = Lease(
            namespace=tenant,
            worker="w",
            queues=queues,
            total=total,
            duration=timedelta(seconds=5),
            tasks=tasks,
            **limits,
        )
        self.leases += self.both(lambda app: app.store.lease(wanted))
        self.both(lambda app: app.store.next_due(tenant, limits["rates"]))

    @rule(tenant=st.sampled_from(["", "", "tenant"]))
    def lease_whatever_is_due(self, tenant: str) -> None:
        queues = dict.fromkeys(QUEUES, ALL)
        wanted = Lease(
            namespace=tenant, worker="v", queues=queues, total=ALL, duration=timedelta(seconds=5), tasks=TASKS
        )
        self.leases += self.both(lambda app: app.store.lease(wanted))

    @rule(tenant=st.sampled_from(["", "", "tenant"]))
    def lease_what_was_just_made(self, tenant: str) -> None:
        queues = dict.fromkeys(QUEUES, ALL)
        wanted = Lease(
            namespace=tenant, worker="u", queues=queues, total=1, duration=timedelta(seconds=5), tasks=TASKS
        )
        self.both(lambda app: app.store.lease(replace(wanted, tasks=())))  # now all that is due is available
        self.stores_hold_the_same()
        due = [job for job in self.jobs.values() if job.namespace == tenant and job.state is State.AVAILABLE]
        if due:
            self.place.tell(wanted, min(due, key=lifecycle.rank))
        self.leases += self.both(lambda app: app.store.lease(wanted))

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
        wanted = Lease(
            namespace="",
            worker="t",
            queues=dict.fromkeys(QUEUES, ALL),
            total=ALL,
            duration=timedelta(seconds=5),
            tasks=TASKS,
            limits=dict.fromkeys(QUEUES, most),
        )

        async def act(app: App) -> list[Any]:
            return list(await app.store.turn(steps, wanted))

        self.leases += self.both(act)[1]

    @precondition(any_active)
    @rule(wish=wishes(), which=st.integers(0, 5))
    def complete_and_continue(self, wish: Wish, which: int) -> None:
        job = self.some(which, active=True)
        wish = Wish(**{**vars(wish), "key": None})
        request = self.request(wish)
        asked = alter(request.job, namespace=job.namespace)
        continuation = make(msgspec.structs.replace(request, job=asked), self.clock())
        self.apply(settlement(job, Completed(b"2", continuation)))

    @precondition(lambda self: bool(self.leases))
    @rule(result=results(), which=st.integers(0, 20))
    def settle_an_old_lease(self, result: Result, which: int) -> None:
        job = self.leases[-1 - which % len(self.leases)]
        [answer] = self.apply(settlement(job, result))
        now = self.jobs.get(job.id)
        still_ours = now is not None and (now.state, now.token) == (State.ACTIVE, job.token)
        assert (answer is not None) == still_ours

    @precondition(lambda self: bool(self.leases))
    @rule(which=st.integers(0, 20))
    def extend(self, which: int) -> None:
        job = self.leases[-1 - which % len(self.leases)]
        act = partial(lifecycle.extend, token=job.token, lease=timedelta(seconds=5))
        self.apply(Step(act, job.id))

    @precondition(lambda self: bool(self.leases))
    @rule(which=st.integers(0, 20), fraction=st.floats(0, 1))
    def report(self, which: int, fraction: float) -> None:
        job = self.leases[-1 - which % len(self.leases)]
        told = msgspec.json.encode({"fraction": fraction, "message": ""})
        self.apply(Step(partial(lifecycle.report, token=job.token, progress=told), job.id))

    @rule(tenant=st.sampled_from(["", "", "tenant"]), queue=st.sampled_from(QUEUES), pauses=rarely)
    def pause_or_resume(self, tenant: str, queue: str, *, pauses: bool) -> None:
        value = b"1" if pauses else None
        self.both(lambda app: app.store.put_setting(tenant, PAUSED, queue, value))

    # ── by hand ───────────────────────────────────────────────────────────────────────────────────

    @precondition(any_job)
    @rule(which=st.integers(0, 20), successors=st.booleans())
    def cancel(self, which: int, *, successors: bool) -> None:
        job = self.some(which)
        self.both(lambda app: app.cancel(job.id, successors=successors, reason="by hand"))

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
        _, repaired = self.both(lambda app: app.sweep())
        assert repaired == 0 or blocked  # nobody else brings those the news, unless it is the rule's turn

    @rule()
    def replay_due(self) -> None:
        self.revived |= {job.id for job in self.jobs.values() if job.returns_at is not None}
        self.both(replay_due)

    @rule(tenant=st.sampled_from(["", "tenant"]))
    def prune(self, tenant: str) -> None:
        self.both(lambda app: App(store=app.store, namespace=tenant).prune())

    @rule(limit=st.integers(1, 4), task=st.none() | st.sampled_from(TASKS))
    def list_dead(self, limit: int, task: str | None) -> None:
        self.both(lambda app: app.dead(limit=limit, task=task))
        self.both(lambda app: app.dead_groups(task=task))

    @rule(times=st.integers(1, 3), key=st.sampled_from(KEYS), outcome=st.sampled_from(["kept", "stale"]))
    def tally(self, times: int, key: bytes, outcome: str) -> None:
        tally = Tally(TENANTS[key], TASKS[0], outcome, "x", times)
        for app in (self.memory, self.other):
            app.store.tally([tally, tally])

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

    # ── time and bad luck ─────────────────────────────────────────────────────────────────────────

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
        expected, found = (self.runner.run(everything(app.store)) for app in (self.memory, self.other))
        assert not (odd := difference(expected, found)), odd
        assert expected["stranded"] == []
        before, self.jobs = self.jobs, dict(sorted(expected["jobs"].items()))
        for job in self.jobs.values():
            check_job(job)
            if job.id in before and job.id not in self.revived:
                check_history(before[job.id], job)
        check_keys(list(self.jobs.values()))
        self.revived.clear()


def check_job(job: Job) -> None:
    """Make sure that a job is whole."""
    assert job.attempt <= job.retry.attempts
    assert job.held_key in {None, job.key}
    assert job.next_key in {None, job.key}
    assert job.held_key is None or job.next_key is None
    assert (job.state is State.ACTIVE) == (job.lease_until is not None)
    assert job.is_terminal == (job.finished_at is not None)
    if job.next_key is not None:
        assert job.state is State.PENDING


def check_history(before: Job, now: Job) -> None:
    """Make sure that tokens rise and that terminal is final."""
    assert now.token >= before.token
    if before.is_terminal:
        assert (now.state, now.finished_at, now.reason) == (before.state, before.finished_at, before.reason)


def check_keys(jobs: Sequence[Job]) -> None:
    """Make sure that a key has one holder and one successor, and that this one waits for somebody."""
    holders = Counter(job.held_key for job in jobs if job.held_key)
    successors = Counter(job.next_key for job in jobs if job.next_key)
    assert max([*holders.values(), *successors.values()], default=0) <= 1
    going_on = {job.held_key for job in jobs if job.held_key and not job.is_terminal}
    assert successors.keys() <= going_on
    assert all(job.next_key or job.is_blocked for job in jobs if job.state is State.PENDING)
    assert all(job.state is State.PENDING for job in jobs if job.is_blocked and not job.is_terminal)


async def answered(act: Callable[[App], Awaitable[Any]], app: App) -> Any:
    """Await an answer; a refusal is one."""
    try:
        return await act(app)
    except OnejobError as refusal:
        return refusal


async def admit_what_waits(app: App, request: Request, *, tells: bool) -> Any:
    """Admit a request that waits for chains, and do what follows from it."""
    chains = chains_named(request.job.blockers)
    reaches = await converse(reach(chains, {}), app.store, app.store.apply)
    [verdict] = await app.store.apply([admission_step(msgspec.structs.replace(request, reaches=reaches))])
    if not tells or is_quiet(request, verdict):
        return verdict
    return await converse(settle_in(request, verdict, {}), app.store, app.store.apply)


async def replay_due(app: App) -> Any:
    """Let dead letters come back, and write down at once which could not."""
    outcomes = await app.replay_due()
    app.ledger.flush()
    return outcomes


def settlement(job: Job, result: Result) -> Step:
    """Make the step that settles a run, as the worker makes it."""
    merge = partial(merged, policy=MERGING)
    act = partial(lifecycle.settle, token=job.token, result=result, merge=merge, replay=REPLAY)
    return Step(act, job.id)


def handler(items: list[int], n: int, seq: int) -> None:
    """Stand for the tasks, which this machine never runs."""


@pytest.mark.parametrize("other", OTHERS)
def test_a_store_answers_and_holds_as_the_memory_store_does(
    other: str, request: pytest.FixtureRequest
) -> None:
    place = OTHERS[other](request)
    try:
        run_state_machine_as_test(
            cast("Any", partial(StoresAgree, place)),  # a factory does as well as a class
            settings=settings(
                max_examples=place.examples * (100 if DEEP else 1),
                stateful_step_count=60 if DEEP else 40,
                deadline=None,
                print_blob=True,
                suppress_health_check=[
                    HealthCheck.too_slow,
                    HealthCheck.data_too_large,
                    HealthCheck.filter_too_much,
                ],
            ),
        )
    finally:
        place.close()
