"""The grants that docs/postgresql.md shows are enough for each role, and what is missing is named."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onejob import App, Duplicate, Retry, State, Task, Unique, chain, current
from onejob.errors import JobFailed, StoreRefused, StoreUnavailable

PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"
ROLES = ("producer", "worker", "operator")


def documented() -> str:
    """Return the statements that the page shows."""
    [block] = re.findall(r"```sql\n(CREATE ROLE jobs_producer.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


class Users:
    """One user per documented role, with that role's grants and no others."""

    def __init__(self, url: str) -> None:
        self.owner = url
        self._mark = uuid4().hex[:8]
        self._names = [f"{role}_{self._mark}" for role in ROLES]

    def create(self) -> None:
        app = App(self.owner)
        app.maintenance.migrate()
        app.close_sync()
        with psycopg.connect(self.owner, autocommit=True) as connection:
            connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            connection.execute(self._own(documented()).encode())
            for name in self._names:
                connection.execute(f"CREATE ROLE user_{name} LOGIN IN ROLE jobs_{name}".encode())

    def _own(self, script: str) -> str:
        """Return the script with names that no other test on this server uses."""
        return re.sub(r"\bjobs_(producer|worker|operator)\b", rf"jobs_\1_{self._mark}", script)

    def url(self, role: str) -> str:
        """Return the URL as a user with one role."""
        known = conninfo_to_dict(self.owner)
        options = f"host={known['host']}" + (f"&port={known['port']}" if known.get("port") else "")
        return f"postgresql://user_{role}_{self._mark}@/{known['dbname']}?{options}"

    def revoke(self, what: str, role: str) -> None:
        with psycopg.connect(self.owner, autocommit=True) as connection:
            connection.execute(self._own(f"REVOKE {what} FROM jobs_{role}").encode())

    def drop(self) -> None:
        with psycopg.connect(self.owner, autocommit=True) as connection:
            for name in self._names:
                for role in (f"user_{name}", f"jobs_{name}"):
                    connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.fixture
def users(postgres_url: str) -> Iterator[Users]:
    users = Users(postgres_url)
    users.create()
    yield users
    users.drop()


class Shop:
    """An app with tasks of every kind of policy."""

    def __init__(self, url: str, secret: str | None = None) -> None:
        self.app = app = App(url, secret=secret)
        app.queue("limited", concurrency=1, rate="100/1s")
        self.keep: Task[[int], int] = app.task(name="keep", unique=Unique(by="n"))(self.double)
        self.reject: Task[[int], int] = app.task(name="reject", unique=Unique(by="n", on_conflict="reject"))(
            self.double
        )
        self.update: Task[..., int] = app.task(name="update", unique=Unique.coalesce(by="n"))(self.add)
        self.replace: Task[..., int] = app.task(name="replace", unique=Unique(by="n", on_conflict="replace"))(
            self.add
        )
        self.latest: Task[..., int] = app.task(name="latest", unique=Unique.latest("n", "seq"))(self.add)
        self.limited: Task[[int], int] = app.task(name="limited", queue="limited")(self.double)
        self.dies: Task[[], None] = app.task(name="dies", retry=Retry.never())(self.fail)
        self.pays: Task[[int], int] = app.task(name="pays")(self.pay)

    async def double(self, n: int) -> int:
        current().progress(0.5, "half")
        return n * 2

    async def add(self, n: int, seq: int) -> int:
        return n + seq

    async def fail(self) -> None:
        raise ValueError

    async def pay(self, n: int) -> int:
        async with current().transaction():
            return current().returns(n)


@asynccontextmanager
async def shop_of(users: Users, role: str, **options: Any) -> AsyncIterator[Shop]:
    shop = Shop(users.url(role), **options)
    async with shop.app:
        yield shop


async def produce(shop: Shop) -> list[Any]:
    """Do everything that a producer does, and return admissions to await."""
    asked = [await shop.keep.enqueue(1), await shop.keep.enqueue(1)]
    assert [each.outcome for each in asked] == ["created", "kept"]
    await shop.reject.enqueue(1)
    with pytest.raises(Duplicate):
        await shop.reject.enqueue(1)
    outcomes = [
        (await task.enqueue(2, seq)).outcome
        for task in (shop.update, shop.replace, shop.latest)
        for seq in (1, 2)
    ]
    assert outcomes == ["created", "updated", "created", "replaced", "created", "updated"]
    assert (await shop.latest.enqueue(2, 1)).outcome == "stale"
    first = await shop.limited.enqueue(3)
    asked.append(await shop.keep.options(after=[first]).enqueue(4))
    asked.append(await chain(shop.keep.call(5), shop.keep.step()).enqueue())
    asked += await shop.app.enqueue_many([shop.keep.call(n) for n in range(10, 20)])
    asked.append(await shop.pays.enqueue(6))
    asked.append(await asyncio.to_thread(shop.keep.enqueue_sync, 7))
    gone = await shop.keep.enqueue(8)
    await shop.app.cancel(gone.job.id)
    assert (await shop.app.job(gone.job.id)).state is State.CANCELLED
    await shop.app.stats()
    return asked


@pytest.mark.parametrize("secret", [None, "a secret of this shop"])
async def test_a_producer_and_a_worker_need_no_more_than_their_grants(
    users: Users, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        shop_of(users, "producer", secret=secret) as producer,
        shop_of(users, "worker", secret=secret) as worker,
    ):
        asked = await produce(producer)
        async with worker.app.worker(lease="3s"):
            for each in asked:
                await each.result(timeout=30)
            with pytest.raises(JobFailed):
                await (await producer.dies.enqueue()).result(timeout=30)
        await worker.app.maintenance.sweep()
        await worker.app.maintenance.prune()
        await worker.app.maintenance.replay_due()
        assert worker.app.maintenance.schema().found
    assert "permission denied" not in caplog.text


async def test_an_operator_needs_no_more_than_its_grants(
    users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop_of(users, "producer") as producer, shop_of(users, "worker") as worker:
        await producer.dies.enqueue()
        await worker.app.worker(drain=True).run()
    async with shop_of(users, "operator") as shop:
        app = shop.app
        [dead] = await app.dead.list()
        await app.dead.replay(dead.id)
        await app.queues.pause("default")
        await app.queues.resume("default")
        await app.schedules.add("nightly", shop.keep.call(1), "0 3 * * *")
        await app.schedules.pause("nightly")
        await app.schedules.remove("nightly")
        asked = await shop.keep.enqueue(30)
        await app.release(asked.job.key or b"")
        await app.cancel(asked.job.id)
        await app.delete(asked.job.id)
        await app.maintenance.sweep()
        await app.maintenance.prune()
        await app.stats()
        await app.queues.list()
        assert "jobs" not in {finding.check for finding in await app.doctor()}  # the check that was refused
    assert "permission denied" not in caplog.text


# ── what is missing is named ──────────────────────────────────────────────────────────────────────


async def test_a_refusal_names_what_the_server_refused_and_is_no_outage(users: Users) -> None:
    users.revoke("INSERT ON onejob_jobs", "producer")
    async with shop_of(users, "producer") as shop:
        with pytest.raises(StoreRefused, match="permission denied for table onejob_jobs") as refusal:
            await shop.keep.enqueue(1)
        assert not isinstance(refusal.value, StoreUnavailable)


async def test_a_worker_without_a_grant_ends_and_says_why(users: Users) -> None:
    async with shop_of(users, "producer") as shop, asyncio.timeout(30):
        await shop.keep.enqueue(1)
        with pytest.raises(StoreRefused, match="permission denied for table onejob_"):
            await shop.app.worker().run()


LEVELS = {"producer": "warn", "worker": "ok", "operator": "warn"}


@pytest.mark.parametrize("role", ROLES)
async def test_the_doctor_says_what_a_user_may_do(users: Users, role: str) -> None:
    async with shop_of(users, role) as shop:
        [found] = [one for one in await shop.app.doctor() if one.check == "privileges"]
    assert found.level == LEVELS[role]
    if role == "producer":
        assert "may enqueue, but not run a worker: it lacks" in found.message


async def test_the_doctor_says_what_a_user_lacks_to_enqueue(users: Users) -> None:
    users.revoke("INSERT, UPDATE ON onejob_tallies", "producer")
    async with shop_of(users, "producer") as shop:
        [found] = [one for one in await shop.app.doctor() if one.check == "privileges"]
    assert (found.level, "INSERT, UPDATE on onejob_tallies" in found.message) == ("fail", True)
