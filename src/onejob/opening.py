"""Open the store that a URL names; each is loaded only if it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from onejob.errors import InvalidCall
from onejob.stores.contract import Store


def open_store(url: str, admission_timeout: float) -> Store:
    """Choose the store that a URL names."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    match parts.scheme:
        case "memory":
            from onejob.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            from onejob.stores.sql.sqlite import SQLiteStore

            return SQLiteStore(
                _path(url, parts.path), admission_timeout=admission_timeout, **_sqlite_options(options)
            )
        case "postgresql" | "postgres":
            return _postgres(url, admission_timeout)
        case "redis" | "rediss" | "unix" | "redis+unix" | "redis+cluster" | "rediss+cluster":
            return _redis(url, admission_timeout)
        case _:
            raise InvalidCall(
                f"A URL that begins with {parts.scheme or url!r} names no store: write sqlite:///jobs.db, "
                "postgresql://user@host/database, redis://host or memory://."
            )


def _postgres(url: str, admission_timeout: float) -> Store:
    with _needing("PostgreSQL", "postgres", {"psycopg"}):
        from onejob.stores.sql.postgres.store import PostgresStore
    return PostgresStore(url, admission_timeout=admission_timeout)


def _redis(url: str, admission_timeout: float) -> Store:
    with _needing("Redis", "redis", {"redis", "hiredis"}):
        from onejob.stores.redis.store import RedisStore
    return RedisStore(url, admission_timeout=admission_timeout)


@contextmanager
def _needing(name: str, extra: str, packages: Collection[str]) -> Iterator[None]:
    """Say which extra brings a driver that is not installed."""
    try:
        yield
    except ImportError as error:  # psycopg also without the library that it wraps
        if (error.name or "psycopg").partition(".")[0] not in packages:
            raise
        raise InvalidCall(f"{name} needs its driver: install onejob[{extra}].") from None


def _path(url: str, path: str) -> Path:
    if ":memory:" in path:
        raise InvalidCall("A SQLite database in memory is not shared by connections: write memory://.")
    if len(path) < 2:  # noqa: PLR2004 - more than the slash
        raise InvalidCall(f"{url!r} names no file: write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db.")
    return Path(path[1:])


def _sqlite_options(options: Mapping[str, str]) -> dict[str, Any]:
    unknown = options.keys() - {"synchronous"}
    if unknown or options.get("synchronous", "FULL").upper() not in {"FULL", "NORMAL"}:
        raise InvalidCall(
            "A sqlite:// URL takes ?synchronous=FULL (the default) or ?synchronous=NORMAL, nothing else."
        )
    return {"synchronous": options.get("synchronous", "FULL").upper()}
