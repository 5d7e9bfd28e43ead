"""Whatever the order of their statements, two sessions answer and leave what some serial order would.

The memory store is the oracle: it carries out the same steps one after the other, in every order.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import permutations
from typing import Any

import msgspec
import pytest

from onejob import Retry, Unique
from onejob.core import manual, runs
from onejob.core.decide import Request, merge_payloads
from onejob.core.job import EPOCH, Job, State, fingerprint
from onejob.core.leasing import Lease
from onejob.core.replay import replay
from onejob.core.runs import Completed, Failed, HandedBack, Result
from onejob.core.step import Step
from onejob.engine.steps import admission_step
from onejob.errors import OnejobError
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.stores.postgres.server import BRIEF
from onejob.stores.queries import Listed
from onejob.testing import Clock
from tests.conftest import Database
from tests.contract.stage import Act, Stage, do, open_stage, orders

pytestmark = [pytest.mark.races, pytest.mark.timeout(600)]

DEEP = os.environ.get("ONEJOB_HYPOTHESIS") == "deep"  # hands change once more

KEYS = (b"a" * 32, b"b" * 32, b"c" * 32)
TERM = timedelta(seconds=5)

KEEP = Unique()
UPDATE = Unique(on_conflict="update")
REPLACE = Unique(on_conflict="replace")
COALESCE = Unique.coalesce()
MERGE = Unique(on_conflict="update", merge={"items": "append"})
LATEST = Unique(on_conflict="update", version="seq")
STARTING = Unique(until="start", on_conflict="replace")
ONCE = Unique.once()
IDLE = Unique(states={"available", "scheduled"})  # to which a running holder is none
CANCEL = Unique(on_conflict="replace", on_active="cancel")


# ── what sessions do ──────────────────────────────────────────────────────────────────────────────


def ask(number: int, policy: Unique, key: bytes = KEYS[0], *, force: bool = False) -> Step[Any]:
    """Ask for a job; a later request has a higher number."""
    args = msgspec.json.encode({"items": [number], "seq": number})
    job = Job(
        id=f"{number:08d}",
        namespace="",
        task="mail",
        queue="default",
        state=State.AVAILABLE,
        priority=0,
        run_at=EPOCH,
        place=number,
        created_at=EPOCH,
        args=args,
        meta=b"{}",
        payload_digest=fingerprint(args, b"{}"),
        retry=Retry(3, base=2, cap=60),
        chain_id=f"{number:08d}",
        key=key,
        version=number if policy.version else None,
    )
    return admission_step(Request(job, policy, force=force))


def end(number: int, result: Result | None = None) -> Step[Any]:
    """Settle the first run of a job."""
    act = partial(
        runs.settle, token=1, result=result or Completed(b"1"), merge=partial(merge_payloads, policy=MERGE)
    )
    return Step(act, f"{number:08d}")


def act_on(number: int, act: Callable[..., Any], **given: Any) -> Step[Any]:
    return Step(partial(act, **given), f"{number:08d}")


def extend(number: int) -> Step[Any]:
    return Step(partial(runs.extend, token=1, lease=TERM * 9), f"{number:08d}", alone=True)


FAILED = Failed({"type": "Boom", "message": "boom", "traceback": ""})
FINALLY = Failed({"type": "Boom", "message": "boom", "traceback": ""}, final=True)
LEASE = Lease(
    namespace="", worker="w", queues={"default": 10}, total=10, duration=TERM, tasks=("mail",), limits={}
)
LIMITED = Lease(
    namespace="",
    worker="v",
    queues={"default": 10},
    total=10,
    duration=TERM,
    tasks=("mail",),
    limits={"default": 1},
)


@dataclass(frozen=True)
class Scene:
    """What has happened, and what two sessions then do at once."""

    before: Sequence[Act]
    first: Act
    second: Act

    @property
    def acts(self) -> list[Act]:
        return [self.first, self.second]


def running(policy: Unique) -> list[Act]:
    return [[ask(1, policy)], LEASE]


def followed(policy: Unique) -> list[Act]:
    return [*running(policy), [ask(2, policy)]]


def once_followed(policy: Unique) -> list[Act]:
    """Return what leaves a run whose successor is gone again; its row still says that it had one."""
    return [*followed(policy), [act_on(2, manual.cancel)]]


SCENES = {
    "rerun meets completion": Scene(running(COALESCE), [ask(8, COALESCE)], [end(1)]),
    "rerun meets failure": Scene(running(COALESCE), [ask(8, COALESCE)], [end(1, FAILED)]),
    "rerun meets hand-back": Scene(running(COALESCE), [ask(8, COALESCE)], [end(1, HandedBack())]),
    "rerun that merges meets failure": Scene(followed(MERGE), [ask(8, MERGE)], [end(1, FAILED)]),
    "newer version meets completion": Scene(running(LATEST), [ask(8, LATEST)], [end(1)]),
    "newer version meets last failure": Scene(running(LATEST), [ask(8, LATEST)], [end(1, FINALLY)]),
    "rerun meets rerun": Scene(running(COALESCE), [ask(8, COALESCE)], [ask(9, COALESCE)]),
    "rerun meets extension": Scene(running(COALESCE), [ask(8, COALESCE)], [extend(1)]),
    "keep meets completion": Scene(running(KEEP), [ask(8, KEEP)], [end(1)]),
    "cancel on conflict meets completion": Scene(running(CANCEL), [ask(8, CANCEL)], [end(1)]),
    "cancel on conflict meets extension": Scene(running(CANCEL), [ask(8, CANCEL)], [extend(1)]),
    "update meets lease": Scene([[ask(1, UPDATE)]], [ask(8, UPDATE)], LEASE),
    "replace meets lease": Scene([[ask(1, REPLACE)]], [ask(8, REPLACE)], LEASE),
    "replace until start meets lease": Scene([[ask(1, STARTING)]], [ask(8, STARTING)], LEASE),
    "newer version meets lease": Scene([[ask(1, LATEST)]], [ask(8, LATEST)], LEASE),
    "update meets update": Scene([[ask(1, UPDATE)]], [ask(8, UPDATE)], [ask(9, UPDATE)]),
    "replace meets replace": Scene([[ask(1, REPLACE)]], [ask(8, REPLACE)], [ask(9, REPLACE)]),
    "force meets completion": Scene(followed(COALESCE), [ask(8, COALESCE, force=True)], [end(1)]),
    "take-over meets completion": Scene(running(COALESCE), [ask(8, IDLE)], [end(1)]),
    "take-over meets rerun": Scene(running(COALESCE), [ask(8, IDLE)], [ask(9, COALESCE)]),
    "force meets rerun": Scene(running(COALESCE), [ask(8, COALESCE, force=True)], [ask(9, COALESCE)]),
    "force meets rerun after a successor": Scene(
        once_followed(COALESCE), [ask(8, COALESCE, force=True)], [ask(9, COALESCE)]
    ),
    "rerun after a successor meets completion": Scene(once_followed(COALESCE), [ask(8, COALESCE)], [end(1)]),
    "rerun after a successor meets rerun": Scene(
        once_followed(COALESCE), [ask(8, COALESCE)], [ask(9, COALESCE)]
    ),
    "rerun after a successor meets cancel": Scene(
        once_followed(COALESCE), [ask(8, COALESCE)], [act_on(1, manual.cancel)]
    ),
    "force meets force": Scene(followed(COALESCE), [ask(8, KEEP, force=True)], [ask(9, KEEP, force=True)]),
    "cancel meets completion": Scene(followed(COALESCE), [act_on(1, manual.cancel)], [end(1)]),
    "cancel of both meets completion": Scene(
        followed(COALESCE), [act_on(1, manual.cancel, successors=True)], [end(1)]
    ),
    "cancel of the successor meets completion": Scene(
        followed(COALESCE), [act_on(2, manual.cancel)], [end(1)]
    ),
    "cancel of the successor meets rerun": Scene(
        followed(COALESCE), [act_on(2, manual.cancel)], [ask(8, COALESCE)]
    ),
    "cancel of the holder meets update": Scene(
        [[ask(1, UPDATE)]], [act_on(1, manual.cancel)], [ask(8, UPDATE)]
    ),
    "delete meets keep": Scene([[ask(1, KEEP)]], [act_on(1, manual.delete)], [ask(8, KEEP)]),
    "release meets rerun": Scene(
        followed(COALESCE), [Step(partial(manual.release, force=True), key=KEYS[0])], [ask(8, COALESCE)]
    ),
    "replay meets keep": Scene([*running(KEEP), [end(1, FINALLY)]], [act_on(1, replay)], [ask(8, KEEP)]),
    "prune meets once": Scene([*running(ONCE), [end(1)]], [act_on(1, manual.prune)], [ask(8, ONCE)]),
    "two for a free key": Scene([], [ask(8, KEEP)], [ask(9, KEEP)]),
    "two updates of a free key": Scene([], [ask(8, UPDATE)], [ask(9, UPDATE)]),
    "two versions of a free key": Scene([], [ask(9, LATEST)], [ask(8, LATEST)]),
    "two leases": Scene([[ask(1, KEEP), ask(2, KEEP, KEYS[1])]], LEASE, LEASE),
    "two leases of a limited queue": Scene([[ask(1, KEEP), ask(2, KEEP, KEYS[1])]], LIMITED, LIMITED),
    "bulk meets batch completion": Scene(
        [[ask(n + 1, COALESCE, key) for n, key in enumerate(KEYS)], LEASE],
        [ask(7 + n, COALESCE, KEYS[-1 - n]) for n in range(3)],
        [end(1), end(2), end(3)],
    ),
    "bulk meets bulk in opposite order": Scene(
        [],
        [ask(1 + n, UPDATE, key) for n, key in enumerate(KEYS[:2])],
        [ask(8 - n, UPDATE, KEYS[1 - n]) for n in range(2)],
    ),
    "bulk meets bulk over what waits": Scene(
        [[ask(n + 1, UPDATE, key) for n, key in enumerate(KEYS[:2])]],
        [ask(4 + n, UPDATE, key) for n, key in enumerate(KEYS[:2])],
        [ask(8 - n, UPDATE, KEYS[1 - n]) for n in range(2)],
    ),
}


# ── what they may leave ───────────────────────────────────────────────────────────────────────────


def plain(answers: Any) -> Any:
    """Make answers comparable: errors by what they say."""
    if isinstance(answers, list):
        return [plain(answer) for answer in answers]
    return (type(answers), str(answers)) if isinstance(answers, OnejobError) else answers


async def remains(store: Store) -> list[Any]:
    """Read all jobs and marks."""
    jobs = await store.find(Listed(namespace=None, limit=1000, newest_first=False))
    marks = [(await store.look(key)).mark for key in KEYS]
    return [jobs, [mark for mark in marks if mark is not None]]


def serially(scene: Scene, clock: Clock) -> list[list[Any]]:
    """Carry out the steps one after the other in every order: answers by session, and what is left.

    A lease may also find that all is taken for the moment, and come back with less.
    """
    parts = [
        (index, number, act if isinstance(act, Lease) else [act[number]])
        for index, act in enumerate(scene.acts)
        for number in range(1 if isinstance(act, Lease) else len(act))
    ]
    found = []
    for order in permutations(parts):
        for left_out in leavings(scene):
            memory = MemoryStore(clock=clock)
            for act in scene.before:
                do(memory, act)
            answers: list[list[Any]] = [
                [None] * (1 if isinstance(act, Lease) else len(act)) for act in scene.acts
            ]
            for index, number, part in order:
                answers[index][number] = (
                    []
                    if index in left_out
                    else plain(do(memory, part) if isinstance(part, Lease) else do(memory, part)[0])
                )
            found.append([answers, asyncio.run(remains(memory))])
    return found


def leavings(scene: Scene) -> Iterator[set[int]]:
    """Return which leases may come back empty."""
    yield set()
    for index, act in enumerate(scene.acts):
        if isinstance(act, Lease):
            yield {index}


def answered(scene: Scene, answers: Sequence[Any]) -> list[Any]:
    """Bring answers into the shape of the oracle's."""
    return [
        [plain(answer)] if isinstance(act, Lease) else plain(answer)
        for act, answer in zip(scene.acts, answers, strict=True)
    ]


# ── all orders ────────────────────────────────────────────────────────────────────────────────────


MANNERS = [(False, 20_000), (True, 1), *([(False, 1), (True, 20_000)] if DEEP else [])]
SETTLING = ("completion", "failure", "hand-back", "extension")
ENDING = [name for name in SCENES if name.endswith(SETTLING)]


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def theatre(postgres_database: Database, clock: Clock) -> Iterator[Stage]:
    postgres_database.empty()
    with open_stage(postgres_database.url, clock) as stage:
        yield stage


@pytest.fixture
def stage(theatre: Stage) -> Stage:
    theatre.clear()
    theatre.brief = BRIEF
    return theatre


@pytest.mark.parametrize(("visiting", "milliseconds"), MANNERS)
@pytest.mark.parametrize(
    ("name", "unread"), [(name, False) for name in SCENES] + [(name, True) for name in ENDING]
)
def test_two_sessions_leave_what_a_serial_order_would(
    stage: Stage,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    milliseconds: int,
    *,
    visiting: bool,
    unread: bool,
) -> None:
    """The first may be in a caller's transaction; both wait for the other briefly, or for long.

    Their steps may have seen the jobs that run, so that they need no reading.
    """
    stage.wait_briefly(milliseconds, monkeypatch)
    scene = SCENES[name]
    visits = (visiting and not isinstance(scene.first, Lease), False)
    for act in scene.before:
        do(stage.store, act)
    stage.keep_scenery()
    allowed = serially(scene, clock)
    stage.deadlocks = 0
    acts = [stage.with_seen(act) for act in scene.acts] if unread else scene.acts
    for order in orders(stage.rehearse(acts, visits), changes=3 if DEEP else 2):
        stage.restore_scenery()
        answers = answered(scene, stage.perform(acts, order, visits))
        left = stage.remains()
        assert [answers, left] in allowed, (name, order, answers, left)
    # A group does not wait for its jobs, so it may lock a successor first; but then it waits briefly only.
    assert stage.deadlocks == 0 or (name == "cancel of the successor meets completion" and not visiting)


# ── who waits for whom ────────────────────────────────────────────────────────────────────────────


def open_request(stage: Stage, policy: Unique = COALESCE, number: int = 8) -> None:
    """Let the first session ask for work that runs, in a caller's transaction, and not commit."""
    visitor = stage.sessions[0]
    visitor.begin([ask(number, policy)], visiting=True)
    while visitor.next != "the caller's commit":
        visitor.step(stage.observer)


def states(stage: Stage) -> dict[int, str]:
    jobs, _ = stage.remains()
    return {int(job.id): str(job.state) for job in jobs}


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize(
    ("before", "policy", "outcome"),
    [(running(KEEP), KEEP, "kept"), (followed(COALESCE), COALESCE, "updated")],
)
def test_a_lease_is_renewed_while_a_callers_open_transaction_relies_on_the_run(
    stage: Stage, before: list[Act], policy: Unique, outcome: str, *, unread: bool
) -> None:
    for act in before:
        do(stage.store, act)
    open_request(stage, policy)
    worker = stage.sessions[1]
    renewal = stage.with_seen([extend(1)]) if unread else [extend(1)]
    worker.begin(renewal, visiting=False)
    while not worker.done:
        worker.step(stage.observer)
    assert worker.waits == 0
    [renewed] = worker.answer
    assert renewed.lease_until == stage.store.now() + TERM * 9
    stage.sessions[0].end()
    assert [verdict.outcome for verdict in stage.sessions[0].answer] == [outcome]


def test_a_renewal_waits_for_a_callers_transaction_that_adds_the_first_successor(stage: Stage) -> None:
    """That transaction writes the running job's row, which says from then on that a successor waits."""
    for act in running(COALESCE):
        do(stage.store, act)
    open_request(stage)
    worker = stage.sessions[1]
    worker.begin(stage.with_seen([extend(1)]), visiting=False)
    while not worker.waits:
        assert not worker.done
        worker.step(stage.observer)
    for session in stage.sessions:
        session.end()
    [renewed] = worker.answer
    assert renewed.lease_until == stage.store.now() + TERM * 9
    assert states(stage) == {1: "active", 8: "pending"}


def test_completion_waits_for_a_callers_open_transaction_and_the_rest_of_its_batch_does_not(
    stage: Stage,
) -> None:
    do(stage.store, [ask(n + 1, COALESCE, key) for n, key in enumerate(KEYS)])
    do(stage.store, LEASE)
    open_request(stage)
    worker = stage.sessions[1]
    worker.begin([end(1), end(2), end(3)], visiting=False)
    while not worker.waits:
        assert not worker.done
        worker.step(stage.observer)
    assert states(stage) == {1: "active", 2: "completed", 3: "completed"}
    for session in stage.sessions:
        session.end()
    assert [one.job.id for one in worker.answer] == ["00000001", "00000002", "00000003"]
    assert states(stage) == {1: "completed", 2: "completed", 3: "completed", 8: "available"}


def test_a_caller_who_rolls_back_leaves_nothing_for_the_completion_that_waited(stage: Stage) -> None:
    for act in running(COALESCE):
        do(stage.store, act)
    visitor, worker = stage.sessions
    visitor.store.apply_within_sync(visitor.connection, [ask(8, COALESCE)])
    worker.begin([end(1)], visiting=False)
    while not worker.waits:
        assert not worker.done
        worker.step(stage.observer)
    visitor.connection.rollback()
    worker.end()
    assert states(stage) == {1: "completed"}


def test_a_request_that_stops_a_run_waits_for_its_readers_and_delays_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to go on at once, it must not ask again and again for what it cannot have."""
    stage.wait_briefly(1, monkeypatch)
    for act in running(COALESCE):
        do(stage.store, act)
    open_request(stage)
    newcomer = stage.sessions[1]
    newcomer.begin([ask(9, CANCEL), ask(2, CANCEL, KEYS[1])], visiting=False)
    while newcomer.next != "lock_jobs_alone" or states(stage) != {1: "active", 2: "available"}:
        assert not newcomer.done
        assert newcomer.stops < 60
        newcomer.step(stage.observer)
    newcomer.waits = 0
    while not newcomer.waits:
        assert not newcomer.done
        assert newcomer.stops < 60
        newcomer.step(stage.observer)
    for session in stage.sessions:
        session.end()
    assert [verdict.outcome for verdict in newcomer.answer] == ["replaced", "created"]


def test_a_job_that_starts_between_locking_and_reading_is_locked_before_it_is_relied_on(stage: Stage) -> None:
    """Else it could end unnoticed, and the run that was to follow it would wait for ever."""
    do(stage.store, [ask(1, COALESCE)])
    newcomer, worker = stage.sessions
    newcomer.begin([ask(8, COALESCE)], visiting=False)
    while newcomer.next != "lock_standing":
        newcomer.step(stage.observer)
    do(stage.store, LEASE)
    while newcomer.next != "insert_job":
        newcomer.step(stage.observer)
    worker.begin([end(1)], visiting=False)
    while not (worker.done or worker.waits):
        worker.step(stage.observer)
    for session in stage.sessions:
        session.end()
    assert [verdict.outcome for verdict in newcomer.answer] == ["rerun"]
    assert states(stage) == {1: "completed", 8: "available"}
