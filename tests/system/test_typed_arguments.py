"""Typed arguments and results go in and come out whole, through a store and a worker."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from onejob import App, Outcome, Retry, Task, Unique
from onejob.errors import InvalidCall, InvalidPolicy, JobFailed, UnencodableArgument
from tests.system.live import PATIENCE, STORES, open_store


@pytest.fixture(params=STORES)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    async with App(store=open_store(request.param, tmp_path), retry=Retry.never()) as app:
        yield app


# ── the types ─────────────────────────────────────────────────────────────────────────────────────


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Kind(StrEnum):
    BOOK = "book"


CustomerId = NewType("CustomerId", int)


@dataclass(frozen=True)
class Address:
    street: str
    since: date | None = None


@dataclass
class Customer:
    id: UUID
    name: str
    addresses: list[Address] = field(default_factory=list)
    tags: frozenset[str] = frozenset()


class Line(msgspec.Struct, frozen=True):
    article: str
    price: Decimal
    colour: Colour = Colour.RED


class Order(msgspec.Struct, frozen=True, rename="camel"):
    order_id: int
    lines: tuple[Line, ...]
    placed_at: datetime


class Item(pydantic.BaseModel):
    name: str
    price: Decimal
    bought: datetime | None = None


class Basket(pydantic.BaseModel):
    owner: Address
    items: list[Item] = []
    colour: Colour = Colour.BLUE


class Renamed(pydantic.BaseModel):
    customer_id: int = pydantic.Field(alias="customerId")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    width: int
    height: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width * self.height


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict):
    when: datetime
    colour: Colour


@dataclass(frozen=True)
class Envelope:
    """A dataclass that holds a pydantic model."""

    item: Item
    more: dict[str, Item]


MOMENT = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
ELSEWHERE = datetime(2026, 7, 1, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
SOMEBODY = UUID("12345678-1234-5678-1234-567812345678")
ADDRESS = Address("High Street 1", date(2020, 2, 29))
LINE = Line("pen", Decimal("1.10"), Colour.BLUE)
ITEM = Item(name="ink", price=Decimal("2.50"), bought=MOMENT)

VALUES: dict[str, tuple[Any, Any]] = {
    "text": (str, "naïve ✓"),
    "a whole number": (int, 7),
    "a large whole number": (int, 2**63 - 1),
    "a float": (float, 0.1),
    "a truth": (bool, True),
    "nothing": (None, None),
    "bytes": (bytes, b"\x00\xff"),
    "a time": (datetime, MOMENT),
    "a time elsewhere": (datetime, ELSEWHERE),
    "a date": (date, date(2026, 7, 1)),
    "a time of day": (time, time(12, 30)),
    "a path": (Path, Path("reports/july.csv")),
    "a duration": (timedelta, timedelta(hours=1, microseconds=5)),
    "a UUID": (UUID, SOMEBODY),
    "a Decimal": (Decimal, Decimal("10.10")),
    "an Enum": (Colour, Colour.BLUE),
    "an IntEnum": (Size, Size.LARGE),
    "a StrEnum": (Kind, Kind.BOOK),
    "a Literal": (Literal["a", "b"], "b"),
    "a NewType": (CustomerId, CustomerId(7)),
    "an optional value": (datetime | None, MOMENT),
    "an optional value left out": (datetime | None, None),
    "one of two types": (int | str, "seven"),
    "a list": (list[UUID], [SOMEBODY]),
    "a set": (set[date], {date(2026, 7, 1)}),
    "a tuple": (tuple[int, UUID], (1, SOMEBODY)),
    "a long tuple": (tuple[Decimal, ...], (Decimal("1.5"), Decimal(2))),
    "a mapping": (dict[str, datetime], {"then": MOMENT}),
    "an abstract sequence": (Sequence[date], [date(2026, 7, 1)]),
    "an abstract mapping": (Mapping[str, Colour], {"a": Colour.RED}),
    "an iterable": (Iterable[int], [1, 2]),
    "a NamedTuple": (Point, Point(1, 2.5)),
    "a TypedDict": (Options, {"when": MOMENT, "colour": Colour.RED}),
    "a dataclass": (Address, ADDRESS),
    "a nested dataclass": (Customer, Customer(SOMEBODY, "Ada", [ADDRESS], frozenset({"vip"}))),
    "a Struct": (Line, LINE),
    "a nested Struct": (Order, Order(7, (LINE, Line("ink", Decimal(2))), MOMENT)),
    "a pydantic model": (Item, ITEM),
    "a nested pydantic model": (Basket, Basket(owner=ADDRESS, items=[ITEM])),
    "a pydantic model with an alias": (Renamed, Renamed(customerId=7)),
    "a pydantic model with a computed field": (Strict, Strict(width=2, height=3)),
    "a pydantic model or nothing": (Item | None, ITEM),
    "a list of dataclasses": (list[Address], [ADDRESS, Address("Low Street 2")]),
    "a list of Structs": (list[Line], [LINE]),
    "a list of pydantic models": (list[Item], [ITEM, Item(name="pen", price=Decimal(1))]),
    "a dataclass of pydantic models": (Envelope, Envelope(ITEM, {"other": ITEM})),
}


def typed(app: App, kind: Any, function: Callable[..., Any]) -> Task[..., Any]:
    """Register a function as if `value` and its result had been annotated with a type."""
    function.__annotations__ = {"value": kind, "return": kind}
    return app.task(name="work")(function)


@pytest.mark.parametrize("what", VALUES)
async def test_a_value_comes_out_of_the_store_as_it_went_in(app: App, what: str) -> None:
    kind, value = VALUES[what]
    seen: list[Any] = []

    def work(value: Any) -> Any:
        seen.append(value)
        return value

    task = typed(app, kind, work)
    async with app.worker():
        result = await (await task.enqueue(value)).result(PATIENCE)
    for found in (seen[0], result):
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize("what", VALUES)
async def test_what_can_be_stored_can_be_a_key(app: App, what: str) -> None:
    """Adding `unique=` to a task breaks no caller."""
    kind, value = VALUES[what]

    def work(value: Any) -> Any: ...

    work.__annotations__ = {"value": kind, "return": Any}
    task = app.task(name="work", unique=True)(work)
    first = await task.enqueue(value)
    assert (await task.enqueue(value)).job.id == first.job.id


NAIVE = datetime(2026, 7, 1)  # noqa: DTZ001 - the naive one is the case


@pytest.mark.parametrize("value", [NAIVE, [NAIVE], {"at": NAIVE}, Options(when=NAIVE, colour=Colour.RED)])
@pytest.mark.parametrize("unique", [None, True])
async def test_a_naive_datetime_is_refused_with_and_without_a_key(app: App, value: Any, unique: Any) -> None:
    def work(value: Any) -> None: ...

    task = app.task(unique=unique)(work)
    with pytest.raises(
        UnencodableArgument, match=r"^The arguments: value.* has no time zone: write an aware"
    ):
        await task.enqueue(value)
    with pytest.raises(UnencodableArgument, match=r"^meta=: at has no time zone: write an aware"):
        await task.options(meta={"at": NAIVE}).enqueue(1)
    assert await app.jobs() == []


async def test_parts_have_their_types_too(app: App) -> None:
    seen: list[Any] = []

    @app.task
    async def ship(order: Order, basket: Basket, customers: list[Customer]) -> list[Line]:
        seen.extend([order.placed_at, order.lines[0].price, basket.items[0].bought, customers[0].id])
        seen.append(customers[0].addresses[0].since)
        return [*order.lines]

    async with app.worker():
        asked = await ship.enqueue(
            Order(1, (LINE,), MOMENT),
            Basket(owner=ADDRESS, items=[ITEM]),
            [Customer(SOMEBODY, "Ada", [ADDRESS])],
        )
        result = await asked.result(PATIENCE)
    assert [type(value) for value in seen] == [datetime, Decimal, datetime, UUID, date]
    assert result == [LINE]
    assert type(result[0].colour) is Colour


async def test_every_kind_of_parameter_comes_through(app: App) -> None:
    calls: list[Any] = []

    @app.task
    async def work(
        first: int,
        /,
        second: date,
        *rest: Decimal,
        named: UUID,
        also: Colour = Colour.RED,
        **others: Address,
    ) -> None:
        calls.append((first, second, rest, named, also, others))

    today = date(2026, 7, 1)
    async with app.worker():
        short = await work.enqueue(1, today, named=SOMEBODY)
        long = await work.enqueue(
            1, today, Decimal("1.5"), Decimal(2), named=SOMEBODY, also=Colour.BLUE, home=ADDRESS
        )
        for asked in (short, long):
            await asked.result(PATIENCE)
    assert sorted(calls, key=lambda call: len(call[2])) == [
        (1, today, (), SOMEBODY, Colour.RED, {}),
        (1, today, (Decimal("1.5"), Decimal(2)), SOMEBODY, Colour.BLUE, {"home": ADDRESS}),
    ]
    assert all(isinstance(value, Decimal) for call in calls for value in call[2])


async def test_a_default_of_none_may_stand_where_the_annotation_does_not_say_so(app: App) -> None:
    calls: list[Any] = []

    @app.task
    def work(size: int = None, *, when: datetime = None) -> None:  # type: ignore[assignment]  # noqa: RUF013 - the point
        calls.append((size, when))

    @app.task
    def wide(*sizes: int, when: datetime = None) -> None:  # type: ignore[assignment]  # noqa: RUF013 - the point
        calls.append((sizes, when))

    async with app.worker(concurrency=1):
        for asked in (
            await work.enqueue(),
            await work.enqueue(7, when=MOMENT),
            await wide.enqueue(1, 2),
            await wide.enqueue(when=MOMENT),
        ):
            await asked.result(PATIENCE)
    assert calls == [(None, None), (7, MOMENT), ((1, 2), None), ((), MOMENT)]


async def test_arguments_without_annotations_come_as_plain_json(app: App) -> None:
    calls: list[Any] = []

    def work(value: Any, *more: Any, **named: Any) -> None:
        calls.append((value, more, named))

    work.__annotations__ = {}
    task = app.task(work)
    async with app.worker():
        await (await task.enqueue({"a": [1, None]}, (1, 2), when=MOMENT)).result(PATIENCE)
    assert calls == [({"a": [1, None]}, ([1, 2],), {"when": "2026-07-01T12:30:15.123456Z"})]


@pytest.mark.parametrize("annotation", ["OnlyForTheTypeChecker", "not an expression!", "msgspec.Nothing"])
@pytest.mark.parametrize("name", ["when", "what", "return"])
def test_an_annotation_that_cannot_be_read_is_refused_with_the_cure(annotation: str, name: str) -> None:
    app = App("memory://")

    def work(when: Any, what: Any) -> Any: ...

    work.__annotations__ = {"when": "datetime", "what": "int", "return": "datetime"} | {name: annotation}
    whose = "result" if name == "return" else name
    says = (
        f"work: the annotation {annotation!r} of its {whose} cannot be read .*outside of `if TYPE_CHECKING`"
    )
    with pytest.raises(InvalidPolicy, match=says):
        app.task(work)
    assert app.tasks == {}


@pytest.mark.parametrize("kind", [str | UUID, datetime | date, Address | Customer, Item | Basket])
def test_types_that_json_cannot_tell_apart_are_refused_when_the_task_is_registered(kind: Any) -> None:
    app = App("memory://")

    def work(value: Any) -> None: ...

    work.__annotations__ = {"value": kind}
    with pytest.raises(InvalidPolicy, match=r"value= cannot be read back as .*unions"):
        app.task(work)
    work.__annotations__ = {"return": kind}
    with pytest.raises(InvalidPolicy, match="its result cannot be read back"):
        app.task(work)
    assert app.tasks == {}


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class Partly(pydantic.BaseModel):
    kept: int
    left_out: int = pydantic.Field(default=0, exclude=True)


class TwoNames(pydantic.BaseModel):
    value: int = pydantic.Field(validation_alias="in", serialization_alias="out")


@pytest.mark.parametrize(
    "value",
    [
        Secret(password=pydantic.SecretStr("x")),
        Partly(kept=1, left_out=2),
        TwoNames.model_validate({"in": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_model_that_would_lose_something_is_refused(app: App, value: pydantic.BaseModel) -> None:
    """Better an error now than a job that runs with stars for a password."""

    def work(value: Any) -> None: ...

    task = typed(app, type(value), work)
    with pytest.raises(UnencodableArgument, match="The arguments: value cannot be written as JSON"):
        await task.enqueue(value)
    assert await app.jobs() == []


async def test_a_value_of_another_type_fails_the_job_and_says_so(app: App) -> None:
    ran: list[Any] = []

    @app.task(check=False)
    async def work(number: int) -> None:
        ran.append(number)

    async with app.worker():
        asked = await work.enqueue("seven")  # type: ignore[arg-type]
        with pytest.raises(JobFailed, match="Expected `int`, got `str`"):
            await asked.result(PATIENCE)
    assert ran == []


# ── the same call ─────────────────────────────────────────────────────────────────────────────────


async def test_a_call_is_the_same_however_it_is_written(app: App) -> None:
    runs: list[tuple[int, str]] = []

    @app.task(unique=True)
    async def send(customer_id: int, note: str = "") -> str:
        runs.append((customer_id, note))
        return f"{customer_id}{note}"

    first = await send.enqueue(7)
    same = [
        await send.enqueue(customer_id=7),
        await send.enqueue(7, ""),
        await send.enqueue(7, note=""),
        await send.enqueue(note="", customer_id=7),
        await asyncio.to_thread(send.enqueue_sync, 7),
        *await app.enqueue_many([send.call(7), send.call(customer_id=7)]),
    ]
    other = await send.enqueue(7, "July")
    assert {each.job.id for each in same} == {first.job.id}
    assert {each.outcome for each in same} == {Outcome.KEPT}
    assert (other.outcome, other.key != first.key) == (Outcome.CREATED, True)
    async with app.worker(concurrency=1):
        assert await same[0].result(PATIENCE) == "7"
        assert await other.result(PATIENCE) == "7July"
    assert runs == [(7, ""), (7, "July")]


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (ADDRESS, Address("High Street 1", date(2020, 2, 29)), Address("High Street 1")),
        (LINE, Line("pen", Decimal("1.1"), Colour.BLUE), Line("pen", Decimal("1.1"))),
        (ITEM, ITEM.model_copy(), ITEM.model_copy(update={"name": "pen"})),
        (MOMENT, MOMENT.astimezone(timezone(timedelta(hours=2))), MOMENT + timedelta(microseconds=1)),
        (SOMEBODY, UUID(SOMEBODY.hex), UUID(int=1)),
        (Decimal("1.0"), Decimal("1.00"), Decimal("1.01")),
    ],
    ids=["dataclass", "Struct", "model", "time", "UUID", "Decimal"],
)
async def test_typed_values_that_are_equal_are_the_same_work(
    app: App, one: Any, same: Any, other: Any
) -> None:
    def work(value: Any) -> None: ...

    work.__annotations__ = {"value": type(one)}
    task = app.task(unique=True)(work)
    first = await task.enqueue(one)
    assert (await task.enqueue(same)).job.id == first.job.id
    assert (await task.enqueue(other)).job.id != first.job.id


async def test_a_part_of_a_typed_value_may_be_the_key(app: App) -> None:
    @app.task(unique=Unique(by="order.order_id", on_conflict="update"))
    async def ship(order: Order) -> Order:
        return order

    first = await ship.enqueue(Order(7, (), MOMENT))
    newer = await ship.enqueue(Order(7, (LINE,), MOMENT))
    other = await ship.enqueue(Order(8, (), MOMENT))
    assert (newer.outcome, newer.job.id == first.job.id, newer.payload_differs) == ("updated", True, True)
    assert other.outcome is Outcome.CREATED
    async with app.worker():
        assert await first.result(PATIENCE) == Order(7, (LINE,), MOMENT)


async def test_what_does_not_fit_the_signature_is_refused(app: App) -> None:
    @app.task
    async def work(first: int, /, second: int, *, third: int = 3) -> None: ...

    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((1,), {}),
        ((1, 2, 3), {}),
        ((1,), {"first": 1, "second": 2}),
        ((1, 2), {"second": 2}),
        ((1, 2), {"fourth": 4}),
    ]
    enqueue: Callable[..., Any] = work.enqueue
    for args, kwargs in wrong:
        with pytest.raises(InvalidCall, match="The call does not fit the task"):
            await enqueue(*args, **kwargs)
    assert await app.jobs() == []


async def test_an_argument_that_the_function_no_longer_has_fails_the_attempt(app: App) -> None:
    """A deployment between the request and the run: with or without annotations, it ends the same."""
    calls: list[Any] = []
    then = App(store=app._engine.store)

    def before(kept: int, gone: int) -> None: ...

    def after(kept: int) -> None:
        calls.append(kept)

    def after_without_annotations(kept: Any) -> None:
        calls.append(kept)

    after_without_annotations.__annotations__ = {}
    for name, function in (("typed", after), ("plain", after_without_annotations)):
        await then.task(name=name, retry=Retry.never())(before).enqueue(7, 8)
        app.task(name=name)(function)
    await asyncio.wait_for(app.worker(drain=True).run(), PATIENCE)
    assert calls == []
    for letter in await app.dead.list():
        assert "no longer has the stored argument 'gone' (it has: kept)" in letter.failures[0]["message"]


# ── checks and schema ─────────────────────────────────────────────────────────────────────────────


WRONG: dict[str, tuple[Any, Any]] = {
    "text for a number": (int, "seven"),
    "a truth for a number": (int, True),
    "a float for a whole number": (int, 7.5),
    "a number for text": (str, 7),
    "a list of others": (list[int], [1, "two"]),
    "text for a UUID": (UUID, "nobody"),
    "another literal": (Literal["a", "b"], "c"),
    "another dataclass": (Address, LINE),
    "another model": (Item, Basket(owner=ADDRESS)),
    "none": (int, None),
    "a number for a path": (Path, 7),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("unique", [None, True])
async def test_a_call_that_no_worker_could_restore_is_refused(app: App, what: str, unique: Any) -> None:
    kind, value = WRONG[what]

    def work(value: Any) -> None: ...

    work.__annotations__ = {"value": kind}
    with pytest.raises(InvalidCall, match=r"^The arguments do not fit work: value: "):
        await app.task(unique=unique)(work).enqueue(value)
    assert await app.jobs() == []
    unchecked = app.task(name="unchecked", unique=unique, check=False)(work)
    assert (await unchecked.enqueue(value)).outcome == "created"


def test_several_and_named_arguments_are_checked(app: App) -> None:
    @app.task
    def work(*numbers: int, size: int = None, **more: str) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - the case

    work.enqueue_sync(1, 2, size=3, a="b")
    work.enqueue_sync()
    work.enqueue_sync(size=None)  # type: ignore[arg-type]
    for args, kwargs, name in (
        ((1, "x"), {}, "numbers"),
        ((), {"size": "x"}, "size"),
        ((), {"a": 1}, "more"),
    ):
        with pytest.raises(InvalidCall, match=f"do not fit work: {name}: Expected"):
            work.enqueue_sync(*args, **kwargs)


def test_the_schema_of_a_tasks_arguments() -> None:
    app = App("memory://")

    @app.task
    def ship(
        order: Order, to: Address, path: Path, item: Item, copies: int = 1, *, note: str | None = None
    ) -> None: ...

    schema = ship.schema()
    assert json.loads(json.dumps(schema)) == schema
    assert (schema["type"], schema["title"], schema["additionalProperties"]) == ("object", "ship", False)
    assert schema["required"] == ["order", "to", "path", "item"]
    properties = schema["properties"]
    assert properties["copies"] == {"type": "integer", "default": 1}
    assert properties["note"]["default"] is None
    assert properties["path"] == {"type": "string", "format": "path"}
    assert properties["item"]["properties"]["name"]["type"] == "string"
    assert properties["order"] == {"$ref": "#/$defs/Order"}
    assert "orderId" in schema["$defs"]["Order"]["properties"]
    assert app.task(name="nothing")(lambda: None).schema()["properties"] == {}
