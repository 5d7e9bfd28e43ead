"""Bad input and bad places: one typed error, one clear sentence, and what was stored before is intact."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from onejob import App, Job, Outcome, Task, Unique
from onejob.errors import (
    ArgumentsTooLarge,
    InvalidCall,
    InvalidDuration,
    InvalidPolicy,
    OnejobError,
    SchemaMismatch,
    StoreUnavailable,
    UnencodableArgument,
    UnknownJob,
    UnknownQueue,
    UnknownTask,
)
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.stores.sqlite.store import SQLiteStore

MEGABYTE = 1024 * 1024
NOBODY = 65534


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Opaque:
    pass


class Hostile:
    """An object whose attributes raise."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(name)


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


# ── calls, on every store ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["memory", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    store: Store = (
        MemoryStore()
        if request.param == "memory"
        else SQLiteStore(tmp_path / "jobs.db", synchronous="NORMAL")
    )
    async with App(store=store) as app:
        yield app


def mailer(app: App, policy: Any = None) -> Task[..., str]:
    @app.task(unique=policy)
    def mail(to: Any, text: Any = "") -> str:
        return f"{to}: {text}"

    return mail


async def unchanged(app: App, before: Job) -> bool:
    """Return whether the job that was there before is all there is."""
    return await app.jobs() == [before] and (await app.stats()).absorbed == {}


UNENCODABLE: dict[str, Callable[[], object]] = {
    "an object": Opaque,
    "an object that raises": Hostile,
    "a class": lambda: Opaque,
    "a function": lambda: nested,
    "a generator": lambda: (number for number in range(3)),
    "a complex number": lambda: 1j,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "NaN deep inside": lambda: {"a": [{"b": float("nan")}]},
    "half of a surrogate pair": lambda: "\ud800",
    "half of a surrogate pair as a name": lambda: {"\udfff": 1},
    "a number as a name": lambda: {1: "x"},
    "a truth as a name": lambda: {True: "x"},
    "none as a name": lambda: {None: "x"},
    "a pair as a name": lambda: {(1, 2): "x"},
    "5,000 levels": lambda: nested(5_000),
    "100,000 levels": lambda: nested(100_000),
    "a circle": circle,
}


@pytest.mark.parametrize("what", UNENCODABLE)
@pytest.mark.parametrize(
    "policy", [None, Unique(by="to"), True], ids=["plain", "outside-the-key", "in-the-key"]
)
async def test_an_argument_that_cannot_be_written_is_refused(app: App, policy: Any, what: str) -> None:
    mail = mailer(app, policy)
    before = (await mail.enqueue(1, "fine")).job
    value = UNENCODABLE[what]()
    for enqueue in (mail.enqueue, mail.options(force=True).enqueue):
        with pytest.raises(UnencodableArgument) as caught:
            await enqueue(2, value)
        assert one_sentence(caught.value)
    with pytest.raises(UnencodableArgument):
        await mail.options(meta={"value": value}).enqueue(3)
    with pytest.raises(UnencodableArgument):
        await app.enqueue_many([mail.call(4), mail.call(5, value)])
    assert await unchanged(app, before)


def one_sentence(error: OnejobError) -> bool:
    """Return whether an error says what is wrong in a line that fits a log."""
    text = str(error)
    return text.endswith(".") and "\n" not in text and len(text) < 400


async def test_arguments_over_the_limit_are_refused(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    before = (await mail.enqueue(1)).job
    with pytest.raises(ArgumentsTooLarge, match="1,048,576") as caught:
        await mail.enqueue(2, "x" * MEGABYTE)
    assert one_sentence(caught.value)
    with pytest.raises(ArgumentsTooLarge):
        await mail.options(meta={"large": "x" * MEGABYTE}).enqueue(2)
    assert await unchanged(app, before)


async def test_the_limit_is_the_apps(app: App) -> None:
    small = App(store=app._engine.store, max_args=100)
    mail = mailer(small)
    await mail.enqueue(1, "x" * 50)
    with pytest.raises(ArgumentsTooLarge):
        await mail.enqueue(1, "x" * 100)
    assert len(await small.jobs()) == 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"to": 2}), ((1,), {"subject": "hello"}), ((), {"text": "a"})],
    ids=str,
)
async def test_a_call_that_does_not_fit_the_task_is_refused(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(InvalidCall, match="does not fit") as caught:
        await mailer(app, Unique(by="to")).enqueue(*args, **kwargs)
    assert one_sentence(caught.value)
    assert await app.jobs() == []


async def test_unknown_names_are_reported(app: App) -> None:
    mail = mailer(app)
    with pytest.raises(UnknownTask, match="registered: mail"):
        app._registry.task("male")
    with pytest.raises(UnknownQueue, match=r"declare it with app\.queue"):
        await mail.options(queue="nowhere").enqueue(1)
    with pytest.raises(UnknownQueue):
        app.worker(queues=["nowhere"])
    with pytest.raises(UnknownJob):
        await app.job("nobody")
    with pytest.raises(InvalidCall, match="hexadecimal"):
        await app.jobs(key="no key")
    with pytest.raises(InvalidCall, match="available"):
        await app.jobs(state="runing")
    assert await app.jobs() == []


async def test_a_policy_that_cannot_be_meant_is_refused_with_the_call(app: App) -> None:
    mail = mailer(app)
    before = (await mail.enqueue(1)).job
    with pytest.raises(InvalidDuration, match="negative"):
        await mail.options(unique=Unique(by="to", within=-1)).enqueue(1)
    with pytest.raises(InvalidPolicy, match="leave it out"):
        await mail.options(unique=Unique(by="to", until="start", on_active="rerun")).enqueue(1)
    with pytest.raises(InvalidPolicy, match="it has: to, text"):
        await mail.options(unique=Unique(by="customer")).enqueue(1)
    with pytest.raises(InvalidDuration):
        await mail.options(delay=-1).enqueue(1)
    with pytest.raises(InvalidCall, match="time zone"):
        await mail.options(run_at=datetime(2026, 1, 1)).enqueue(1)  # noqa: DTZ001 - the naive one is the case
    assert await unchanged(app, before)


@pytest.mark.parametrize("text", ["", " ", "\0", "'; DROP TABLE onejob_jobs; --", "\U0001f600" * 1000, "{}"])
async def test_strange_text_is_only_text(app: App, text: str) -> None:
    mail = mailer(app, Unique(by="text"))
    first = await mail.options(meta={text: text}).enqueue(1, text)
    again = await mail.options(meta={text: text}).enqueue(2, text)
    assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)
    stored = await app.job(first.job.id)
    assert stored.arguments["text"] == text
    assert stored.metadata == {text: text}


# ── files, for SQLite ─────────────────────────────────────────────────────────────────────────────


async def refusal(path: Path) -> OnejobError:
    """Try to use a file in every way; return the error, which must be the same each time."""
    async with App(store=SQLiteStore(path, admission_timeout=0.05)) as app:
        mail = mailer(app, Unique(by="to"))
        with pytest.raises(OnejobError) as caught:
            await mail.enqueue(1)
        for use in (lambda: mail.enqueue_sync(1), lambda: app.enqueue_many_sync([mail.call(1)])):
            with pytest.raises(type(caught.value)):
                await asyncio.to_thread(use)
        for ask in (app.jobs, app.stats, app.holds):
            with pytest.raises(type(caught.value)):
                await ask()
    assert one_sentence(caught.value)
    assert path.name in str(caught.value)
    return caught.value


async def test_a_file_that_is_not_sqlite_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes, and they are longer than a header. " * 20)
    before = path.read_bytes()
    assert isinstance(await refusal(path), SchemaMismatch)
    assert path.read_bytes() == before


async def test_a_database_with_tables_of_our_names_that_are_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE onejob_things (id INTEGER)")
        connection.execute("INSERT INTO onejob_things VALUES (7)")
    error = await refusal(path)
    assert isinstance(error, SchemaMismatch)
    assert "onejob_things" in str(error)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM onejob_things").fetchall() == [(7,)]
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        assert tables == [("onejob_things",)]


async def test_a_database_from_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with App(store=SQLiteStore(path)) as app:
        job = (await mailer(app).enqueue(1)).job
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO onejob_schema (version, applied_at) VALUES (99, 0)")
    error = await refusal(path)
    assert isinstance(error, SchemaMismatch)
    assert "upgrade onejob" in str(error)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM onejob_schema WHERE version = 99")
    async with App(store=SQLiteStore(path)) as app:
        assert await app.jobs() == [job]


async def test_a_database_with_other_tables_is_shared_and_they_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (7)")
    async with App(store=SQLiteStore(path)) as app:
        await mailer(app).enqueue(1)
        assert len(await app.jobs()) == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_a_link_to_a_database_has_the_lock_of_the_database(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to("jobs.db")
    app, other = (App(store=SQLiteStore(tmp_path / name)) for name in ("jobs.db", "link.db"))
    job = mailer(app).enqueue_sync(1).job
    assert other.jobs_sync() == [job]
    assert not list(tmp_path.glob("link.db?*"))
    for one in (app, other):
        asyncio.run(one.close())


def test_a_name_that_looks_like_a_uri_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///file:jobs.db")
    mailer(app).enqueue_sync(1)
    asyncio.run(app.close())
    assert not Path("jobs.db").exists()
    with closing(sqlite3.connect(tmp_path / "file:jobs.db")) as connection:
        assert connection.execute("SELECT count(*) FROM onejob_jobs").fetchone() == (1,)


async def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with App(store=SQLiteStore(path)) as app:
        mail = mailer(app)
        await app.enqueue_many([mail.call(number, "x" * 500) for number in range(200)])
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    async with App(store=SQLiteStore(path)) as app:
        with pytest.raises(StoreUnavailable, match="damaged") as caught:
            await mailer(app).enqueue(1)
    assert one_sentence(caught.value)


PLACES: dict[str, Callable[[Path], Path]] = {
    "a folder that is not there": lambda folder: folder / "nowhere" / "jobs.db",
    "a folder in place of the file": lambda folder: make_folder(folder / "jobs.db"),
    "a file in place of the folder": lambda folder: make_file(folder / "file") / "jobs.db",
    "a place where nobody may write": lambda _folder: Path("/proc/onejob-jobs.db"),
    "a name that is too long": lambda folder: folder / ("x" * 300),
    "a loop of links": lambda folder: make_loop(folder / "jobs.db"),
}


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def make_file(path: Path) -> Path:
    path.write_text("not a folder")
    return path


def make_loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize("place", PLACES)
async def test_a_path_where_no_file_can_be_is_reported(tmp_path: Path, place: str) -> None:
    assert isinstance(await refusal(PLACES[place](tmp_path)), StoreUnavailable)


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def test_refusals_leave_no_file_open(tmp_path: Path) -> None:
    path = make_file(tmp_path / "jobs.db")
    path.write_text("not a database, and long enough to be sure of it. " * 20)
    await refusal(path)
    before = open_files()
    for _ in range(5):
        await refusal(path)
    assert open_files() <= before


# ── a store that fails while it is used ───────────────────────────────────────────────────────────


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[App]:
    """Give an app whose database may grow by next to nothing."""
    async with App(store=SQLiteStore(tmp_path / "jobs.db", synchronous="NORMAL")) as app:
        await mailer(app, Unique.coalesce(by="to")).enqueue(1, "before")
        [pages] = writer(app).execute("PRAGMA page_count").fetchone()
        writer(app).execute(f"PRAGMA max_page_count = {pages + 4}")
        yield app


def writer(app: App) -> sqlite3.Connection:
    """Return the connection that writes: only there can a full disk be provoked."""
    assert isinstance(app._engine.store, SQLiteStore)
    return app._engine.store._open()._writer.connection


async def test_a_full_disk_refuses_what_does_not_fit_and_keeps_what_is_there(full: App) -> None:
    mail = full.tasks["mail"]
    before = await full.jobs()
    large = "x" * 100_000
    enqueues: list[Callable[[], Any]] = [
        lambda: mail.enqueue_sync(2, large),
        lambda: mail.enqueue_sync(1, large),  # an update
        lambda: full.enqueue_many_sync([mail.call(3), mail.call(4, large)]),
    ]
    for enqueue in enqueues:
        with pytest.raises(StoreUnavailable, match="the disk is full") as caught:
            await asyncio.to_thread(enqueue)
        assert one_sentence(caught.value)
        assert await full.jobs() == before
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await mail.enqueue(2, large)
    assert await full.jobs() == before

    small = await mail.enqueue(1, "after")  # what fits is taken
    assert small.outcome is Outcome.UPDATED
    writer(full).execute("PRAGMA max_page_count = 1000000")
    assert (await mail.enqueue(2, large)).outcome is Outcome.CREATED
    assert writer(full).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_full_disk_undoes_our_part_of_a_callers_transaction(full: App, tmp_path: Path) -> None:
    mail = full.tasks["mail"]
    before = await full.jobs()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            mail.options(connection=connection).enqueue_sync(2, "x" * 100_000)
        connection.commit()
    assert await full.jobs() == before


@pytest.fixture
def read_only(full: App) -> Iterator[App]:
    writer(full).execute("PRAGMA query_only = ON")
    yield full
    writer(full).execute("PRAGMA query_only = OFF")


async def test_a_read_only_file_refuses_writes_and_answers_questions(read_only: App) -> None:
    mail = read_only.tasks["mail"]
    before = await read_only.jobs()
    with pytest.raises(StoreUnavailable, match="read-only") as caught:
        await mail.enqueue(2)
    assert one_sentence(caught.value)
    with pytest.raises(StoreUnavailable, match="read-only"):
        await asyncio.to_thread(mail.enqueue_sync, 2)
    assert await read_only.jobs() == before
    assert (await mail.explain(1)).outcome is Outcome.UPDATED


@contextmanager
def powerless() -> Iterator[None]:
    """Be a user whom file modes stop, also if the tests run as root."""
    user = os.geteuid()
    os.seteuid(NOBODY if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
async def guarded() -> AsyncIterator[Path]:
    """Give a database with one job, in a folder that others may enter, as they may not enter pytest's."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        async with App(store=SQLiteStore(path)) as app:
            await mailer(app, Unique(by="to")).enqueue(1)
        yield path
        open_up(path)
        async with App(store=SQLiteStore(path)) as app:
            assert len(await app.jobs()) == 1


def open_up(path: Path) -> None:
    path.parent.chmod(0o755)
    path.chmod(0o644)


def make_read_only(path: Path) -> None:
    path.parent.chmod(0o777)
    path.with_name("jobs.db.lock").chmod(0o666)
    path.chmod(0o444)


def make_folder_read_only(path: Path) -> None:
    path.with_name("jobs.db.lock").unlink()
    path.parent.chmod(0o555)


async def test_a_read_only_folder_is_reported(guarded: Path) -> None:
    make_folder_read_only(guarded)
    with powerless():
        assert isinstance(await refusal(guarded), StoreUnavailable)


async def test_a_read_only_file_is_reported(guarded: Path) -> None:
    make_read_only(guarded)
    with powerless():
        async with App(store=SQLiteStore(guarded)) as app:
            mail = mailer(app, Unique(by="to"))
            for enqueue in (mail.enqueue, mail.options(force=True).enqueue):
                with pytest.raises(StoreUnavailable, match="read-only") as caught:
                    await enqueue(2)
                assert one_sentence(caught.value)
            with pytest.raises(StoreUnavailable, match="read-only"):
                await asyncio.to_thread(mail.enqueue_sync, 2)
