"""The names that users write are promises: changing them is a decision, not an accident."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import onejob
from onejob import Admission, App, Chain, Context, Task

NAMES = [
    "Admission",
    "AdmissionBusy",
    "App",
    "Call",
    "Cancel",
    "Chain",
    "Context",
    "DeadGroup",
    "Discard",
    "Duplicate",
    "Explanation",
    "Job",
    "OnejobError",
    "Outcome",
    "Replay",
    "Retry",
    "RetryLater",
    "Schedule",
    "Snooze",
    "State",
    "Stats",
    "Task",
    "Unique",
    "Worker",
    "batch",
    "chain",
    "current",
    "group",
    "unique",
]

TWINS: list[tuple[type, str]] = [
    (Task, "enqueue"),
    (Task, "enqueue_quietly"),
    (App, "enqueue_many"),
    (App, "close"),
    (Admission, "result"),
    (Admission, "covered"),
    (Context, "is_latest"),
    (Chain, "result"),
    (Chain, "status"),
]


def test_the_public_names_are_these() -> None:
    assert onejob.__all__ == NAMES
    assert all(hasattr(onejob, name) for name in NAMES)


def test_every_error_has_one_root() -> None:
    from onejob import errors

    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 20
    assert all(issubclass(kind, onejob.OnejobError) for kind in found)
    assert all(kind.__doc__ for kind in found)


@pytest.mark.parametrize(("owner", "name"), TWINS, ids=lambda value: getattr(value, "__name__", value))
def test_a_blocking_twin_takes_what_its_original_takes(owner: type, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    twin: Callable[..., Any] = getattr(owner, f"{name}_sync")
    assert inspect.iscoroutinefunction(original)
    assert not inspect.iscoroutinefunction(twin)
    assert shape(twin) == shape(original)
    assert twin.__doc__


def shape(function: Callable[..., Any]) -> tuple[list[tuple[Any, ...]], object]:
    """Tell what a method takes and gives, as annotations are written."""
    signature = inspect.signature(function)
    parameters = [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values()]
    return parameters, signature.return_annotation


def test_every_blocking_method_is_the_twin_of_an_async_one() -> None:
    twins = {
        (owner, name.removesuffix("_sync"))
        for owner in (Task, App, Admission, Chain, Context, onejob.Worker, onejob.Call)
        for name in vars(owner)
        if name.endswith("_sync")
    }
    assert twins == set(TWINS)


def test_a_task_keeps_the_signature_of_its_function() -> None:
    app = App("memory://")

    @app.task
    async def send(customer_id: int, *, note: str = "") -> str:
        """Send an invoice."""
        return f"{customer_id} {note}"

    assert getattr(send, "__name__", None) == "send"
    assert send.__doc__ == "Send an invoice."
    assert list(inspect.signature(send).parameters) == ["customer_id", "note"]
    assert get_type_hints(send.function)["return"] is str
