"""SQLite: a file, and the sqlite3 module of the standard library."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench.targets import Target, Trace, condition_of_holder, customer_of, key_column
from bench.workload import enqueue_invoices

Row = tuple[Any, ...]

NEWEST = "SELECT args FROM onejob_jobs ORDER BY id DESC LIMIT 1"
INDEXES = """
    SELECT name, sql FROM sqlite_schema
    WHERE type = 'index' AND tbl_name = 'onejob_jobs' AND sql IS NOT NULL
"""

# The columns in which the rows of a crowd differ; all others are copied from a row that onejob wrote.
OWN = {
    "id": "printf('00000000-%04x-7000-8000-%012x', i >> 16, i)",
    "chain_id": "iif(chain_id IS NULL, NULL, printf('00000000-%04x-7000-8000-%012x', i >> 16, i))",
    "place": "i",
    "key": "randomblob(32)",
    "payload_digest": "randomblob(32)",
}
FINISHED = {
    **OWN,
    "state": "'completed'",
    "started_at": "run_at",
    "finished_at": "run_at + i",
    "held_key": "NULL",
    "stand": "NULL",
}
LIVE = {**OWN, "held_key": "randomblob(32)", "run_at": "run_at + i"}


@contextmanager
def targets(folder: Path) -> Iterator[list[Target]]:
    """Yield both levels of durability."""
    shown = dict.fromkeys(("drain-8", "limited", "held"))
    yield [
        SQLite(
            folder,
            "NORMAL",
            {
                "blocking": 0.6,
                "awaited": 0.12,
                "duplicates": 2,
                "bulk": 0.4,
                "drain": 3,
                "floor": None,
                "crowd": 1.25,
                "chains": 1.3,
                **shown,
            },
        ),
        SQLite(
            folder,
            "FULL",
            {
                "blocking": 0.85,  # fsync dominates, so the ratio is closer to 1
                "awaited": None,
                "together": 3,
                "duplicates": 2,
                "bulk": 0.4,
                "drain": 3,
                "floor": None,
                "latency": None,
                **shown,
            },
        ),
    ]


class SQLite:
    """Files at one level of `synchronous`."""

    software = ""
    asks = False
    untouched = "no row, no commit"
    batch = 10_000
    producers = 64
    drained = 10_000, 2_000
    crowds = ((1_000_000, 100_000),)
    quick_crowds = ((90_000, 10_000),)
    peers = ("huey",)

    def __init__(self, folder: Path, synchronous: str, bars: dict[str, float | None]) -> None:
        self.label = synchronous
        self.bars = bars
        self._folder = folder

    @contextmanager
    def empty_store(self, name: str) -> Iterator[str]:
        """Yield the URL of a new file, and remove the file."""
        path = self._folder / f"{name}-{self.label}.db"
        yield f"sqlite:///{path}?synchronous={self.label}"
        for file in self._folder.glob(f"{path.name}*"):
            file.unlink()

    def bare(self, url: str) -> Bare:
        """Create onejob's tables and open them."""
        return Bare(url)

    def count(self, url: str) -> int:
        """Count rows."""
        with closing(sqlite3.connect(path_of(url))) as connection:
            [number] = connection.execute("SELECT count(*) FROM onejob_jobs").fetchone()
        return int(number)

    @contextmanager
    def watch_writes(self, url: str) -> Iterator[Callable[[], Trace]]:
        """Watch rows, commits and the log."""
        path = path_of(url)
        log = path.with_name(f"{path.name}-wal")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:

            def trace() -> Trace:
                [jobs] = connection.execute("SELECT count(*) FROM onejob_jobs").fetchone()
                [commits] = connection.execute("PRAGMA data_version").fetchone()
                size = log.stat().st_size
                return Trace((jobs, commits, size, log.stat().st_mtime_ns), size)

            yield trace

    def fill(self, url: str, finished: int, live: int, say: Callable[[str], None]) -> None:
        """Copy one row many times over; indexes are created afterwards, which is faster."""
        say(f"{finished + live:,} jobs")
        enqueue_invoices(url, [-1])
        with closing(connect(url)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA cache_size = -262144")
            indexes = connection.execute(INDEXES).fetchall()
            connection.execute("BEGIN")
            for name, _ in indexes:
                connection.execute(f"DROP INDEX {name}")
            copy(connection, FINISHED, 0, finished)
            copy(connection, LIVE, finished, finished + live)
            for _, create in indexes:
                connection.execute(create)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def copy(connection: sqlite3.Connection, own: dict[str, str], start: int, end: int) -> None:
    """Copy the newest row, with other values in the columns that `own` names."""
    values = ", ".join(own.get(name, name) for name in columns_of(connection))
    connection.execute(
        f"""
        WITH RECURSIVE series (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM series WHERE i + 1 < ?2),
            sample AS MATERIALIZED (SELECT * FROM onejob_jobs ORDER BY id DESC LIMIT 1)
        INSERT INTO onejob_jobs SELECT {values} FROM series, sample
        """,  # noqa: S608 - names from the schema, expressions from above
        (start, end),
    )


def columns_of(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the columns of a job's row."""
    return [name for _, name, *_ in connection.execute("PRAGMA table_info(onejob_jobs)")]


def path_of(url: str) -> Path:
    """Return the file's path."""
    return Path(urlsplit(url).path[1:])


def connect(url: str) -> sqlite3.Connection:
    """Open a file with a connection that commits every statement."""
    connection = sqlite3.connect(path_of(url), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {parse_qs(urlsplit(url).query)['synchronous'][0]}")
    return connection


class Bare:
    """The sqlite3 module; it has no asynchronous form, so what is awaited is the same blocking call."""

    def __init__(self, url: str) -> None:
        path = path_of(url)
        self._scratch = url.replace(path.name, f"{path.name}-scratch")
        enqueue_invoices(url, [0])
        self._connection = connect(url)
        self._connection.execute("DELETE FROM onejob_jobs")
        self._all_columns = columns_of(self._connection)
        self.columns: list[str] = []  # those that a new job does not leave empty
        self._insert = self._holder = ""
        self._unsent: list[Row] = []

    def prepare(self, customers: Sequence[int]) -> list[Row]:
        """Return the rows that onejob writes; a customer that occurs twice has one row."""
        enqueue_invoices(self._scratch, dict.fromkeys(customers))
        with closing(connect(self._scratch)) as scratch:
            found = scratch.execute("SELECT * FROM onejob_jobs").fetchall()
            scratch.execute("DELETE FROM onejob_jobs")
        kept = [index for index, value in enumerate(found[0]) if value is not None]
        self._use([self._all_columns[index] for index in kept])
        args = self._all_columns.index("args")
        rows = {customer_of(row[args]): tuple(row[index] for index in kept) for row in found}
        return [rows[customer] for customer in customers]

    def _use(self, columns: list[str]) -> None:
        self.columns = columns
        marks = ", ".join("?" for _ in columns)
        self._insert = f"INSERT INTO onejob_jobs ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - from the schema
        self._holder = f"SELECT * FROM onejob_jobs WHERE {condition_of_holder(columns, '?')}"  # noqa: S608 - as above

    def each(self, rows: Sequence[Row]) -> None:
        """Insert with one commit each."""
        execute, insert = self._connection.cursor().execute, self._insert
        for row in rows:
            execute(insert, row)

    async def each_awaited(self, rows: Sequence[Row]) -> None:
        """Insert with one commit each."""
        self.each(rows)

    def ask(self, rows: Sequence[Row]) -> None:
        """Insert, or read the holder."""
        execute, insert, holder = self._connection.cursor().execute, self._insert, self._holder
        key = key_column(self.columns)
        for row in rows:
            try:
                execute(insert, row)
            except sqlite3.IntegrityError:
                execute(holder, (row[key],)).fetchone()

    async def ask_awaited(self, rows: Sequence[Row]) -> None:
        """Insert, or read the holder."""
        self.ask(rows)

    def many(self, rows: Sequence[Row]) -> None:
        """Insert in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, rows)
        self._connection.execute("COMMIT")

    def send(self, sent: int) -> None:
        """Insert a row; `watch` polls."""
        if not self._unsent:
            self._unsent = sorted(self.prepare(range(sent, sent + 100)), reverse=True)  # by id, newest first
        row = list(self._unsent.pop())
        args = self.columns.index("args")
        text = json.dumps({"sent": sent})
        row[args] = text.encode() if isinstance(row[args], bytes) else text
        self.each([tuple(row)])

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


def watch(url: str) -> None:
    """Query `PRAGMA data_version` every millisecond, and read the newest row if it has changed."""
    with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
        seen = connection.execute("PRAGMA data_version").fetchone()
        print("ready", flush=True)
        while True:
            version = connection.execute("PRAGMA data_version").fetchone()
            if version != seen:
                seen = version
                [args] = connection.execute(NEWEST).fetchone()
                print(time.monotonic_ns() - json.loads(args)["sent"], flush=True)
            time.sleep(0.001)
