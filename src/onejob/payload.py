"""Arguments and results as JSON: typed values go in and come out whole."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, get_origin, get_type_hints

import msgspec

from onejob.errors import ArgumentsTooLarge, InvalidCall, InvalidPolicy, UnencodableArgument

_decode = msgspec.json.decode


def encode_hook(value: Any) -> Any:
    """Let pydantic models through that can be rebuilt; refuse the rest."""
    if hasattr(value, "model_dump"):
        plain = value.model_dump(mode="json", by_alias=True, round_trip=True)
        if lost := changed(value, type(value).model_validate(plain)):
            raise ValueError(f"{type(value).__name__}.{lost} would not come out of JSON as it went in")
        return plain
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def changed(before: Any, after: Any) -> str | None:
    """Name a field of a model that differs: a secret becomes stars, an excluded field its default."""
    fields = type(before).model_fields
    return next((name for name in fields if getattr(before, name) != getattr(after, name)), None)


def decode_hook(kind: type, value: Any) -> Any:
    """Rebuild pydantic models; leave other types as they came."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(value, get_origin(kind) or kind):
        return value
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=encode_hook, order="sorted")


def encode(value: Any, what: str, limit: int) -> bytes:
    """Write a value as JSON that reads back the same, or say what in it cannot be."""
    try:
        text = _encoder.encode(value)
        if _decode(text) != value:
            inspect_plain(msgspec.to_builtins(value, enc_hook=encode_hook), what)
    except RecursionError:
        raise UnencodableArgument(f"{what} is nested too deeply to be stored: flatten it.") from None
    except UnencodableArgument:
        raise
    except Exception as error:  # a user's object may raise anything
        raise UnencodableArgument(f"{what} cannot be written as JSON: {error}.") from error
    if len(text) > limit:
        size = f"{what} takes {len(text):,} bytes; the limit is {limit:,}"
        raise ArgumentsTooLarge(f"{size}: store it elsewhere and pass a reference.")
    return text


def inspect_plain(value: Any, path: str) -> None:
    """Refuse what JSON would change silently: NaN, infinities, keys that are not text, lone surrogates."""
    match value:
        case float() if not math.isfinite(value):
            raise UnencodableArgument(f"{path} is {value}, which JSON cannot say: pass None or a string.")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise UnencodableArgument(
                        f"{path} has the key {key!r}, which is not text: write {str(key)!r}."
                    )
                inspect_plain(item, f"{path}.{key}")
        case list() | tuple():
            for index, item in enumerate(value):
                inspect_plain(item, f"{path}[{index}]")
        case _:
            pass


class Signature:
    """A function's parameters: binds calls to names, and gives stored values their types back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self.names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(
            p.name for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}
        )
        self._plain = all(p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY} for p in parameters)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._lax = {
            name for name, default in self._defaults.items() if default is None
        }  # `size: int = None`
        self._known = frozenset(self.names)
        self._hints = _hints(function)
        self.returns = self._hints.pop("return", Any)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name every argument, defaults applied: f(7) and f(customer_id=7) are one call."""
        if self._plain and len(args) <= len(self._positional):
            bound = {**self._defaults, **dict(zip(self._positional, args, strict=False)), **kwargs}
            if len(bound) == len(self.names) and (not kwargs or self._fit(kwargs, beside=len(args))):
                return bound
        return self._bind_slowly(args, kwargs)

    def _fit(self, kwargs: dict[str, Any], *, beside: int) -> bool:
        """Tell whether keyword arguments are all known, and none is among the first positional ones."""
        return kwargs.keys() <= self._known and kwargs.keys().isdisjoint(self._positional[:beside])

    def bind_but_one(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], str | None]:
        """Do the same for a call that may lack one argument; tell which."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise InvalidCall(f"The call does not fit the task: {error}.") from None
        needed = [
            name
            for name, parameter in self._signature.parameters.items()
            if name not in bound.arguments
            and name not in self._defaults
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ]
        if len(needed) > 1:
            raise InvalidCall(
                f"In a chain one argument may be left open, for the result before it, but {needed} are."
            )
        bound.apply_defaults()
        return bound.arguments, needed[0] if needed else None

    def _bind_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidCall(f"The call does not fit the task: {error}.") from None
        bound.apply_defaults()
        return bound.arguments

    def restore(self, stored: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Turn stored arguments into what the function is called with."""
        if not self._hints and self._plain:
            return [], {name: value for name, value in stored.items() if name in self._known}
        if self._plain:
            return [], {
                name: None
                if value is None and name in self._lax
                else convert(value, self._hints.get(name, Any))
                for name, value in stored.items()
                if name in self._known
            }
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if name in stored:
                lax = stored[name] is None and name in self._lax
                value = None if lax else convert(stored[name], self._hint(parameter))
                _place(parameter, value, args, kwargs)
        return args, kwargs

    def _hint(self, parameter: inspect.Parameter) -> Any:
        hint = self._hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            return list[hint]  # type: ignore[valid-type]
        return dict[str, hint] if parameter.kind is parameter.VAR_KEYWORD else hint  # type: ignore[valid-type]


def _place(parameter: inspect.Parameter, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            args.extend(value)
        case parameter.VAR_KEYWORD:
            kwargs.update(value)
        case parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        case _:
            args.append(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Read annotations one by one: one that exists only for the type checker must not spoil the others."""
    annotated = inspect.unwrap(function)
    names = getattr(annotated, "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(annotated, "__annotations__", {}).items():
        with suppress(NameError, AttributeError, SyntaxError, TypeError):
            found |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), names)
    for name, kind in found.items():
        _refuse_unreadable(name, kind)
    return {name: kind for name, kind in found.items() if kind is not Any}


def _refuse_unreadable(name: str, kind: Any) -> None:
    """Refuse, when a task is registered, a type that JSON cannot be turned back into."""
    try:
        msgspec.json.Decoder(kind, dec_hook=decode_hook)
    except TypeError as error:
        what = "its result" if name == "return" else f"{name}="
        raise InvalidPolicy(f"{what} cannot be read back as {kind}: {error}") from None


def convert(value: Any, kind: Any) -> Any:
    """Give a JSON value the type that an annotation names."""
    if kind is Any:
        return value
    return msgspec.convert(value, kind, dec_hook=decode_hook)
