"""Dead letters in number: grouped by error, replayed by filter, and with edited arguments."""

from datetime import timedelta
from typing import Any

import pytest

from onejob import Admission, App, Job, Outcome, State, Task, Unique
from onejob.app.dead_letters import PAGE
from onejob.errors import InvalidCall, UnknownTask
from onejob.testing import Clock
from tests.contract.steps import absorbed, discard, everything, fail, lease, mailer, run, start


async def bury(app: App, task: Task[..., Any], to: Any, error: Exception, text: Any = "") -> Job:
    """Let one job of a task die of an error."""
    await task.enqueue(to, text)
    return await discard(app, error)


async def die(app: App, job: Job) -> None:
    """Let a running job fail for good."""
    await fail(app, job, final=True)


def texts(letters: list[Job]) -> list[Any]:
    return [letter.arguments["to"] for letter in letters]


# ── groups ────────────────────────────────────────────────────────────────────────────────────────


async def test_letters_that_died_of_the_same_are_one_group(app: App, clock: Clock) -> None:
    mail, note = mailer(app), mailer(app, name="note")
    first = await bury(app, mail, 1, ValueError("user 17 has no address"))
    clock.advance("1h")
    await bury(app, mail, 2, ValueError("user 4711 has no address"))
    await bury(app, note, 3, ValueError("user 5 has no address"))
    clock.advance("1h")
    last = await bury(app, mail, 4, ValueError("user 23 has no address"))
    await bury(app, mail, 5, TimeoutError("user 23 has no address"))

    groups = await app.dead.groups()

    assert [(one.task, one.error, one.message, one.count) for one in groups] == [
        ("mail", "ValueError", "user # has no address", 3),
        ("mail", "TimeoutError", "user # has no address", 1),
        ("note", "ValueError", "user # has no address", 1),
    ]
    assert (groups[0].first_at, groups[0].last_at) == (first.finished_at, last.finished_at)
    assert groups[0].example == last.id
    assert [one.count for one in await app.dead.groups(task="note")] == [1]
    assert await app.dead.groups(error="KeyError") == []


async def test_groups_count_more_letters_than_a_page_has(app: App) -> None:
    mail = mailer(app)
    await mail.enqueue(1)
    await run(app)
    await app.cancel((await mail.enqueue(2)).job.id)
    assert await app.dead.groups() == []  # neither what completed nor what was cancelled is dead

    again = mailer(app, name="again")
    await app.enqueue_many([again.call(number) for number in range(PAGE + 20)])
    for job in await lease(app, total=PAGE + 20):
        await die(app, job)
    [group] = await app.dead.groups()
    assert (group.task, group.count) == ("again", PAGE + 20)
    assert len(set(await app.dead.ids())) == PAGE + 20


# ── which ─────────────────────────────────────────────────────────────────────────────────────────


async def test_letters_are_listed_the_latest_dead_first(app: App, clock: Clock) -> None:
    mail = mailer(app)
    for to in (1, 2, 3):
        await mail.options(priority=to).enqueue(to)
    for to in (3, 2, 1):  # the last to come dies first
        [job] = await lease(app, total=1)
        assert job.arguments["to"] == to
        await die(app, job)
        clock.advance("1s")
    assert texts(await app.dead.list()) == [1, 2, 3]
    assert texts(await app.dead.list(limit=2)) == [1, 2]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({}, [4, 3, 2, 1]),
        ({"task": "mail"}, [4, 2, 1]),
        ({"queue": "slow"}, [3]),
        ({"error": "ValueError"}, [3, 1]),
        ({"message": "mail server"}, [4, 2]),
        ({"message": "mail server", "error": "OSError"}, [4]),
        ({"older_than": "150m"}, [2, 1]),
        ({"newer_than": "150m"}, [4, 3]),
        ({"older_than": "90m", "newer_than": "210m"}, [3, 2]),
        ({"task": "nobody"}, []),
    ],
)
async def test_letters_are_meant_by_task_queue_error_message_and_age(
    app: App, clock: Clock, which: dict[str, Any], expected: list[int]
) -> None:
    app.queue("slow")
    mail, note = mailer(app), mailer(app, name="note", queue="slow")
    errors = [
        ValueError("no address"),
        TimeoutError("mail server away"),
        ValueError("?"),
        OSError("mail server"),
    ]
    for to, (task, error) in enumerate(zip([mail, mail, note, mail], errors, strict=True), 1):
        await bury(app, task, to, error)
        clock.advance("1h")

    assert texts(await app.dead.list(**which)) == expected
    replayed = await app.dead.replay_all(**which)
    assert texts([admission.job for admission in replayed]) == expected
    assert {admission.outcome for admission in replayed} <= {Outcome.CREATED}
    assert len(await app.dead.list()) == 4 - len(expected)


async def test_an_unknown_way_to_mean_letters_is_refused(app: App) -> None:
    with pytest.raises(InvalidCall, match="older_than"):
        await app.dead.list(age="1h")  # type: ignore[call-arg]


async def test_letters_of_another_namespace_are_not_ours(app: App) -> None:
    other = App(store=app._engine.store, namespace="other")
    letter = await bury(app, mailer(app), 1, ValueError("x"))
    await bury(other, mailer(other), 2, ValueError("x"))
    assert [job.id for job in await app.dead.list()] == [letter.id]
    assert [group.count for group in await other.dead.groups()] == [1]


async def test_many_are_replayed_in_their_places(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    letters = [await bury(app, mail, to, ValueError("x")) for to in (1, 2)]
    held = await mail.enqueue(2)
    done = await mail.enqueue(3)
    answers = await app.dead.replay_many([letters[0].id, letters[1].id, done.job.id, "nobody"])
    assert [a.outcome if isinstance(a, Admission) else a for a in answers] == ["created", "kept", None, None]
    assert isinstance(answers[1], Admission)
    assert answers[1].job.id == held.job.id


async def test_of_two_letters_with_one_key_the_newer_is_replayed(app: App, clock: Clock) -> None:
    mail = mailer(app, Unique(by="to"))
    await bury(app, mail, 1, ValueError("x"), "old")
    clock.advance("1s")
    newer = await bury(app, mail, 1, ValueError("x"), "new")
    answers = await app.dead.replay_all()
    assert [(one.outcome, one.job.id) for one in answers] == [("created", newer.id), ("kept", newer.id)]


async def test_replays_are_counted_on_the_job_and_those_that_were_absorbed_in_the_ledger(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    letter = await bury(app, mail, 1, ValueError("x"))
    assert letter.replays == 0
    for times in (1, 2):
        assert (await app.dead.replay(letter.id)).job.replays == times
        await discard(app)
    held = await mail.enqueue(1)
    assert (await app.dead.replay(letter.id)).outcome is Outcome.KEPT
    assert (await app.job(letter.id)).replays == 2  # it did not come back
    assert await absorbed(app) == {"kept": 1}
    assert (await app.absorbed())[held.job.id] == 1


# ── edited ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_letter_comes_back_with_edited_arguments(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    letter = await bury(app, mail, 1, ValueError("x"), "wrong")
    replayed = await app.dead.replay(letter.id, args={"text": "right"})
    assert (replayed.outcome, replayed.job.id) == (Outcome.CREATED, letter.id)
    assert replayed.job.arguments == {"to": 1, "text": "right"}
    assert replayed.job.payload_digest != letter.payload_digest
    kept = await mail.enqueue(1, "right")
    assert (kept.outcome, kept.payload_differs) == (Outcome.KEPT, False)
    assert (await run(app)).arguments["text"] == "right"


@pytest.mark.parametrize("unique", [Unique(by="to"), Unique(), Unique(key=lambda to: f"to {to}")])
async def test_an_edit_that_would_change_the_key_is_refused(app: App, unique: Unique) -> None:
    letter = await bury(app, mailer(app, unique), 1, ValueError("x"))
    before = await everything(app)
    with pytest.raises(InvalidCall, match=r"enqueue it anew with mail\.enqueue"):
        await app.dead.replay(letter.id, args={"to": 2})
    assert await everything(app) == before


async def test_an_edit_that_would_change_the_version_is_refused(app: App) -> None:
    letter = await bury(app, mailer(app, Unique.latest(by="to", version="text")), 1, ValueError("x"), 5)
    with pytest.raises(InvalidCall, match="enqueue it anew"):
        await app.dead.replay(letter.id, args={"text": 6})
    assert (await app.dead.replay(letter.id, args={"text": 5})).outcome is Outcome.CREATED


async def test_an_edit_is_refused_where_the_key_is_unknown(app: App) -> None:
    mail = mailer(app)
    await mail.options(key="first customer").enqueue(1)
    letter = await discard(app)
    with pytest.raises(InvalidCall, match="enqueue it anew"):
        await app.dead.replay(letter.id, args={"text": "a"})
    assert (await app.dead.replay(letter.id)).outcome is Outcome.CREATED


async def test_the_key_of_an_edit_takes_queue_and_metadata_from_the_letter(app: App) -> None:
    app.queue("slow")
    mail = mailer(app, Unique(by="to", queue=True, meta=["tenant"]))
    await mail.options(queue="slow", meta={"tenant": "a"}).enqueue(1)
    letter = await discard(app)
    assert (await app.dead.replay(letter.id, args={"text": "b"})).job.key == letter.key


async def test_an_edit_must_fit_the_task(app: App) -> None:
    @app.task
    async def resize(size: int, name: str = "") -> None: ...

    await resize.enqueue(1)
    letter = await discard(app)
    with pytest.raises(InvalidCall, match=r"no argument 'width' \(it has: size, name\)"):
        await app.dead.replay(letter.id, args={"width": 2})
    with pytest.raises(InvalidCall, match="do not fit resize"):
        await app.dead.replay(letter.id, args={"size": "large"})
    assert (await app.job(letter.id)).state is State.DISCARDED
    assert (await app.dead.replay(letter.id, args={"size": 2})).job.arguments == {"size": 2, "name": ""}


async def test_an_edit_may_repair_what_did_not_fit(app: App) -> None:
    await mailer(app, Unique(by="to"), name="resize").enqueue(1, "large")
    letter = await discard(app)
    later = App(store=app._engine.store)

    @later.task(unique=Unique(by="to"))
    async def resize(to: int, text: int) -> None: ...

    assert (await later.dead.replay(letter.id, args={"text": 3})).job.arguments == {"to": 1, "text": 3}


async def test_an_edit_needs_the_task(app: App) -> None:
    letter = await bury(app, mailer(app), 1, ValueError("x"))
    with pytest.raises(UnknownTask):
        await App(store=app._engine.store).dead.replay(letter.id, args={"text": "a"})


async def test_many_letters_can_be_edited_alike(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    for to in (1, 2):
        await bury(app, mail, to, ValueError("x"), "wrong")
    replayed = await app.dead.replay_all(args={"text": "right"})
    assert [one.job.arguments["text"] for one in replayed] == ["right", "right"]


async def test_an_edit_of_a_letter_whose_key_is_held_changes_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    letter = await bury(app, mail, 1, ValueError("x"), "wrong")
    await mail.enqueue(1)
    assert (await app.dead.replay(letter.id, args={"text": "right"})).outcome is Outcome.KEPT
    assert (await app.job(letter.id)).arguments["text"] == "wrong"


async def test_age_counts_from_the_death_and_not_from_the_request(app: App, clock: Clock) -> None:
    mail = mailer(app)
    await mail.enqueue(1)
    job = await start(app)
    clock.advance("1d")
    await die(app, job)
    assert await app.dead.list(older_than="1h") == []
    clock.advance(timedelta(hours=1, seconds=1))
    assert len(await app.dead.list(older_than="1h")) == 1
