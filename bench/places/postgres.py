"""PostgreSQL: a real server, durable, and psycopg."""

from __future__ import annotations

import asyncio
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

from bench.places import Place, Trace, check_room
from onejob.job import Job
from onejob.stores.sql.postgres.records import WHOLE
from onejob.stores.sql.postgres.store import PostgresStore
from tests.servers import Server, postgres

SETTINGS = {"max_wal_size": "4GB"}
BINARY = {"payload_digest", "key", "held_key", "next_key"}
TABLES = ("onejob_jobs", "onejob_marks", "onejob_tallies")
CHANNEL = "bench"
INTEGERS = {
    *("priority", "run_at", "place", "created_at", "attempt", "holds", "traits", "held_at", "chain_index"),
    *("token", "holds_until", "latest_at", "version", "started_at", "finished_at", "lease_until"),
    *("expires_at", "replays"),
}
TYPES = (
    dict.fromkeys(Job.__struct_fields__, "text")
    | dict.fromkeys(BINARY, "bytea")
    | dict.fromkeys(INTEGERS, "bigint")
    | {"cancel_requested": "boolean", "timeout": "double precision", "within": "double precision"}
)
CHUNK = 250_000
NEEDED = 1500  # bytes of disk per job of a crowd, with its indexes and the log
OWN = {
    "id": "'00000000-' || lpad(to_hex(i >> 16), 4, '0') || '-7000-8000-' || lpad(to_hex(i), 12, '0')",
    "place": "i",
    "key": "sha256(int8send(i))",
    "payload_digest": "sha256(int8send(i))",
}
OWN["chain_id"] = OWN["id"]
FINISHED = {
    **OWN,
    "state": "'completed'",
    "started_at": "run_at",
    "finished_at": "run_at + i",
    "held_key": "NULL",
}
LIVE = {**OWN, "held_key": OWN["key"], "run_at": "run_at + i"}
COLUMNS = """
    SELECT attname FROM pg_attribute WHERE attrelid = 'onejob_jobs'::regclass AND attnum > 0 ORDER BY attnum
"""
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
def places(folder: Path) -> Iterator[list[Place]]:
    """Start a server that keeps what it commits."""
    folder.chmod(0o755)  # the server may have to run as somebody else
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
    def fresh(self, name: str) -> Iterator[str]:
        """Make a database, with no checkpoint of it left to be done while others are measured."""
        database = f"{name.replace('-', '_')}_{next(self._names)}"
        with self._admin() as admin:
            admin.execute(f"CREATE DATABASE {database}")
            admin.execute("CHECKPOINT")
        yield urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))
        with self._admin() as admin:
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)")

    def bare(self, url: str) -> Bare:
        """Make our schema and open it."""
        PostgresStore(url).migrate()
        return Bare(url)

    def count(self, url: str) -> int:
        """Count rows."""
        with psycopg.connect(url) as connection:
            [number] = connection.execute("SELECT count(*) FROM onejob_jobs").fetchone() or [0]
        return int(number)

    @contextmanager
    def witness(self, url: str) -> Iterator[Callable[[], Trace]]:
        """Watch every version of every row, and the write-ahead log, in which the whole server writes."""
        with psycopg.connect(url, autocommit=True) as connection:

            def trace() -> Trace:
                rows = [number for table in TABLES for number in self._versions(connection, table)]
                [log] = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone() or [0]
                return Trace(tuple(rows), int(log))

            yield trace

    @staticmethod
    def _insert(url: str, job: Job) -> None:
        bare = Bare(url)
        bare.each(bare.prepare([job]))
        asyncio.run(bare.close())

    @staticmethod
    def _versions(connection: Connection[Any], table: str) -> Sequence[int]:
        versions = f"SELECT count(*), sum(hashtext(xmin::text || ctid::text)) FROM {table}"  # noqa: S608 - from above
        return connection.execute(versions).fetchone() or []

    def fill(self, url: str, finished: int, live: int, sample: Job, say: Callable[[str], None]) -> None:
        """Copy one row many times over; indexes are made afterwards, which is quicker."""
        with Connection[Any].connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("SET maintenance_work_mem = '512MB'")
            columns = [name for (name,) in connection.execute(COLUMNS)]
            there = self.count(url)
            check_room(finished + live - there, NEEDED, shutil.disk_usage(self._folder).free)
            if not there:
                self._insert(url, sample)
            indexes = connection.execute(INDEXES).fetchall()
            for name, _ in indexes:
                connection.execute(f"DROP INDEX {name}")
            for own, first, end in ((FINISHED, there, finished), (LIVE, finished, finished + live)):
                values = ", ".join(own.get(name, f"sample.{name}") for name in columns)
                copying = f"""
                    INSERT INTO onejob_jobs SELECT {values} FROM generate_series(%s::bigint, %s::bigint) AS i,
                    (SELECT * FROM onejob_jobs WHERE id = %s) AS sample
                """  # noqa: S608 - names from the schema, expressions from above
                for start in range(first, end, CHUNK):
                    say(f"{start:,} jobs")
                    connection.execute(copying, (start, min(start + CHUNK, end) - 1, sample.id))
            say("indexes")
            for _, create in indexes:
                connection.execute(create)
            connection.execute("VACUUM (ANALYZE) onejob_jobs")
            connection.execute("CHECKPOINT")


def columns_of(job: Job) -> list[str]:
    """List the columns that are not null, which are all that an insert needs to name."""
    return [name for name, value in WHOLE(job).items() if value is not None]


class Row(NamedTuple):
    """A job as the parameters of an insert, and as a record of many."""

    values: list[Any]
    record: dict[str, Any]


def row_of(job: Job, columns: Sequence[str]) -> Row:
    """Make a row, as the driver takes it."""
    record = WHOLE(job)
    values = [getattr(job, name) if name in BINARY else plain(record[name]) for name in columns]
    return Row(values, {name: record[name] for name in columns})


def plain(value: Any) -> Any:
    """Write a name as text: the driver would write an enumeration's member by its name."""
    return str(value) if isinstance(value, str) else value


class Bare:
    """Psycopg: one connection, autocommit, prepared statements, one cursor that is used again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._cursor = RawCursor(self._connection)
        self._awaited: AsyncConnection[Any] | None = None
        self._columns: list[str] = []

    def prepare(self, jobs: Sequence[Job]) -> list[Row]:
        """Make parameters."""
        self._columns = columns_of(jobs[0])
        return [row_of(job, self._columns) for job in jobs]

    # ── statements ────────────────────────────────────────────────────────────────────────────────

    def _insert(self, source: str = "", returning: str = "id") -> str:
        names = ", ".join(self._columns)
        values = ", ".join(f"${number}" for number, _ in enumerate(self._columns, 1))
        return (
            f"INSERT INTO onejob_jobs ({names}) {source or f'VALUES ({values})'} "
            f"ON CONFLICT DO NOTHING RETURNING {returning}"
        )

    def _insert_many(self) -> str:
        """Insert from one parameter; of all forms that were tried this one is the quickest."""
        columns = ", ".join(f"{name} {TYPES[name]}" for name in self._columns)
        return self._insert(f"SELECT * FROM jsonb_to_recordset($1) AS record ({columns})")  # noqa: S608 - as above

    def _insert_or_read(self) -> str:
        """Insert or read the holder, in one statement."""
        held = self._columns.index("held_key") + 1
        return (
            f"WITH made AS ({self._insert(returning='*')}) SELECT * FROM made "  # noqa: S608 - names from the schema
            f"UNION ALL SELECT * FROM onejob_jobs WHERE held_key = ${held} LIMIT 1"
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
        """Insert in one statement; what comes back are the ids of those that are new."""
        records = Jsonb([row.record for row in rows], dumps=msgspec.json.encode)
        self._cursor.execute(self._insert_many().encode(), [records], prepare=True, binary=True)
        assert len(self._cursor.fetchall()) == len(rows)

    def send(self, job: Job) -> None:
        """Insert and notify in one statement."""
        rows = self.prepare([job])
        self._run(f"WITH made AS ({self._insert()}) SELECT pg_notify('{CHANNEL}', '') FROM made", rows)  # noqa: S608 - as above

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
        """Close both connections."""
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
