"""What only Redis has: buckets, scripts, settings of the server, names inside keys, lost connections."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from redis import Redis

from onejob import Admission, App, Job, Outcome, Retry, State, Unique
from onejob.core.leasing import rank
from onejob.engine.steps import admission_step
from onejob.errors import (
    ForeignConnection,
    InvalidCall,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from onejob.stores.contract import Finding
from onejob.stores.redis import layout
from onejob.stores.redis.connection import SCRIPTS
from onejob.stores.redis.scripts import Create
from onejob.stores.redis.steps import apply
from onejob.stores.redis.store import RedisStore
from onejob.tasks.ids import new_id
from onejob.tasks.task import builder_of
from onejob.testing import drain
from tests import servers
from tests.contract.steps import complete, everything, lease, mailer

STRANGE = ["", "a:b", "{a}", "}{", 'a","b', "a b", "a\\nb", "ü😀", "[]", "{onejob:0}:jobs", "\\u0041"]


@pytest.fixture(scope="module")
def own_server() -> Iterator[servers.Server]:
    """Run a server for these tests, which set it otherwise and cut its connections."""
    with servers.redis() as server:
        yield server


@pytest.fixture
def redis_url(own_server: servers.Server) -> str:
    with Redis.from_url(own_server.url) as cleaner:
        cleaner.flushall()
    return own_server.url


@pytest.fixture
def server(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as server:
        yield server


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    async with App(redis_url) as app:
        yield app


def found(findings: list[Finding], check: str) -> Finding:
    return next(finding for finding in findings if finding.check == check)


# ── the layout ────────────────────────────────────────────────────────────────────────────────────


async def test_names_with_strange_characters_stay_apart(redis_url: str) -> None:
    spaces = [App(redis_url, namespace=name) for name in STRANGE]
    for app in spaces:
        for queue in STRANGE[1:]:
            app.queue(queue)
        tasks = {name: mailer(app, Unique(), name=name) for name in STRANGE[1:]}
        for (name, task), queue in product(tasks.items(), STRANGE[1:3]):
            assert (await task.options(queue=queue).enqueue(queue, name)).outcome is Outcome.CREATED
    for app in spaces:
        jobs = await app.jobs(limit=1000)
        assert sorted((job.task, job.queue) for job in jobs) == sorted(product(STRANGE[1:], STRANGE[1:3]))
        assert {(job.id) for job in await lease(app)} == {job.id for job in jobs}
        await app.close()


async def test_every_key_of_ours_carries_its_buckets_tag(server: Redis, redis_url: str) -> None:
    async with App(f"{redis_url}?buckets=4&prefix=shop") as app:
        mail = mailer(app, Unique.coalesce())
        for number in range(50):
            await mail.options(delay=number % 2).enqueue(number)
        for job in await lease(app):
            await mail.enqueue(job.arguments["to"], "again")
            await complete(app, job)
        await app._engine.store.counts("")
    names = [bytes(name).decode() for name in server.scan_iter("*")]
    assert names
    assert all(re.match(r"\{shop:[0-3]\}:\w+", name) for name in names)


GIVEN = {
    *("active", "chains", "counts", "held", "jobs", "key", "marks", "name", "next", "paused", "queue.starts"),
    *(
        "about",
        "all",
        "by",
        "firsts",
        "lasts",
        "queue.turn",
        "queue.wanted",
        "records",
        "request",
        "timed",
        "times",
        "turn.key",
        "turn.wanted",
    ),
}


def test_scripts_touch_no_key_but_those_they_were_given() -> None:
    for name, text in SCRIPTS.items():
        for line in (line.partition("--")[0] for line in text.decode().splitlines()):
            for verb, target in re.findall(r"\bp?call\('?(\w+)'?(?:, ([^,)]+))?", line):
                if verb not in {"TIME", "PUBLISH"}:
                    assert target in GIVEN or target.startswith("KEYS["), (name, line)


@pytest.mark.parametrize("number", range(200))
def test_members_sort_as_jobs_are_ranked(number: int) -> None:
    numbers = [0, 1, -1, 255, 256, 2**31 - 1, -(2**31) + 1]
    jobs = [
        made(numbers[(number + a) % 7], numbers[(number * 3 + b) % 7], numbers[(number * 5 + c) % 7])
        for a, b, c in product(range(3), repeat=3)
    ]
    assert sorted(jobs, key=rank) == sorted(jobs, key=layout.rank)


def made(priority: int, seconds: int, place: int) -> Job:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds % 10_000)
    return Job(
        id=new_id()[0],
        namespace="",
        task="t",
        queue="q",
        state=State.AVAILABLE,
        priority=priority,
        run_at=at,
        place=place,
        created_at=at,
        args=b"{}",
        meta=b"{}",
        payload_digest=b"",
        retry=Retry(),
        chain_id="c",
    )


def test_an_id_ends_as_its_key_begins() -> None:
    for _ in range(100):
        key = new_id()[0].encode() * 2
        assert layout.number(new_id(key)[0]) == layout.number(key)


async def test_another_number_of_buckets_is_refused(redis_url: str) -> None:
    async with App(redis_url) as app:
        await mailer(app).enqueue(1)
    with pytest.raises(SchemaMismatch, match=r"buckets is 1, not 4. Write \?buckets=1"):
        await mailer(App(f"{redis_url}?buckets=4")).enqueue(1)


async def test_a_newer_layout_is_refused(redis_url: str, server: Redis) -> None:
    server.hset("{onejob:0}:meta", mapping={"version": 99, "buckets": 1})
    app = App(redis_url)
    with pytest.raises(SchemaMismatch, match="version 99, newer than 3"):
        await mailer(app).enqueue(1)
    assert found(await app.doctor(), "schema").level == "fail"


async def test_apps_with_different_prefixes_share_a_server(redis_url: str) -> None:
    async with App(f"{redis_url}?prefix=a") as first, App(f"{redis_url}?prefix=b") as second:
        await mailer(first, Unique()).enqueue(1)
        assert (await mailer(second, Unique()).enqueue(1)).outcome is Outcome.CREATED
        assert len(await everything(first)) == len(await everything(second)) == 1


# ── URLs ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://localhost?prefix={a}", "prefix="),
        ("redis://localhost?buckets=0", "buckets=0"),
        ("redis://localhost?buckets=many", "buckets=many"),
    ],
)
def test_a_wrong_url_is_refused(url: str, told: str) -> None:
    with pytest.raises(InvalidCall, match=told):
        App(url)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
async def test_a_password_is_never_shown(scheme: str) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await mailer(App(f"{scheme}://user:hush@127.0.0.1:1/0?socket_connect_timeout=1")).enqueue(1)
    assert "127.0.0.1:1" in str(raised.value)
    assert "hush" not in str(raised.value)
    assert "user" not in str(raised.value)


async def test_a_unix_socket_serves_as_well() -> None:
    with servers.redis(tcp=False) as server:
        async with App(server.url) as app:
            assert (await mailer(app).enqueue(1)).outcome is Outcome.CREATED


# ── the server's settings ─────────────────────────────────────────────────────────────────────────


async def test_a_server_that_evicts_is_refused(redis_url: str, server: Redis) -> None:
    server.config_set("maxmemory-policy", "allkeys-lru")
    try:
        app = App(redis_url)
        with pytest.raises(StoreError, match="maxmemory-policy allkeys-lru removes jobs"):
            await mailer(app).enqueue(1)
        assert found(await app.doctor(), "eviction").advice == "Set maxmemory-policy noeviction."
    finally:
        server.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("durable", "fsync", "told"),
    [
        (False, "everysec", "appendonly no"),
        (True, "everysec", "power loss may take the last second"),
        (True, "always", "survives power loss"),
    ],
)
async def test_durability_is_declared_as_the_server_is_set(durable: bool, fsync: str, told: str) -> None:  # noqa: FBT001
    with servers.redis(durable=durable, appendfsync=fsync) as server:  # type: ignore[arg-type]
        async with App(server.url) as app:
            admission = await mailer(app, Unique()).enqueue(1)
            assert told in app.guarantees().durability
            assert admission.guarantees == app.guarantees()
            assert "failover" in admission.guarantees.not_promised
            level = found(await app.doctor(), "append-only file").level
            assert level == ("ok" if durable else "warn")


async def test_a_full_memory_refuses_and_stores_nothing(app: App, server: Redis) -> None:
    mail = mailer(app, Unique())
    await mail.enqueue(1)
    server.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(StoreUnavailable, match="its memory is full"):
            await mail.enqueue(2)
    finally:
        server.config_set("maxmemory", "0")
    assert [job.arguments["to"] for job in await everything(app)] == [1]
    assert (await mail.enqueue(2)).outcome is Outcome.CREATED


async def test_a_full_memory_drains(app: App, server: Redis) -> None:
    app.queue("limited", concurrency=2, rate="50/1s")
    ran: list[int] = []

    @app.task(retry=Retry(2, base=0))
    async def note(number: int) -> int:
        ran.append(number)
        if number == 3 and ran.count(3) == 1:
            raise ValueError("again")
        return number

    waiting = [await note.enqueue(number) for number in range(6)]
    waiting += [await note.options(queue="limited").enqueue(number) for number in range(6, 9)]
    later = await note.options(delay=60).enqueue(99)
    server.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(StoreUnavailable, match="its memory is full"):
            await note.enqueue(100)
        await app.cancel(later.job.id)
        await drain(app)
        states = [(await app.job(one.job.id)).state for one in waiting]
        assert states == [State.COMPLETED] * 9
        assert (await app.job(later.job.id)).state is State.CANCELLED
        await app.delete(later.job.id)
        await app.maintenance.prune()
    finally:
        server.config_set("maxmemory", "0")
    assert sorted(ran) == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]


async def test_a_replica_is_found_out() -> None:
    with servers.redis() as primary:
        port = primary.url.rsplit(":", 1)[1].split("/")[0]
        with servers.redis(settings={"replicaof": f"127.0.0.1 {port}"}) as replica:
            app = App(replica.url)
            with pytest.raises(StoreUnavailable, match="it is a replica"):
                await mailer(app).enqueue(1)
            assert found(await app.doctor(), "role").advice.endswith(f"127.0.0.1:{port}.")


async def test_the_doctor_finds_nothing_wrong(app: App) -> None:
    mail = mailer(app, Unique.coalesce())
    await mail.enqueue(1)
    await lease(app)
    await mail.enqueue(1, "again")
    assert {finding.level for finding in await app.doctor() if finding.check != "append-only file"} == {"ok"}


async def test_the_doctor_finds_holds_without_jobs(app: App, server: Redis) -> None:
    mail = mailer(app, Unique())
    lost = await mail.enqueue(1)
    server.hdel("{onejob:0}:jobs", lost.job.id)
    finding = found(await app.doctor(), "orphans")
    assert finding.level == "fail"
    assert lost.key is not None
    assert lost.key in finding.message
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED


async def test_the_doctor_says_that_no_server_answers() -> None:
    findings = await RedisStore("redis://127.0.0.1:1").examine()
    assert [(finding.check, finding.level) for finding in findings] == [("server", "fail")]


async def test_a_key_that_is_freed_and_taken_again_while_a_request_is_decided(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    store = app._engine.store
    assert isinstance(store, RedisStore)
    first = await mail.enqueue(1, "first")
    connections = store._open().connections
    step = admission_step(builder_of(mail).request((1, "late"), {}))
    flow = apply([step], store._space)
    rows = connections.ask(next(flow))  # create: the key is held
    replace = flow.send(rows)
    await app.cancel(first.job.id)
    rows = connections.ask(replace)  # commit: the holder is gone, and the key is free
    create = flow.send(rows)
    second = await mail.enqueue(1, "second")
    replies = connections.ask(flow.send(connections.ask(create)))  # create: it is held again; commit
    with pytest.raises(StopIteration) as ended:
        flow.send(replies)
    [verdict] = ended.value.value
    assert (verdict.outcome, verdict.holder.id) == (Outcome.REPLACED, second.job.id)
    assert (await app.job(second.job.id)).superseded_by == verdict.job.id


# ── types, scripts, connections ───────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nobody closes the app on the loops that it has used
def test_a_loop_that_has_closed_keeps_no_connection(redis_url: str, server: Redis) -> None:
    app = App(redis_url)
    app.maintenance.migrate()

    async def listen() -> None:
        await app.jobs()
        await app._engine.store.wait(0.05)

    for _ in range(20):
        asyncio.run(listen())
    gc.collect()
    ends = time.monotonic() + 60
    while len(server.client_list()) > 5:  # one that blocks, the last loop's two, and ours
        assert time.monotonic() < ends, server.client_list()
    asyncio.run(app.close())
    gc.collect()


@pytest.mark.parametrize(
    "name", ["jobs", "held", "next", "counts", "keyed", 'state:["","available"]', 'due:["","default","mail"]']
)
@pytest.mark.parametrize("number", [1, 2])
async def test_a_key_of_another_type_is_refused(app: App, server: Redis, name: str, number: int) -> None:
    mail = mailer(app, Unique())
    server.rpush(f"{{onejob:0}}:{name}", "foreign")
    with pytest.raises(SchemaMismatch, match="give another \\?prefix="):
        await app.enqueue_many([mail.call(i) for i in range(number)])
    with pytest.raises(SchemaMismatch, match="give another \\?prefix="):
        await asyncio.to_thread(mail.enqueue_sync, number)


async def test_the_server_may_forget_its_scripts(app: App, server: Redis) -> None:
    mail = mailer(app, Unique())
    for number in range(3):
        server.script_flush()
        assert (await mail.enqueue(number)).outcome is Outcome.CREATED
        server.script_flush()
        assert (await asyncio.to_thread(mail.enqueue_sync, number)).outcome is Outcome.KEPT
    server.script_flush()
    await drain(app)
    assert (await app.stats()).by_state[State.COMPLETED] == 3


async def test_killed_connections_are_replaced(app: App, server: Redis) -> None:
    mail = mailer(app, Unique())
    for number in range(10):
        server.client_kill_filter(skipme=True, _type="normal")
        assert (await mail.enqueue(number)).outcome is Outcome.CREATED
        server.client_kill_filter(skipme=True, _type="normal")
        assert (await asyncio.to_thread(mail.enqueue_sync, number)).outcome is Outcome.KEPT
    assert len(await everything(app)) == 10


async def test_a_worker_is_notified_again_after_it_was_disconnected(app: App, server: Redis) -> None:
    mail = mailer(app)
    async with app.worker():
        await (await mail.enqueue(1)).result(30)
        server.client_kill_filter(skipme=True, _type="pubsub")
        server.client_kill_filter(skipme=True, _type="normal")
        assert await (await mail.enqueue(2)).result(30) == "2: "


async def test_no_request_is_stored_twice_while_connections_are_cut(app: App, server: Redis) -> None:
    """Plain jobs have no key: only the id keeps a request that is sent again from doubling."""
    mail = mailer(app)
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.002):
            server.client_kill_filter(skipme=True, _type="normal")

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        answers = await asyncio.gather(*(mail.enqueue(n) for n in range(300)), return_exceptions=True)
    finally:
        stop.set()
        cutter.join()
    assert all(isinstance(answer, StoreUnavailable) for answer in answers if isinstance(answer, Exception))
    stored = [job.id for job in await everything(app)]
    answered = {answer.job.id for answer in answers if not isinstance(answer, BaseException)}
    assert answered <= set(stored)
    assert len(stored) <= 300


async def test_there_is_no_transaction_to_join(app: App, server: Redis) -> None:
    with pytest.raises(ForeignConnection, match="redis store has no transactions"):
        await mailer(app).options(connection=server).enqueue(1)


async def test_many_tasks_share_scripts(app: App, server: Redis) -> None:
    mail = mailer(app, Unique())
    await mail.enqueue(-1)
    before = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    answers = await asyncio.gather(*(mail.enqueue(number % 50) for number in range(200)))
    calls = server.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert sum(answer.outcome is Outcome.CREATED for answer in answers) == 50
    assert calls <= 10


async def test_one_cancelled_caller_fails_no_other(app: App) -> None:
    mail = mailer(app)
    await asyncio.gather(*(mail.enqueue(n) for n in range(10)))  # from now on requests gather
    for first in range(20):
        waiting = [asyncio.create_task(mail.enqueue(n)) for n in range(5)]
        for _ in range(1 + first % 4):  # moments at which their requests are gathered, sent, or under way
            await asyncio.sleep(0)
        next(task for task in waiting if not task.done()).cancel()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == 1
        assert sum(isinstance(answer, Admission) for answer in answers) == 4


def test_created_and_kept_cost_one_round(app: App, server: Redis) -> None:
    mail = mailer(app, Unique())
    mail.enqueue_sync(0)
    before = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert [mail.enqueue_sync(1).outcome for _ in range(3)] == [Outcome.CREATED, Outcome.KEPT, Outcome.KEPT]
    assert server.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 3


def test_where_most_requests_are_duplicates_a_request_looks_first(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Any] = []
    add = Create.add

    def counting(self: Create, group: Any, changes: Any) -> None:
        prepared.append(group.key)
        add(self, group, changes)

    monkeypatch.setattr(Create, "add", counting)
    mail = mailer(app, Unique())
    assert [mail.enqueue_sync(0).outcome for _ in range(30)] == [Outcome.CREATED, *[Outcome.KEPT] * 29]
    prepared.clear()
    assert [mail.enqueue_sync(0).outcome for _ in range(5)] == [Outcome.KEPT] * 5
    assert not prepared
    assert [mail.enqueue_sync(number).outcome for number in range(1, 6)] == [Outcome.CREATED] * 5
    prepared.clear()
    assert mail.enqueue_sync(0).outcome is Outcome.KEPT
    assert len(prepared) == 1  # after a few new keys, a request is sent as if its key were free again


async def test_the_servers_clock_rules(app: App, server: Redis) -> None:
    await mailer(app).enqueue(1)
    seconds, micros = server.time()
    assert abs(app._engine.store.now().timestamp() - (seconds + micros / 1e6)) < 1


CHANNEL = "onejob:changes"

# ── the channel ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("message", [b"", b"x", b"0123456789abcdefGARBAGE!!", b"\xff\xfe", b"[" * 10_000])
async def test_a_message_is_a_hint_and_nothing_else(app: App, server: Redis, message: bytes) -> None:
    mail = mailer(app, Unique(by="to"))
    async with app.worker():
        await (await mail.enqueue(1)).result(timeout=30)
        for _ in range(10):
            server.publish(CHANNEL, message)
        assert await (await mail.enqueue(2, "text")).result(timeout=30) == "2: text"


async def test_a_forged_record_changes_no_job(app: App, server: Redis) -> None:
    mail = mailer(app, Unique(by="to"))
    waiting = (await mail.options(delay="1h").enqueue(1, "mine")).job
    [jobs] = [name for name in server.scan_iter("*") if bytes(name).endswith(b":jobs")]
    record = server.hget(jobs, waiting.id)
    assert isinstance(record, bytes)
    async with app.worker():
        await (await mail.enqueue(2)).result(timeout=30)
        server.publish(CHANNEL, record.replace(b"mine", b"evil"))
        await (await mail.enqueue(3)).result(timeout=30)
    assert await app.job(waiting.id) == waiting
