"""A codec: the store has nothing in clear that a job carries, and all else goes on as before."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from redis import Redis
from redis.cluster import RedisCluster

from onejob import App, Discard, Job, Outcome, Retry, State, Unique, chain, current
from onejob.core.job import SEALED, alter
from onejob.engine.sealing import AesGcmCodec
from onejob.errors import InvalidCall, InvalidPolicy, JobFailed, PayloadMismatch, Unsealable
from onejob.stores.contract import FullStore as Store
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock, drain
from onejob.worker.ticker import Ticker
from tests.contract.conftest import STORES
from tests.contract.steps import RETRY, discard, everything, lease, mailer, run, start

MARKER = "Zimtschnecke"  # stands in no clear text that a store has
OLD, NEW, WRONG = (AesGcmCodec.generate_key() for _ in range(3))
SECRET = "pepper and coarse salt"


@pytest.fixture
async def app(store: Store) -> AsyncIterator[App]:
    async with App(store=store, codec=AesGcmCodec(OLD), secret=SECRET) as app:
        yield app


def other(app: App, *keys: str) -> App:
    """Make an app on the same store that has other keys, or none."""
    return App(store=app._engine.store, codec=AesGcmCodec(*keys) if keys else None, secret=SECRET)


# ── what a store has ──────────────────────────────────────────────────────────────────────────────


def in_memory(store: MemoryStore) -> bytes:
    """Write out all that it is made of; a job hides its arguments from repr."""
    parts = vars(store)
    book = parts["_rows"]
    records = [msgspec.structs.astuple(one) for one in (*book.jobs.values(), *book.marks.values())]
    return repr((records, parts["_settings"], parts["_tallies"], parts["_observations"])).encode()


def in_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


def in_tables(url: str) -> bytes:
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return b"".join(
            repr(connection.execute(f'TABLE "{table}"'.encode()).fetchall()).encode() for (table,) in tables
        )


def in_keys(url: str) -> bytes:
    everywhere = RedisCluster.from_url if "cluster" in url else Redis.from_url
    with closing(everywhere(url.replace("redis+cluster", "redis"))) as client:
        read: dict[bytes | str, Callable[[Any], Any]] = {
            b"hash": client.hgetall,
            b"string": client.get,
            b"list": lambda name: client.lrange(name, 0, -1),
            b"set": client.smembers,
            b"zset": lambda name: client.zrange(name, 0, -1, withscores=True),
            b"stream": client.xrange,
        }
        return b"".join(repr((name, read[client.type(name)](name))).encode() for name in client.scan_iter())


@pytest.fixture
def contents(request: pytest.FixtureRequest, store: Store) -> Callable[[], bytes]:
    """Read all that the store has, as a thief would."""
    if isinstance(store, MemoryStore):
        return lambda: in_memory(store)
    match store.guarantees.store:
        case "sqlite":
            return lambda: in_files(request.getfixturevalue("tmp_path"))
        case "postgresql":
            return lambda: in_tables(request.getfixturevalue("postgres_url"))
        case _:
            return lambda: in_keys(request.getfixturevalue("redis_url"))


async def carry_all(app: App) -> None:
    """Let the marker go every way by which a job's content comes into a store."""
    app.queue("shared", partition_concurrency=1)

    @app.task(unique=Unique(by="text"), queue="shared", partition="text")
    async def echo(text: str) -> str:
        current().progress(0.5, f"about {text}")
        return text

    @app.task
    async def join(first: str, second: str) -> str:
        return first + second

    @app.task(retry=Retry.never())
    async def explode(text: str) -> None:
        raise ValueError(text)

    await echo.enqueue(MARKER)
    await echo.enqueue(MARKER)
    await app.enqueue_many([echo.call(f"{MARKER} {number}") for number in range(3)])
    await chain(echo.call(f"{MARKER} first"), join.step(second=MARKER), join.step(second=MARKER)).enqueue()
    await explode.enqueue(MARKER)
    await app.schedules.add("hourly", echo.call(f"{MARKER} hourly"), "0 * * * *")
    await lease(app, total=1)
    await drain(app)
    await join.enqueue(MARKER, MARKER)


async def test_nothing_that_a_job_carries_is_in_clear(app: App, contents: Callable[[], bytes]) -> None:
    await carry_all(app)
    app._engine.counters.flush()  # what was absorbed and recorded is in the store, too
    found = contents()
    assert MARKER.encode() not in found
    assert b"onejob:sealed" in found


async def test_without_a_codec_it_would_be_found(store: Store, contents: Callable[[], bytes]) -> None:
    async with App(store=store, secret=SECRET) as app:
        await carry_all(app)
        found = contents()
    assert found.count(MARKER.encode()) > 20
    assert f"{MARKER} hourly".encode() in found


async def test_what_is_stored_is_json_that_says_it_is_sealed(app: App) -> None:
    admission = await mailer(app).enqueue("a", MARKER)
    assert admission.job.is_sealed
    [name] = admission.job.arguments
    assert name == "onejob:sealed"
    assert app.reveal(admission.job).arguments == {"to": "a", "text": MARKER}
    assert not app.reveal(admission.job).is_sealed


async def test_the_same_payload_never_looks_the_same(app: App) -> None:
    mail = mailer(app)
    first, second = [await mail.enqueue("a", MARKER) for _ in range(2)]
    assert first.job.args != second.job.args
    assert first.job.payload_digest == second.job.payload_digest


async def test_logs_have_no_words_of_an_error(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=Retry.never())
    async def explode(text: str) -> None:
        raise ValueError(text)

    caplog.set_level(logging.DEBUG)
    await explode.enqueue(MARKER)
    await drain(app)
    assert "ValueError: sealed" in caplog.text
    assert MARKER not in caplog.text


# ── the same work is still the same ───────────────────────────────────────────────────────────────


async def test_a_duplicate_is_kept(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue("a", MARKER)
    again = await mail.enqueue("a", MARKER)
    differs = await mail.enqueue("a", "other")
    assert [one.outcome for one in (again, differs)] == [Outcome.KEPT, Outcome.KEPT]
    assert again.job.id == first.job.id
    assert [again.payload_differs, differs.payload_differs] == [False, True]


async def test_an_equal_payload_updates_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    await mail.enqueue("a", MARKER)
    [before] = await everything(app)
    assert (await mail.enqueue("a", MARKER)).outcome is Outcome.KEPT
    assert await everything(app) == [before]
    assert (await mail.enqueue("a", "newer")).outcome is Outcome.UPDATED
    assert (await run(app)).id == before.id


async def test_the_newest_payload_runs(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue("a", "old")
    updated = await mail.enqueue("a", "new")
    await drain(app)
    assert await updated.result() == "a: new"


async def test_a_request_during_a_run_becomes_one_more(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue("a", "running")
    await start(app)
    rerun = await mail.enqueue("a", "next")
    same = await mail.enqueue("a", "next")
    newer = await mail.enqueue("a", "newest")
    assert [one.outcome for one in (rerun, same, newer)] == [Outcome.RERUN, Outcome.KEPT, Outcome.UPDATED]
    assert app.reveal(newer.job).arguments["text"] == "newest"


async def test_replace_takes_the_newcomer(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="replace"))
    old = await mail.enqueue("a", "old")
    new = await mail.enqueue("a", MARKER)
    await drain(app)
    assert (new.outcome, await old.result()) == (Outcome.REPLACED, f"a: {MARKER}")


async def test_versions_are_read_before_sealing(app: App) -> None:
    @app.task(unique=Unique.latest(by="entry", version="seq"))
    async def embed(entry: str, seq: int) -> int:
        return seq + len(entry)

    outcomes = [(await embed.enqueue(MARKER, seq)).outcome for seq in (2, 1, 3)]
    assert outcomes == [Outcome.CREATED, Outcome.STALE, Outcome.UPDATED]
    await drain(app)
    assert [app.reveal(job).arguments["seq"] for job in await everything(app)] == [3]


async def test_a_batch_folds_its_own_duplicates(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_conflict="update"))
    calls = [mail.call("a", "x"), mail.call("a", "x"), mail.call("a", "y"), mail.call("b", "x")]
    outcomes = [one.outcome for one in await app.enqueue_many(calls)]
    assert outcomes == [Outcome.CREATED, Outcome.KEPT, Outcome.UPDATED, Outcome.CREATED]


async def test_another_payload_may_be_an_error(app: App) -> None:
    mail = mailer(app, Unique(by="to", on_mismatch="error"))
    await mail.enqueue("a", MARKER)
    assert (await mail.enqueue("a", MARKER)).outcome is Outcome.KEPT
    with pytest.raises(PayloadMismatch):
        await mail.enqueue("a", "other")


async def test_apps_with_different_keys_agree_on_what_is_the_same(app: App) -> None:
    policy = Unique(by="to", on_conflict="update")
    await mailer(app, policy).enqueue("a", MARKER)
    async with other(app, NEW, OLD) as newer:
        assert (await mailer(newer, policy).enqueue("a", MARKER)).outcome is Outcome.KEPT


async def test_partitions_differ_although_their_names_are_hidden(app: App) -> None:
    app.queue("shared", partition_concurrency=1)
    mail = mailer(app, queue="shared", partition="to")
    for to in (MARKER, MARKER, "b"):
        await mail.enqueue(to)
    assert [app.reveal(job).arguments["to"] for job in await lease(app)] == [MARKER, "b"]


# ── running ───────────────────────────────────────────────────────────────────────────────────────


async def test_arguments_and_results_arrive_typed(app: App) -> None:
    @app.task
    async def born(on: date, in_years: int = 0) -> date:
        return on.replace(year=on.year + in_years)

    admission = await born.enqueue(date(1990, 5, 1), in_years=30)
    await drain(app)
    assert await admission.result() == date(2020, 5, 1)
    assert app.reveal(await app.job(admission.job.id)).result == b'"2020-05-01"'


async def test_a_plain_function_runs_in_a_thread(app: App) -> None:
    @app.task
    def double(text: str) -> str:
        return text * 2

    admission = await double.enqueue(MARKER)
    await drain(app)
    assert await admission.result() == MARKER * 2


async def test_a_chain_hands_its_results_on(app: App) -> None:
    @app.task
    async def add(left: int, right: int) -> int:
        return left + right

    admission = await chain(add.call(1, 2), add.step(right=10), add.step(right=100)).enqueue()
    await drain(app)
    assert await admission.chain.result() == 113
    jobs = await admission.chain.jobs()
    assert [app.reveal(job).arguments for job in jobs[1:]] == [
        {"left": 3, "right": 10},
        {"left": 13, "right": 100},
    ]
    assert all(job.is_sealed for job in jobs)


async def test_a_handler_continues_its_chain(app: App) -> None:
    @app.task
    async def count(left: int) -> int:
        if left:
            current().continue_with(app.tasks["count"].call(left - 1))
        return left

    admission = await count.enqueue(2)
    await drain(app)
    assert await admission.chain.result() == 0


async def test_results_of_blockers_are_in_clear(app: App) -> None:
    @app.task
    async def part(number: int) -> int:
        return number

    @app.task
    async def total() -> int:
        return sum(blocker.result for blocker in current().blockers)

    parts = [await part.enqueue(number) for number in (1, 2, 3)]
    whole = await total.options(after=parts).enqueue()
    await drain(app)
    assert await whole.result() == 6


async def test_a_schedule_seals_its_arguments(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await app.schedules.add("hourly", mail.call("a", MARKER), "0 * * * *")
    await app.schedules.pause("hourly")
    await app.schedules.resume("hourly")
    await Ticker(app._engine, app._registry).tick()
    clock.advance("1h")
    await Ticker(app._engine, app._registry).tick()
    [job] = await everything(app)
    assert app.reveal(job).arguments == {"to": "a", "text": MARKER}
    await drain(app)
    assert (await app.job(job.id)).state is State.COMPLETED


async def test_ticks_of_a_schedule_have_one_payload(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await app.schedules.add("hourly", mail.call("a"), "0 * * * *", overlap=Unique(on_conflict="replace"))
    await Ticker(app._engine, app._registry).tick()
    for _ in range(2):
        clock.advance("1h")
        await Ticker(app._engine, app._registry).tick()
    first, second = await everything(app)
    assert first.payload_digest == second.payload_digest


async def test_progress_keeps_its_fraction_and_hides_its_message(app: App) -> None:
    @app.task
    async def tell(text: str) -> None:
        current().progress(0.25, text)

    admission = await tell.enqueue(MARKER)
    await drain(app)
    job = await app.job(admission.job.id)
    shown = msgspec.json.decode(job.progress or b"")
    assert (shown["fraction"], shown["message"]) == (0.25, "sealed")
    assert msgspec.json.decode(app.reveal(job).progress or b"") == {"fraction": 0.25, "message": MARKER}


# ── failing ───────────────────────────────────────────────────────────────────────────────────────


async def failed(app: App, *, error: type[Exception] = ValueError) -> Job:
    """Let a job fail for good, with the marker in its error."""

    @app.task(retry=Retry.never())
    async def explode(text: str, harmless: bool = False) -> str:  # noqa: FBT001, FBT002 - a handler's argument
        if not harmless:
            raise error(text)
        return text

    admission = await explode.enqueue(MARKER)
    await drain(app)
    return await app.job(admission.job.id)


@pytest.mark.parametrize("error", [ValueError, Discard])
async def test_an_error_keeps_its_type_and_hides_its_message(app: App, error: type[Exception]) -> None:
    letter = await failed(app, error=error)
    [hidden] = letter.failures
    [shown] = app.reveal(letter).failures
    assert (hidden["type"], hidden["message"], hidden["traceback"]) == (error.__name__, "sealed", "")
    assert (shown["type"], shown["message"]) == (error.__name__, MARKER)
    assert MARKER in shown["traceback"]
    assert "onejob:sealed" not in shown


async def test_a_caller_that_awaits_a_failed_job_gets_its_error(app: App) -> None:
    letter = await failed(app)
    chain_of = app.chain(letter.chain_id)
    with pytest.raises(JobFailed, match=f"ValueError: {MARKER}"):
        await chain_of.result()
    with pytest.raises(JobFailed, match="ValueError: sealed"):
        await other(app).chain(letter.chain_id).result()


async def test_letters_of_one_error_are_one_group(app: App) -> None:
    await failed(app)
    await app.tasks["explode"].enqueue("other")
    await drain(app)
    [group] = await app.dead.groups()
    assert (group.count, group.error, group.message) == (2, "ValueError", "sealed")


async def test_a_letter_is_replayed_as_it_is(app: App) -> None:
    letter = await failed(app)
    admission = await app.dead.replay(letter.id)
    assert admission.job.args == letter.args


async def test_a_letter_is_replayed_with_other_arguments(app: App) -> None:
    letter = await failed(app)
    admission = await app.dead.replay(letter.id, args={"harmless": True})
    assert admission.job.is_sealed
    assert app.reveal(admission.job).arguments == {"text": MARKER, "harmless": True}
    await drain(app)
    assert await admission.result() == MARKER


async def test_an_edit_that_makes_other_work_is_refused(app: App) -> None:
    mail = mailer(app, Unique(by="to"), retry=Retry.never())
    await mail.enqueue("a", MARKER)
    letter = await discard(app)
    with pytest.raises(InvalidCall, match="key or the version"):
        await app.dead.replay(letter.id, args={"to": "b"})
    wrong = other(app, WRONG)
    mailer(wrong, Unique(by="to"))
    with pytest.raises(Unsealable):
        await wrong.dead.replay(letter.id, args={"text": "y"})
    assert await app.job(letter.id) == letter


# ── keys that rotate, and keys that do not fit ────────────────────────────────────────────────────


async def test_a_new_key_seals_and_the_old_one_still_unseals(app: App) -> None:
    before = await mailer(app).enqueue("a", MARKER)
    rotated = other(app, NEW, OLD)
    after = await mailer(rotated).enqueue("b", MARKER)
    await drain(rotated)
    assert await after.result() == f"b: {MARKER}"
    assert await rotated.chain(before.job.chain_id).result() == f"a: {MARKER}"
    with pytest.raises(Unsealable):
        app.reveal(after.job)


@pytest.mark.parametrize("keys", [(WRONG,), ()])
async def test_a_job_that_cannot_be_unsealed_fails_and_keeps_its_payload(
    app: App, clock: Clock, keys: tuple[str, ...]
) -> None:
    admission = await mailer(app).enqueue("a", MARKER)
    wrong = other(app, *keys)
    ran = []

    @wrong.task(name="mail", retry=RETRY)
    async def mail(to: str = "", text: str = "") -> None:
        ran.append((to, text))

    await drain(wrong)
    retried = await app.job(admission.job.id)
    assert (retried.state, retried.attempt, retried.args) == (State.RETRYABLE, 1, admission.job.args)
    assert retried.failures[0]["type"] == "Unsealable"
    assert f"The arguments of job {admission.job.id} cannot be unsealed" in retried.failures[0]["message"]
    for _ in range(2):
        clock.advance("1h")
        await drain(wrong)
    letter = await app.job(admission.job.id)
    assert (letter.state, letter.args, ran) == (State.DISCARDED, admission.job.args, [])
    replayed = await app.dead.replay(letter.id)
    await drain(app)
    assert await replayed.result() == f"a: {MARKER}"


@pytest.mark.parametrize("keys", [(WRONG,), ()])
async def test_a_result_that_cannot_be_unsealed_says_so(app: App, keys: tuple[str, ...]) -> None:
    admission = await mailer(app).enqueue("a", MARKER)
    await drain(app)
    with pytest.raises(Unsealable, match=f"The result of job {admission.job.id} cannot be unsealed"):
        await other(app, *keys).chain(admission.job.chain_id).result()
    with pytest.raises(Unsealable):
        other(app, *keys).reveal(await app.job(admission.job.id))


async def test_what_was_enqueued_before_there_was_a_codec_runs_where_that_is_accepted(app: App) -> None:
    admission = await mailer(other(app)).enqueue("a", MARKER)
    assert not admission.job.is_sealed
    accepting = App(store=app._engine.store, codec=AesGcmCodec(OLD), secret=SECRET, accept_clear=True)
    mailer(accepting)
    await drain(accepting)
    assert await accepting.chain(admission.job.chain_id).result() == f"a: {MARKER}"
    assert await app.chain(admission.job.chain_id).result() == f"a: {MARKER}"  # the result is sealed


async def test_clear_text_is_refused_where_payloads_are_sealed(app: App) -> None:
    admission = await mailer(other(app)).enqueue("a", MARKER)
    mailer(app)
    await drain(app)
    job = await app.job(admission.job.id)
    assert job.state is State.RETRYABLE
    assert "is in clear text, which an app with a codec does not accept" in job.failures[0]["message"]
    with pytest.raises(Unsealable, match="accept_clear=True"):
        app.reveal(job)


async def test_a_payload_that_was_moved_to_another_place_is_refused(app: App) -> None:
    mail = mailer(app)
    one, two = (await mail.enqueue("a", MARKER)).job, (await mail.enqueue("b")).job
    assert app.reveal(one).arguments["text"] == MARKER
    for moved in (
        alter(two, args=one.args),
        alter(one, task="other"),
        alter(one, namespace="other"),
        alter(one, result=one.args),
    ):
        with pytest.raises(Unsealable, match="was changed, or belongs to another job"):
            app.reveal(moved)


async def test_an_updated_payload_belongs_to_the_job_that_has_it(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    first = await mail.enqueue("a", "old")
    newer = await mail.enqueue("a", MARKER)
    assert (newer.outcome, newer.job.id, newer.job.is_sealed) == (Outcome.UPDATED, first.job.id, True)
    assert app.reveal(newer.job).arguments["text"] == MARKER
    await drain(app)
    assert await first.result() == f"a: {MARKER}"


async def test_the_name_of_sealed_values_is_reserved(store: Store) -> None:
    async with App(store=store) as app:

        @app.task(retry=Retry.never())
        async def show() -> dict[str, str]:
            return {"onejob:sealed": "not really"}

        admission = await show.enqueue()
        await drain(app)
        with pytest.raises(JobFailed, match="'onejob:sealed' is reserved"):
            await admission.result()


async def test_a_schedule_that_cannot_be_unsealed_delays_no_other(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await app.schedules.add("sealed", mail.call("a", MARKER), "0 * * * *")
    wrong = other(app, WRONG)
    await wrong.schedules.add("fine", mailer(wrong).call("b"), "0 * * * *")
    ticker = Ticker(wrong._engine, wrong._registry)
    await ticker.tick()
    clock.advance("1h")
    await ticker.tick()
    assert [job.metadata["cron"] for job in await everything(app)] == ["fine"]
    await Ticker(app._engine, app._registry).tick()
    assert [job.metadata["cron"] for job in await everything(app)] == ["fine", "sealed"]


async def test_a_codec_that_breaks_fails_the_request(store: Store) -> None:
    async with App(store=store, codec=Broken(), secret=SECRET) as app:
        with pytest.raises(InvalidCall, match="The codec cannot seal a payload: ConnectionError"):
            await mailer(app).enqueue("a")
        assert await everything(app) == []


async def test_a_codec_that_breaks_does_not_hide_that_a_run_failed(store: Store) -> None:
    async with App(store=store, secret=SECRET) as clear:
        admission = await mailer(clear).enqueue("a")
    async with App(store=store, codec=Broken(), secret=SECRET, accept_clear=True) as app:

        @app.task(name="mail", retry=Retry.never())
        async def mail(to: str, text: str) -> None:
            raise ValueError(to + text)

        await drain(app)
        [error] = (await app.job(admission.job.id)).failures
        assert (error["type"], error["message"], error["traceback"]) == ("ValueError", "sealed", "")
        assert app.reveal(await app.job(admission.job.id)).failures == [error]


class Broken:
    """A codec whose service is away."""

    def seal(self, clear: bytes, context: bytes) -> bytes:
        raise ConnectionError(len(clear + context))

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        raise ConnectionError(len(sealed + context))


# ── secrets that differ ───────────────────────────────────────────────────────────────────────────

NOTICED = "another process has used another secret in this namespace"


@pytest.mark.parametrize("where", ["enqueue", "worker"])
async def test_a_second_process_with_another_secret_notices_at_its_start(
    store: Store, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    first, second = (App(store=store, secret=f"a secret of process {n}") for n in (1, 2))
    async with first, second:
        await mailer(first).enqueue("a")
        assert NOTICED not in caplog.text
        mail = mailer(second)
        if where == "enqueue":
            await mail.enqueue("a")
        else:
            await drain(second)
        assert caplog.text.count(NOTICED) == 1
        for app in (first, second):
            [finding] = [one for one in await app.doctor() if one.check == "secret"]
            assert finding.level == "warn"


async def test_a_secret_that_is_no_longer_used_is_forgotten(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(store=store, secret="the secret of before") as before:
        await mailer(before).enqueue("a")
    clock.advance("8d")
    async with App(store=store, secret="the secret of today") as app:
        await mailer(app).enqueue("a")
        assert NOTICED not in caplog.text
        [finding] = [one for one in await app.doctor() if one.check == "secret"]
        assert finding.level == "ok"


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


async def test_merge_is_refused(app: App) -> None:
    with pytest.raises(InvalidPolicy, match="mail: merge= reads payloads inside the store's step"):
        mailer(app, Unique(by="to", on_conflict="update", merge={"text": "latest"}))
    mail = mailer(app)
    with pytest.raises(InvalidPolicy, match="merge="):
        mail.options(unique=Unique(by="to", on_conflict="update", merge={"text": "latest"}))


def test_a_sealed_payload_begins_as_json_does() -> None:
    assert msgspec.json.encode({"onejob:sealed": ""}).startswith(SEALED)


# ── completing in a transaction ───────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgres"])
async def transacting(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[App]:
    store = STORES[request.param](request, clock)
    async with App(store=store, codec=AesGcmCodec(OLD), secret=SECRET) as app:
        yield app


async def test_a_transaction_seals_its_result(transacting: App, caplog: pytest.LogCaptureFixture) -> None:
    @transacting.task
    async def pay(text: str) -> str:
        async with current().transaction():
            return current().returns(text)

    admission = await pay.enqueue(MARKER)
    await drain(transacting)
    job = await transacting.job(admission.job.id)
    assert await admission.result() == MARKER
    assert job.result is not None
    assert job.result.startswith(SEALED)
    assert "a value that is dropped" not in caplog.text


async def test_an_enqueue_that_joins_a_transaction_is_sealed(transacting: App) -> None:
    mail = mailer(transacting)

    @transacting.task
    async def pay(text: str) -> None:
        async with current().transaction() as connection:
            await mail.options(connection=connection).enqueue("a", text)

    await pay.enqueue(MARKER)
    await drain(transacting)
    jobs = await everything(transacting)
    assert [job.is_sealed for job in jobs] == [True, True]
    assert await transacting.chain(jobs[1].chain_id).result() == f"a: {MARKER}"
