"""Why two jobs were not merged: where their arguments and their keys differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from onejob.core.job import Job
from onejob.engine.engine import Engine
from onejob.tasks.explain import dimensions_of
from onejob.tasks.registry import Registry


@dataclass(frozen=True)
class Difference:
    """How two jobs differ.

    Attributes:
        one: The first job.
        other: The second job.
        arguments: Path of an argument, and both values as JSON; an empty text means that it is missing.
        first: The first path at which their keys differ; empty if they do not.
        sentences: Why they were not merged, and what would have made them one.
    """

    one: Job
    other: Job
    arguments: list[tuple[str, str, str]]
    first: str
    sentences: list[str]


async def compare(engine: Engine, registry: Registry, one: str, other: str) -> Difference:
    """Return how two jobs differ, and what would have made them the same work."""
    first, second = await engine.job(one), await engine.job(other)
    left, right = flat(first.arguments), flat(second.arguments)
    mine, yours = dimensions(engine, registry, first), dimensions(engine, registry, second)
    paths = dict.fromkeys([*left, *right])
    rows = [(path, left.get(path, ""), right.get(path, "")) for path in paths]
    differing = [path for path in dict.fromkeys([*mine, *yours]) if mine.get(path) != yours.get(path)]
    return Difference(
        first, second, rows, differing[0] if differing else "", advise(first, second, differing)
    )


def dimensions(engine: Engine, registry: Registry, job: Job) -> dict[str, str]:
    """Return what a job's key is made of, as paths and values; all arguments if its task is unknown."""
    return flat(dimensions_of(engine, registry, job) or {"args": job.arguments})


def flat(value: Any, path: str = "") -> dict[str, str]:
    """Return nested values as paths and JSON texts."""
    if isinstance(value, dict) and value:
        nested = (flat(inner, f"{path}.{name}".strip(".")) for name, inner in value.items())
        return {name: text for part in nested for name, text in part.items()}
    try:
        return {path: msgspec.json.encode(value).decode()}
    except (TypeError, ValueError):
        return {path: repr(value)}


def advise(one: Job, other: Job, differing: list[str]) -> list[str]:
    """Say why two jobs were not merged."""
    if one.id == other.id:
        return ["They are the same job."]
    if one.task != other.task:
        tasks = f"{one.task} and {other.task}"
        return [f"They are jobs of two tasks, {tasks}, which share keys only in a family."]
    if one.key is None or other.key is None:
        return ["At least one of them has no key: its task is not unique, or was enqueued with unique=False."]
    if one.key == other.key:
        return ["They have the same key: the hold of one had ended when the other was requested."]
    if not differing:
        return ["Their arguments are equal; their keys differ in something else, such as queue or metadata."]
    return [f"Their keys differ first in {differing[0]}.", remedy(differing)]


def remedy(differing: list[str]) -> str:
    """Say what would have made the keys equal: a policy without some arguments, or an equal queue."""
    names = [path.removeprefix("args.") for path in differing if path.startswith("args.")]
    others = " and ".join(path for path in differing if not path.startswith("args."))
    if not names:
        return f"With the same {others} they would have been one."
    policy = f"A policy whose by= leaves out {' and '.join(names)}"
    return f"{policy}{f', and the same {others},' if others else ''} would have made them one."
