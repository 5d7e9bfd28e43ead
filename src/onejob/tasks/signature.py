"""Arguments and results as JSON: bind calls, encode values, restore their types."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, NotRequired, TypedDict, cast, get_origin, get_type_hints

import msgspec

from onejob.core.job import SEALED, SEALED_FIELD
from onejob.errors import ArgumentsTooLarge, InvalidCall, InvalidPolicy, UnencodableArgument
from onejob.tasks.foreign import instead_of_options

_decode = msgspec.json.decode


def encode_hook(value: Any) -> Any:
    """Return a path as text and a pydantic model as plain data, if it can be rebuilt; raise for the rest."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "model_dump"):
        plain = value.model_dump(mode="json", by_alias=True, round_trip=True)
        if lost := find_change(value, type(value).model_validate(plain)):
            raise ValueError(f"{type(value).__name__}.{lost} would not come out of JSON as it went in")
        return plain
    if inspect.iscoroutine(value):
        raise NotImplementedError("it is a coroutine that was not awaited: write async def and await")
    cure = ": raise it, or write str(…)" if isinstance(value, BaseException) else ""
    raise NotImplementedError(f"{type(value).__name__} has no JSON form{cure}")


def find_change(before: Any, after: Any) -> str | None:
    """Return a field of a model that differs: a secret becomes stars, an excluded field its default."""
    fields = type(before).model_fields
    return next((name for name in fields if getattr(before, name) != getattr(after, name)), None)


def decode_hook(kind: type, value: Any) -> Any:
    """Rebuild pydantic models and paths; leave other types as they came."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if isinstance(value, get_origin(kind) or kind):
        return value
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=encode_hook, order="sorted")


def encode(value: Any, what: str, limit: int, *, aware: bool = False) -> bytes:
    """Return a value as JSON that reads back the same.

    Args:
        value: What to encode.
        what: Its name, for messages.
        limit: How many bytes it may take.
        aware: Refuse datetimes without a time zone.

    Raises:
        UnencodableArgument: A part of the value has no JSON form.
        ArgumentsTooLarge: The JSON takes more than `limit` bytes.
    """
    try:
        text = _encoder.encode(value)
        if _decode(text) != value:
            inspect_parts(value, what, aware=aware)
    except RecursionError:
        raise UnencodableArgument(f"{what} would be nested too deeply to be stored: flatten it.") from None
    except UnencodableArgument:
        raise
    except Exception as error:  # a user's object may raise anything
        inspect_parts(value, what, aware=aware)
        raise UnencodableArgument(f"{what} cannot be written as JSON: {error}.") from error
    if len(text) > limit:
        size = f"{what} would take {len(text):,} bytes; the limit is {limit:,}"
        raise ArgumentsTooLarge(f"{size}: store it elsewhere and pass a reference.")
    if text.startswith(SEALED):
        raise UnencodableArgument(f"{what}: the field {SEALED_FIELD!r} is reserved: give it another name.")
    return text


def inspect_parts(value: Any, what: str, *, aware: bool) -> None:
    """Raise UnencodableArgument for the first part of a value that JSON lacks or would change."""
    if not isinstance(value, dict):
        inspect_plain(plain(value, what), what, aware=aware)
        return
    for name, item in value.items():
        inspect_plain(plain(item, f"{what}: {name}"), f"{what}: {name}", aware=aware)


def plain(value: Any, what: str) -> Any:
    """Return a value as JSON types and datetimes; raise UnencodableArgument if that cannot be."""
    try:
        return msgspec.to_builtins(value, builtin_types=(datetime,), enc_hook=encode_hook)
    except RecursionError:
        raise
    except Exception as error:
        raise UnencodableArgument(f"{what} cannot be written as JSON: {error}.") from error


def inspect_plain(value: Any, path: str, *, aware: bool) -> None:
    """Raise for values that JSON would change silently: NaN, infinities, keys that are not text."""
    match value:
        case float() if not math.isfinite(value):
            raise UnencodableArgument(f"{path} is {value}, which JSON cannot express: pass None or a string.")
        case datetime() if aware and value.tzinfo is None:
            raise UnencodableArgument(f"{path} has no time zone: write an aware datetime.")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise UnencodableArgument(
                        f"{path} has the key {key!r}, which is not text: write {str(key)!r}."
                    )
                inspect_plain(item, f"{path}.{key}", aware=aware)
        case list() | tuple():
            for index, item in enumerate(value):
                inspect_plain(item, f"{path}[{index}]", aware=aware)
        case _:
            pass


class Signature:
    """A function's parameters: binds calls to names, and converts stored values to the declared types."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = getattr(function, "__name__", "The function")
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):  # it is written in C
            raise InvalidPolicy(
                f"{self._function} has no signature: write a function that calls it."
            ) from None
        parameters = self._signature.parameters.values()
        self.names = tuple(parameter.name for parameter in parameters)
        self._plain = all(p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY} for p in parameters)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._lax = {name for name, default in self._defaults.items() if default is None}  # size: int = None
        self._known = frozenset(self.names)
        self._required = frozenset(p.name for p in parameters if is_required(p))
        self._bind = compile_binder(self._signature)
        self._hints = _hints(function)
        self.returns = self._hints.pop("return", Any)
        self._checked = self._decoder() if self._hints else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return every argument by name, defaults applied: f(7) and f(customer_id=7) are one call.

        Raises:
            InvalidCall: The call does not fit the function.
        """
        try:
            return self._bind(*args, **kwargs)
        except TypeError:
            return self._bind_slowly(args, kwargs)

    def bind_but_one(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the arguments of a call that may lack one, and the name of that one."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise self._misfit(kwargs, error) from None
        needed = [
            name
            for name, parameter in self._signature.parameters.items()
            if name not in bound.arguments
            and name not in self._defaults
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ]
        if len(needed) > 1:
            raise InvalidCall(
                f"In a chain, one argument may be left open for the previous result, but {needed} are."
            )
        bound.apply_defaults()
        return bound.arguments, needed[0] if needed else None

    def bind_given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that a call gives by name, without defaults; others may be missing.

        Raises:
            InvalidCall: The call has an argument that the function does not have.
        """
        try:
            return self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise self._misfit(kwargs, error) from None

    def _bind_slowly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._misfit(kwargs, error) from None
        bound.apply_defaults()
        return bound.arguments

    def _misfit(self, kwargs: Mapping[str, Any], error: TypeError) -> InvalidCall:
        """Return the error for a call that does not fit; an option among its arguments gets its cure."""
        unknown = [name for name in kwargs if name not in self._known]
        cure = instead_of_options(unknown)
        if unknown and not cure:
            cure = f" (it has no {', '.join(unknown)}, but {', '.join(self.names) or 'no arguments'})"
        return InvalidCall(f"The call does not fit the task: {error}{cure}.")

    def _decoder(self) -> msgspec.json.Decoder[Any]:
        """Return what reads the JSON of a call in the declared types, which is how misfits are found."""
        fields = {p.name: NotRequired[self._kind(p)] for p in self._signature.parameters.values()}
        return msgspec.json.Decoder(TypedDict("Arguments", fields), dec_hook=decode_hook)  # type: ignore[operator]

    def _kind(self, parameter: inspect.Parameter) -> Any:
        hint = self._hint(parameter)
        return hint | None if parameter.name in self._lax and hint is not Any else hint

    def check(self, text: bytes) -> None:
        """Raise InvalidCall, naming the argument, for the JSON of a call that no worker could restore."""
        if self._checked is None:
            return
        try:
            self._checked.decode(text)
        except (TypeError, ValueError, NotImplementedError) as error:
            why = misfit(self, _decode(text), error)
            raise InvalidCall(f"The arguments do not fit {self._function}: {why}.") from None

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments as an object."""
        parameters = self._signature.parameters.values()
        fields = {p.name: self._kind(p) for p in parameters}
        found = msgspec.json.schema(TypedDict("Arguments", fields), schema_hook=schema_hook)  # type: ignore[operator]
        definitions = found.pop("$defs")
        document: dict[str, Any] = definitions.pop("Arguments")
        document["required"] = [p.name for p in parameters if is_required(p)]
        document["additionalProperties"] = False
        for name, default in self._defaults.items():
            with suppress(TypeError, ValueError, NotImplementedError):
                document["properties"][name]["default"] = msgspec.to_builtins(default, enc_hook=encode_hook)
        return {**document, "title": self._function, **({"$defs": definitions} if definitions else {})}

    def restore(self, stored: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments for stored values, in the declared types.

        Raises:
            InvalidCall: An argument was stored that the function no longer has, or one that it needs was not.
        """
        if not self._required.issubset(stored):
            raise self._missing(stored)
        return self.convert(stored)

    def convert(self, stored: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments for some stored values, in the declared types."""
        if not self._known.issuperset(stored):
            raise self._gone(stored)
        if not self._hints and self._plain:
            return [], dict(stored)
        if self._plain:
            return [], {
                name: None
                if value is None and name in self._lax
                else convert(value, self._hints.get(name, Any))
                for name, value in stored.items()
            }
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if name in stored:
                lax = stored[name] is None and name in self._lax
                value = None if lax else convert(stored[name], self._hint(parameter))
                _place(parameter, value, args, kwargs)
        return args, kwargs

    def _gone(self, stored: Mapping[str, Any]) -> InvalidCall:
        """Return the error for stored arguments that the function no longer has."""
        gone = ", ".join(repr(name) for name in stored if name not in self._known)
        return InvalidCall(
            f"{self._function} no longer has the stored argument {gone} (it has: {', '.join(self.names)}): "
            f"accept it again, or replay the dead letter with other arguments."
        )

    def _missing(self, stored: Mapping[str, Any]) -> InvalidCall:
        """Return the error for arguments that the function needs and the job does not have."""
        missing = ", ".join(repr(name) for name in self.names if name in self._required - stored.keys())
        return InvalidCall(
            f"{self._function} needs the argument {missing}, which this job does not have: give it a "
            f"default, or replay the dead letter with other arguments."
        )

    def _hint(self, parameter: inspect.Parameter) -> Any:
        hint = self._hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            return list[hint]  # type: ignore[valid-type]
        return dict[str, hint] if parameter.kind is parameter.VAR_KEYWORD else hint  # type: ignore[valid-type]


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a call must give a parameter."""
    several = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    return parameter.default is parameter.empty and not several


def schema_hook(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a pydantic model or a path; any value for other types."""
    if hasattr(kind, "model_json_schema"):
        return cast("dict[str, Any]", kind.model_json_schema())
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    return {}


def misfit(signature: Signature, stored: Mapping[str, Any], error: Exception) -> str:
    """Return which stored argument has the wrong type, and why; the error if none has it alone."""
    for name, value in stored.items():
        try:
            signature.convert({name: value})
        except (TypeError, ValueError, NotImplementedError) as found:
            return f"{name}: {found}"
    return str(error)


def compile_binder(signature: inspect.Signature) -> Callable[..., dict[str, Any]]:
    """Return a function with this signature that returns its arguments by name.

    Python binds the arguments of a call ten times as fast as `inspect.Signature.bind` does.
    """
    parameters = list(signature.parameters.values())
    texts = [parameter_text(one) for one in parameters]
    positional_only = sum(one.kind is one.POSITIONAL_ONLY for one in parameters)
    if positional_only:
        texts.insert(positional_only, "/")
    keyword_only = next((i for i, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None)
    if keyword_only is not None and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        texts.insert(keyword_only + bool(positional_only), "*")
    result = ", ".join(f"{name!r}: {name}" for name in signature.parameters)
    defaults = {name: one.default for name, one in signature.parameters.items()}
    source = f"lambda {', '.join(texts)}: {{{result}}}"
    return cast("Callable[..., dict[str, Any]]", eval(source, {"_defaults": defaults}))  # noqa: S307 - of names alone


def parameter_text(parameter: inspect.Parameter) -> str:
    """Return a parameter as source text; its default is looked up by name."""
    bare = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    return bare if parameter.default is parameter.empty else f"{bare}=_defaults[{parameter.name!r}]"


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
    """Return the annotations as types; raise InvalidPolicy for one that cannot be read."""
    annotated = inspect.unwrap(function)
    names = getattr(annotated, "__globals__", {})
    found: dict[str, Any] = {}
    try:
        annotations = getattr(annotated, "__annotations__", {})
    except NameError as error:  # Python 3.14 evaluates them here
        raise _unreadable(function, "an argument", error.name, error) from None
    for name, annotation in annotations.items():
        try:
            found |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), names)
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise _unreadable(function, name, annotation, error) from None
    for name, kind in found.items():
        _refuse_unreadable(name, kind)
    return {name: kind for name, kind in found.items() if kind is not Any}


def _unreadable(
    function: Callable[..., Any], name: str, annotation: object, error: Exception
) -> InvalidPolicy:
    """Return the error for an annotation without which values could not be restored."""
    task, whose = getattr(function, "__name__", "The function"), "result" if name == "return" else name
    return InvalidPolicy(
        f"{task}: the annotation {annotation!r} of its {whose} cannot be read ({error}): "
        "import it at the top of the module, outside of `if TYPE_CHECKING`, or write Any."
    )


def _refuse_unreadable(name: str, kind: Any) -> None:
    """Raise InvalidPolicy for a type that JSON cannot be converted to."""
    try:
        msgspec.json.Decoder(kind, dec_hook=decode_hook)
    except TypeError as error:
        what = "its result" if name == "return" else f"{name}="
        raise InvalidPolicy(f"{what} cannot be read back as {kind}: {error}") from None


def convert(value: Any, kind: Any) -> Any:
    """Return a JSON value in the type that an annotation names."""
    if kind is Any:
        return value
    return msgspec.convert(value, kind, dec_hook=decode_hook)
