"""A search of bounded length finds what `app.jobs` finds, a part at a time, and says how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from onejob import App, Job, Searched
from onejob.app import listing
from onejob.stores.queries import Listed
from onejob.testing import Clock
from tests.contract.steps import mailer


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "FIRST_LOOK", 4)
    monkeypatch.setattr(listing, "FIRST_TESTED", 4)
    monkeypatch.setattr(listing, "LARGEST_LOOK", 8)


async def fill(app: App, clock: Clock) -> list[str]:
    """Enqueue 30 jobs: every seventh in a slow queue, every tenth scheduled, every sixth cancelled."""
    fast, slow, made = mailer(app), mailer(app, name="note", queue="slow"), []
    for number in range(30):
        task = slow if number % 7 == 0 else fast
        job = (await task.options(delay="1h" if number % 10 == 0 else None).enqueue(number)).job
        clock.advance("1s")
        if number % 6 == 0:
            await app.cancel(job.id)
        made.append(job.id)
    return made


FILTERS: Sequence[dict[str, Any]] = (
    *({}, {"queue": "slow"}, {"task": "note"}, {"queue": "nowhere"}),
    *({"state": "cancelled"}, {"state": "cancelled", "queue": "slow"}, {"state": "completed"}),
    *({"state": ["scheduled", "cancelled"]}, {"state": ["available", "cancelled"], "task": "note"}),
)


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
async def test_parts_of_a_search_are_the_list(
    app: App, clock: Clock, filters: dict[str, Any], limit: int
) -> None:
    await fill(app, clock)
    expected = [job.id for job in await app.jobs(**filters)]
    for seconds in (60.0, 0.0):  # at once, and one look per part
        found: list[str] = []
        part = Searched([], 0, None)
        for _ in range(60):
            part = await app.activity.search(**filters, limit=limit, seconds=seconds, before=part.cursor)
            assert len(part.jobs) <= limit
            assert part.is_cut_short == (part.cursor is not None and len(part.jobs) < limit) or part.jobs
            found += [job.id for job in part.jobs]
            if part.cursor is None:
                break
        assert found == expected


async def test_a_search_ends_after_comparing_so_many_jobs(app: App, clock: Clock) -> None:
    made = await fill(app, clock)
    part = await app.activity.search(queue="nowhere", most=12)
    assert part == Searched([], 12, made[-12], is_cut_short=True)
    assert await app.activity.search(queue="nowhere", before=made[2]) == Searched([], 4, None)


async def test_jobs_are_compared_by_a_function(app: App, clock: Clock) -> None:
    made = await fill(app, clock)

    def is_third(job: Job) -> bool:
        return job.id == made[2]

    part = await app.activity.search(test=is_third, most=8)
    assert (part.jobs, part.is_cut_short) == ([], True)
    [job] = (await app.activity.search(test=is_third, before=part.cursor)).jobs
    assert job.id == made[2]


async def test_a_rare_state_is_found_by_its_index(
    app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await fill(app, clock)
    asked: list[Listed] = []
    find = app.activity._engine.find

    async def note(query: Any) -> list[Job]:
        asked.append(query)
        return await find(query)

    monkeypatch.setattr(app.activity._engine, "find", note)
    part = await app.activity.search(state="cancelled", limit=2)
    assert [job.id for job in part.jobs] == [made[24], made[18]]
    assert len(asked) == 1
