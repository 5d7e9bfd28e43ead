"""SQLite: a file, and the sqlite3 module of the standard library."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bench.places import Place, Trace, Written
from onejob.job import Job
from onejob.stores.sql.rows import PLAIN, write_plain
from onejob.stores.sql.sqlite import SQLiteStore
from onejob.stores.sql.statements import statements

INSERT = statements("sqlite")["insert_plain_job"]
HOLDER = "SELECT * FROM onejob_jobs WHERE held_key = ?"
NEWEST = "SELECT args FROM onejob_jobs ORDER BY id DESC LIMIT 1"
INDEXES = """
    SELECT name, sql FROM sqlite_schema
    WHERE type = 'index' AND tbl_name = 'onejob_jobs' AND sql IS NOT NULL
"""
HELD_KEY = PLAIN.index("held_key")

# What the rows of a crowd have of their own; all else is copied from a row that was admitted.
OWN = {
    "id": "printf('00000000-%04x-7000-8000-%012x', i >> 16, i)",
    "chain_id": "printf('00000000-%04x-7000-8000-%012x', i >> 16, i)",
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
}
LIVE = {**OWN, "held_key": "randomblob(32)", "run_at": "run_at + i"}


@contextmanager
def places(folder: Path) -> Iterator[list[Place]]:
    """Offer both levels of durability."""
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
            },
        ),
        SQLite(
            folder,
            "FULL",
            {
                "blocking": 0.85,  # fsync leaves less for us to lose
                "awaited": None,
                "together": 3,
                "duplicates": 2,
                "bulk": 0.4,
                "drain": 3,
                "floor": None,
                "latency": None,
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
    def fresh(self, name: str) -> Iterator[str]:
        """Name a new file."""
        path = self._folder / f"{name}-{self.label}.db"
        yield f"sqlite:///{path}?synchronous={self.label}"
        for file in self._folder.glob(f"{path.name}*"):
            file.unlink()

    def bare(self, url: str) -> Bare:
        """Make our schema and open it."""
        return Bare(url)

    def count(self, url: str) -> int:
        """Count rows."""
        with closing(sqlite3.connect(path_of(url))) as connection:
            [number] = connection.execute("SELECT count(*) FROM onejob_jobs").fetchone()
        return int(number)

    @contextmanager
    def witness(self, url: str) -> Iterator[Callable[[], Trace]]:
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

    def fill(self, url: str, finished: int, live: int, sample: Job, say: Callable[[str], None]) -> None:
        """Copy one row many times over; indexes are made afterwards, which is quicker."""
        say(f"{finished + live:,} jobs")
        with closing(connect(url)) as connection:
            connection.execute(INSERT, write_plain(sample))
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
    """Copy the first row, giving each copy what it has of its own."""
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(onejob_jobs)")]
    values = ", ".join(own.get(name, name) for name in columns)
    connection.execute(
        f"""
        WITH RECURSIVE series (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM series WHERE i + 1 < ?2),
            first AS MATERIALIZED (SELECT * FROM onejob_jobs ORDER BY id DESC LIMIT 1)
        INSERT INTO onejob_jobs SELECT {values} FROM series, first
        """,  # noqa: S608 - names from the schema, expressions from above
        (start, end),
    )


def path_of(url: str) -> Path:
    """Read the file's path."""
    return Path(urlsplit(url).path[1:])


def connect(url: str) -> sqlite3.Connection:
    """Make our schema and open it with a connection that commits every statement."""
    path = path_of(url)
    SQLiteStore(path).migrate()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {parse_qs(urlsplit(url).query)['synchronous'][0]}")
    return connection


class Bare:
    """The sqlite3 module; it has no asynchronous form, so what is awaited is the same blocking call."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)

    def prepare(self, jobs: Sequence[Job]) -> list[Written]:
        """Make rows."""
        return [write_plain(job) for job in jobs]

    def each(self, rows: Sequence[Written]) -> None:
        """Insert with one commit each."""
        execute = self._connection.cursor().execute
        for row in rows:
            execute(INSERT, row)

    async def each_awaited(self, rows: Sequence[Written]) -> None:
        """Insert with one commit each."""
        self.each(rows)

    def ask(self, rows: Sequence[Written]) -> None:
        """Insert, or read the holder."""
        execute = self._connection.cursor().execute
        for row in rows:
            try:
                execute(INSERT, row)
            except sqlite3.IntegrityError:
                execute(HOLDER, (row[HELD_KEY],)).fetchone()

    async def ask_awaited(self, rows: Sequence[Written]) -> None:
        """Insert, or read the holder."""
        self.ask(rows)

    def many(self, rows: Sequence[Written]) -> None:
        """Insert in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT, rows)
        self._connection.execute("COMMIT")

    def send(self, job: Job) -> None:
        """Insert; who watches polls."""
        self._connection.execute(INSERT, write_plain(job))

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


def watch(url: str) -> None:
    """Ask `PRAGMA data_version` every millisecond and read the newest row."""
    with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
        seen = connection.execute("PRAGMA data_version").fetchone()
        print("ready", flush=True)
        while True:
            version = connection.execute("PRAGMA data_version").fetchone()
            if version != seen:
                seen = version
                [args] = connection.execute(NEWEST).fetchone()
                print(time.monotonic_ns() - int(args.split(b":")[1].rstrip(b"}")), flush=True)
            time.sleep(0.001)
