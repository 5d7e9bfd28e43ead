"""Ways to hold a transaction on PostgreSQL: every driver and every layer above one that onejob can join."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import asyncpg  # type: ignore[import-untyped]
import django  # type: ignore[import-untyped]
import django.conf  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from onejob import Admission, App, Call, Task, current

T = TypeVar("T")
Isolation = Literal["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
LEVELS: dict[Isolation, IsolationLevel] = {
    "READ COMMITTED": IsolationLevel.READ_COMMITTED,
    "REPEATABLE READ": IsolationLevel.REPEATABLE_READ,
    "SERIALIZABLE": IsolationLevel.SERIALIZABLE,
}
# Behind a pooler, psycopg must be told not to prepare what it is asked often.
PREPARING: dict[str, Any] = {"prepare_threshold": None} if "ONEJOB_TEST_POOLED" in os.environ else {}


@dataclass(frozen=True)
class Visit:
    """A caller's open transaction, used as its owner would use it."""

    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    thread: ThreadPoolExecutor | None = None  # where blocking code runs, if not here
    blocking: bool = False

    async def enqueue(self, task: Task[..., Any], *args: Any) -> Admission[Any]:
        """Ask for a job inside the transaction."""
        bound = task.options(connection=self.connection)
        return await self._call(partial(bound.enqueue_sync, *args), partial(bound.enqueue, *args))

    async def enqueue_many(self, app: App, calls: Sequence[Call[Any]]) -> list[Admission[Any]]:
        """Ask for several at once."""
        given = {"connection": self.connection}
        return await self._call(
            partial(app.enqueue_many_sync, calls, **given), partial(app.enqueue_many, calls, **given)
        )

    async def complete(self, value: str) -> None:
        """Complete the job under way inside the transaction."""

        def complete_now() -> None:
            with current().transaction(connection=self.connection) as given:
                assert given is self.connection
                current().returns(value)

        async def complete() -> None:
            async with current().transaction(connection=self.connection) as given:
                assert given is self.connection
                current().returns(value)

        await self._call(partial(copy_context().run, complete_now), complete)

    async def _call(self, blocking: Callable[[], T], awaited: Callable[[], Awaitable[T]]) -> T:
        if not self.blocking:
            return await awaited()
        if self.thread is None:
            return blocking()
        return await asyncio.get_running_loop().run_in_executor(self.thread, blocking)


def soon(act: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Make blocking code look as if it were awaited."""

    async def call(*args: Any) -> Any:
        return act(*args)

    return call


# ── drivers ───────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def psycopg_blocking(url: str, level: Isolation) -> AsyncIterator[Visit]:
    with psycopg.connect(url, **PREPARING) as connection:
        connection.isolation_level = LEVELS[level]
        yield Visit(
            connection,
            soon(connection.execute),
            soon(connection.commit),
            soon(connection.rollback),
            blocking=True,
        )
        connection.rollback()


@asynccontextmanager
async def psycopg_awaited(url: str, level: Isolation) -> AsyncIterator[Visit]:
    async with await psycopg.AsyncConnection.connect(url, **PREPARING) as connection:
        await connection.set_isolation_level(LEVELS[level])
        yield Visit(connection, connection.execute, connection.commit, connection.rollback)
        await connection.rollback()


@asynccontextmanager
async def asyncpg_alone(url: str, level: Isolation) -> AsyncIterator[Visit]:
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction(isolation=level.lower().replace(" ", "_"))
        await transaction.start()
        yield Visit(connection, connection.execute, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(url: str, level: Isolation) -> AsyncIterator[Visit]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction(isolation=level.lower().replace(" ", "_"))
        await transaction.start()
        yield Visit(connection, connection.execute, transaction.commit, transaction.rollback)


# ── SQLAlchemy ────────────────────────────────────────────────────────────────────────────────────


def options(url: str, driver: str, level: str) -> dict[str, Any]:
    """Say to SQLAlchemy where to connect, and how."""
    place = make_url(url).set(drivername=f"postgresql+{driver}")
    given = PREPARING if driver == "psycopg" else {}
    return {"url": place, "isolation_level": level, "poolclass": NullPool, "connect_args": given}


@asynccontextmanager
async def sqlalchemy_session(url: str, level: Isolation) -> AsyncIterator[Visit]:
    engine = create_engine(**options(url, "psycopg", level))
    with Session(engine) as session:
        yield Visit(
            session,
            soon(lambda sql: session.execute(text(sql))),
            soon(session.commit),
            soon(session.rollback),
            blocking=True,
        )


@asynccontextmanager
async def sqlalchemy_connection(url: str, level: Isolation) -> AsyncIterator[Visit]:
    engine = create_engine(**options(url, "psycopg", level))
    with engine.connect() as connection:
        yield Visit(
            connection,
            soon(lambda sql: connection.execute(text(sql))),
            soon(connection.commit),
            soon(connection.rollback),
            blocking=True,
        )


@asynccontextmanager
async def sqlalchemy_async_session(url: str, level: Isolation, *, driver: str) -> AsyncIterator[Visit]:
    engine = create_async_engine(**options(url, driver, level))
    async with AsyncSession(engine) as session:
        yield Visit(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)


@asynccontextmanager
async def sqlalchemy_async_connection(url: str, level: Isolation, *, driver: str) -> AsyncIterator[Visit]:
    engine = create_async_engine(**options(url, driver, level))
    async with engine.connect() as connection:
        yield Visit(
            connection, lambda sql: connection.execute(text(sql)), connection.commit, connection.rollback
        )


# ── Django ────────────────────────────────────────────────────────────────────────────────────────


def configure_django(url: str) -> None:
    """Add the database to the settings of Django, once per process and once per level."""
    known = conninfo_to_dict(url)
    place: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": known["dbname"],
        "USER": known.get("user", ""),
        "PASSWORD": known.get("password", ""),
        "HOST": known.get("host", ""),
        "PORT": known.get("port", ""),
    }
    if not django.conf.settings.configured:
        levels: dict[str, Any] = {
            name: place | {"OPTIONS": {"isolation_level": level}} for name, level in LEVELS.items()
        }
        django.conf.settings.configure(DATABASES=levels | {"default": place})
        django.setup()


@asynccontextmanager
async def django_atomic(url: str, level: Isolation) -> AsyncIterator[Visit]:
    configure_django(url)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:  # Django's connections belong to their threads

        def there(act: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
            return lambda *args: loop.run_in_executor(thread, act, *args)

        connection = await there(lambda: django.db.connections[level])()
        atomic = django.db.transaction.atomic(using=level)
        await there(atomic.__enter__)()
        ended = []

        def leave(*error: Any) -> None:
            ended.append(error)
            atomic.__exit__(*error)

        try:
            yield Visit(
                connection,
                there(lambda sql: connection.cursor().execute(sql)),
                partial(there(leave), None, None, None),
                partial(there(leave), Exception, Exception("roll back"), None),
                thread=thread,
                blocking=True,
            )
        finally:
            if not ended:
                await there(leave)(Exception, Exception("roll back"), None)
            await there(connection.close)()


Open = Callable[[str, Isolation], AbstractAsyncContextManager[Visit]]

WAYS: dict[str, Open] = {
    "psycopg": psycopg_blocking,
    "psycopg awaited": psycopg_awaited,
    "asyncpg": asyncpg_alone,
    "asyncpg pooled": asyncpg_pooled,
    "SQLAlchemy session": sqlalchemy_session,
    "SQLAlchemy connection": sqlalchemy_connection,
    "SQLAlchemy async session, psycopg": partial(sqlalchemy_async_session, driver="psycopg"),
    "SQLAlchemy async session, asyncpg": partial(sqlalchemy_async_session, driver="asyncpg"),
    "SQLAlchemy async connection, psycopg": partial(sqlalchemy_async_connection, driver="psycopg"),
    "SQLAlchemy async connection, asyncpg": partial(sqlalchemy_async_connection, driver="asyncpg"),
    "Django": django_atomic,
}
