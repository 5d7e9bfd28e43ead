"""A task's arguments as people write them: name=value pairs, or one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onejob.cli.options import json_or_text, read_object, read_pair

if TYPE_CHECKING:
    from onejob import Task

F = TypeVar("F", bound=Callable[..., Any])
Pair = tuple[str, str]


def task_arguments(function: F) -> F:
    """Let a command take name=value pairs, and --args."""
    pairs = click.argument("pairs", nargs=-1, type=read_pair, metavar="[NAME=VALUE]...")
    whole = click.option(
        "--args", "given", type=read_object, metavar="JSON", help="""All arguments: '{"user_id": 42}'."""
    )
    return whole(pairs(function))


def bind(
    task: Task[..., Any], pairs: Iterable[Pair], given: dict[str, Any] | None
) -> tuple[list[Any], dict[str, Any]]:
    """Bind what was written to a task's parameters, in the types that the task declares."""
    named = (given or {}) | {name: fitting(task, name, text) for name, text in pairs}
    bound = task.signature.bind((), named)
    try:
        return task.signature.restore(bound)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"The arguments do not fit {task.name}: {error}.") from error


def fitting(task: Task[..., Any], name: str, text: str) -> Any:
    """Read a value as JSON if the parameter takes that, and as text if not: name=42 may be either."""
    value = json_or_text(text)
    try:
        task.signature.restore({name: value})
    except (TypeError, ValueError):
        return text
    return value
