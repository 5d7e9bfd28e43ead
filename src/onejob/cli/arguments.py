"""A task's arguments on the command line: name=value pairs, or one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onejob.cli.options import json_or_text, read_object, read_pair
from onejob.errors import InvalidCall

if TYPE_CHECKING:
    from onejob import Call, Task

F = TypeVar("F", bound=Callable[..., Any])
Pair = tuple[str, str]


def task_arguments(function: F) -> F:
    """Add name=value arguments and --args to a command."""
    pairs = click.argument("pairs", nargs=-1, type=read_pair, metavar="[NAME=VALUE]...")
    whole = click.option(
        "--args", "given", type=read_object, metavar="JSON", help="""All arguments: '{"user_id": 42}'."""
    )
    return whole(pairs(function))


def make_call(task: Task[..., Any], pairs: Iterable[Pair], given: dict[str, Any] | None) -> Call[Any]:
    """Return a call of a task with the arguments that were written, in the types that the task declares."""
    named = (given or {}) | {name: read_value(task, name, text) for name, text in pairs}
    try:
        return task.call_from(named)
    except InvalidCall as error:
        if error.__cause__ is None:  # arguments are missing or unknown
            raise
        raise click.UsageError(str(error)) from error


def read_value(task: Task[..., Any], name: str, text: str) -> Any:
    """Return a value as JSON if the parameter accepts that, else as text: name=42 may be either."""
    value = json_or_text(text)
    return text if not task.accepts(name, value) and task.accepts(name, text) else value
