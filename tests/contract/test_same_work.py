"""What is the same work: the dimensions of a key, as requests meet them (cases 1 to 18, 30)."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from onejob import App, Outcome, Task, Unique
from onejob.errors import InvalidCall, MissingKeyField, UnencodableArgument
from onejob.stores.contract import FullStore as Store
from tests.contract.steps import everything, mailer, run, start

PARIS = timezone(timedelta(hours=2))


@dataclass
class Order:
    id: int
    note: str = ""


async def same_work(task: Task[..., Any], one: object, other: object) -> bool:
    first, second = await task.enqueue(one), await task.enqueue(other)
    assert (second.key == first.key) is (second.job.id == first.job.id)
    return second.job.id == first.job.id


async def test_case_01_positional_keyword_and_default_arguments_agree(app: App) -> None:
    mail = mailer(app, unique=True)
    first = await mail.enqueue(1)
    for again in (await mail.enqueue(to=1), await mail.enqueue(1, ""), await mail.enqueue(text="", to=1)):
        assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"a": {"b": {"c": 1, "d": 2}}, "e": 3}, {"e": 3, "a": {"b": {"d": 2, "c": 1}}}, id="case-02-depth"
        ),
        pytest.param(1, 1.0, id="case-05-one"),
        pytest.param(0.0, -0.0, id="case-07-zero"),
        pytest.param(1e2, 100, id="case-07-exponent"),
        pytest.param(Decimal("1.50"), Decimal("1.5"), id="case-07-decimal"),
        pytest.param((1, 2), [1, 2], id="case-08-tuple"),
        pytest.param({2, 1}, [1, 2], id="case-08-set"),
        pytest.param(
            datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 14, tzinfo=PARIS), id="case-09-instant"
        ),
        pytest.param("caf\u00e9", "cafe\u0301", id="case-10-nfc"),
        pytest.param(UUID(int=7), str(UUID(int=7)), id="uuid-text"),
    ],
)
async def test_the_same_work(app: App, one: object, other: object) -> None:
    assert await same_work(mailer(app, Unique(by="to")), one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([1, 2], [2, 1], id="case-03-order"),
        pytest.param([1, 2, 2], [2, 1], id="case-04-containment"),
        pytest.param({"id": 1}, {"id": 1, "x": 2}, id="case-04-more"),
        pytest.param(1, True, id="case-05-true"),
        pytest.param(1, "1", id="case-05-text"),
        pytest.param(True, "1", id="case-05-true-text"),
        pytest.param(2**53, 2**53 + 1, id="case-07-large"),
        pytest.param("Word", "word", id="case-10-letter-case"),
        pytest.param("word", "word ", id="case-10-space"),
        pytest.param({"a": "1_b-2"}, {"a_1": "b-2"}, id="case-11-separators"),
        pytest.param("x&queue=y", "x", id="case-11-query"),
        pytest.param({"a.b": 1}, {"a": {"b": 1}}, id="case-11-dots"),
        pytest.param(None, "", id="case-12-none"),
        pytest.param(None, 0, id="case-12-none-zero"),
    ],
)
async def test_different_work(app: App, one: object, other: object) -> None:
    assert not await same_work(mailer(app, Unique(by="to")), one, other)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({1: "x"}, id="case-06-non-string-key"),
        pytest.param(float("nan"), id="case-07-nan"),
        pytest.param(float("inf"), id="case-07-infinity"),
        pytest.param(datetime(2026, 1, 1), id="case-09-naive"),  # noqa: DTZ001 - the naive one is the case
        pytest.param("\ud800", id="half-a-surrogate-pair"),
        pytest.param(object(), id="no-json-form"),
    ],
)
async def test_a_value_without_a_canonical_form_is_refused_before_anything_is_stored(
    app: App, value: object
) -> None:
    with pytest.raises(UnencodableArgument):
        await mailer(app, Unique(by="to")).enqueue(value)
    assert await everything(app) == []


async def test_case_12_a_missing_field_is_an_error_and_none_is_a_value(app: App) -> None:
    mail = mailer(app, Unique(by="to.id"))
    with pytest.raises(MissingKeyField, match="id"):
        await mail.enqueue({"name": "Ada"})
    assert await everything(app) == []

    first = await mail.enqueue({"id": None})
    assert (await mail.enqueue({"id": None})).job.id == first.job.id


async def test_a_path_reaches_into_a_structured_argument(app: App) -> None:
    mail = mailer(app, Unique(by="to.id"))
    first = await mail.enqueue(Order(7, "July"))
    again = await mail.enqueue(Order(7, "August"))
    other = await mail.enqueue(Order(8, "July"))
    assert again.job.id == first.job.id
    assert again.payload_differs
    assert other.outcome is Outcome.CREATED


async def test_case_13_a_key_function_that_raises_enqueues_nothing(app: App) -> None:
    mail = mailer(app, Unique(key=lambda to: to["id"]))
    with pytest.raises(InvalidCall, match="KeyError"):
        await mail.enqueue({})
    assert await everything(app) == []


async def test_case_13_a_key_function_that_says_none_means_not_unique(app: App) -> None:
    mail = mailer(app, Unique(key=lambda to: to or None))
    first, second = await mail.enqueue(0), await mail.enqueue(0)
    assert (first.outcome, second.outcome) == (Outcome.CREATED, Outcome.CREATED)
    assert first.key is None

    third = await mail.enqueue(5)
    assert (await mail.enqueue(5)).job.id == third.job.id


async def test_case_13_a_key_function_that_says_nothing_at_all_is_refused(app: App) -> None:
    mail = mailer(app, Unique(key=lambda to: to))
    with pytest.raises(InvalidCall, match="return None"):
        await mail.enqueue("")
    assert await everything(app) == []


async def test_case_14_a_large_argument_and_a_large_key_work(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    large = "x" * 1_000_000
    first = await mail.enqueue(1, large)
    assert (await mail.enqueue(1, large)).job.id == first.job.id

    caller_key = "k" * 10_000
    first = await mail.options(key=caller_key).enqueue(1)
    again = await mail.options(key=caller_key).enqueue(2)
    assert again.job.id == first.job.id


async def test_case_15_tasks_with_one_caller_key_are_independent(app: App) -> None:
    one, two = mailer(app, Unique(key="k"), name="one"), mailer(app, Unique(key="k"), name="two")
    assert (await one.enqueue(1)).outcome is Outcome.CREATED
    assert (await two.enqueue(1)).outcome is Outcome.CREATED


async def test_case_15_tasks_of_one_family_share_their_keys(app: App) -> None:
    family = Unique(by="to", family="mails")
    one, two = mailer(app, family, name="one"), mailer(app, family, name="two")
    first = await one.enqueue(1)
    again = await two.enqueue(1)
    assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)


async def test_case_16_a_changed_key_definition_opens_new_keys(app: App, store: Store) -> None:
    """DESIGN decides against the version overlap: the old hold stays where it was and ends with its job."""
    old = await mailer(app, Unique(by="to")).enqueue(1)
    later = App(store=store)
    new = await mailer(later, Unique(by=["to", "text"])).enqueue(1)
    assert new.outcome is Outcome.CREATED
    assert new.key != old.key

    held = {job.id for job in await later.holds()}
    assert held == {old.job.id, new.job.id}


async def test_case_17_a_secret_hides_the_key_and_still_deduplicates(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="onejob")
    plain = await mailer(App(store=store), Unique(by="to")).enqueue("ada@example.org")
    async with App(store=store, secret="pepper and coarse salt") as app:
        mail = mailer(app, Unique(by="to"))
        first = await mail.enqueue("ada@example.org")
        again = await mail.enqueue("ada@example.org")
        assert first.key != plain.key
        assert again.job.id == first.job.id
        assert "ada@example.org" not in caplog.text + again.reason + repr(again) + repr(again.job)


async def test_case_18_mutating_an_argument_after_the_enqueue_changes_nothing(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    argument = {"ids": [1, 2]}
    first = await mail.enqueue(argument)
    argument["ids"].append(3)
    assert (await start(app)).arguments == {"to": {"ids": [1, 2]}, "text": ""}

    kept = await mail.enqueue({"ids": [1, 2]})
    assert kept.job.id == first.job.id


async def test_case_18_the_hold_ends_although_the_argument_was_mutated(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    argument = [1]
    await mail.enqueue(argument)
    argument.append(2)
    await run(app)
    assert (await mail.enqueue([1])).outcome is Outcome.CREATED


async def test_case_30_a_queue_is_no_part_of_the_key(app: App) -> None:
    app.queue("slow")
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(1)
    again = await mail.options(queue="slow").enqueue(1)
    assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)
    assert again.job.queue == "default"


async def test_case_30_a_queue_is_part_of_the_key_if_the_policy_says_so(app: App) -> None:
    app.queue("slow")
    mail = mailer(app, Unique(by="to", queue=True))
    await mail.enqueue(1)
    other = await mail.options(queue="slow").enqueue(1)
    again = await mail.options(queue="slow").enqueue(1)
    assert other.outcome is Outcome.CREATED
    assert again.job.id == other.job.id


async def test_case_30_a_namespace_is_always_part_of_the_key(store: Store) -> None:
    async with App(store=store, namespace="north") as north, App(store=store, namespace="south") as south:
        first = await mailer(north, Unique(key="k")).enqueue(1)
        other = await mailer(south, Unique(key="k")).enqueue(1)
        assert (first.outcome, other.outcome) == (Outcome.CREATED, Outcome.CREATED)
        assert [job.id for job in await north.jobs()] == [first.job.id]
        assert [job.id for job in await north.jobs(key=first.key)] == [first.job.id]
        assert (await south.stats()).waiting == 1
        assert (await start(south)).id == other.job.id


async def test_named_metadata_is_part_of_the_key(app: App) -> None:
    mail = mailer(app, Unique(by="to", meta=["tenant"]))
    first = await mail.options(meta={"tenant": "a", "trace": "1"}).enqueue(1)
    again = await mail.options(meta={"tenant": "a", "trace": "2"}).enqueue(1)
    other = await mail.options(meta={"tenant": "b", "trace": "1"}).enqueue(1)
    assert again.job.id == first.job.id
    assert other.outcome is Outcome.CREATED

    with pytest.raises(MissingKeyField, match="tenant"):
        await mail.enqueue(1)


async def test_an_explicit_key_takes_the_place_of_the_arguments(app: App) -> None:
    mail = mailer(app)
    first = await mail.options(key="user-123").enqueue(1)
    again = await mail.options(key="user-123").enqueue(2)
    assert (again.outcome, again.job.id) == (Outcome.KEPT, first.job.id)
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED  # without the key it is not unique


async def test_by_default_all_arguments_are_the_key(app: App) -> None:
    mail = mailer(app, unique=True)
    first = await mail.enqueue(1, "a")
    assert (await mail.enqueue(1, "b")).outcome is Outcome.CREATED
    assert (await mail.enqueue(1, "a")).job.id == first.job.id


async def test_jobs_for_none_are_the_same_work(app: App) -> None:
    mail = mailer(app, Unique(by="to"))
    first = await mail.enqueue(None, "a")
    assert (await mail.enqueue(None, "b")).job.id == first.job.id
