"""Requests are recorded with a keyed digest per argument: in bounds, sampled by digest, without any value."""

from __future__ import annotations

import asyncio

import pytest

from onejob import App, Unique
from onejob.engine import counters, recorded_requests
from onejob.engine.recorded_requests import ALL, KIND, SALT, RecordedRequest, Row, leading, read_row
from onejob.errors import QueueFull
from onejob.stores.columns import write_time
from onejob.stores.contract import FullStore as Store
from onejob.testing import Clock
from tests.contract.steps import inside, mailer, run, start


@pytest.fixture(autouse=True)
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "FLUSH_AFTER", 3600)  # the tests flush


async def rows(app: App, task: str = "mail") -> list[Row]:
    """Write what was recorded, and read all of it, oldest first."""
    app._engine.counters.flush()
    found = await app._engine.store.observations(app.namespace, KIND, subject=task, limit=10_000)
    return [read_row(one) for one in reversed(found)]


async def recorded(app: App, task: str = "mail") -> list[RecordedRequest]:
    return [request for row in await rows(app, task) for request in row.requests]


# ── what is recorded ──────────────────────────────────────────────────────────────────────────────


async def test_every_admitted_request_is_recorded(app: App, clock: Clock) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    first = await mail.enqueue("Ada", 1)
    began = clock()
    clock.advance("3s")
    await mail.enqueue("Ada", 2)
    await asyncio.to_thread(mail.enqueue_sync, "Bob", 1)
    await app.enqueue_many([mail.call("Bob", 1), mail.call("Eve", 3)])
    [row] = await rows(app)
    assert (row.arguments, row.seen, row.threshold) == (("text", "to"), 5, ALL)
    assert [one.outcome for one in row.requests] == ["created", "kept", "created", "kept", "created"]
    assert [one.at for one in row.requests[:2]] == [write_time(began), write_time(clock())]
    assert [one.job for one in row.requests[:2]] == [first.job.id, ""]
    assert [one.differs for one in row.requests] == [False, True, False, False, False]
    assert {one.key for one in row.requests[:2]} == {(first.key or "")[:16]}


async def test_equal_arguments_have_equal_digests(app: App) -> None:
    mail = mailer(app)
    for to, text in (("Ada", 1), ("Ada", 2), ("Bob", 1)):
        await mail.enqueue(to, text)
    ada, again, bob = [one.digests for one in await recorded(app)]
    assert ada[1] == again[1] != bob[1]
    assert ada[0] == bob[0] != again[0]
    assert {one.key for one in await recorded(app)} == {""}


async def test_processes_without_a_secret_share_a_salt(app: App) -> None:
    other = App(store=app._engine.store)
    await mailer(app).enqueue("Ada", 1)
    await mailer(other).enqueue("Ada", 1)
    app._engine.counters.flush()
    one, two = await rows(other)
    assert one.salt == two.salt
    assert one.requests[0].digests == two.requests[0].digests
    assert len(await app._engine.store.observations("", SALT)) == 1


async def test_a_secret_and_a_namespace_make_other_digests(app: App) -> None:
    store = app._engine.store
    secret = "a secret of sixteen bytes"
    apps = [app, App(store=store, namespace="tenant"), App(store=store, namespace="vault", secret=secret)]
    for one in apps:
        await mailer(one).enqueue("Ada", 1)
    digests = [(await recorded(one))[0].digests for one in apps]
    assert len(set(digests)) == 3
    assert await store.observations("vault", SALT) == []


async def test_no_value_is_in_what_is_recorded(app: App) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    for text in ("Zimtschnecke", {"filling": "Zimtschnecke"}, 4711_4711):
        await mail.enqueue("Zimtschnecke", text)
    assert len(await recorded(app)) == 3
    store = app._engine.store
    for one in [*await store.observations("", KIND), *await store.observations("", SALT)]:
        written = f"{one.id} {one.subject} {one.data}"
        assert "Zimtschnecke" not in written
        assert "47114711" not in written


async def test_a_request_inside_a_run_names_its_chain(app: App) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    await mail.enqueue("Ada")
    job = await start(app)
    await inside(app, job, lambda: mail.enqueue("Ada"))
    first, second = await recorded(app)
    assert (first.chain, second.chain, second.outcome) == ("", job.chain_id, "rerun")


async def test_a_shadow_policy_and_a_forced_request_are_recorded_as_such(app: App) -> None:
    mail = mailer(app, unique=Unique(by="to", shadow=True))
    await mail.enqueue("Ada")
    await mail.enqueue("Ada")
    await mail.options(force=True, unique=Unique(by="to")).enqueue("Ada")
    assert [one.outcome for one in await recorded(app)] == ["created", "shadow:kept", "forced"]


async def test_a_request_for_a_full_queue_is_not_recorded(app: App) -> None:
    app.queue("small", max_depth=1)
    mail = mailer(app, queue="small")
    await mail.enqueue("Ada")
    with pytest.raises(QueueFull):
        await mail.enqueue("Bob")
    assert len(await recorded(app)) == 1


async def test_nothing_is_recorded_if_the_app_says_so(store: Store) -> None:
    async with App(store=store, record_requests=False) as app:
        await mailer(app).enqueue("Ada")
        assert await rows(app) == []
        assert await app.activity.advice() == []


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


async def test_requests_alike_share_an_entry_that_counts_them(app: App) -> None:
    mail = mailer(app, unique=True)
    for _ in range(100):
        await mail.enqueue("Ada")
    [row] = await rows(app)
    assert sum(one.times for one in row.requests) == row.seen == 100
    assert len(row.requests) == 1 + recorded_requests.ALIKE
    assert row.requests[-1].times == 100 - recorded_requests.ALIKE


async def test_a_full_row_keeps_equal_values_together(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_requests, "PER_ROW", 40)
    mail = mailer(app)
    calls = [mail.call(number % 60, number) for number in range(240)]
    await app.enqueue_many(calls)
    await rows(app)
    await app.enqueue_many(calls[::-1])
    one, two = await rows(app)
    assert one.seen == two.seen == 240
    assert len(one.requests) <= 40
    assert 0 < one.threshold < ALL
    assert one.threshold == two.threshold
    assert {kept.digests for kept in one.requests} == {kept.digests for kept in two.requests}
    for value in {kept.digests[1] for kept in one.requests if leading(kept.digests[1]) < one.threshold}:
        assert sum(kept.digests[1] == value for kept in one.requests) == 4  # all of them


async def test_very_many_requests_are_thinned_before_their_digests(
    app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_requests, "MOST_WAITING", 100)
    mail = mailer(app, unique=True)
    await app.enqueue_many([mail.call(number) for number in range(1000)])
    [row] = await rows(app)
    assert row.seen == 1000
    assert 0 < len(row.requests) < 100
    keys = {int(one.key[:2], 16) for one in row.requests}
    assert max(keys) < 128  # those whose key begins with a low byte
    clock.advance("1s")
    await app.enqueue_many([mail.call(0)] * 500)
    assert (await rows(app))[-1].seen == 500
    assert sum(one.times for one in (await rows(app))[-1].requests) <= 110


async def test_a_task_keeps_its_newest_rows(app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "PER_TASK", 3)
    mail, other = mailer(app), mailer(app, name="other")
    await other.enqueue(1)
    for number in range(5):
        clock.advance("1s")
        await mail.enqueue(number)
        app._engine.counters.flush()
    assert len(await rows(app)) == 3
    assert len(await rows(app, "other")) == 1


async def test_requests_are_forgotten_after_a_day(app: App, clock: Clock) -> None:
    await mailer(app).enqueue("Ada")
    assert len(await rows(app)) == 1
    clock.advance("23h")
    await app.maintenance.prune()
    assert len(await rows(app)) == 1
    clock.advance("2h")
    await app.maintenance.prune()
    assert await rows(app) == []


async def test_large_arguments_get_no_digests(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_requests, "LARGEST", 100)
    mail = mailer(app)
    await mail.enqueue("Ada", "short")
    await mail.enqueue("Ada", "x" * 200)
    [row] = await rows(app)
    assert (row.seen, len(row.requests)) == (2, 1)


# ── advice ────────────────────────────────────────────────────────────────────────────────────────


async def test_advice_is_given_from_what_was_recorded(app: App, clock: Clock) -> None:
    mail = mailer(app)
    for number in range(60):
        clock.advance("1s")
        await mail.enqueue(number % 20, "news")  # no job has started: 40 repeat a waiting one
    [advice] = await app.activity.advice()
    assert (advice.kind, advice.task, advice.policy) == ("repeats", "mail", "Unique.coalesce()")
    assert (advice.requests, advice.absorbed, advice.sampled) == (60, 40, 1.0)
    [sentence] = advice.sentences
    assert sentence == (
        "67 % of 60 requests of mail in the last 59s repeated a waiting one; "
        "Unique.coalesce() would have absorbed 40 of 60."
    )
    assert await app.activity.advice(task="other") == []
    clock.advance("2h")
    assert await app.activity.advice() == []
    assert len(await app.activity.advice(since="3h")) == 1


async def test_advice_knows_when_jobs_ran(app: App, clock: Clock) -> None:
    mail = mailer(app)
    for number in range(60):
        clock.advance("1s")
        await mail.enqueue(number % 20, "news")
        clock.advance("1s")
        await run(app)  # each job has ended before the next request
    [advice] = await app.activity.advice()
    assert advice.policy == 'Unique.throttle("1m", "first+last")'
    assert advice.sentences[0].startswith("67 % of 60 requests")
    coalesced = next(one for one in advice.candidates if one.policy == "Unique.coalesce()")
    assert coalesced.absorbed == 0
