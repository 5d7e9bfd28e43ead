"""The key: the canonical identity of "the same work".

Two values are the same work when their canonical bytes are equal: RFC 8785 (sorted members, ECMAScript
numbers) with two extensions. Text, member names included, is NFC-normalised; integers are exact at any
size. So `1` and `1.0` agree while `1`, `True` and `"1"` do not; from 2**53 to 1e21 a float agrees with the
integer that its shortest text spells, above that with none. Richer types stand for their JSON form: a tuple
for a list, a set for the sorted list of its items, an enum member for its value, a UUID, a path, a date and
an aware datetime (in UTC) for their text, a time of day and a timedelta for their ISO text, bytes for their
base64 text, a Decimal for the text of its plain digits without trailing zeros, a dataclass, Struct or model
for the object of its fields. All else is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from json.encoder import encode_basestring as quote
from math import isfinite
from pathlib import PurePath
from typing import Any
from unicodedata import normalize
from uuid import UUID

from msgspec import UNSET, Struct, json, to_builtins

from onejob.errors import MissingKeyField, UnencodableArgument

DEEPEST = 100
SMALLEST, LARGEST = 1e-6, 1e21  # between these ECMAScript writes a float without an exponent
LARGEST_EXPONENT = 6144  # of IEEE decimal128; without a bound Decimal("1e999999999") is a gigabyte of zeros


def digest(dimensions: Mapping[str, object], secret: bytes | None = None) -> bytes:
    """Hash the canonical form to 32 bytes: SHA-256, or HMAC-SHA-256 under `secret`."""
    return _hash(canonical(dimensions), secret)


def _hash(text: bytes, secret: bytes | None) -> bytes:
    return hashlib.sha256(text).digest() if secret is None else hmac.digest(secret, text, "sha256")


class Form:
    """What all keys of a task have in common, written beforehand: {"args": {…}, …} but for the values.

    All other dimensions are the same for every call of a task, and their names sort after "args".
    """

    __slots__ = ("_end", "_members", "_others", "_paths", "_secret")

    def __init__(self, paths: Sequence[str], others: Mapping[str, object], secret: bytes | None) -> None:
        self._paths = paths
        self._others = others
        self._secret = secret
        names = json.decode(canonical(dict.fromkeys(paths)))  # in their order
        self._members = [(name, f"{quote(name)}:") for name in names]
        self._end = f"}},{canonical(others).decode()[1:]}"

    def digest(self, arguments: Mapping[str, object]) -> bytes:
        """Hash the arguments that the paths name as `digest` does; quick where they are plain values."""
        try:
            parts = [
                begin + _WRITERS[type(arguments[name])](arguments[name], 2) for name, begin in self._members
            ]
        except (KeyError, _Refused, RecursionError):
            return digest({"args": pick(arguments, self._paths), **self._others}, self._secret)
        return _hash(f'{{"args":{{{",".join(parts)}{self._end}'.encode(), self._secret)


def canonical(value: object) -> bytes:
    """Write `value` as canonical JSON, or raise `UnencodableArgument` naming the place that has none."""
    try:
        return _write(value, 0).encode()
    except _Refused as refused:
        message = f"{refused.path.removeprefix('.')[:200] or 'The value'} {refused}."
    except RecursionError:  # the stack was nearly full, or a model contains itself
        message = f"The value {_TOO_DEEP}."
    raise UnencodableArgument(message)


def pick(arguments: Mapping[str, object], paths: Sequence[str]) -> dict[str, object]:
    """Return the arguments that `paths` name, and no others; a path is a name, or names joined by dots."""
    return {path: arguments[path] if path in arguments else _reach(arguments, path) for path in paths}


class _Refused(Exception):
    path = ""  # grows as the refusal travels outwards


_TOO_DEEP = f"is nested deeper than {DEEPEST} levels; write a flatter value, or an id that stands for it"


def _write(value: object, depth: int) -> str:
    writer = _WRITERS.get(type(value))
    return _write(_simplify(value), depth) if writer is None else writer(value, depth)


def _write_text(text: str, _depth: int) -> str:
    return quote(text if text.isascii() else _normalise(text))


def _write_integer(number: int, _depth: int) -> str:
    try:
        return repr(number)
    except ValueError:  # more digits than sys.set_int_max_str_digits allows; Decimal has no such limit
        return str(Decimal(number))


def _write_float(number: float, _depth: int) -> str:
    """Spell a float as ECMAScript does, without `.0` and `-0`."""
    if not isfinite(number):
        raise _Refused(f"is {number}, which JSON cannot express; write None or a string instead")
    text = repr(number or 0)
    if "e" not in text:
        return text.removesuffix(".0")
    return format(Decimal(text), "f") if SMALLEST <= abs(number) < LARGEST else text.replace("e-0", "e-")


def _write_object(members: dict[str, object], depth: int) -> str:
    if depth >= DEEPEST:
        raise _Refused(_TOO_DEEP)
    name, parts = "", []
    names, members = _order(members)
    try:
        for name in names:
            value = members[name]
            parts.append(f"{quote(name)}:{_WRITERS.get(type(value), _write)(value, depth + 1)}")
    except _Refused as refused:
        refused.path = (f".{name}" if name.isidentifier() else f"[{name!r}]") + refused.path
        raise
    return f"{{{','.join(parts)}}}"


def _write_array(items: Sequence[object], depth: int) -> str:
    if depth >= DEEPEST:
        raise _Refused(_TOO_DEEP)
    parts: list[str] = []
    try:
        for item in items:
            written = _write(item, depth + 1)
            parts.append(written)
    except _Refused as refused:
        refused.path = f"[{len(parts)}]{refused.path}"
        raise
    return f"[{','.join(parts)}]"


_WRITERS: dict[type, Callable[[Any, int], str]] = {
    str: _write_text,
    int: _write_integer,
    bool: lambda truth, _depth: "true" if truth else "false",
    type(None): lambda _none, _depth: "null",
    float: _write_float,
    dict: _write_object,
    list: _write_array,
    tuple: _write_array,
}


def _order(members: dict[str, object]) -> tuple[list[str], dict[str, object]]:
    """Normalise the names of the members and sort them by their UTF-16 code units."""
    try:
        if "".join(members).isascii():
            return sorted(members), members
    except TypeError:
        raise _Refused("has a member name that is not a string; write string names only") from None

    normal = {_normalise(name): value for name, value in members.items()}
    if len(normal) < len(members):
        raise _Refused("has two member names that are the same text in NFC; write only one of them")
    return sorted(normal, key=lambda name: name.encode("utf-16-be")), normal


def _normalise(text: str) -> str:
    normal = normalize("NFC", text)
    try:
        normal.encode()
    except UnicodeEncodeError:
        raise _Refused("contains half of a surrogate pair; write whole characters") from None
    return normal


def _simplify(value: object) -> object:
    """Turn a rich value into a plainer one, one level deep, so that each level meets the same rules."""
    for kind, simplify in _SIMPLER:
        if isinstance(value, kind):
            return simplify(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if callable(dump := getattr(type(value), "model_dump", None)):
        return dump(value, mode="python")
    raise _Refused(
        f"is of type {type(value).__qualname__}, which JSON lacks; write an id or plain data instead"
    )


def _simplify_datetime(moment: datetime) -> str:
    if moment.utcoffset() is None:
        raise _Refused("is a datetime without a time zone; write an aware one, such as datetime.now(UTC)")
    try:
        return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
    except OverflowError:
        raise _Refused("is a datetime outside the years 1 to 9999 in UTC; write a nearer one") from None


def _simplify_decimal(number: Decimal) -> str:
    if not number.is_finite() or (number and abs(number.adjusted()) > LARGEST_EXPONENT):
        raise _Refused("is a Decimal that is not finite, or too large to spell out; write a string instead")
    if not number:
        return "0"  # whatever its sign and exponent
    text = format(number, "f")  # not normalize(), which rounds to the context's precision
    return text.rstrip("0").rstrip(".") if "." in text else text


def _simplify_set(items: Collection[object]) -> list[object]:
    """Sort numbers by their value, as the JSON of a payload does, and anything else by its canonical text."""
    if all(isinstance(item, int | float) for item in items):
        return sorted(items)  # type: ignore[type-var]
    written = {_write(item, 0): item for item in items}
    return [written[text] for text in sorted(written)]


def _simplify_struct(struct: Struct) -> dict[str, object]:
    config = struct.__struct_config__
    tag = {} if config.tag_field is None else {config.tag_field: config.tag}
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    values = {encoded: getattr(struct, name) for encoded, name in names}
    return tag | {name: value for name, value in values.items() if value is not UNSET}


_SIMPLER: tuple[tuple[type | tuple[type, ...], Callable[[Any], object]], ...] = (
    (Enum, lambda member: member.value),  # first, for a member may be a str or an int as well
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (datetime, _simplify_datetime),  # before date, whose subclass it is
    (date, date.isoformat),
    (UUID, str),
    (Decimal, _simplify_decimal),
    ((list, tuple), list),
    ((set, frozenset), _simplify_set),
    (Mapping, dict),
    (Struct, _simplify_struct),
    (PurePath, str),
    ((bytes, bytearray, memoryview, timedelta, time), to_builtins),
)


def _reach(arguments: Mapping[str, object], path: str) -> object:
    value: object = arguments
    place = "the call"
    for segment in path.split("."):
        if segment not in (names := _names(value)):
            known = ", ".join(map(str, islice(names, 20))) or "no fields"
            message = f'The key needs "{path}", but {place} has no "{segment}"; it has {known}.'
            raise MissingKeyField(message)
        value, place = _step(value, segment), segment
    return value


def _step(value: object, segment: str) -> object:
    if isinstance(value, Mapping):
        return value[segment]
    if isinstance(value, list | tuple) and segment.isdecimal():
        return value[int(segment)]
    return getattr(value, segment)


def _names(value: object) -> Collection[str]:
    """List what a path may name inside `value`: members, positions or declared fields, never methods."""
    kind = type(value)
    if isinstance(value, Mapping):
        return value
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    for attribute in ("__struct_fields__", "model_fields", "_fields"):
        if names := getattr(kind, attribute, None):
            return tuple(names)
    if isinstance(value, list | tuple):
        return [str(position) for position in range(len(value))]
    return [name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())]
