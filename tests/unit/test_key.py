"""The key: golden vectors, another implementation as oracle, and the documented equivalence as law."""

import hashlib
import hmac
import inspect
import json
import os
import struct
import subprocess
import sys
from collections import OrderedDict, UserString
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, IntEnum, StrEnum
from itertools import combinations
from math import isfinite
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from unicodedata import normalize
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from onejob.core.key import canonical, digest, pick
from onejob.errors import MissingKeyField, UnencodableArgument
from tests.depth import examples

ROOT = Path(__file__).parents[2]
VECTORS = Path(__file__).with_name("key_vectors.json")
GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(VECTORS.read_text(encoding="utf-8"))

thorough = settings(max_examples=examples(400))


class Point(NamedTuple):
    x: int
    y: int


class Listing(list[int]):
    pass


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not the text itself"


class Count(int):
    def __repr__(self) -> str:
        return "not the number itself"


class Ratio(float):
    def __repr__(self) -> str:
        return "not the number itself"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    PAIR = (1, 2)
    THING = object()


@dataclass
class Line:
    sku: str
    count: int


@dataclass(frozen=True, slots=True)
class Order:
    id: object
    lines: object

    @property
    def total(self) -> int:
        return 0


class Parcel(msgspec.Struct):
    weight: float
    to: object


class Open(msgspec.Struct, tag=True):
    target: str


class Close(msgspec.Struct, tag=True):
    target: str


class Renamed(msgspec.Struct, rename="camel"):
    customer_id: int


class Partial(msgspec.Struct):
    name: str
    note: str | msgspec.UnsetType = msgspec.UNSET


class Address(pydantic.BaseModel):
    street: str
    tags: object


class Annotated:
    id: int

    def __init__(self) -> None:
        self.id = 7
        self.undeclared = 8


class Untouchable:
    """Fail whoever looks inside: this stands for a megabyte that the key must not pay for."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)


def double(bits: str) -> float:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    return float(number)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def nested_objects(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


NAMESPACE = {
    **{kind.__name__: kind for kind in (OrderedDict, UUID, Decimal, ZoneInfo)},
    **{kind.__name__: kind for kind in (date, datetime, time, timedelta, timezone, PurePosixPath)},
    **{kind.__name__: kind for kind in (Point, Listing, Text, Count, Ratio, Colour, Level, Plain)},
    **{kind.__name__: kind for kind in (Line, Order, Parcel, Open, Close, Renamed, Partial, Address)},
    **{function.__name__: function for function in (double, nested, nested_objects, cycle)},
    "UTC": UTC,
    "MappingProxyType": MappingProxyType,
}


def evaluate(expression: str) -> object:
    return eval(expression, dict(NAMESPACE))  # noqa: S307 - our own golden file, which JSON alone cannot express


def given_by(vector: dict[str, Any]) -> object:
    return evaluate(vector["python"]) if "python" in vector else vector["json"]


def cases(group: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in GOLDEN[group]]


@pytest.mark.parametrize("vector", cases("vectors"))
def test_a_golden_vector_never_changes(vector: dict[str, Any]) -> None:
    value = given_by(vector)

    assert canonical(value).decode() == vector["canonical"]
    assert hashlib.sha256(canonical(value)).hexdigest() == vector["sha256"]


def test_there_are_enough_golden_vectors() -> None:
    assert len(GOLDEN["vectors"]) >= 120


@pytest.mark.parametrize("case", cases("equal"))
def test_these_are_the_same_work(case: dict[str, Any]) -> None:
    assert len({canonical(evaluate(expression)) for expression in case["python"]}) == 1


@pytest.mark.parametrize("case", cases("different"))
def test_these_are_different_work(case: dict[str, Any]) -> None:
    for one, other in combinations(case["python"], 2):
        assert canonical(evaluate(one)) != canonical(evaluate(other)), (one, other)


@pytest.mark.parametrize("case", cases("refused"))
def test_this_is_refused_with_its_place_and_a_remedy(case: dict[str, Any]) -> None:
    with pytest.raises(UnencodableArgument) as refusal:
        canonical(evaluate(case["python"]))

    assert str(refusal.value).startswith(case["path"])
    assert case["says"] in str(refusal.value)
    assert "write" in str(refusal.value)
    assert len(str(refusal.value)) < 320


def test_a_refusal_is_one_whole_sentence() -> None:
    with pytest.raises(UnencodableArgument) as refusal:
        canonical({"order": {"lines": [0, 1, {"price": 1j}]}})

    expected = "order.lines[2].price is of type complex, which JSON lacks; write an id or plain data instead."
    assert str(refusal.value) == expected


class Secret(UserString):
    """Text that JSON lacks."""


def test_a_refusal_does_not_print_the_value() -> None:
    with pytest.raises(UnencodableArgument) as refusal:
        canonical({"password": Secret("hunter2")})

    assert "hunter2" not in str(refusal.value)


def test_a_caller_deep_in_the_stack_gets_a_typed_error() -> None:
    def descend(frames: int) -> bytes:
        return descend(frames - 1) if frames else canonical(nested(90))

    with pytest.raises(UnencodableArgument, match="nested deeper"):
        descend(sys.getrecursionlimit() - len(inspect.stack(0)) - 60)


def test_a_decimal_ignores_the_context() -> None:
    with localcontext() as context:
        context.prec = 3
        assert canonical([Decimal("123456.70"), 10**5000, 1.5e16]) == canonical(
            ["123456.7", 10**5000, 15_000_000_000_000_000]
        )


# The documented equivalence, written a second time and in another way: as values that Python compares.


def meaning(value: object) -> object:
    match value:
        case None | bool():
            return ("literal", value is None, value is True)
        case str():
            return ("text", normalize("NFC", value))
        case int() | float():
            return ("number", numeral(value))
        case list() | tuple():
            return ("list", tuple(meaning(item) for item in value))
        case dict():
            members = ((normalize("NFC", name), meaning(item)) for name, item in value.items())
            return ("object", frozenset(members))
        case _:
            raise AssertionError(value)


def numeral(number: float) -> object:
    if isinstance(number, int) or not number.is_integer():
        return number
    return int(Decimal(repr(number))) if abs(number) < 1e21 else ("beyond", number)


def distinct_in_normal_form(members: dict[str, Any]) -> bool:
    return len({normalize("NFC", name) for name in members}) == len(members)


def values(scalars: st.SearchStrategy[Any], names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(names, inner, max_size=4).filter(distinct_in_normal_form)
        ),
        max_leaves=12,
    )


floats = st.floats(allow_nan=False, allow_infinity=False)
everything = values(st.none() | st.booleans() | st.integers() | floats | st.text(), st.text(max_size=5))

# Few scalars, all of them close to another one, so that two drawn values are often nearly or truly equal.
neighbours: list[Any] = [
    None,
    False,
    True,
    0,
    0.0,
    -0.0,
    1,
    1.0,
    1.5,
    2**53,
    2.0**53,
    2**53 + 1,
    2**60,
    2.0**60,
]
neighbours += [1152921504606847000, 10**21, 1e21, "", "0", "1", "true", "null", "é", "e\u0301", "K", "\u212a"]
neighbours += ['"', '","', "[]", "a", "A", "a ", "\uffff", "😀", []]
close = values(
    st.sampled_from(neighbours), st.sampled_from(["a", "b", "é", "e\u0301", "K", "\u212a", "😀", "\uffff"])
)


@st.composite
def respelled(draw: st.DrawFn, value: Any) -> Any:
    """Write `value` in another way that means the same."""
    match value:
        case bool() | None:
            return value
        case str():
            return normalize(draw(st.sampled_from(["NFC", "NFD"])), value)
        case int() if abs(value) < 2**53:
            return draw(st.sampled_from([value, float(value), Count(value)]))
        case list() | tuple():
            items = [draw(respelled(item)) for item in value]
            return draw(st.sampled_from([items, tuple(items)]))
        case dict():
            members = draw(st.permutations(list(value.items())))
            return {draw(respelled(name)): draw(respelled(item)) for name, item in members}
        case _:
            return value


@thorough
@given(close, close)
def test_bytes_are_equal_exactly_when_meanings_are(one: object, other: object) -> None:
    assert (canonical(one) == canonical(other)) == (meaning(one) == meaning(other))


@thorough
@given(everything, everything)
def test_bytes_are_equal_exactly_when_meanings_are_for_any_values(one: object, other: object) -> None:
    assert (canonical(one) == canonical(other)) == (meaning(one) == meaning(other))


@thorough
@given(st.data())
def test_another_spelling_is_the_same_work(data: st.DataObject) -> None:
    value = data.draw(everything)
    other = data.draw(respelled(value))

    assert canonical(other) == canonical(value)


@thorough
@given(everything)
def test_nothing_is_lost_so_no_two_meanings_share_their_bytes(value: object) -> None:
    assert meaning(json.loads(canonical(value))) == meaning(value)


safe_integers = st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
normal_text = st.text().map(lambda text: normalize("NFC", text))
portable = values(st.none() | st.booleans() | safe_integers | floats | normal_text, normal_text)


@settings(max_examples=examples(1000))
@given(portable)
def test_another_implementation_of_rfc_8785_agrees(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


any_bits = st.binary(min_size=8, max_size=8).map(bytes.hex).map(double).filter(isfinite)
near_the_borders = st.builds(
    lambda digits, power: float(f"{digits}e{power}"), st.integers(), st.integers(-40, 30)
)


@settings(max_examples=examples(2000))
@given(any_bits | near_the_borders)
def test_another_implementation_of_ecmascript_numbers_agrees(number: float) -> None:
    assert canonical(number) == rfc8785.dumps(number)


framing = st.text(alphabet='":,{}[]\\_&=.a1', max_size=6)


@thorough
@given(framing, framing, framing, framing)
def test_text_cannot_move_between_dimensions(task: str, args: str, other_task: str, other_args: str) -> None:
    one = digest({"task": task, "args": args})
    other = digest({"task": other_task, "args": other_args})

    assert (one == other) == ((task, args) == (other_task, other_args))


@thorough
@given(framing, framing)
def test_text_cannot_imitate_structure(name: str, text: str) -> None:
    imitation = canonical({name: text}).decode()

    assert len({digest({"x": value}) for value in (imitation, {name: text}, [name, text], name + text)}) == 4


PROGRAM = """
import json, sys
from onejob.core.key import digest
vectors = json.load(open(sys.argv[1], encoding="utf-8"))["vectors"]
print(hash("onejob"), *(digest({"value": vector["json"]}).hex() for vector in vectors if "json" in vector))
"""


def test_every_process_computes_the_same_key() -> None:
    here = [digest({"value": vector["json"]}).hex() for vector in GOLDEN["vectors"] if "json" in vector]
    hashes = set()
    for seed in ("0", "1", "4294967295"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", PROGRAM, str(VECTORS)]
        report = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        own_hash, *there = report.stdout.split()
        hashes.add(own_hash)
        assert there == here

    assert len(hashes) == 3  # the seeds did take effect
    assert len(here) >= 60


DIMENSIONS = {"v": 1, "namespace": "", "task": "send_invoice", "args": {"customer_id": 7, "note": "July"}}
PREIMAGE = b'{"args":{"customer_id":7,"note":"July"},"namespace":"","task":"send_invoice","v":1}'


def test_a_digest_is_the_sha256_of_the_canonical_form() -> None:
    assert digest(DIMENSIONS) == hashlib.sha256(PREIMAGE).digest()
    assert len(digest(DIMENSIONS)) == 32


def test_a_secret_makes_it_an_hmac() -> None:
    assert digest(DIMENSIONS, b"pepper") == hmac.new(b"pepper", PREIMAGE, hashlib.sha256).digest()
    assert len({digest(DIMENSIONS, secret) for secret in (None, b"", b"pepper", b"salt")}) == 4


def test_a_refused_dimension_gives_no_digest() -> None:
    for secret in (None, b"pepper"):
        with pytest.raises(UnencodableArgument, match=r"args\.at is a datetime without a time zone"):
            digest({"args": {"at": datetime(2026, 7, 1)}}, secret)  # noqa: DTZ001 - naive on purpose


ARGUMENTS: dict[str, Any] = {
    "customer_id": 7,
    "note": None,
    "order.id": "the argument of that very name",
    "order": {"id": 1, "lines": [{"sku": "a"}, {"sku": "b"}], "0": "zero"},
    "typed": Order(id=3, lines=[Line("c", 4)]),
    "parcel": Parcel(weight=5, to=("x", "y")),
    "renamed": Renamed(customer_id=6),
    "address": Address(street="s", tags={"a": 9}),
    "point": Point(10, 11),
    "annotated": Annotated(),
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("customer_id", 7),
        ("note", None),
        ("order.id", "the argument of that very name"),
        ("order.lines.1.sku", "b"),
        ("order.lines.0", {"sku": "a"}),
        ("order.0", "zero"),
        ("typed.id", 3),
        ("typed.lines.0.count", 4),
        ("parcel.weight", 5),
        ("parcel.to.1", "y"),
        ("renamed.customer_id", 6),
        ("address.tags.a", 9),
        ("point.y", 11),
        ("annotated.id", 7),
    ],
)
def test_a_path_picks_its_value(path: str, value: object) -> None:
    assert pick(ARGUMENTS, [path]) == {path: value}


def test_several_paths_pick_several_values() -> None:
    assert pick(ARGUMENTS, ("note", "typed.id")) == {"note": None, "typed.id": 3}
    assert pick(ARGUMENTS, ()) == {}


@pytest.mark.parametrize(
    ("path", "place", "segment", "known"),
    [
        ("custmer_id", "the call", "custmer_id", "customer_id, note, order.id, order"),
        ("", "the call", "", "customer_id"),
        ("order.idd", "order", "idd", "id, lines, 0"),
        ("order.lines.2.sku", "lines", "2", "0, 1"),
        ("order.lines.-1", "lines", "-1", "0, 1"),
        ("order.lines.00", "lines", "00", "0, 1"),
        ("order.lines.\u0660", "lines", "\u0660", "0, 1"),
        ("order.lines.append", "lines", "append", "0, 1"),
        ("order.items", "order", "items", "id, lines, 0"),
        ("note.text", "note", "text", "no fields"),
        ("customer_id.real", "customer_id", "real", "no fields"),
        ("typed.total", "typed", "total", "id, lines"),
        ("typed.__class__", "typed", "__class__", "id, lines"),
        ("parcel.too", "parcel", "too", "weight, to"),
        ("address.model_dump", "address", "model_dump", "street, tags"),
        ("point.z", "point", "z", "x, y"),
        ("annotated.undeclared", "annotated", "undeclared", "id"),
    ],
)
def test_a_missing_field_is_an_error_that_names_what_exists(
    path: str, place: str, segment: str, known: str
) -> None:
    with pytest.raises(MissingKeyField) as missing:
        pick(ARGUMENTS, ["customer_id", path])

    assert str(missing.value).startswith(
        f'The key needs "{path}", but {place} has no "{segment}"; it has {known}'
    )


def test_none_is_a_value_and_missing_is_not() -> None:
    assert digest(pick({"note": None}, ["note"])) != digest({})
    with pytest.raises(MissingKeyField):
        pick({}, ["note"])


def test_what_is_outside_the_key_is_never_touched() -> None:
    arguments = {"customer_id": 7, "body": Untouchable(), "order": {"id": 1, "scan": Untouchable()}}

    picked = pick(arguments, ["customer_id", "order.id"])

    assert digest(picked) == digest({"customer_id": 7, "order.id": 1})
    with pytest.raises(AssertionError):
        canonical(arguments)  # the trap does snap


def test_only_the_named_arguments_are_read() -> None:
    class Recorded(dict[str, object]):
        def __getitem__(self, name: str) -> object:
            read.append(name)
            return super().__getitem__(name)

        def __iter__(self) -> Iterator[str]:
            raise AssertionError

    read: list[str] = []
    pick(
        Recorded(customer_id=7, body="x" * 1_000_000, order=Recorded(id=1, scan="y" * 1_000_000)),
        ["order.id"],
    )

    assert read == ["order", "id"]
