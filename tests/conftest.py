"""What all suites share: the seed of a run, its servers, and the check that no test leaves a timer behind."""

import hashlib
import os
import random
import re
import shlex
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from redis import Redis, RedisCluster

from tests import depth, servers

START = {"postgres": servers.postgres, "redis": servers.redis}

# First end the connections that an earlier test left open: their locks would block the statements below.
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


# ── the seed ──────────────────────────────────────────────────────────────────────────────────────

SEED_VARIABLE = "ONEJOB_SEED"
SEED = pytest.StashKey[int]()


def choose_seed(config: pytest.Config) -> int:
    """Return the run's seed: the controller's in a worker of pytest-xdist, else a given or a new one."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        return int(worker["seed"])
    given = os.environ.get(SEED_VARIABLE)
    return random.SystemRandom().randrange(2**32) if given is None else int(given)


def derive_seed(session_seed: int, name: str) -> int:
    """Return a seed that depends on the run's seed and on a name, but not on the order of the tests."""
    return int.from_bytes(hashlib.sha256(f"{session_seed} {name}".encode()).digest()[:8], "big")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the test's own seed, for child processes and libraries that take one."""
    return derive_seed(request.config.stash[SEED], request.node.nodeid)


@pytest.fixture
def chance(seed: int) -> random.Random:
    """Return the test's own source of random numbers; ONEJOB_SEED repeats what it draws."""
    return random.Random(seed)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the seed of the run, also with -q, which hides pytest's own header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"{SEED_VARIABLE}={session.config.stash[SEED]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to each failure the command that repeats it with the same seed."""
    report = yield
    if report.failed:
        command = f"{SEED_VARIABLE}={item.config.stash[SEED]} python -m pytest {shlex.quote(item.nodeid)}"
        report.sections.append(("Repeat with the same seed", command))
    return report


def configure_hypothesis(config: pytest.Config) -> None:
    """Let Hypothesis draw from the run's seed, and judge no example by how long it takes."""
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(config.stash[SEED])
    settings.register_profile(
        "onejob", print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("onejob")


# ── the selection ─────────────────────────────────────────────────────────────────────────────────

STORES = ("memory", "sqlite", "postgres", "redis")
STORES_VARIABLE = "ONEJOB_STORES"  # such as memory,sqlite
MANY_CASES = 300  # of one test


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of stores that ONEJOB_STORES does not name, and some of many cases if quick."""
    chosen = [item for item in items if stores_of(item) <= chosen_stores()]
    kept = sample_of_many(chosen, config.stash[SEED]) if depth.QUICK else chosen
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not even import a file that is about a store which ONEJOB_STORES does not name."""
    return True if stores_in(collection_path.stem) - chosen_stores() else None


def chosen_stores() -> set[str]:
    """Return the stores that the run is about."""
    return set(os.environ.get(STORES_VARIABLE, ",".join(STORES)).split(","))


def stores_of(item: pytest.Item) -> set[str]:
    """Return the stores that a test names in its parameters, fixtures or file; a unit test needs none."""
    if "unit" in item.path.parts:
        return set()
    callspec = getattr(item, "callspec", None)
    return stores_in(
        f"{item.path.stem} {callspec.id if callspec else ''} {getattr(item, 'fixturenames', '')}"
    )


def stores_in(words: str) -> set[str]:
    """Return the stores that some words name."""
    return {store for store in STORES if store in words}


def sample_of_many(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Keep a third of the cases of a test that has very many; another seed keeps another third."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for name, several in cases.items():
        if len(several) > MANY_CASES:
            left_out.update(random.Random(derive_seed(seed, name)).sample(several, len(several) * 2 // 3))
    return [item for item in items if item not in left_out]


# ── the servers ───────────────────────────────────────────────────────────────────────────────────


class Shared:
    """The servers of a run: one of each kind, started on demand, shared by all workers of pytest-xdist."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._urls: dict[servers.Kind, str] = {}
        self._lock = Lock()

    def url(self, kind: servers.Kind) -> str:
        """Return a server's URL; start the server unless it runs or the environment names one."""
        with self._lock:
            if kind not in self._urls:
                given = os.environ.get(servers.URLS[kind])
                self._urls[kind] = given or self._stack.enter_context(START[kind]()).url
            return self._urls[kind]

    @cached_property
    def address(self) -> str:
        """Start to answer workers, and return the address where they can ask."""
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
        """Stop the servers."""
        self._stack.close()


def ask(address: str, kind: str) -> str:
    """Ask the run's controller for the URL of a server."""
    with Client(address) as connection:
        connection.send(kind)
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return str(answer)


SHARED = pytest.StashKey[Shared]()


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis, which reads the seed set here
def pytest_configure(config: pytest.Config) -> None:
    config.stash[SEED] = choose_seed(config)
    configure_hypothesis(config)

    shared = config.stash[SHARED] = Shared()
    config.add_cleanup(shared.close)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist what all workers share."""
    node.workerinput["seed"] = node.config.stash[SEED]
    node.workerinput["servers"] = node.config.stash[SHARED].address


def server_url(config: pytest.Config, kind: servers.Kind) -> str:
    """Return a server's URL, from the run's controller if this process is a worker of pytest-xdist."""
    if kind not in chosen_stores():
        raise RuntimeError(
            f"{STORES_VARIABLE} leaves out {kind}, which this test needs: name it in the test's id"
        )
    worker = getattr(config, "workerinput", None)
    return ask(worker["servers"], kind) if worker else config.stash[SHARED].url(kind)


def worker_number(config: pytest.Config) -> int:
    """Return the number of this worker of pytest-xdist, counted from 0."""
    return int(getattr(config, "workerinput", {}).get("workerid", "gw0").removeprefix("gw"))


@dataclass(frozen=True, slots=True)
class Database:
    """The part of a server that belongs to one worker, and the function that empties it."""

    url: str
    empty: Callable[[], object]


@pytest.fixture(scope="session")
def postgres_database(pytestconfig: pytest.Config) -> Iterator[Database]:
    """Create a database for this worker."""
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
    """Return the URL of an empty database."""
    postgres_database.empty()
    return postgres_database.url


@pytest.fixture(scope="session")
def redis_database(pytestconfig: pytest.Config) -> Iterator[Database]:
    """Choose a numbered database for this worker, counted from the one that the URL names."""
    server = urlsplit(server_url(pytestconfig, "redis"))
    if server.scheme == "redis+cluster":  # a cluster has only one database, so only one worker can use it
        with RedisCluster.from_url(server._replace(scheme="redis").geturl()) as cluster:
            yield Database(server.geturl(), lambda: cluster.flushall(target_nodes=RedisCluster.PRIMARIES))
        return
    number = int(server.path.strip("/") or 0) + worker_number(pytestconfig)
    url = server._replace(path=f"/{number}").geturl()

    with Redis.from_url(url) as cleaner:
        yield Database(url, cleaner.flushdb)


@pytest.fixture
def redis_url(redis_database: Database) -> str:
    """Return the URL of an empty database."""
    redis_database.empty()
    return redis_database.url


# ── what a test must not leave behind ─────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def no_timer_left_behind() -> Iterator[None]:
    """Fail a test that leaves a timer running: an app that is not closed would open its store again."""
    before = running_timers()
    yield
    assert running_timers() - before == set()


def running_timers() -> set[threading.Timer]:
    """Return the timers of this process that have neither fired nor been cancelled."""
    timers = {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)}
    return {timer for timer in timers if not timer.finished.is_set()}
