"""Dead letters and their replay: judged as keep, whatever the policy (rule 5; case 39)."""

import pytest

from onejob import App, Outcome, Retry, State, Unique
from onejob.core.policy import OnConflict
from onejob.errors import InvalidCall
from onejob.testing import Clock
from tests.contract.steps import discard, everything, fail, lease, mailer, run, start


async def test_a_dead_letter_keeps_its_payload_and_its_errors(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"), retry=Retry(attempts=2, base=1, jitter=0))
    await mail.options(meta={"trace": 1}).enqueue(1, "hello")
    await fail(app, await start(app))
    clock.advance("1m")
    await fail(app, await start(app))
    [dead] = await app.dead.list()
    assert dead.arguments == {"to": 1, "text": "hello"}
    assert dead.metadata == {"trace": 1}
    assert [(f["attempt"], f["type"], f["message"]) for f in dead.failures] == [
        (1, "ValueError", "no luck"),
        (2, "ValueError", "no luck"),
    ]
    assert (await app.stats()).dead == 1


async def test_replay_makes_a_dead_letter_available_with_a_new_budget(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1, "a")
    await discard(app)
    replayed = await app.dead.replay(first.job.id)
    assert (replayed.outcome, replayed.job.id) == (Outcome.CREATED, first.job.id)
    assert (replayed.job.state, replayed.job.attempt) == (State.AVAILABLE, 0)
    assert len(replayed.job.failures) == 1  # the history stays
    assert (await mail.enqueue(1, "b")).job.id == first.job.id  # it holds its key again
    assert (await run(app)).arguments["text"] == "a"


@pytest.mark.parametrize("policy", ["keep", "reject", "update", "replace"])
async def test_case_39_replay_of_a_letter_whose_key_is_held_answers_kept(
    app: App, policy: OnConflict
) -> None:
    mail = mailer(app, Unique(by="to", on_conflict=policy))
    first = await mail.enqueue(1, "a")
    await discard(app)
    second = await mail.enqueue(1, "b")
    before = await everything(app)
    replayed = await app.dead.replay(first.job.id)
    assert (replayed.outcome, replayed.job.id) == (Outcome.KEPT, second.job.id)
    assert await everything(app) == before  # the letter stays where it is


async def test_case_39_replay_while_the_key_is_held_by_a_run(app: App) -> None:
    mail = mailer(app, Unique.coalesce(by="to"))
    first = await mail.enqueue(1, "a")
    await discard(app)
    await mail.enqueue(1, "b")
    running = await start(app)
    replayed = await app.dead.replay(first.job.id)
    assert (replayed.outcome, replayed.job.id) == (Outcome.KEPT, running.id)
    successor = await mail.enqueue(1, "c")
    assert (await app.dead.replay(first.job.id)).job.id == successor.job.id


async def test_replay_of_an_older_version_is_stale(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    first = await mail.enqueue(1, 5)
    await discard(app)
    newer = await mail.enqueue(1, 6)
    await run(app)
    before = await everything(app)
    replayed = await app.dead.replay(first.job.id)
    assert (replayed.outcome, replayed.job.id) == (Outcome.STALE, newer.job.id)
    assert await everything(app) == before


async def test_replay_of_the_current_version_is_created_and_marked_again(app: App) -> None:
    mail = mailer(app, Unique.latest(by="to", version="text"))
    first = await mail.enqueue(1, 5)
    await discard(app)
    assert (await app.dead.replay(first.job.id)).outcome is Outcome.CREATED
    assert (await mail.enqueue(1, 5)).outcome is Outcome.STALE
    assert (await run(app)).state is State.COMPLETED


async def test_replay_under_forever_finds_its_own_hold(app: App) -> None:
    mail = mailer(app, Unique(by="to", until="forever"))
    first = await mail.enqueue(1)
    await discard(app)
    assert (await app.dead.replay(first.job.id)).outcome is Outcome.CREATED
    assert (await run(app)).id == first.job.id


async def test_replay_begins_a_new_window(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to", within="1m"))
    first = await mail.enqueue(1)
    await discard(app)
    clock.advance("1h")
    replayed = await app.dead.replay(first.job.id)
    assert replayed.job.held_at == clock()
    clock.advance("59s")
    assert (await mail.enqueue(1)).job.id == first.job.id


async def test_a_cancelled_job_may_be_replayed(app: App) -> None:
    first = await mailer(app).enqueue(1)
    await app.cancel(first.job.id)
    assert (await app.dead.replay(first.job.id)).outcome is Outcome.CREATED
    assert (await run(app)).state is State.COMPLETED


@pytest.mark.parametrize("state", ["available", "active", "completed"])
async def test_what_is_not_dead_cannot_be_replayed(app: App, state: str) -> None:
    first = await mailer(app).enqueue(1)
    if state == "active":
        await start(app)
    elif state == "completed":
        await run(app)
    with pytest.raises(InvalidCall, match=f"is {state}"):
        await app.dead.replay(first.job.id)


async def test_replay_of_all_dead_letters_or_of_one_task(app: App) -> None:
    mail, note = mailer(app, Unique(by="to")), mailer(app, name="note")
    for number in range(3):
        await mail.enqueue(number)
        await discard(app)
    await note.enqueue(1)
    await discard(app)
    held = await mail.enqueue(1)
    replayed = await app.dead.replay_all(task="mail")
    assert sorted(admission.outcome for admission in replayed) == ["created", "created", "kept"]
    assert held.job.id in {admission.job.id for admission in replayed}
    assert [job.task for job in await app.dead.list(task="note")] == ["note"]
    assert len(await app.dead.list()) == 2

    assert {admission.outcome for admission in await app.dead.replay_all()} == {Outcome.CREATED, Outcome.KEPT}
    assert len(await lease(app)) == 4
