"""Many at once on PostgreSQL, and connections that die: all verdicts are right and no promise is lost."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import replace as replace_lease
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from onejob import App, Job, Outcome, State, Task, Unique
from onejob.core.job import alter
from onejob.core.runs import Completed
from onejob.core.step import Changes, Step, View
from onejob.errors import AdmissionBusy, InvalidCall, StoreUnavailable
from onejob.stores.flow import Flow
from onejob.stores.postgres.connection import BEGIN, COMMIT
from onejob.stores.postgres.pool import MOST_OF_LOOP
from onejob.stores.postgres.records import updates
from onejob.stores.postgres.server import Server
from onejob.stores.postgres.store import MANY, PostgresStore
from onejob.stores.queries import Stranded
from onejob.testing import Clock
from tests.contract.stage import Stage, do, open_stage
from tests.contract.steps import complete, everything, lease, mailer, settlement, start
from tests.contract.test_interleavings_postgres import COALESCE, LEASE, ask, end

pytestmark = pytest.mark.races

KEYS = 150
OURS = """
SELECT pid FROM pg_stat_activity
WHERE application_name = 'onejob' AND datname = current_database() ORDER BY backend_start
"""
PATIENCE = 60.0  # seconds for what is bound to happen


@pytest.fixture
async def apps(postgres_url: str) -> AsyncIterator[list[App]]:
    """Open the database as several processes would: nothing is shared but the server."""
    async with AsyncExitStack() as stack:
        apps = [App(postgres_url) for _ in range(3)]
        for app in apps:
            app.maintenance.migrate()
            await stack.enter_async_context(app)
        yield apps


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None)) as database:
        yield database


def mailers(apps: list[App], policy: Unique) -> list[Task[..., str]]:
    return [mailer(app, policy) for app in apps]


# ── the same keys at once ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "policy", [Unique(by="to"), Unique.coalesce(by="to"), Unique.latest(by="to", version="text")]
)
async def test_case_28_bulks_of_the_same_keys_in_opposite_order_are_all_answered(
    apps: list[App], policy: Unique
) -> None:
    tasks = mailers(apps, policy)
    keys = list(range(KEYS))
    chosen = [keys, keys[::-1], random.Random(7).sample(keys, KEYS)]
    for round_ in range(3):
        bulks = [
            app.enqueue_many([task.call(n, 3 * round_ + number) for n in order])
            for number, (app, task, order) in enumerate(zip(apps, tasks, chosen, strict=True))
        ]
        answers = await asyncio.gather(*bulks)
        told = defaultdict(list)
        for order, admissions in zip(chosen, answers, strict=True):
            for n, admission in zip(order, admissions, strict=True):
                assert admission.job.arguments["to"] == n
                told[n].append((admission.outcome, admission.job.id))
        for outcomes in told.values():
            assert len({job for _, job in outcomes}) == 1
            assert sum(outcome is Outcome.CREATED for outcome, _ in outcomes) == (round_ == 0)
    jobs = await everything(apps[0])
    assert Counter(job.arguments["to"] for job in jobs) == dict.fromkeys(keys, 1)


async def end_all(app: App, running: list[Job]) -> None:
    """Complete runs in batches, as a busy worker does."""
    for at in range(0, len(running), 30):
        await asyncio.gather(*(complete(app, job) for job in running[at : at + 30]))


async def test_a_bulk_meets_the_completion_of_the_same_keys(apps: list[App]) -> None:
    here, there, _ = apps
    mail, same = mailers([here, there], Unique.coalesce(by="to"))
    for round_ in range(4):
        await here.enqueue_many([mail.call(n, f"first {round_}") for n in range(KEYS)])
        running = await lease(here)
        assert len(running) == KEYS
        chance = random.Random(round_)
        chance.shuffle(running)

        calls = [same.call(n, f"second {round_}") for n in chance.sample(range(KEYS), KEYS)]
        _, admissions = await asyncio.gather(end_all(here, running), there.enqueue_many(calls))
        assert {admission.outcome for admission in admissions} <= {Outcome.RERUN, Outcome.CREATED}
        assert await here._engine.store.find(Stranded(namespace=here.namespace)) == []
        second = await lease(there)
        assert Counter(job.id for job in second) == Counter(one.job.id for one in admissions)
        assert {job.arguments["text"] for job in second} == {f"second {round_}"}
        await asyncio.gather(*(complete(there, job) for job in second))


@pytest.fixture
def stage(postgres_url: str, clock: Clock) -> Iterator[Stage]:
    with open_stage(postgres_url, clock) as stage:
        yield stage


def test_a_holder_that_ends_between_the_conflict_and_the_look_leaves_the_key_to_the_newcomer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newcomer's statement began before the holder's commit, so that it can see neither row."""
    stage.wait_briefly(20_000, monkeypatch)
    holder, newcomer = stage.sessions
    holder.begin([ask(1, COALESCE)], visiting=True)
    while holder.next != "the caller's commit":
        holder.step(stage.observer)
    newcomer.begin([ask(2, COALESCE)], visiting=False)
    newcomer.step(stage.observer)
    assert newcomer.waits == 1
    holder.step(stage.observer)
    assert holder.done
    assert newcomer.settle(stage.observer)
    assert not newcomer.done
    [job] = asyncio.run(stage.store.lease(LEASE)).jobs
    [ended] = do(stage.store, [end(1, Completed(b"1"))])
    assert ended.job.id == job.id
    newcomer.end()
    [verdict] = newcomer.answer
    assert (verdict.outcome, verdict.job.id) == (Outcome.CREATED, f"{2:08d}")


async def test_no_end_comes_before_one_of_the_same_key_that_must_be_waited_for(
    apps: list[App], database: psycopg.Connection
) -> None:
    mail = mailer(apps[0], Unique(by="to", until="start"))
    jobs = []
    for to in (1, 1, 2):
        await mail.enqueue(to)
        jobs.append(await start(apps[0]))
    ends = [settlement(apps[0], job, Completed(b"1")) for job in jobs]
    with database.transaction():
        database.execute("SELECT 1 FROM onejob_jobs WHERE id = %s FOR UPDATE", (jobs[0].id,))
        (waits, follows, ended), _, _ = await apps[0]._engine.store.lease(LEASE, after=ends)
    assert isinstance(waits, AdmissionBusy)
    assert isinstance(follows, AdmissionBusy)
    assert ended.job.state is State.COMPLETED
    answers: list[Any] = await apps[0]._engine.store.apply(ends[:2])
    assert [one.job.state for one in answers] == [State.COMPLETED] * 2


async def test_many_ends_and_a_lease_go_side_by_side(apps: list[App], database: psycopg.Connection) -> None:
    """An end that is delayed, or that cannot be written, changes nothing for the others and for the lease."""
    mail, store = mailer(apps[0]), apps[0]._engine.store
    await apps[0].enqueue_many([mail.call(to) for to in range(2 * MANY)])
    wanted = replace_lease(LEASE, queues={"default": MANY}, total=MANY)
    running = (await store.lease(wanted)).jobs
    ends = [settlement(apps[0], job, Completed(b"1")) for job in running]
    ends[1] = Step(unwritable, running[1].id, seen=running[1])
    with database.transaction():
        database.execute("SELECT 1 FROM onejob_jobs WHERE id = %s FOR UPDATE", (running[0].id,))
        (delayed, refused, *ended), started, _ = await store.lease(wanted, after=ends)
    assert isinstance(delayed, AdmissionBusy)
    assert isinstance(refused, InvalidCall)
    assert [answer.job.state for answer in ended] == [State.COMPLETED] * (MANY - 2)
    assert len({job.id for job in started} - {job.id for job in running}) == MANY


async def test_ends_that_were_written_are_answered_although_another_worker_fills_the_queue(
    postgres_url: str, database: psycopg.Connection
) -> None:
    async with App(postgres_url, admission_timeout=0.2) as app:
        app.maintenance.migrate()
        mail, store = mailer(app), app._engine.store
        await app.enqueue_many([mail.call(to) for to in range(2)])
        wanted = replace_lease(LEASE, total=1, limits={"default": 1})
        [running] = (await store.lease(wanted)).jobs
        with database.transaction():
            database.execute("SELECT pg_advisory_xact_lock(hashtextextended('onejob queue  default', 0))")
            [ended], started, _ = await store.lease(wanted, [settlement(app, running, Completed(b"1"))])
        assert ended.job.state is State.COMPLETED
        assert started == []
        assert len((await store.lease(wanted)).jobs) == 1


async def test_jobs_start_although_an_end_must_wait_for_a_locked_successor(
    apps: list[App], database: psycopg.Connection
) -> None:
    mail, store = mailer(apps[0], Unique.coalesce(by="to")), apps[0]._engine.store
    await mail.enqueue(1)
    running = await start(apps[0])
    successor, other = (await mail.enqueue(1, "again")).job, (await mail.enqueue(2)).job
    with database.transaction():
        database.execute("SELECT 1 FROM onejob_jobs WHERE id = %s FOR UPDATE", (successor.id,))
        [delayed], started, _ = await store.lease(LEASE, [settlement(apps[0], running, Completed(b"1"))])
    assert isinstance(delayed, AdmissionBusy)
    assert [job.id for job in started] == [other.id]


def unwritable(view: View) -> Changes[None]:
    """Give a job a worker whose name is no text."""
    assert view.job is not None
    return Changes(None, updates=(alter(view.job, worker="\ud800"),))


@pytest.mark.parametrize("change", [{"priority": 9}, {"worker": "w"}])
async def test_a_write_that_was_decided_on_another_revision_fails_the_whole_transaction(
    apps: list[App], change: dict[str, Any]
) -> None:
    """Whichever statement writes it, the COMMIT in the same batch does not happen."""
    mail = mailer(apps[0])
    for to in range(2):
        await mail.enqueue(to)
    one, other = sorted(await everything(apps[0]), key=lambda job: job.id)
    stale = replace(other, revision=other.revision + 1)
    pairs = [(job, replace(job, revision=job.revision + 1, **change)) for job in (one, stale)]

    def flow(_server: Server) -> Flow[None]:
        yield [BEGIN, *updates(pairs, must=True), COMMIT]

    store = apps[0]._engine.store
    with pytest.raises(AdmissionBusy):
        await store._run(flow)  # type: ignore[attr-defined]
    assert sorted(await everything(apps[0]), key=lambda job: job.id) == [one, other]


# ── connections that die ──────────────────────────────────────────────────────────────────────────


@contextmanager
def killing(url: str, chance: random.Random) -> Iterator[Callable[[], int]]:
    """End connections of ours at random as long as the block lasts; tells how many have been ended.

    A machine on which it takes longer to connect has more time to do so: else nothing would ever get through.
    """
    enough, ended, took = threading.Event(), 0, 0.0

    def kill() -> None:
        nonlocal ended, took
        while not enough.wait(took * chance.uniform(0.2, 2)):
            began = time.monotonic()
            with psycopg.connect(url, autocommit=True) as killer:
                if found := killer.execute(OURS).fetchall():
                    killer.execute("SELECT pg_terminate_backend(%s)", chance.choice(found))
                    ended += 1
            took = time.monotonic() - began

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield lambda: ended
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize(
    "policy", [Unique(by="to"), Unique(by="to", on_conflict="update")], ids=["keep", "update"]
)
async def test_killed_connections_lose_no_promise_and_make_no_double(
    apps: list[App], postgres_url: str, policy: Unique, chance: random.Random
) -> None:
    tasks = mailers(apps, policy)
    promised: dict[int, set[str]] = defaultdict(set)

    async def insist(task: Task[..., str], n: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while not promised[n]:
                try:
                    promised[n].add((await task.enqueue(n, "x")).job.id)
                except StoreUnavailable:
                    continue

    with killing(postgres_url, chance) as kills:
        while kills() <= 20 or len(promised) < 600:
            more = range(len(promised), len(promised) + 20)
            await asyncio.gather(*(insist(task, n) for n in more for task in tasks))
    jobs = await everything(apps[0])
    assert {job.arguments["to"]: {job.id} for job in jobs} == promised
    assert len(jobs) == len(promised)


async def test_killed_connections_leave_every_run_settled_once(
    apps: list[App], postgres_url: str, chance: random.Random
) -> None:
    app, other, _ = apps
    mail = mailer(app, Unique(by="to"))
    mailer(other, Unique(by="to"))
    await app.enqueue_many([mail.call(n) for n in range(300)])
    with killing(postgres_url, chance) as kills:
        crews = [app.worker(concurrency=4, lease="5s"), other.worker(concurrency=4, lease="5s")]
        async with crews[0], crews[1], asyncio.timeout(PATIENCE):
            while len(await insistently(lambda: app.jobs(state="completed", limit=1000))) < 300:  # noqa: ASYNC110 - the workers tell nobody
                await asyncio.sleep(0.05)
        assert kills() > 3
    jobs = await everything(app)
    assert Counter(job.state for job in jobs) == {State.COMPLETED: 300}
    assert {job.stand for job in jobs} == {None}


async def insistently(act: Callable[[], object]) -> list[object]:
    """Ask until the store answers."""
    while True:
        try:
            return await act()  # type: ignore[misc, no-any-return]
        except StoreUnavailable:
            continue


def test_a_loop_that_has_closed_keeps_no_connection(database: psycopg.Connection, postgres_url: str) -> None:
    app = App(postgres_url)
    app.maintenance.migrate()

    async def crowd() -> None:
        await asyncio.gather(*(app.jobs() for _ in range(3 * MOST_OF_LOOP)))

    for _ in range(5):
        asyncio.run(crowd())
    ends = time.monotonic() + PATIENCE
    while (left := backends(database)) > MOST_OF_LOOP:  # it takes them a moment to see that they were left
        assert time.monotonic() < ends, left
    asyncio.run(app.close())


def backends(database: psycopg.Connection) -> int:
    """Count those that serve our own connections."""
    return database.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'onejob' AND datname = current_database()"
    ).rowcount


# ── notifications that are lost ───────────────────────────────────────────────────────────────────────


def listeners(database: psycopg.Connection) -> set[int]:
    rows = database.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'onejob listener' AND query LIKE 'LISTEN%'"
        " AND state = 'idle' AND datname = current_database()"
    ).fetchall()
    return {pid for (pid,) in rows}


async def new_listener(database: psycopg.Connection, known: set[int]) -> set[int]:
    """Wait for a new listener."""
    async with asyncio.timeout(PATIENCE):
        while not (found := listeners(database) - known):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
    return found


async def test_a_worker_whose_listener_dies_still_finds_work_and_listens_again(
    apps: list[App], database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.worker.worker.LOOK_AGAIN", 1.0)
    here, there, _ = apps
    mail, _ = mailers([here, there], Unique(by="to"))
    async with there.worker(concurrency=1):
        known = await new_listener(database, set())
        for round_ in range(2):
            for pid in known:
                database.execute("SELECT pg_terminate_backend(%s)", (pid,))
            answer = await mail.enqueue(round_, "unheard")
            assert await answer.result(timeout=PATIENCE) == f"{round_}: unheard"
            known = await new_listener(database, known)


async def test_a_listener_that_is_back_rings_for_what_it_missed_and_for_what_comes(
    postgres_url: str, database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.stores.postgres.store.POLL", 60)
    store = PostgresStore(postgres_url)
    async with App(store=store), App(postgres_url) as other, asyncio.timeout(PATIENCE):
        mail = mailer(other, Unique(by="to"))
        await store.wait(60, store.position())
        [pid] = listeners(database)
        missed = store.position()
        database.execute("SELECT pg_terminate_backend(%s)", (pid,))
        await store.wait(60, missed)
        await new_listener(database, {pid})
        heard = store.position()
        await mail.enqueue(1)
        await store.wait(60, heard)
        assert await start(other)


async def test_a_commit_that_absorbed_a_request_wakes_workers_that_passed_over_its_job(
    apps: list[App], database: psycopg.Connection, postgres_url: str
) -> None:
    mail = mailer(apps[0], Unique(by="to"))
    mailer(apps[1], Unique(by="to"))
    await mail.enqueue(1)
    database.execute("LISTEN onejob")
    with psycopg.connect(postgres_url) as caller:
        assert (await mail.options(connection=caller).enqueue(1)).outcome == "kept"
        assert await lease(apps[1]) == []  # locked until the caller commits
        caller.commit()
    calls = database.notifies(timeout=PATIENCE)
    assert any(call.payload == "a caller" for call in calls)
    assert len(await lease(apps[1])) == 1
