"""The servers of a run: one of each kind, started when a test first asks for it, shared by all workers."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Client, Connection, Listener
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from redis import Redis, RedisCluster

from tests import servers

START = {"postgres": servers.postgres, "redis": servers.redis}

# First ends the connections that an earlier test left open, since their locks would stop the rest.
EMPTY = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid();

DO $$
DECLARE
    schema text;
BEGIN
    FOR schema IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', schema);
    END LOOP;
END $$;

CREATE SCHEMA public;
"""


class Shared:
    """Start servers for this process, and for the workers that ask it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._urls: dict[servers.Kind, str] = {}
        self._lock = Lock()

    def url(self, kind: servers.Kind) -> str:
        """Start a server unless it runs, or unless the environment names one."""
        with self._lock:
            if kind not in self._urls:
                given = os.environ.get(servers.URLS[kind])
                self._urls[kind] = given or self._stack.enter_context(START[kind]()).url
            return self._urls[kind]

    @cached_property
    def address(self) -> str:
        """Answer workers from now on, at this address."""
        folder, _ = self._stack.enter_context(servers.temporary_folder())
        address = str(folder / "socket")
        thread = Thread(target=self._answer, args=(Listener(address),), name="servers", daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(ask, address, "")
        return address

    def _answer(self, listener: Listener) -> None:
        with listener:
            kind = None
            while kind != "":
                with listener.accept() as connection:
                    kind = self._reply(connection)

    def _reply(self, connection: Connection) -> str | None:
        try:
            kind = connection.recv()
            connection.send(self._url_or_error(kind) if kind else "")
        except (EOFError, ConnectionError):  # the worker has died
            return None
        return str(kind)

    def _url_or_error(self, kind: servers.Kind) -> str | Exception:
        try:
            return self.url(kind)
        except Exception as error:  # noqa: BLE001 - the worker that asked raises it
            return error

    def close(self) -> None:
        """End the servers."""
        self._stack.close()


def ask(address: str, kind: str) -> str:
    """Ask the process that started this worker for the URL of a server."""
    with Client(address) as connection:
        connection.send(kind)
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return str(answer)


SHARED = pytest.StashKey[Shared]()


def pytest_configure(config: pytest.Config) -> None:
    shared = config.stash[SHARED] = Shared()
    config.add_cleanup(shared.close)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["servers"] = node.config.stash[SHARED].address


def server_url(config: pytest.Config, kind: servers.Kind) -> str:
    """Take the server from the run's controller, or from this process if there is none."""
    worker = getattr(config, "workerinput", None)
    return ask(worker["servers"], kind) if worker else config.stash[SHARED].url(kind)


def worker_number(config: pytest.Config) -> int:
    """Count the workers of a run from 0."""
    return int(getattr(config, "workerinput", {}).get("workerid", "gw0").removeprefix("gw"))


@dataclass(frozen=True, slots=True)
class Database:
    """A worker's own part of a server, and the way to empty it."""

    url: str
    empty: Callable[[], object]


@pytest.fixture(scope="session")
def postgres_database(pytestconfig: pytest.Config) -> Iterator[Database]:
    """Make a database for this worker."""
    server = server_url(pytestconfig, "postgres")
    name = f"onejob_{worker_number(pytestconfig)}_{os.getpid()}"
    url = re.sub(r"^(\w+://[^/?]*)/?[^?]*", rf"\1/{name}", server)

    with psycopg.connect(server, autocommit=True) as owner:
        owner.execute(f"CREATE DATABASE {name}")
        try:
            with psycopg.connect(url, autocommit=True) as cleaner:
                yield Database(url, lambda: cleaner.execute(EMPTY))
        finally:
            owner.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgres_database: Database) -> str:
    """Give a test an empty database."""
    postgres_database.empty()
    return postgres_database.url


@pytest.fixture(scope="session")
def redis_database(pytestconfig: pytest.Config) -> Iterator[Database]:
    """Choose a numbered database for this worker, counted from the one that the URL names."""
    server = urlsplit(server_url(pytestconfig, "redis"))
    if server.scheme == "redis+cluster":  # which has one database, so one worker must do
        with RedisCluster.from_url(server._replace(scheme="redis").geturl()) as everywhere:
            yield Database(server.geturl(), lambda: everywhere.flushall(target_nodes=RedisCluster.PRIMARIES))
        return
    number = int(server.path.strip("/") or 0) + worker_number(pytestconfig)
    url = server._replace(path=f"/{number}").geturl()

    with Redis.from_url(url) as cleaner:
        yield Database(url, cleaner.flushdb)


@pytest.fixture
def redis_url(redis_database: Database) -> str:
    """Give a test an empty database."""
    redis_database.empty()
    return redis_database.url
