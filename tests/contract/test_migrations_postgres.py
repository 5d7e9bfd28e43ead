"""The tables in PostgreSQL: created once, also by several processes at once, and never over other tables."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onejob import App, Unique
from onejob.errors import SchemaMismatch, StoreError
from onejob.stores.postgres.schema import SCHEMA
from onejob.stores.postgres.store import PostgresStore
from tests.contract.steps import mailer

ROOT = Path(__file__).parents[2]
OPEN = """
import sys
from onejob import App
print("ready", flush=True)
sys.stdin.readline()
app = App(sys.argv[1])
app.maintenance.migrate()
app.close_sync()
"""


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as database:
        yield database


def tables(database: psycopg.Connection) -> set[str]:
    rows = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows}


def anatomy(database: psycopg.Connection) -> list[Any]:
    """Describe every table: its columns, indexes, constraints and settings."""
    return [
        database.execute(sql).fetchall()
        for sql in (
            """SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default,
            collation_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2""",
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
            """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2""",
            "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
            "SELECT version FROM onejob_schema",
        )
    ]


@pytest.mark.races
def test_processes_that_open_an_empty_database_at_once_make_the_tables_once(
    postgres_url: str, database: psycopg.Connection
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, postgres_url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert errors == [""] * 3
    assert [process.returncode for process in processes] == [0] * 3
    assert database.execute("SELECT version FROM onejob_schema ORDER BY 1").fetchall() == [
        (number + 1,) for number in range(SCHEMA)
    ]
    assert database.execute("SELECT count(*) FROM onejob_installation").fetchall() == [(1,)]


def test_a_process_that_comes_while_the_tables_are_made_waits_and_finds_them(
    postgres_url: str, database: psycopg.Connection
) -> None:
    """The maker has not committed yet, so that the other sees no tables at first."""
    with psycopg.connect(postgres_url) as maker:
        maker.execute(PostgresStore(postgres_url).migration_sql().removesuffix("COMMIT;\n").encode())
        found = []
        other = PostgresStore(postgres_url)
        thread = threading.Thread(target=lambda: found.append(other.migrate()))
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        while database.execute(waiting).fetchall() == [(0,)]:
            assert thread.is_alive()
        maker.commit()
        thread.join()
    assert [schema.found for schema in found] == [SCHEMA]


def test_tables_that_are_not_ours_are_refused_and_left_alone(
    postgres_url: str, database: psycopg.Connection
) -> None:
    database.execute("CREATE TABLE onejob_jobs (mine int)")
    app = App(postgres_url)
    for use in (app.maintenance.migrate, mailer(app, Unique(by="to")).options().enqueue_sync):
        with pytest.raises(SchemaMismatch, match="onejob_jobs"):
            use(*([1] if use != app.maintenance.migrate else []))
    assert tables(database) == {"onejob_jobs"}
    assert app.maintenance.schema().found == 0


def test_tables_named_almost_like_ours_stay_and_disturb_nothing(
    postgres_url: str, database: psycopg.Connection
) -> None:
    database.execute("CREATE TABLE onejobs (mine int)")
    database.execute("CREATE SCHEMA other CREATE TABLE onejob_jobs (mine int)")
    store = PostgresStore(postgres_url)
    assert store.migrate().found == SCHEMA
    assert "onejobs" in tables(database)
    assert database.execute("SELECT * FROM other.onejob_jobs").fetchall() == []
    database.execute("DROP SCHEMA other CASCADE")


async def test_tables_one_version_ahead_are_used_and_those_further_ahead_refused(
    postgres_url: str, database: psycopg.Connection
) -> None:
    async with App(postgres_url) as app:
        app.maintenance.migrate()
    database.execute("INSERT INTO onejob_schema VALUES (%s, 0)", (SCHEMA + 1,))
    async with App(postgres_url) as app:
        assert (await mailer(app, Unique(by="to")).enqueue(1)).outcome == "created"
        assert app.maintenance.schema().found == SCHEMA + 1
    database.execute("INSERT INTO onejob_schema VALUES (%s, 0)", (SCHEMA + 2,))
    app = App(postgres_url)
    with pytest.raises(SchemaMismatch, match="upgrade onejob"):
        await mailer(app, Unique(by="to")).enqueue(1)
    assert app.maintenance.schema().found == SCHEMA + 2
    await app.close()


async def test_the_script_makes_the_same_tables_and_is_empty_afterwards(
    postgres_url: str, database: psycopg.Connection
) -> None:
    async with App(postgres_url) as app:
        script = app.maintenance.migration_sql()
        assert app.maintenance.schema().found == 0
        assert tables(database) == set()
        app.maintenance.migrate()
        assert app.maintenance.migration_sql() == ""
    made = anatomy(database)
    database.execute("DROP SCHEMA public CASCADE")
    database.execute("CREATE SCHEMA public")
    database.execute(script.encode())
    assert anatomy(database) == made
    async with App(postgres_url) as app:
        assert (await mailer(app, Unique(by="to")).enqueue(1)).outcome == "created"
        assert app.maintenance.schema().found == SCHEMA
    assert anatomy(database) == made


async def test_an_app_that_is_closed_without_use_creates_no_tables(
    postgres_url: str, database: psycopg.Connection
) -> None:
    async with App(postgres_url) as app:
        assert app.maintenance.schema().found == 0
    assert tables(database) == set()


async def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_url: str, database: psycopg.Connection
) -> None:
    """An existing index has a name that we need, which shows when half of the tables are made."""
    database.execute("CREATE TABLE mine (n int)")
    database.execute("CREATE INDEX onejob_leased ON mine (n)")
    app = App(postgres_url)
    with pytest.raises(StoreError, match="onejob_leased"):
        app.maintenance.migrate()
    assert tables(database) == {"mine"}
    await app.close()


def test_tables_of_the_old_layout_are_refused_with_what_to_do(
    postgres_url: str, database: psycopg.Connection
) -> None:
    """Rows from before the squashed schema have other columns, whatever the number of their version."""
    database.execute("CREATE TABLE onejob_schema (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)")
    database.execute("INSERT INTO onejob_schema VALUES (1, 0), (2, 0)")
    database.execute("CREATE TABLE onejob_jobs (id TEXT PRIMARY KEY, held_key BYTEA, next_key BYTEA)")
    store = PostgresStore(postgres_url)
    with pytest.raises(SchemaMismatch, match="use a new database"):
        store.migrate()
    assert tables(database) == {"onejob_schema", "onejob_jobs"}
