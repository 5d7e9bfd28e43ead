"""PostgreSQL: a real server, durable, and psycopg."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.types.json import Jsonb

from bench.targets import Target, Trace, check_room, condition_of_holder, customer_of, key_column
from bench.workload import enqueue_invoices
from tests.servers import Server, postgres

SETTINGS = {"max_wal_size": "4GB"}
CHANNEL = "bench"
CHUNK = 250_000
NEEDED = 1500  # bytes of disk per job of a crowd, with its indexes and the log

# The columns in which the rows of a crowd differ; all others are copied from a row that onejob wrote.
ID = "'00000000-' || lpad(to_hex(i >> 16), 4, '0') || '-7000-8000-' || lpad(to_hex(i), 12, '0')"
OWN = {
    "id": ID,
    "chain_id": f"CASE WHEN sample.chain_id IS NOT NULL THEN {ID} END",
    "place": "i",
    "key": "sha256(int8send(i))",
    "payload_digest": "sha256(int8send(i))",
}
FINISHED = {
    **OWN,
    "state": "'completed'",
    "started_at": "run_at",
    "finished_at": "run_at + i",
    "held_key": "NULL",
    "stand": "NULL",
}
LIVE = {**OWN, "held_key": OWN["key"], "run_at": "run_at + i"}
COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = 'onejob_jobs'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
TABLES = "SELECT relname FROM pg_stat_user_tables WHERE relname LIKE 'onejob%' ORDER BY 1"
INDEXES = """
    SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'onejob_jobs' AND indexname NOT LIKE '%_pkey'
"""
CLAIM = """
    UPDATE onejob_jobs SET
        state = 'active', attempt = 1, token = token + 1, worker = 'bare',
        started_at = run_at, lease_until = run_at
    WHERE id = (
        SELECT id FROM onejob_jobs WHERE state = 'available' AND namespace = '' AND queue = 'default'
        ORDER BY priority DESC, run_at, place LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING args
"""


@contextmanager
def targets(folder: Path) -> Iterator[list[Target]]:
    """Start a durable server."""
    folder.chmod(0o755)  # the server may have to run as another user
    tempfile.tempdir = str(folder)
    try:
        with postgres(durable=True, tcp=True, settings=SETTINGS) as server:
            yield [Postgres(server)]
    finally:
        tempfile.tempdir = None


class Postgres:
    """Databases on one server."""

    label = "PostgreSQL"
    asks = True
    untouched = "no row"
    bars: ClassVar[dict[str, float | None]] = {
        "blocking": 0.7,
        "awaited": 0.7,
        "together": 4,
        "duplicates": 0.6,
        "bulk": 0.5,
        "drain": 1.1,
        "latency": 2,
        "crowd": 1.25,
        "chains": 1.3,
        "drain-8": None,
        "limited": None,
        "held": None,
    }
    batch = 1_000
    producers = 16
    drained = 20_000, 4_000
    crowds = ((1_000_000, 0), (10_000_000, 0))
    quick_crowds = ((1_000_000, 0),)
    peers = ("pgqueuer",)

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._folder = server.folder
        self._names = count()
        with self._admin() as admin:
            settings = ("server_version", "fsync", "synchronous_commit")
            version, fsync, commit = (self._setting(admin, name) for name in settings)
        self.software = f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}, {server.folder}"

    @staticmethod
    def _setting(admin: Connection[Any], name: str) -> str:
        [value] = admin.execute("SELECT current_setting(%s)", [name]).fetchone() or [""]
        return str(value)

    def _admin(self) -> Connection[Any]:
        return psycopg.connect(self._url, autocommit=True)

    @contextmanager
    def empty_store(self, name: str) -> Iterator[str]:
        """Create a database, and write a checkpoint now rather than during a measurement."""
        database = f"{name.replace('-', '_')}_{next(self._names)}"
        with self._admin() as admin:
            admin.execute(f"CREATE DATABASE {database}")
            admin.execute("CHECKPOINT")
        yield urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))
        with self._admin() as admin:
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)")

    def bare(self, url: str) -> Bare:
        """Create onejob's tables and open them."""
        return Bare(url)

    def count(self, url: str) -> int:
        """Count rows."""
        with psycopg.connect(url) as connection:
            [number] = connection.execute("SELECT count(*) FROM onejob_jobs").fetchone() or [0]
        return int(number)

    @contextmanager
    def watch_writes(self, url: str) -> Iterator[Callable[[], Trace]]:
        """Watch every version of every row, and the write-ahead log, in which the whole server writes."""
        with psycopg.connect(url, autocommit=True) as connection:
            tables = [name for (name,) in connection.execute(TABLES)]

            def trace() -> Trace:
                rows = [number for table in tables for number in self._versions(connection, table)]
                [log] = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone() or [0]
                return Trace(tuple(rows), int(log))

            yield trace

    @staticmethod
    def _versions(connection: Connection[Any], table: str) -> Sequence[int]:
        versions = f"SELECT count(*), sum(hashtext(xmin::text || ctid::text)) FROM {table}"  # noqa: S608 - from the catalog
        return connection.execute(versions).fetchone() or []

    def fill(self, url: str, finished: int, live: int, say: Callable[[str], None]) -> None:
        """Copy one row many times over; indexes are created afterwards, which is faster."""
        there = self.count(url)
        if not there:
            enqueue_invoices(url, [-1])
        with Connection[Any].connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("SET maintenance_work_mem = '512MB'")
            columns = [name for name, _ in connection.execute(COLUMNS)]
            check_room(finished + live - there, NEEDED, shutil.disk_usage(self._folder).free)
            indexes = connection.execute(INDEXES).fetchall()
            for name, _ in indexes:
                connection.execute(f"DROP INDEX {name}")
            for own, first, end in ((FINISHED, there, finished), (LIVE, finished, finished + live)):
                values = ", ".join(own.get(name, f"sample.{name}") for name in columns)
                copying = f"""
                    INSERT INTO onejob_jobs SELECT {values} FROM generate_series(%s::bigint, %s::bigint) AS i,
                    (SELECT * FROM onejob_jobs ORDER BY id DESC LIMIT 1) AS sample
                """  # noqa: S608 - names from the schema, expressions from above
                for start in range(first, end, CHUNK):
                    say(f"{start:,} jobs")
                    connection.execute(copying, (start, min(start + CHUNK, end) - 1))
            say("indexes")
            for _, create in indexes:
                connection.execute(create)
            connection.execute("VACUUM (ANALYZE) onejob_jobs")
            connection.execute("CHECKPOINT")


class Row(NamedTuple):
    """A job as the parameters of an insert, and as a record of many."""

    values: list[Any]
    record: dict[str, Any]


class Bare:
    """Psycopg: one connection, autocommit, prepared statements, one cursor that is used again."""

    def __init__(self, url: str) -> None:
        self._url = url
        enqueue_invoices(url, [0])
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("DELETE FROM onejob_jobs")
        self._cursor = RawCursor(self._connection)
        self._types = dict(self._connection.execute(COLUMNS).fetchall())
        self._awaited: AsyncConnection[Any] | None = None
        self._columns: list[str] = []  # those that a new job does not leave empty
        self._unsent: list[Row] = []
        self._make_scratch()

    def _make_scratch(self) -> None:
        """Create a database in which onejob enqueues what this driver then writes."""
        parts = urlsplit(self._url)
        name = f"{parts.path[1:]}_scratch"
        self._connection.execute(f"CREATE DATABASE {name}")
        self._scratch = urlunsplit(parts._replace(path=f"/{name}"))

    def prepare(self, customers: Sequence[int]) -> list[Row]:
        """Return the rows that onejob writes; a customer that occurs twice has one row."""
        enqueue_invoices(self._scratch, dict.fromkeys(customers))
        with psycopg.connect(self._scratch, autocommit=True) as scratch:
            found = scratch.execute("SELECT to_jsonb(job), job.* FROM onejob_jobs AS job").fetchall()
            scratch.execute("DELETE FROM onejob_jobs")
        self._columns = [
            name for name, value in zip(self._types, found[0][1:], strict=True) if value is not None
        ]
        rows = [self._row(record, values) for record, *values in found]
        args = self._columns.index("args")
        by_customer = {customer_of(row.values[args]): row for row in rows}
        return [by_customer[customer] for customer in customers]

    def _row(self, record: dict[str, Any], values: Sequence[Any]) -> Row:
        kept = dict(zip(self._types, values, strict=True))
        return Row([kept[name] for name in self._columns], {name: record[name] for name in self._columns})

    # ── statements ────────────────────────────────────────────────────────────────────────────────

    def _insert(self, source: str = "", returning: str = "id") -> str:
        names = ", ".join(self._columns)
        values = ", ".join(f"${number}" for number, _ in enumerate(self._columns, 1))
        return (
            f"INSERT INTO onejob_jobs ({names}) {source or f'VALUES ({values})'} "
            f"ON CONFLICT DO NOTHING RETURNING {returning}"
        )

    def _insert_many(self) -> str:
        """Insert from one parameter; of all forms that were tried this one is the fastest."""
        columns = ", ".join(f"{name} {self._types[name]}" for name in self._columns)
        return self._insert(f"SELECT * FROM jsonb_to_recordset($1) AS record ({columns})")  # noqa: S608 - as above

    def _insert_or_read(self) -> str:
        """Insert or read the holder, in one statement."""
        held = condition_of_holder(self._columns, f"${key_column(self._columns) + 1}")
        return (
            f"WITH made AS ({self._insert(returning='*')}) SELECT * FROM made "  # noqa: S608 - names from the schema
            f"UNION ALL SELECT * FROM onejob_jobs WHERE {held} LIMIT 1"
        )

    # ── blocking ──────────────────────────────────────────────────────────────────────────────────

    def each(self, rows: Sequence[Row]) -> None:
        """Insert with one commit each."""
        self._run(self._insert(), rows)

    def ask(self, rows: Sequence[Row]) -> None:
        """Insert, or read the holder."""
        self._run(self._insert_or_read(), rows)

    def _run(self, statement: str, rows: Sequence[Row]) -> None:
        text, cursor = statement.encode(), self._cursor
        for values, _ in rows:
            cursor.execute(text, values, prepare=True, binary=True)
            cursor.fetchone()

    def many(self, rows: Sequence[Row]) -> None:
        """Insert in one statement, which returns the ids of the new jobs."""
        records = Jsonb([row.record for row in rows], dumps=msgspec.json.encode)
        self._cursor.execute(self._insert_many().encode(), [records], prepare=True, binary=True)
        assert len(self._cursor.fetchall()) == len(rows)

    def send(self, sent: int) -> None:
        """Insert and notify in one statement."""
        if not self._unsent:
            self._unsent = self.prepare(range(sent, sent + 100))
        row = self._unsent.pop()
        args = self._columns.index("args")
        row.values[args] = type(row.values[args])(json.dumps({"sent": sent}))
        self._run(f"WITH made AS ({self._insert()}) SELECT pg_notify('{CHANNEL}', '') FROM made", [row])  # noqa: S608 - as above

    # ── awaited ───────────────────────────────────────────────────────────────────────────────────

    async def each_awaited(self, rows: Sequence[Row]) -> None:
        """Insert with one commit each."""
        await self._run_awaited(self._insert(), rows)

    async def ask_awaited(self, rows: Sequence[Row]) -> None:
        """Insert, or read the holder."""
        await self._run_awaited(self._insert_or_read(), rows)

    async def _run_awaited(self, statement: str, rows: Sequence[Row]) -> None:
        if self._awaited is None:
            self._awaited = await AsyncConnection.connect(self._url, autocommit=True)
        text, cursor = statement.encode(), AsyncRawCursor(self._awaited)
        for values, _ in rows:
            await cursor.execute(text, values, prepare=True, binary=True)
            await cursor.fetchone()

    async def close(self) -> None:
        """Drop the scratch database, and close both connections."""
        self._connection.execute(f"DROP DATABASE {urlsplit(self._scratch).path[1:]} WITH (FORCE)")
        self._connection.close()
        if self._awaited is not None:
            await self._awaited.close()


def watch(url: str) -> None:
    """Listen, and take each job as a worker would: with an update that is committed."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        claim = partial(connection.execute, CLAIM, prepare=True)
        claim()
        print("ready", flush=True)
        while True:
            for _ in connection.notifies(stop_after=1):
                pass
            while taken := claim().fetchone():
                print(time.monotonic_ns() - msgspec.json.decode(taken[0])["sent"], flush=True)
