"""explain() and pending(): the verdict without enqueuing or counting (DESIGN 3.3)."""

from datetime import timedelta

import pytest

from onejob import App, Outcome, State, Unique
from onejob.testing import Clock
from tests.contract.steps import absorbed, complete, everything, lease, mailer, run, start


async def test_explain_of_a_free_key(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    explained = await mail.explain(1, "a")
    assert (explained.outcome, explained.holder, explained.successor) == (Outcome.CREATED, None, None)
    assert explained.dimensions["task"] == "mail"
    assert explained.dimensions["args"] == {"to": 1}
    assert explained.key == (await mail.enqueue(1)).key
    assert await app.stats() is not None


async def test_explain_of_a_held_key(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m"))
    first = await mail.enqueue(1, "a")
    await mail.enqueue(1, "b")
    explained = await mail.explain(1, "c")
    assert explained.outcome is Outcome.KEPT
    assert explained.holder == first.job
    assert explained.holder is not None
    assert explained.holder.state is State.AVAILABLE
    assert explained.frees_at == clock() + timedelta(minutes=1)
    assert explained.absorbed == 1
    assert explained.differs_at == ("text",)
    assert (await mail.explain(1, "a")).differs_at == ()
    assert "available" in explained.reason
    assert "to" in explained.policy


async def test_a_call_knows_its_key_without_asking_the_store(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    call = mail.call(1, "a")
    assert call.key == (await mail.enqueue(1, "b")).key
    assert call.dimensions == (await mail.explain(1)).dimensions
    own = mail.options(key="user-123").call(1)
    assert own.key == (await mail.options(key="user-123").enqueue(2)).key
    assert own.dimensions["key"] == "user-123"
    free = mail.options(unique=False).call(1)
    assert (free.key, free.dimensions) == (None, {})


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (Unique(by="to"), Outcome.KEPT),
        (Unique(by="to", on_conflict="reject"), Outcome.REJECTED),
        (Unique(by="to", on_conflict="update"), Outcome.UPDATED),
        (Unique(by="to", on_conflict="replace"), Outcome.REPLACED),
        (Unique.latest(by="to", version="text"), Outcome.STALE),
    ],
)
async def test_explain_gives_the_verdict_and_changes_nothing(
    app: App, policy: Unique, outcome: Outcome
) -> None:
    mail = mailer(app, policy)
    await mail.enqueue(1, 5)
    before = await everything(app)
    explained = await mail.explain(1, 4)
    assert explained.outcome is outcome
    assert explained.reason.endswith(".")
    assert await everything(app) == before
    assert await absorbed(app) == {}


async def test_explain_shows_the_successor(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    await mail.enqueue(1, "a")
    running = await start(app)
    assert (await mail.explain(1, "b")).outcome is Outcome.RERUN
    successor = await mail.enqueue(1, "b")
    explained = await mail.explain(1, "c")
    assert explained.outcome is Outcome.UPDATED
    assert explained.holder is not None
    assert explained.holder.id == running.id
    assert explained.successor == successor.job


async def test_explain_of_a_lapsed_hold_names_no_holder(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m"))
    await mail.enqueue(1)
    clock.advance("1m")
    explained = await mail.explain(1)
    assert (explained.outcome, explained.holder, explained.frees_at) == (Outcome.CREATED, None, None)


async def test_explain_of_a_task_that_is_not_unique(app: App) -> None:
    explained = await mailer(app).explain(1)
    assert (explained.outcome, explained.key) == (Outcome.CREATED, None)


async def test_explain_honours_options(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    await mail.enqueue(1)
    assert (await mail.options(force=True).explain(1)).outcome is Outcome.FORCED
    assert (await mail.options(key="another").explain(1)).dimensions["key"] == "another"


async def test_pending_returns_whether_a_job_of_the_key_is_live(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    assert not await mail.pending(1)
    await mail.enqueue(1)
    assert await mail.pending(1, "whatever")
    assert not await mail.pending(2)
    await run(app)
    assert not await mail.pending(1)


async def test_pending_sees_a_job_that_has_released_its_key(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    await mail.enqueue(1)
    running = await start(app)
    assert await mail.pending(1)
    await complete(app, running)
    assert not await mail.pending(1)


async def test_pending_sees_a_live_job_behind_many_that_have_ended(app: App) -> None:
    mail = mailer(app, Unique.until_executing(by="to"))
    await mail.enqueue(1, "long")
    long = await start(app)
    for number in range(120):
        await mail.enqueue(1, number)
        await run(app)
    assert await mail.pending(1)
    await complete(app, long)
    assert not await mail.pending(1)


async def test_pending_under_once_is_not_held_but_live(app: App) -> None:
    mail = mailer(app, Unique.once(by="to"))
    await mail.enqueue(1)
    await run(app)
    assert not await mail.pending(1)


async def test_a_list_of_jobs_honours_every_filter_together(app: App) -> None:
    app.queue("slow")
    mail = mailer(app, Unique.until_executing(by="to"))
    first = await mail.enqueue(1)
    await run(app)
    second = await mail.options(queue="slow").enqueue(1)
    other = await mail.enqueue(2)
    ids = {name: admission.job.id for name, admission in (("1", first), ("2", second), ("o", other))}
    assert [job.id for job in await app.jobs()] == [ids["o"], ids["2"], ids["1"]]
    assert [job.id for job in await app.jobs(key=first.key)] == [ids["2"], ids["1"]]
    assert [job.id for job in await app.jobs(key=first.key, state="completed")] == [ids["1"]]
    assert [job.id for job in await app.jobs(key=first.key, queue="slow")] == [ids["2"]]
    assert [job.id for job in await app.jobs(key=first.key, task="note")] == []
    assert [job.id for job in await app.jobs(state=["available", "active"])] == [ids["o"], ids["2"]]
    assert [job.id for job in await app.jobs(queue="slow", task="mail")] == [ids["2"]]
    assert [job.id for job in await app.jobs(limit=1, offset=1)] == [ids["2"]]
    assert len(await lease(app)) == 2


async def test_the_last_id_of_a_page_gives_the_next_page(app: App) -> None:
    @app.task(unique=Unique.singleton())
    async def one(number: int) -> None: ...

    @app.task
    async def other(number: int) -> None: ...

    for number in range(5):
        await other.enqueue(number)
        await one.options(force=True).enqueue(number)
    everything = [job.id for job in await app.jobs()]
    ones = [job.id for job in await app.jobs(task="one")]
    key = (await app.jobs(task="one", limit=1))[0].key

    assert [job.id for job in await app.jobs(before=everything[3], limit=4)] == everything[4:8]
    assert [job.id for job in await app.jobs(before=everything[-1])] == []
    assert [job.id for job in await app.jobs(task="one", state="available", before=ones[1])] == ones[2:]
    assert [job.id for job in await app.jobs(key=key, before=ones[1], limit=2)] == ones[2:4]
