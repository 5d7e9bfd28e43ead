"""The log says which requests were absorbed, when, in favour of which job, and by which line of code."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from dataclasses import replace
from hashlib import sha256

import pytest

from onejob import AbsorbedCount, App, Unique
from onejob.engine import absorbed_log, counters
from onejob.testing import Clock
from tests.contract.steps import mailer, run, start


async def test_an_absorbed_request_is_logged_with_its_caller(app: App, clock: Clock) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    first = await mail.enqueue("Ada", 1)
    line = inspect.getframeinfo(inspect.currentframe()).lineno + 1  # type: ignore[arg-type]
    again = await mail.enqueue("Ada", 2)
    [entry] = await app.activity.absorbed()
    assert (entry.task, entry.outcome, entry.job, entry.key) == ("mail", "kept", first.job.id, again.key)
    assert entry.reason == again.reason
    assert entry.at == clock()
    assert entry.payload_differs
    assert entry.times == 1
    assert entry.line == f"{__file__}:{line}"
    assert entry.process == os.getpid()
    assert entry.request not in {"", first.job.id}


async def test_a_request_that_another_task_of_the_loop_makes_is_logged_with_the_line_that_called(
    app: App,
) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    await mail.enqueue("Ada")
    line = inspect.getframeinfo(inspect.currentframe()).lineno + 1  # type: ignore[arg-type]
    await asyncio.create_task(mail.enqueue("Ada"))
    [entry] = await app.activity.absorbed()
    assert entry.line == f"{__file__}:{line}"


async def test_a_blocking_and_a_bulk_request_are_logged_with_their_callers(app: App) -> None:
    mail = mailer(app, unique=True)
    await asyncio.to_thread(mail.enqueue_sync, 1)
    await asyncio.to_thread(lambda: mail.enqueue_sync(1))
    await app.enqueue_many([mail.call(1), mail.call(1)])
    entries = await app.activity.absorbed()
    assert sum(entry.times for entry in entries) == 3
    assert {entry.line.partition(":")[0] for entry in entries} == {__file__}


async def test_requests_of_one_caller_share_an_entry(app: App) -> None:
    mail = mailer(app, unique=True)
    for _ in range(6):
        await mail.enqueue(1)
    entries = await app.activity.absorbed()
    assert sum(entry.times for entry in entries) == 5
    assert len({entry.line for entry in entries}) == 1


async def test_callers_are_not_recorded_if_the_app_says_so(app: App) -> None:
    quiet = App(store=app._engine.store, record_callers=False)
    mail = mailer(quiet, unique=True)
    await mail.enqueue(1)
    await mail.enqueue(1)
    [entry] = await quiet.activity.absorbed()
    assert (entry.host, entry.process, entry.line) == ("", 0, "")


async def test_the_log_answers_after_the_holder_has_ended(app: App) -> None:
    mail = mailer(app, unique=True)
    first = await mail.enqueue(1)
    await mail.enqueue(1)
    await run(app)
    answer = await app.why(mail.call(1))
    assert answer.sentences[0] == "Nothing held the key."
    assert f"was kept in favour of job {first.job.id}" in answer.sentences[1]
    assert [entry.job for entry in answer.absorbed] == [first.job.id]
    for what in (first.job.id, first.key or ""):
        assert f"was kept in favour of job {first.job.id}" in (await app.why(what)).sentences[-1]


async def test_the_log_is_kept_for_a_set_time(app: App, clock: Clock) -> None:
    mail = mailer(app, unique=True)
    await mail.enqueue(1)
    await mail.enqueue(1)
    assert len(await app.activity.absorbed()) == 1
    clock.advance("6d")
    await app.maintenance.prune()
    assert len(await app.activity.absorbed()) == 1
    clock.advance("2d")
    await app.maintenance.prune()
    assert await app.activity.absorbed() == []


async def test_very_many_different_requests_are_sampled_and_the_share_is_stored(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "FLUSH_AFTER", 3600)  # the test flushes
    mail, most = mailer(app, unique=True), absorbed_log.PER_WRITE
    calls = [mail.call(number) for number in range(2 * most)]
    await app.enqueue_many(calls)
    await app.enqueue_many(calls)
    entries = await app.activity.absorbed(limit=1000)
    assert len(entries) == most
    assert {entry.sampled for entry in entries} == {0.5}
    assert sum((await app.stats()).absorbed["mail"].values()) == 2 * most


async def test_updated_and_rerun_are_counted_in_the_write_that_they_make(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses none of them, and its timer counts none of them again."""
    monkeypatch.setattr(counters, "FLUSH_AFTER", 3600)
    mail = mailer(app, unique=Unique.coalesce(by="to"))
    answers = [await mail.enqueue(1, 0), await mail.enqueue(1, 1)]
    await start(app)
    answers += [await mail.enqueue(1, 2), await mail.enqueue(1, 3)]
    answers += await app.enqueue_many([mail.call(1, 4)])
    assert [one.outcome for one in answers] == ["created", "updated", "rerun", "updated", "updated"]
    counted = {(one.outcome, one.job_id): one.count for one in await app._engine.store.tallies("")}
    first, successor = answers[0].job.id, answers[2].job.id
    assert counted == {("updated", first): 1, ("rerun", successor): 1, ("updated", successor): 2}
    assert (await app.stats()).absorbed == {"mail": {"updated": 3, "rerun": 1}}
    assert sum(entry.times for entry in await app.activity.absorbed()) == 4


async def test_two_jobs_are_compared(app: App) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    ada, bob = await mail.enqueue("Ada", 1), await mail.enqueue("Bob", 1)
    answer = await app.why(ada.job.id, bob.job.id)
    assert answer.sentences == [
        "Their keys differ first in args.to.",
        "A policy whose by= leaves out to would have made them one.",
    ]
    assert answer.difference is not None
    assert ("to", '"Ada"', '"Bob"') in answer.difference.arguments
    await app.cancel(ada.job.id)
    later = await mail.enqueue("Ada", 2)
    [same] = (await app.why(ada.job.id, later.job.id)).sentences
    assert same == "They have the same key: the hold of one had ended when the other was requested."


async def test_jobs_that_differ_in_metadata_or_queue_are_compared(app: App) -> None:
    app.queue("other")
    mail = mailer(app, unique=Unique(by="to", queue=True, meta=["tenant"]))
    one = await mail.options(meta={"tenant": "a"}).enqueue("Ada")
    other = await mail.options(meta={"tenant": "b"}, queue="other").enqueue("Ada")
    third = await mail.options(meta={"tenant": "b"}).enqueue("Bob")
    assert (await app.why(one.job.id, other.job.id)).sentences == [
        "Their keys differ first in queue.",
        "With the same queue and meta.tenant they would have been one.",
    ]
    assert (await app.why(one.job.id, third.job.id)).sentences == [
        "Their keys differ first in args.to.",
        "A policy whose by= leaves out to, and the same meta.tenant, would have made them one.",
    ]


async def test_a_job_and_a_key_are_explained_like_the_call(app: App) -> None:
    mail = mailer(app, unique=Unique(by="to", meta=["tenant"]))
    bound = mail.options(meta={"tenant": "a"})
    first = await bound.enqueue("Ada", 1)
    call = (await app.why(bound.call("Ada", 2))).explanation
    assert call is not None
    assert call.canonical == (
        '{"args":{"to":"Ada"},"meta":{"tenant":"a"},"namespace":"","task":"mail","v":1}'
    )
    assert sha256(call.canonical.encode()).hexdigest() == call.key == first.key
    for what in (first.job.id, first.key or ""):
        assert (await app.why(what)).explanation == replace(call, differs_at=())  # it asks for what is there
    await run(app)
    free = (await app.why(first.job.id)).explanation
    assert free is not None
    assert (free.outcome, free.holder, free.canonical) == ("created", None, call.canonical)


async def test_a_job_whose_call_cannot_be_made_again_is_not_explained(app: App) -> None:
    mail = mailer(app, unique=Unique(by="to"))
    own_key = await mail.options(key="a key of its own").enqueue("Ada")
    plain = await mail.options(unique=False).enqueue("Ada")
    stranger = App(store=app._engine.store)
    for job in (own_key.job, plain.job):
        assert (await app.why(job.id)).explanation is None
        assert (await stranger.why(job.id)).explanation is None


async def test_why_says_which_kind_of_request_is_not_unique(app: App) -> None:
    plain = mailer(app, name="plain")
    sometimes = mailer(app, unique=Unique(key=lambda to: None if to == "nobody" else to), name="sometimes")
    assert (await app.why(plain.call(1))).sentences == ["The task is not unique."]
    [said] = (await app.why(sometimes.call("nobody"))).sentences
    assert said == "The task's key function returned None, so this request is not unique."


async def test_a_hold_has_its_exact_number_and_its_first_and_last_time(
    app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absorbed_log, "PER_KEY", 2)
    monkeypatch.setattr(counters, "PER_KEY", 2)  # the log forgets the first; the counter does not
    mail = mailer(app, unique=Unique(by="to", on_conflict="update"))
    first = await mail.enqueue(1, 0)
    times = []
    for number in (1, 1, 2, 3):  # kept once, because nothing changes
        clock.advance("1h")
        times.append(clock())
        line = inspect.getframeinfo(inspect.currentframe()).lineno + 1  # type: ignore[arg-type]
        await mail.enqueue(1, number)
        app._engine.counters.flush()
    digest = (await app.activity.absorbed())[0].digest
    counted = AbsorbedCount(
        4, times[0], times[-1], digest, f"{__file__}:{line}", socket.gethostname(), os.getpid()
    )
    for what in (first.job.id, first.key or "", mail.call(1, 4)):
        answer = await app.why(what)
        assert answer.counted == {first.job.id: counted}
        [said] = [one for one in answer.sentences if one.startswith("Absorbed: 4 requests since ")]
        assert "(3h ago); the last was updated in favour of job " in said
    clock.advance("8d")
    await app.maintenance.prune()
    assert await app.activity.absorbed() == []  # the log has forgotten them, the counter has not
    for what in (first.job.id, first.key or "", mail.call(1, 4)):
        answer = await app.why(what)
        assert answer.counted == {first.job.id: counted}
        [said] = [one for one in answer.sentences if one.startswith("Absorbed: 4 requests since ")]
        assert said.endswith(f"(8d ago), from {__file__}:{line}.")


async def test_the_caller_of_the_last_request_is_not_stored_if_the_app_says_so(app: App) -> None:
    quiet = App(store=app._engine.store, record_callers=False)
    mail = mailer(quiet, unique=True)
    first = await mail.enqueue(1)
    await mail.enqueue(1)
    counted = (await quiet.why(first.job.id)).counted[first.job.id]
    assert (counted.last_line, counted.last_host, counted.last_process) == ("", "", 0)
    assert counted.last_digest == first.job.payload_digest.hex()
