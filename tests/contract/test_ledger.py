"""Suppressions are counted per task, outcome and hold, each exactly once (rule 7; case 68)."""

import asyncio
import logging

import msgspec
import pytest

from onejob import App, Duplicate, Unique
from onejob.stores.contract import FullStore as Store
from onejob.stores.contract import Tally
from onejob.testing import Clock
from tests.contract.steps import absorbed, fail, mailer, run, start


async def tallies(app: App) -> dict[tuple[str, str, str], int]:
    app._engine.counters.flush()
    found = await app._engine.store.tallies(app.namespace)
    return {(tally.task, tally.outcome, tally.job_id): tally.count for tally in found}


async def test_case_68_every_suppressed_request_is_counted_once(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    one = await mail.enqueue(1)
    two = await mail.enqueue(2)
    for _ in range(3):
        await mail.enqueue(1)
    await mail.enqueue(2)
    expected = {("mail", "kept", one.job.id): 3, ("mail", "kept", two.job.id): 1}
    assert await tallies(app) == expected
    app._engine.counters.flush()
    assert await tallies(app) == expected  # writing them down again adds nothing


async def test_case_68_every_kind_of_suppression_is_counted_and_nothing_else(app: App) -> None:
    keep = mailer(app, Unique(by="to"), name="keep")
    refuse = mailer(app, Unique(by="to", on_conflict="reject"), name="refuse")
    update = mailer(app, Unique.coalesce(by="to"), name="update")
    replace = mailer(app, Unique(by="to", on_conflict="replace"), name="replace")
    latest = mailer(app, Unique.latest(by="to", version="text"), name="latest")
    for mail in (keep, refuse, update, replace, latest):
        await mail.enqueue(1, 5)
    await keep.enqueue(1, 6)
    with pytest.raises(Duplicate):
        await refuse.enqueue(1, 6)
    await update.enqueue(1, 6)
    await replace.enqueue(1, 6)  # a new job: not a suppression
    await latest.enqueue(1, 4)
    await keep.options(force=True).enqueue(1, 7)  # nor this
    await keep.explain(1, 8)  # nor a question
    counted = {(task, outcome): count for (task, outcome, _), count in (await tallies(app)).items()}
    assert counted == {
        ("keep", "kept"): 1,
        ("refuse", "rejected"): 1,
        ("update", "updated"): 1,
        ("latest", "stale"): 1,
    }
    assert (await app.stats()).absorbed["latest"] == {"stale": 1}


async def test_case_68_a_rerun_is_counted_for_its_successor(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    await start(app)
    successor = await mail.enqueue(1, "b")
    await mail.enqueue(1, "c")
    assert await tallies(app) == {
        ("mail", "rerun", successor.job.id): 1,
        ("mail", "updated", successor.job.id): 1,
    }


async def test_case_68_replays_and_retries_count_nothing(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    await fail(app, await start(app))
    clock.advance("1m")
    await fail(app, await start(app), final=True)
    await app.dead.replay(first.job.id)
    await run(app)
    assert await tallies(app) == {}


async def test_case_68_a_shadow_counts_what_it_would_have_done(app: App) -> None:
    mail = mailer(app, Unique(by="to", shadow=True))
    first = await mail.enqueue(1)
    await mail.enqueue(1)
    assert await tallies(app) == {("mail", "shadow:kept", first.job.id): 1}


async def test_bulk_and_blocking_requests_count_as_awaited_ones_do(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await app.enqueue_many([mail.call(1) for _ in range(10)])
    await asyncio.to_thread(mail.enqueue_sync, 1)
    assert await absorbed(app) == {"kept": 10}


async def test_a_namespace_counts_its_own(app: App, store: Store) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    await mail.enqueue(1)
    other = App(store=store, namespace="other")
    assert await absorbed(other) == {}
    assert await absorbed(app) == {"kept": 1}


def without_callers(tallies: list[Tally]) -> list[Tally]:
    """Return counters without what made their last request."""
    return [msgspec.structs.replace(tally, last_by="") for tally in tallies]


async def test_counts_are_written_within_a_second_by_themselves(app: App, store: Store, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    await mail.enqueue(1)
    async with asyncio.timeout(30):  # half a second, on a machine that has nothing else to do
        while not (found := await store.tallies("")):
            await store.wait(0.02)
    assert without_callers(found) == [Tally("", "mail", "kept", first.job.id, 1, clock(), clock())]


async def test_a_counter_has_the_times_of_its_first_and_last_request(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    times = []
    for written in (False, False, True, False, True):  # within one flush, and over several
        clock.advance("1h")
        times.append(clock())
        await mail.enqueue(1)
        if written:
            app._engine.counters.flush()
            clock.advance("1h")
            app._engine.counters.flush()
    [tally] = without_callers(await app._engine.store.tallies(""))
    assert tally == Tally("", "mail", "kept", first.job.id, 5, times[-1], times[0])
    await run(app)
    clock.advance("400d")
    await app.maintenance.prune()
    [tally] = without_callers(await app._engine.store.tallies(""))
    assert tally == Tally("", "mail", "kept", "", 5, times[-1], times[0])


async def test_fifty_concurrent_duplicates_are_counted_exactly(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await asyncio.gather(*(mail.enqueue(1) for _ in range(50)))
    assert await absorbed(app) == {"kept": 49}


async def test_a_suppression_is_logged_with_task_and_key_and_without_arguments(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="onejob")
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue("ada@example.org", "private words")
    assert caplog.records == []
    await mail.enqueue("ada@example.org", "private words")
    [record] = caplog.records
    assert (record.levelno, record.name) == (logging.DEBUG, "onejob")
    line = record.getMessage()
    for part in ("kept", "mail", first.key or "", first.job.id):
        assert part in line
    assert "ada@example.org" not in line
    assert "private words" not in line
