"""Open the store that a URL names; each is loaded only if it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from onejob.errors import InvalidCall
from onejob.stores.contract import FullStore


def open_store(url: str, admission_timeout: float, store_timeout: float = 10.0) -> FullStore:
    """Return the store that a URL names.

    Args:
        url: Such as sqlite:///jobs.db.
        admission_timeout: Seconds that an admission waits for another open transaction.
        store_timeout: Seconds that a call to the store may take.
    """
    if not isinstance(url, str):
        raise InvalidCall(f"The URL is {url!r}: write text, such as 'sqlite:///jobs.db'.")
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may show the password
        raise InvalidCall("The URL cannot be read: check the brackets of its host.") from None
    options = dict(parse_qsl(parts.query))
    match parts.scheme:
        case "memory":
            from onejob.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            from onejob.stores.sqlite.store import SQLiteStore

            return SQLiteStore(
                _path(url, parts.path),
                admission_timeout=admission_timeout,
                store_timeout=store_timeout,
                **_sqlite_options(options),
            )
        case "postgresql" | "postgres":
            return _postgres(url, admission_timeout, store_timeout)
        case "redis" | "rediss" | "unix" | "redis+unix" | "redis+cluster" | "rediss+cluster":
            return _redis(url, admission_timeout, store_timeout)
        case _:
            shown = repr(parts.scheme or url) if parts.scheme or "@" not in url else "no scheme"
            hint = f" (leave +{driver} out)" if (driver := parts.scheme.partition("+")[2]) else ""
            raise InvalidCall(
                f"A URL that begins with {shown} names no store{hint}: write sqlite:///jobs.db, "
                "postgresql://user@host/database, redis://host or memory://."
            )


def _postgres(url: str, admission_timeout: float, store_timeout: float) -> FullStore:
    with _needing("PostgreSQL", "postgres", {"psycopg"}):
        from onejob.stores.postgres.store import PostgresStore
    return PostgresStore(url, admission_timeout=admission_timeout, store_timeout=store_timeout)


def _redis(url: str, admission_timeout: float, store_timeout: float) -> FullStore:
    with _needing("Redis", "redis", {"redis", "hiredis"}):
        from onejob.stores.redis.store import RedisStore
    return RedisStore(url, admission_timeout=admission_timeout, store_timeout=store_timeout)


@contextmanager
def _needing(name: str, extra: str, packages: Collection[str]) -> Iterator[None]:
    """Name the extra that installs a driver, if it is missing."""
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
